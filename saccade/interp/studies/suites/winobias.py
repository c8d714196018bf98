"""The indirect effect of every head on sentences of WinoBias, with a pronoun exchanged.

Vig et al., 2020 (https://arxiv.org/abs/2004.12265), section 4, on pairs of Zhao et al., 2018,
WinoBias (https://arxiv.org/abs/1804.06876).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache

from saccade.errors import ModelError, TaskError, UsageError
from saccade.interp.effects.positions import Row, RowChange, run_rows
from saccade.interp.effects.target import LOGIT_ROWS
from saccade.interp.heads.attention_weights import KernelInput, recorded_kernels
from saccade.interp.heads.capture import agree, base_of, capture, run_base
from saccade.interp.heads.onednn import fast_products
from saccade.interp.studies.suites.suite import Item, Progress

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

FIELDS = frozenset({"context", "female", "male", "of_female", "of_male"})
PRONOUNS = (("she", "he"), ("her", "his"))
QUANTILE = 0.25  # Vig et al.: of the pairs with an odds ratio above 1, the lowest quarter is left


# The sentences.


def read_pairs(folder: Path, split: str) -> list[Item]:
    """The pairs of sentences of WinoBias, type 1, that differ in pronoun and continuation.

    As Vig et al. form them: two sentences in a row of the file of pro-stereotyped sentences are a
    pair if they are the same up to their pronouns, and these are she and he, or her and his. The
    pronoun of a sentence tells which gender its profession is held to have.

    Raises:
        TaskError: the file is missing, or a line of it is broken; the message has its number.
    """
    path = folder / f"pro_stereotyped_type1.txt.{split}"
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise TaskError(
            f"cannot read {path}: {error}", hint="give the folder winobias as it is published"
        ) from error
    parsed = [_sentence(path, number, line) for number, line in enumerate(lines, 1)]
    pairs = (_pair(one, other) for one, other in zip(parsed[::2], parsed[1::2], strict=False))
    found = [each for each in pairs if each is not None]
    if not found:
        raise TaskError(
            f"{path} has no two sentences in a row that differ from their pronouns on",
            hint="give the folder winobias as it is published",
        )
    return found


class _Sentence(NamedTuple):
    context: str
    pronoun: str
    continuation: str


def _sentence(path: Path, number: int, line: str) -> _Sentence | None:
    """None where the sentence has not one person and one pronoun in brackets."""
    text = line.split(" ", 1)[-1].strip()
    marked = re.findall(r"\[([^\[\]]*)\]", text)
    if not marked:
        raise TaskError(
            f"{path}: item {number} has nothing in brackets: {text[:60]!r}",
            hint="the person and the pronoun are in brackets: [The nurse] ... [she]",
        )
    last = marked[-1]
    if text.count("[") != 2 or last not in {each for pair in PRONOUNS for each in pair}:
        return None
    context, continuation = text.split(f"[{last}]")
    return _Sentence(re.sub(r"[\[\]]", "", context).strip(), last, continuation.strip())


def _pair(one: _Sentence | None, other: _Sentence | None) -> Item | None:
    if one is None or other is None or one.context != other.context:
        return None
    by_pronoun = {one.pronoun: one.continuation, other.pronoun: other.continuation}
    for female, male in PRONOUNS:
        if by_pronoun.keys() == {female, male} and all(by_pronoun.values()):
            return {
                "context": one.context,
                "female": female,
                "male": male,
                "of_female": by_pronoun[female],
                "of_male": by_pronoun[male],
            }
    return None


# One pair as tokens, and the odds of its continuations.


class Pair(NamedTuple):
    """A pair of sentences as tokens."""

    female: Int[Tensor, " pos"]
    """The context with the female pronoun, which is the last token."""
    male: Int[Tensor, " pos"]
    continuations: tuple[Int[Tensor, " _"], Int[Tensor, " _"]]
    """That of the profession held to be female, and that of the other."""


def pairs_of(model: LanguageModel, items: Sequence[Item]) -> list[Pair]:
    """The items as tokens, but for those whose pronouns are not one token each."""
    pairs = [_tokens(model, number, item) for number, item in enumerate(items, 1)]
    return [pair for pair in pairs if pair is not None]


def _tokens(model: LanguageModel, number: int, item: Item) -> Pair | None:
    try:
        before = model.encode(item["context"])[0]
        female, male = (
            model.encode(f"{item['context']} {item[gender]}")[0] for gender in ("female", "male")
        )
        ends = [
            model.encode(f"{item['context']} {item['female']} {item[name]}")[0][len(female) :]
            for name in ("of_female", "of_male")
        ]
    except UsageError as error:
        raise UsageError(f"item {number}: {error}", hint=error.hint) from error
    is_one_token = len(female) == len(male) == len(before) + 1
    is_same = is_one_token and torch.equal(female[:-1], male[:-1])
    return Pair(female, male, (ends[0], ends[1])) if is_same and all(map(len, ends)) else None


class Odds(NamedTuple):
    """Of the continuation of the profession held to be male, against the other's."""

    female: Float[Tensor, " pair"]
    """After the female pronoun."""
    male: Float[Tensor, " pair"]

    @property
    def total(self) -> Float[Tensor, " pair"]:
        """The total effect of the pronoun: Vig et al., equation 3."""
        return self.male / self.female - 1

    @property
    def aligned(self) -> list[int]:
        """The pairs that Vig et al. keep: a stereotyped odds ratio, and not one of the least."""
        ratio = self.male / self.female
        above = ratio[ratio > 1]
        if not len(above):
            return []
        return (ratio > above.quantile(QUANTILE)).nonzero()[:, 0].tolist()


@torch.no_grad()
def pair_odds(model: LanguageModel, pairs: Sequence[Pair]) -> Odds:
    """The odds of the two continuations of each pair, after each of its pronouns."""
    odds: dict[str, list[float]] = {"female": [], "male": []}
    for pair in pairs:
        for pronoun, found in odds.items():
            text = getattr(pair, pronoun)
            with after_prefix(model, text[:-1]):
                ids, mask = _padded(pair, int(text[-1]))
                final = run_base(model.hf, ids)
            of_female, of_male = _mean_log_p(model, final[:, None], ids, mask)[:, 0].tolist()
            found.append(of_male - of_female)
    female, male = (torch.tensor(each, dtype=torch.double).exp() for each in odds.values())
    return Odds(female, male)


def _padded(pair: Pair, pronoun: int) -> tuple[Int[Tensor, "2 pos"], Tensor]:
    """The pronoun and what comes after it, and which of the tokens that follow are real."""
    rows = [torch.cat([end.new_tensor([pronoun]), end]) for end in pair.continuations]
    longest = max(map(len, rows))
    ids = torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(1, longest) < lengths[:, None]


def _mean_log_p(
    model: LanguageModel,
    states: Float[Tensor, "2 row pos d_model"],
    ids: Int[Tensor, "2 pos"],
    mask: Tensor,
) -> Float[Tensor, "2 row"]:
    """The mean log-probability of the tokens of each continuation, as Vig et al. score it."""
    found = []
    for here, tokens, real in zip(states, ids[:, 1:], mask, strict=True):
        n = int(real.sum())
        flat = here[:, :n].flatten(0, 1)
        wanted = tokens[:n].repeat(len(here)).to(flat.device)
        with fast_products():
            parts = [
                _log_p(model.unembedding.logits(some).float(), at)
                for some, at in zip(flat.split(LOGIT_ROWS), wanted.split(LOGIT_ROWS), strict=True)
            ]
        found.append(torch.cat(parts).view(len(here), n).double().mean(1))
    return torch.stack(found)


def _log_p(logits: Float[Tensor, "row d_vocab"], at: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
    return logits.gather(1, at[:, None])[:, 0] - logits.logsumexp(-1)


# The indirect effect of every head.


@torch.no_grad()
def indirect_effects(
    model: LanguageModel, pairs: Sequence[Pair], progress: Progress | None = None
) -> Float[Tensor, "pair site"]:
    """The indirect effect of every head: Vig et al., 2020, equation 5, heads in order of depth.

    The sentence with the female pronoun is run, and one head gets the attention weights that it has
    with the male pronoun; the effect is by how much that changes the odds of the continuations.
    With a causal mask the weights differ at the pronoun alone, so that the head's activation there
    is replaced by the values of the run weighted so; all heads are measured in one batch, after
    the keys and values of the context.
    """
    sites = [(at.index, head) for at in model.layers for head in range(at.n_heads)]
    found = []
    for done, pair in enumerate(pairs, 1):
        swapped = swapped_activations(model, pair.female, pair.male)
        rows = [
            Row((RowChange(layer, (head,), swapped[layer][head : head + 1], (0,)),), prompt)
            for prompt in (0, 1)
            for layer, head in sites
        ]
        ids, mask = _padded(pair, int(pair.female[-1]))
        with after_prefix(model, pair.female[:-1]):
            run = run_rows(model, ids, rows, at=range(ids.shape[1]))
        states = torch.cat([run.plain[:, None], run.states.unflatten(0, (2, -1))], 1)
        of_female, of_male = _mean_log_p(model, states, ids, mask)  # [1 + site]
        odds = of_male - of_female
        found.append((odds[1:] - odds[0]).expm1())
        if progress is not None:
            progress("indirect effects on WinoBias", done, len(pairs))
    return torch.stack(found)


@torch.no_grad()
def swapped_activations(
    model: LanguageModel, ids: Int[Tensor, " pos"], other: Int[Tensor, " pos"]
) -> dict[int, Float[Tensor, "head d_head"]]:
    """By layer: the heads' activations at the last token with the attention weights of another.

    Raises:
        ModelError: the activations of the model are not its values weighted by attention.
    """
    swapped: dict[int, Tensor] = {}
    own: dict[int, Tensor] = {}
    give = partial(_read_values, swapped, own)
    with recorded_kernels(model.hf, model.layers, give):
        z = capture(model, torch.stack([ids, other])).z
    for layer, each in own.items():
        if not agree(each, z[layer][0, -1], dtype=model.hf.dtype, slack=10.0):
            raise ModelError(
                f"the heads of layer {layer} do more to what they attend to than to weight it",
                hint="give a model whose heads write their values, weighted by attention",
            )
    return swapped


def _read_values(
    swapped: dict[int, Tensor],
    own: dict[int, Tensor],
    layer: int,
    kernel: KernelInput,
    weights: Float[Tensor, "2 head query_pos key_pos"],
) -> None:
    """Both texts run side by side; the values are those of the first."""
    value = kernel.value[0]
    value = value.repeat_interleave(weights.shape[1] // len(value), dim=0)  # one for each head
    read = weights[:, :, -1:].to(value) @ value  # [2, head, 1, d_head]
    own[layer], swapped[layer] = read[:, :, 0]


class _SharedPrefix(DynamicCache):
    """Keys and values of a text that every row of a batch starts with; nothing is added to them."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the prefix, then those of the rows."""
        held: Any = self.layers[layer_idx]
        pairs = ((held.keys, key_states), (held.values, value_states))
        keys, values = (
            torch.cat([before.expand(len(new), *before.shape[1:]), new], 2) for before, new in pairs
        )
        return keys, values


@contextmanager
def after_prefix(model: LanguageModel, ids: Int[Tensor, " pos"]) -> Iterator[None]:
    """Within, every row that the base model runs stands after these tokens, which run once."""
    cache = DynamicCache()
    run_base(model.hf, ids[None], cache=cache)
    cache.__class__ = _SharedPrefix
    hook = partial(_give_prefix, cache)
    with base_of(model.hf).register_forward_pre_hook(hook, with_kwargs=True):
        yield


def _give_prefix(
    cache: DynamicCache, _: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, {**kwargs, "past_key_values": cache, "use_cache": True}
