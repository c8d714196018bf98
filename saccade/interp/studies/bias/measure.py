"""Which heads favour some words: by their lenses, and by the effect of ablating them.

Attention Lens (https://arxiv.org/abs/2310.16270), section 4, looks for heads whose lens shows a
biased vocabulary for a prompt. Here we measure it: the lens's probability of given words, its
difference between paired prompts, an interval, and an ablation of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.effects.replacement import Replacement, reference_text
from saccade.interp.heads.capture import capture, run_base
from saccade.interp.heads.intervene import Ablate, intervene, mean_z
from saccade.interp.heads.prompt_batches import encode_prompts, prompt_batches
from saccade.interp.lenses.lens import activation_at, needs_residual
from saccade.interp.studies.bias.bias_words import PromptPairs, WordTokens, refuse_shared, tokens_of
from saccade.interp.studies.bias.report import (
    Bias,
    Contrast,
    Interval,
    Site,
    clearest_first,
    intervals,
)
from saccade.interp.studies.bias.silence_cost import ablations, silencing_cost

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses


Progress = Callable[[str, int, int], None]
FEWEST = 2  # prompts or pairs: one has no interval


@dataclass(frozen=True, kw_only=True)
class BiasConfig:
    """Options of a search for bias."""

    ablate: int = 12
    """Number of heads to ablate, those with the clearest difference."""

    by: Literal["mean", "zero"] = "mean"
    """Replace an ablated head by its mean over the prompts, or by zero."""

    draws: int = 2000
    """Number of bootstrap draws for an interval."""

    seed: int = 0
    """Seed of those draws."""


def find_bias(
    lenses: Lenses,
    words: Sequence[str],
    prompts: PromptPairs,
    *,
    against: Sequence[str] = (),
    config: BiasConfig | None = None,
    progress: Progress | None = None,
) -> Bias:
    """Measure how much the lens of every head favours the words, and ablate the clearest heads.

    For one prompt a head's score is the mass of its lens on ``words``, less that on ``against``.
    For a pair it is the difference between its two prompts; without pairs, the difference from the
    baseline lens, which is the mean prediction. The interval is a percentile bootstrap over
    the pairs or prompts. Heads whose ablation changes the model's own difference are then ablated
    together, and what that costs is measured.

    A word of several tokens has the lens's mass on its first token times the model's own
    probability of the others; under ablation too, the others are the whole model's. A word whose
    tokens begin with those of another of its list is part of that one's mass, and counts once.

    Raises:
        UsageError: fewer than two words or prompts, or a word in both lists.
    """
    config = config or BiasConfig()
    model = lenses.model
    named, other = tokens_of(model, words), tokens_of(model, against) if against else None
    if other is not None:
        refuse_shared(named, other)
    asked = ask(model, _encoded(lenses, prompts), _joined(named, other))
    groups = _groups(named, other)
    contrast = Contrast(
        usual=baseline_mass(lenses, asked) @ groups,
        n_pairs=len(prompts.first),
        is_paired=prompts.second is not None,
    )
    mass = lens_mass(lenses, asked, groups)
    first, second = contrast.sides(mass)
    found = intervals(first - second, draws=config.draws, seed=config.seed)
    sites = [lenses.sites[site] for site in clearest_first(found)[: config.ablate]]
    whole = contrast.differences(model_mass(model, asked) @ groups)  # [pair]
    without = _without(lenses, asked, sites, by=config.by, progress=progress)
    carried = {site: whole - contrast.differences(mass @ groups) for site, mass in without.items()}
    intervals_of_carried = {site: _interval(values, config) for site, values in carried.items()}
    changing = [site for site, each in intervals_of_carried.items() if each.clear > 0]
    together, cost = None, None
    if changing:
        replacement = _replacement(model, asked, config.by)
        with intervene(model, ablations(replacement, changing), may_do_nothing=True):
            left = contrast.differences(model_mass(model, asked) @ groups)
        together = _interval(whole - left, config)
        text = reference_text(model)
        cost = silencing_cost(model, changing, replacement=replacement, text=text, seed=config.seed)
    return Bias(
        model=model.name,
        words=named.words,
        against=other.words if other is not None else (),
        in_pieces=asked.words.in_pieces,
        n_pairs=contrast.n_pairs,
        is_paired=contrast.is_paired,
        sites=tuple(lenses.sites),
        first=first.mean(0),
        second=second.mean(0),
        difference=found,
        own=_interval(whole, config),
        carried=intervals_of_carried,
        by=config.by,
        together=together,
        cost=cost,
    )


def _replacement(model: LanguageModel, asked: Asked, by: Literal["mean", "zero"]) -> Replacement:
    if by == "zero":
        return Replacement.zero(model)
    return Replacement("mean", mean_z(model, (ids[None] for ids in asked.encoded)))


def _encoded(lenses: Lenses, prompts: PromptPairs) -> list[Tensor]:
    if len(prompts.first) < FEWEST:
        what = "prompts" if prompts.second is None else "pairs of prompts"
        raise UsageError(
            f"expected at least {FEWEST} {what}, got {len(prompts.first)}",
            hint="an interval needs several; about twenty are a good number",
        )
    if any(lens.site == "residual" for lens in lenses.by_layer.values()):
        raise UsageError(
            "these lenses read the residual stream, which has no heads",
            hint="give lenses of heads, as `saccade lens fit` writes them",
        )
    return encode_prompts(lenses.model, [*prompts.first, *(prompts.second or ())])


def _joined(named: WordTokens, other: WordTokens | None) -> WordTokens:
    if other is None:
        return named
    return WordTokens((*named.words, *other.words), (*named.ids, *other.ids))


def _groups(named: WordTokens, other: WordTokens | None) -> Float[Tensor, "word group"]:
    lists = [each.counted for each in (named, other) if each is not None]
    return torch.block_diag(*[torch.tensor(each, dtype=torch.double)[:, None] for each in lists])


def _without(
    lenses: Lenses,
    asked: Asked,
    sites: Sequence[Site],
    *,
    by: Literal["mean", "zero"],
    progress: Progress | None,
) -> dict[Site, Float[Tensor, "prompt word"]]:
    """The model's own mass on the words with one head ablated at every token."""
    model = lenses.model
    usual = mean_z(model, (ids[None] for ids in asked.encoded)) if by == "mean" and sites else {}
    found = {}
    for done, (layer, head) in enumerate(sites, start=1):
        value = usual[layer][head] if by == "mean" else None
        with intervene(model, Ablate(layer, head, by=by, value=value)):
            found[layer, head] = model_mass(model, asked)
        if progress is not None:
            progress("ablating heads", done, len(sites))
    return found


def _interval(values: Float[Tensor, " pair"], config: BiasConfig) -> Interval:
    return intervals(values[:, None], draws=config.draws, seed=config.seed).at(0)


# The probability of words, in the model and under its lenses.

CHUNK_BYTES = 2**26  # of lens logits at once: some prompts x one layer's heads x the vocabulary


class Asked(NamedTuple):
    """Prompts and words, with the part of the words' probability that depends on no head.

    A lens predicts the next token, so a word of several tokens gets the lens's probability of the
    first times the model's own probability of the others after it (`log_rest`).
    """

    encoded: Sequence[Int[Tensor, " _"]]
    words: WordTokens
    log_rest: Float[Tensor, "prompt word"]

    @property
    def first(self) -> Int[Tensor, " word"]:
        """The first token of each word."""
        return torch.tensor([ids[0] for ids in self.words.ids])


@torch.no_grad()
def ask(model: LanguageModel, encoded: Sequence[Int[Tensor, " _"]], words: WordTokens) -> Asked:
    """Run the model on the prefixes of words of several tokens, for the rest of their tokens."""
    log_rest = torch.zeros(len(encoded), len(words.ids), dtype=torch.double)
    jobs = [
        (prompt, word)
        for word, ids in enumerate(words.ids)
        for prompt in range(len(encoded))
        if len(ids) > 1
    ]
    begun = [
        torch.cat([encoded[prompt], encoded[prompt].new_tensor(words.ids[word][:-1])])
        for prompt, word in jobs
    ]
    for batch in prompt_batches(begun):
        final = run_base(model.hf, batch.ids, mask=batch.mask)
        row, at, token, job = _continuations(batch.rows.tolist(), jobs, encoded, words)
        log_p = model.unembedding.logits(final[row, at]).float().log_softmax(-1)  # [n, d_vocab]
        found = log_p.cpu().gather(-1, torch.tensor(token)[:, None])[:, 0].double()
        which = torch.tensor([jobs[each] for each in job])
        log_rest.index_put_((which[:, 0], which[:, 1]), found, accumulate=True)
    return Asked(encoded, words, log_rest)


def _continuations(
    rows: list[int],
    jobs: list[tuple[int, int]],
    encoded: Sequence[Tensor],
    words: WordTokens,
) -> tuple[list[int], list[int], list[int], list[int]]:
    """For each later token of a batch's words: row, position before it, the token, its job."""
    found = [
        (row, len(encoded[jobs[job][0]]) + step, token, job)
        for row, job in enumerate(rows)
        for step, token in enumerate(words.ids[jobs[job][1]][1:])
    ]
    row, at, token, job = (list(column) for column in zip(*found, strict=True))
    return row, at, token, job


@torch.no_grad()
def model_mass(model: LanguageModel, asked: Asked) -> Float[Tensor, "prompt word"]:
    """The model's own probability of each word; inside `intervene`, that of the changed model."""
    mass = torch.zeros_like(asked.log_rest)
    for batch in prompt_batches(asked.encoded):
        final = run_base(model.hf, batch.ids, mask=batch.mask)
        last = final[torch.arange(len(final)), batch.last]
        log_p = model.unembedding.logits(last).float().log_softmax(-1)
        mass[batch.rows] = log_p[:, asked.first].cpu().double()
    return (mass + asked.log_rest).exp()


@torch.no_grad()
def lens_mass(
    lenses: Lenses, asked: Asked, groups: Float[Tensor, "word group"]
) -> Float[Tensor, "prompt site group"]:
    """The mass of every lens on the words after each prompt, summed by group."""
    parts = []
    rest, groups = asked.log_rest, groups.double()
    for layer, activation in _last_activation(lenses, asked.encoded):
        size = max(1, CHUNK_BYTES // (activation.shape[1] * lenses.model.d_vocab * 4))
        first = asked.first.to(activation.device)
        chunks = [
            _log_probs(lenses.by_layer[layer](some), first) for some in activation.split(size)
        ]
        p = (torch.cat(chunks).cpu().double() + rest[:, None]).exp()  # [prompt, head, word]
        parts.append(p @ groups)
    return torch.cat(parts, dim=1)


def baseline_mass(lenses: Lenses, asked: Asked) -> Float[Tensor, "prompt word"]:
    """The mass of the baseline lens on the words."""
    always = lenses.baseline.log_softmax(-1)[asked.first.to(lenses.baseline.device)]
    return (always.cpu().double() + asked.log_rest).exp()


def _last_activation(lenses: Lenses, encoded: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """By layer: the activation that its lens reads at the last token of each prompt."""
    model = lenses.model
    residual = any(needs_residual(lens.site) for lens in lenses.by_layer.values())
    kept: dict[int, list[Tensor]] = {layer: [] for layer in lenses.by_layer}
    rows = []
    for batch in prompt_batches(encoded):
        captured = capture(
            model, batch.ids, mask=batch.mask, layers=list(lenses.by_layer), residual=residual
        )
        rows.append(batch.rows)
        every = torch.arange(len(batch.ids)), batch.last.cpu()
        for layer, lens in lenses.by_layer.items():
            activation = activation_at(model, captured, layer, lens.site).unflatten(
                0, batch.ids.shape
            )
            kept[layer].append(activation[every])
    order = torch.cat(rows).argsort()
    for layer, parts in kept.items():
        activation = torch.cat(parts)[order]
        yield layer, activation.to(next(iter(lenses.by_layer[layer].buffers()), activation).device)


def _log_probs(
    logits: Float[Tensor, "n head d_vocab"], ids: Int[Tensor, " word"]
) -> Float[Tensor, "n head word"]:
    chosen = logits[..., ids].clone()
    highest = logits.amax(-1, keepdim=True)
    # In place: torch's own logsumexp takes eight times as long (lenses/lens_metrics.py).
    total = logits.sub_(highest).exp_().sum(-1, keepdim=True).log_() + highest
    return chosen - total
