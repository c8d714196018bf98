"""The probability that lenses, and the model itself, give to words after a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.interp.heads.capture import capture, run_base
from saccade.interp.heads.prompt_batches import prompt_batches
from saccade.interp.lenses.lens import activation_at, needs_residual
from saccade.interp.studies.bias.bias_words import WordTokens

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses

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
