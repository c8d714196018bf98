"""Suite lens-eval: hidden steps of a thought among the first tokens of streams and of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError
from saccade.interp.effects.target import behind_a_space
from saccade.interp.studies.suites.readouts import (
    JACOBIAN,
    LOGIT,
    RANDOM,
    TEXT_TOKENS,
    Predicted,
    Readouts,
    Top,
)
from saccade.interp.studies.suites.suite import (
    Found,
    Item,
    Progress,
    Row,
    Suite,
    SuiteConfig,
    beside_control,
    interval,
    read_items,
    row,
)

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

SETS = ("multihop", "multilingual", "typo")
KS = (1, 10)
DRAWS = 20  # of as many random directions as the model has heads
LEAST_ANSWERED = 10  # items, for a table of those that the model answers right

# Of the data's makers' lenses (README of the data sets): (pass@1, pass@10) of two other models.
_PUBLISHED: Mapping[tuple[str, str], tuple[tuple[str, str], tuple[str, str]]] = {
    ("multihop", JACOBIAN): ((".18", ".45"), (".19", ".51")),
    ("multihop", LOGIT): ((".19", ".43"), (".23", ".52")),
    ("multilingual", JACOBIAN): ((".22", ".44"), (".19", ".41")),
    ("multilingual", LOGIT): ((".22", ".45"), (".20", ".43")),
    ("typo", JACOBIAN): ((".21", ".56"), (".05", ".21")),
    ("typo", LOGIT): ((".24", ".59"), (".19", ".59")),
}


class Asked(NamedTuple):
    """An item as one model reads it."""

    ids: Int[Tensor, " pos"]
    """The prompt up to the position that is read."""
    words: Sequence[tuple[int, ...]]
    """Of each intermediate: the tokens that are the whole word, with a space in front or without.
    Intermediates that have no such token are left out."""
    target: int | None
    """The first token of the target."""


def asked_of(model: LanguageModel, item: Item) -> Asked:
    """An item's prompt up to the position to read at, and the tokens of its intermediates.

    The position is the token before the target: where the prompt and the prompt with its target
    behind it begin to differ as tokens. A space at the end of a prompt is often part of the
    target's token. Without a target it is the last token of the prompt.
    """
    ids = model.encode(str(item["prompt"]))[0].cpu()
    target = item.get("target")
    answer = None
    if target:
        whole = model.encode(f"{item['prompt']}{target}")[0].cpu()
        n = min(len(ids), len(whole) - 1)
        end = int((ids[:n] == whole[:n]).int().cumprod(0).sum())
        ids, answer = whole[:end], int(whole[end])
    if len(ids) <= len(model.encoding.prefix):
        raise UsageError("there is no token before the target", hint="give a longer prompt")
    words = [found for word in item["intermediates"] if (found := surfaces(model, word))]
    return Asked(ids, words, answer)


def surfaces(model: LanguageModel, word: str) -> tuple[int, ...]:
    """The tokens that are a whole word: behind a space, and without one; none if it is split."""
    alone = model.encode(word)[0].tolist()[len(model.encoding.prefix) :]
    try:
        spaced = behind_a_space(model, word)
    except UsageError:  # no tokens of its own in the middle of a text
        spaced = ()
    return tuple(dict.fromkeys(each[0] for each in (spaced, alone) if len(each) == 1))


class Words(NamedTuple):
    """The intermediates of all items of a data set."""

    owner: Int[Tensor, " word"]
    """The item of each."""
    tokens: Int[Tensor, "word surface"]
    n_items: int

    @classmethod
    def of(cls, asked: Sequence[Asked]) -> Words:
        """Intermediates with one token have it twice."""
        pairs = [(at, each) for at, item in enumerate(asked) for each in item.words]
        tokens = [[each[0], each[-1]] for _, each in pairs]
        return cls(torch.tensor([at for at, _ in pairs]), torch.tensor(tokens), len(asked))

    def places(self, top: Top, d_vocab: int) -> Int[Tensor, "item word"]:
        """The least place of each word in each item's lists, from 0; their length if in none."""
        n, _, length = top.shape
        table = torch.full((n, d_vocab), length, dtype=torch.int16)
        place = torch.arange(length, dtype=torch.int16).expand(top.shape).flatten(1)
        table.scatter_reduce_(1, top.flatten(1), place, "amin")
        return table[:, self.tokens].amin(-1)

    def shared(self) -> Bool[Tensor, "item word"]:
        """Whether an item has this word, or another with a common token, as an intermediate."""
        a, b = self.tokens[:, None, :, None], self.tokens[None, :, None, :]
        same = (a == b).any(-1).any(-1).float()  # [word, word]
        owned = torch.zeros(self.n_items, len(self.owner))
        owned[self.owner, torch.arange(len(self.owner))] = 1.0
        return owned @ same > 0

    def by_item(self, values: Float[Tensor, " word"]) -> Float[Tensor, " item"]:
        """The mean over the words of each item."""
        total = torch.zeros(self.n_items, dtype=values.dtype).index_add_(0, self.owner, values)
        return total / torch.bincount(self.owner, minlength=self.n_items)


class Passes(NamedTuple):
    """The share of each item's words that are found, and the same of the control."""

    own: Float[Tensor, " item"]
    control: Float[Tensor, " item"]


def passes(words: Words, top: Top, k: int, d_vocab: int) -> Passes:
    """pass@k of each item, and of the readouts of other items.

    The control of a word is the share of the other items in whose lists it is too, those left out
    that have it as an intermediate themselves: the least of many ranks is small by chance, and a
    head may promote a word after any prompt of the set.
    """
    hit = (words.places(top, d_vocab) < k).double()  # [item, word]
    own = hit[words.owner, torch.arange(len(words.owner))]
    free = (~words.shared()).double()
    return Passes(words.by_item(own), words.by_item((hit * free).sum(0) / free.sum(0)))


class LensEval(Suite):
    """Hidden intermediates for lenses, of the makers of the Jacobian lens.

    pass@k is the mean over items of the share of intermediates whose least rank is at most k: over
    layers for lenses of the residual stream, as published, and over heads.
    """

    name = "lens-eval"
    about = "hidden steps of a thought among the first tokens of streams and of single heads"
    source = "Anthropic, jacobian-lens evaluations, Apache-2.0"
    folder = "lens-eval"
    fields = frozenset({"prompt", "intermediates"})

    def read(self, folder: Path) -> Mapping[str, Sequence[Item]]:
        """Three data sets: multihop, multilingual, typo."""
        return {
            name: read_items(folder / f"lens-eval-{name}.json", self.fields, self.fault)
            for name in SETS
        }

    def fault(self, item: Item) -> str | None:
        """The prompt is a text, and the intermediates are words."""
        if not isinstance(item["prompt"], str) or not item["prompt"].strip():
            return f"prompt is no text: {str(item['prompt'])[:60]!r}"
        words = item["intermediates"]
        if not isinstance(words, list) or not all(isinstance(w, str) and w.strip() for w in words):
            return f"intermediates is no list of words: {str(words)[:60]!r}"
        if not isinstance(item.get("target", ""), str):
            return f"target is no text: {str(item['target'])[:60]!r}"
        return None

    def run(
        self,
        model: LanguageModel,
        items: Mapping[str, Sequence[Item]],
        config: SuiteConfig,
        progress: Progress | None = None,
    ) -> Found:
        """Rows of every lens, and of as many random directions as there are heads."""
        asked, notes, left_out = _all_asked(model, items)
        readouts = Readouts.of(model, progress)
        random = readouts.random(draws=DRAWS, seed=config.seed)
        rows: list[Row] = []
        for data, each in asked.items():
            found = readouts.predict([item.ids for item in each], progress)
            words = Words.of(each)
            right = _answered(each, found)
            kinds: list[tuple[str, Tensor]] = [(data, torch.ones(len(each), dtype=torch.bool))]
            if right is not None:
                n = int(right.sum())
                notes.append(f"{data}: the model answers {n} of {len(each)} items right")
                kinds += [(f"{data}, answered right", right)] if n >= LEAST_ANSWERED else []
            for method, top in found.top.items():
                for name, chosen in kinds:
                    rows += _rows(words, top, name, method, chosen, model=model, config=config)
            rows += _random_rows(words, random, data, model, config)
        order = {data: at for at, data in enumerate(dict.fromkeys(each.data for each in rows))}
        rows.sort(key=lambda each: order[each.data])
        return Found(
            rows, [*notes, *_NOTES, *_lens_notes(readouts)], {**left_out, **readouts.left_out}
        )


_NOTES = (
    "a rank is that of the better of a word's one-token forms, with a space in front and without",
    (
        "control: the same lists searched for the intermediates of the set's other items (all that "
        "do not share the word), so that what is promoted after any prompt does not count; excess: "
        "the paired difference"
    ),
    (
        "effect: the rank of a token in the change of log-probability by the head, its activation "
        "replaced by its mean; weighted: as `saccade read` orders tokens"
    ),
    (
        f"tuned and Jacobian lenses are computed from {TEXT_TOKENS:,} tokens that the model wrote, "
        "on no item; the published Jacobian lens counts effects on later positions too, ours on "
        "the same position"
    ),
)


def _lens_notes(readouts: Readouts) -> list[str]:
    if readouts.lenses is None:
        return []
    made = readouts.lenses.provenance
    text = Path(made.corpus).name
    return [f"fitted lens: {made.kind}, {made.method}, {made.n_tokens:,} tokens of {text}"]


def _all_asked(
    model: LanguageModel, items: Mapping[str, Sequence[Item]]
) -> tuple[dict[str, list[Asked]], list[str], dict[str, str]]:
    """The items that the model can be asked, notes on what is left out, and data sets left out."""
    found: dict[str, list[Asked]] = {}
    notes: list[str] = []
    left_out: dict[str, str] = {}
    for data, each in items.items():
        asked: list[Asked] = []
        n_long = 0
        for item in each:
            try:
                asked.append(asked_of(model, item))
            except UsageError:  # longer than the model's context, or nothing to read
                n_long += 1
        kept = [item for item in asked if item.words]
        n_words = sum(len(item["intermediates"]) for item in each)
        n_split = n_words - sum(len(item.words) for item in kept)
        notes.append(
            f"{data}: {n_split} of {n_words} intermediates are left out, because the tokenizer "
            f"splits them or the prompt cannot be read; {len(kept)} of {len(each)} items are left"
        )
        if kept:
            found[data] = kept
        else:
            left_out[data] = (
                f"no item is left: {len(asked)} of {len(each)} have intermediates that the "
                f"tokenizer splits, {n_long} cannot be read"
            )
    if not found:
        raise ModelError(
            f"{model.name}: {'; '.join(f'{data}: {why}' for data, why in left_out.items())}",
            hint="take a model whose tokenizer has these words as one token",
        )
    return found, notes, left_out


def _answered(asked: Sequence[Asked], found: Predicted) -> Bool[Tensor, " item"] | None:
    """Whether the model's likeliest token begins each target; None for a set without targets."""
    if any(item.target is None for item in asked):
        return None
    return found.first == torch.tensor([item.target for item in asked])


def _published(data: str, method: str, k: int) -> str:
    known = _PUBLISHED.get((data, method))
    if known is None:
        return ""
    small, large = (each[KS.index(k)] for each in known)
    return f"Qwen3-1.7B {small}, Qwen3-8B {large} (other models, same items)"


# As many parameters as a row has parts.
def _rows(
    words: Words,
    top: Top,
    data: str,
    method: str,
    chosen: Bool[Tensor, " item"],
    *,
    model: LanguageModel,
    config: SuiteConfig,
) -> list[Row]:
    found = []
    for k in KS:
        each = passes(words, top, k, model.d_vocab)
        own, control = each.own[chosen], each.control[chosen]
        plain = row(
            data,
            method,
            f"pass@{k}",
            interval(own, seed=config.seed),
            len(own),
            published=_published(data, method, k),
        )
        is_known = bool(control.isfinite().all())  # not where all items share a word
        found.append(beside_control(plain, own, control, seed=config.seed) if is_known else plain)
    return found


def _random_rows(
    words: Words, random: Top, data: str, model: LanguageModel, config: SuiteConfig
) -> list[Row]:
    """The mean over draws of what as many random directions as heads would find."""
    place = words.places(random, model.d_vocab)  # [draw, word]
    found = []
    for k in KS:
        own = words.by_item((place < k).double().mean(0))
        found.append(row(data, RANDOM, f"pass@{k}", interval(own, seed=config.seed), len(own)))
    return found
