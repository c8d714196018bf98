"""Rank heads for a prediction: direct logit attribution and the effect of ablation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate, intervene, mean_z
from saccade.interp.heads.residual_path import direct_states
from saccade.interp.lenses.corpus import read_corpus
from saccade.interp.lenses.self_text import sample_batch
from saccade.interp.studies.bias.bias_words import behind_a_space
from saccade.interp.studies.prompts import BATCH_TOKENS

if TYPE_CHECKING:
    from saccade.interp.heads.capture import Captured
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.heads.residual_path import Unembedding


# The score that heads are ranked by: a token's logit minus another token's or the mean.


@dataclass(frozen=True)
class Target:
    """The logit of a token minus that of another, or minus the mean of all tokens.

    The difference of two logits is that of Wang et al., 2022 (https://arxiv.org/abs/2211.00593),
    section 2.2. Without a second token we subtract the mean: a constant added to all logits does
    not change the prediction, and must not count for a head.
    """

    token: int
    against: int | None = None

    def score(self, logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch"]:
        """The score of a prediction."""
        other = logits.mean(-1) if self.against is None else logits[..., self.against]
        return logits[..., self.token] - other

    def direction(self, unembedding: Unembedding) -> Float[Tensor, " d_model"]:
        """The direction whose product with a final state is the score, except bias and soft-cap."""
        weight = unembedding.weight.float()
        other = weight.mean(0) if self.against is None else weight[self.against]
        return (weight[self.token] - other) * unembedding.scale


def first_token(model: LanguageModel, token: str, text: str) -> int:
    """The first token of a word after a text.

    A word given with its own space, or after a text that ends in one, is taken as it is.
    """
    if not token.strip():
        raise UsageError(f"the token is empty: {token!r}", hint='give a token, such as " Paris"')
    if token[0].isspace() or not text[-1:].isspace():
        return behind_a_space(model, token.strip())[0]
    before = model.encode("a").shape[1]
    return int(model.encode(f"a{token}")[0, before])


def several_tokens(model: LanguageModel, token: str) -> str | None:
    """A note for a word of several tokens, of which only the first is used; else None."""
    ids = behind_a_space(model, token.strip())
    if len(ids) < 2:
        return None
    return f"note: {token!r} is {len(ids)} tokens; {model.tokens(ids)[0]!r} stands for it"


def find_target(model: LanguageModel, text: str, token: str, against: str | None = None) -> Target:
    """The target for words as a user writes them; of several tokens the first is used."""
    ids = [first_token(model, each, text) for each in (token, against) if each is not None]
    if len(ids) == 2 and ids[0] == ids[1]:
        shown = model.tokens(ids)[0]
        raise UsageError(
            f"{token!r} and {against!r} begin with the same token, {shown!r}",
            hint="give words whose first tokens differ",
        )
    return Target(*ids)


# The replacement of an ablated head.

SEED = 4  # arbitrary; differs from the seed of the text of a default fit
Ablation: TypeAlias = Literal["zero", "mean", "resample"]


@dataclass(frozen=True)
class Replacement:
    """The replacement of every head of a model, one head at a time."""

    by: Ablation
    values: dict[int, Float[Tensor, "*pos head d_head"]] = field(default_factory=dict)
    """By layer; none for zero, and one for each position for resample."""

    @classmethod
    def mean(cls, model: LanguageModel, ids: Int[Tensor, "batch pos"]) -> Replacement:
        """The mean over a text."""
        return cls("mean", mean_z(model, ids))

    @classmethod
    def resampled(
        cls, model: LanguageModel, ids: Int[Tensor, "batch pos"], *, length: int, seed: int = 0
    ) -> Replacement:
        """The activations at ``length`` tokens of a text, drawn at random."""
        generator = torch.Generator().manual_seed(seed)
        among = model.is_text(ids).flatten().nonzero()[:, 0].cpu()
        places = among[torch.randint(len(among), (length,), generator=generator)]
        z = capture(model, ids).z
        return cls(
            "resample", {k: each.flatten(0, 1)[places.to(each.device)] for k, each in z.items()}
        )

    @classmethod
    def other_prompt(
        cls, model: LanguageModel, ids: Int[Tensor, "1 pos"], *, length: int
    ) -> Replacement:
        """The activations at the same positions of another prompt."""
        if ids.shape[1] != length:
            raise UsageError(
                f"the other prompt has {ids.shape[1]} tokens, this one {length}",
                hint="give two prompts of the same number of tokens",
            )
        return cls("resample", {layer: z[0] for layer, z in capture(model, ids).z.items()})

    def change(self, layer: int, head: int, *, row: int, length: int, only_last: bool) -> Ablate:
        """The ablation of one head in one row of a batch."""
        positions = [length - 1] if only_last else list(range(length))
        if self.by == "zero":
            return Ablate(layer, head, positions=positions, rows=[row])
        value = self.values[layer].select(-2, head)  # [pos, d_head] or [d_head]
        if value.dim() == 2:
            value = value[positions]
        return Ablate(layer, head, self.by, value, positions=positions, rows=[row])


def reference_text(
    model: LanguageModel, corpus: str | None = None, *, rows: int = 16, window: int = 48
) -> Int[Tensor, "batch pos"]:
    """The text of a mean: the beginning of a corpus, or text that the model generates."""
    window = min(window, model.max_positions or window)
    if corpus is None:
        return sample_batch(model, index=0, rows=rows, window=window, seed=SEED)
    windows = read_corpus(corpus, model, window=window, max_tokens=rows * window).windows
    return windows[:rows].to(model.device)


@dataclass(frozen=True, kw_only=True)
class RankedHead:
    """One head and its contribution to a token, in logits."""

    layer: int
    head: int
    direct: float | None
    """What it adds directly; None where the model has no direct path."""
    effect: float
    """How far the score falls when the head is ablated at every position."""
    repair: dict[str, float] | None = None
    """Ablated at the last position only: see `saccade.interp.studies.head_rank`."""

    @property
    def name(self) -> str:
        """``layer.head``."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """All heads of a model, with their contributions to a token after a prompt."""

    model: str
    text: str
    token: str
    against: str | None
    ablation: Ablation
    score: float
    """The token's logit minus the other token's, or minus the mean of all."""
    probability: float
    heads: tuple[RankedHead, ...]
    """In order of depth."""

    def ranked(self) -> tuple[RankedHead, ...]:
        """Largest effect first, of either sign."""
        return tuple(sorted(self.heads, key=lambda head: -abs(head.effect)))

    def by_layer(self, measure: str = "effect") -> dict[int, Float[Tensor, " head"]]:
        """One measure of every head, for a heat map."""
        rows: dict[int, list[float]] = {}
        for head in self.heads:
            value = getattr(head, measure)
            rows.setdefault(head.layer, []).append(float("nan") if value is None else value)
        return {layer: torch.tensor(row) for layer, row in rows.items()}

    def agreement(self) -> float | None:
        """The correlation of direct contributions with effects, over all heads."""
        if any(head.direct is None for head in self.heads):
            return None
        pairs = torch.tensor([[head.direct or 0.0, head.effect] for head in self.heads])
        return float(torch.corrcoef(pairs.T)[0, 1])

    def with_repair(self, repair: dict[tuple[int, int], dict[str, float]]) -> Ranking:
        """The same ranking with the self-repair of each head."""
        heads = (replace(head, repair=repair[head.layer, head.head]) for head in self.heads)
        return replace(self, heads=tuple(heads))

    def to_json(self) -> str:
        """One JSON object."""
        whole: dict[str, Any] = {**asdict(self), "agreement": self.agreement()}
        return json.dumps(whole, ensure_ascii=False)


class Ablated(NamedTuple):
    """Some heads, each ablated in its own row of the batch."""

    sites: list[tuple[int, int]]
    captured: Captured


@torch.no_grad()
def rank_heads(
    model: LanguageModel,
    text: str,
    target: Target,
    *,
    replacement: Replacement,
    progress: Callable[..., None] | None = None,
) -> Ranking:
    """Direct logit attribution and measured ablation effect of every head.

    Direct: Elhage et al., 2021 ("A Mathematical Framework for Transformer Circuits"), see
    `saccade.interp.heads.capture.direct_logits`. Effect: the score of the prompt minus its score
    without the head.
    Copies of the prompt are run in one batch, with a different head ablated in each.
    """
    ids = model.encode(text)
    clean = capture(model, ids, residual=True)
    logits = model.unembedding.logits(clean.final[0, -1]).float()
    score, direct = float(target.score(logits)), direct_scores(model, clean, target)
    effects: dict[tuple[int, int], float] = {}
    for rows in ablated_copies(model, ids, replacement):
        without = model.unembedding.logits(rows.captured.final[:, -1]).float()
        lost = score - target.score(without)
        effects.update(zip(rows.sites, lost.tolist(), strict=True))
        if progress is not None:
            progress("ablate heads", len(effects), model.n_heads)
    return Ranking(
        model=model.name,
        text=text,
        token=model.tokens([target.token])[0],
        against=None if target.against is None else model.tokens([target.against])[0],
        ablation=replacement.by,
        score=score,
        probability=float(logits.softmax(-1)[target.token]),
        heads=tuple(
            RankedHead(
                layer=layer,
                head=head,
                direct=None if layer not in direct else float(direct[layer][0, head]),
                effect=effect,
            )
            for (layer, head), effect in effects.items()
        ),
    )


def direct_scores(
    model: LanguageModel, captured: Captured, target: Target, *, position: int = -1
) -> dict[int, Float[Tensor, "batch head"]]:
    """By layer: what each head adds directly to the score at a position, the last by default."""
    along = target.direction(model.unembedding)
    found = {}
    for at in model.layers:
        if at.reaches_stream:
            states = direct_states(model, captured, at.index, positions=[position])[:, 0]
            found[at.index] = states.to(along) @ along
    return found


def ablated_copies(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    replacement: Replacement,
    *,
    only_last: bool = False,
    keep: bool = False,
) -> Iterator[Ablated]:
    """Every head ablated once, as many copies of the prompt at a time as fit.

    Args:
        only_last: ablate at the last position, not at all of them.
        keep: also capture the heads and the residual stream.
    """
    sites = [(at.index, head) for at in model.layers for head in range(at.n_heads)]
    length = ids.shape[1]
    n_rows = max(1, BATCH_TOKENS // length)
    for start in range(0, len(sites), n_rows):
        chosen = sites[start : start + n_rows]
        changes = [
            replacement.change(layer, head, row=row, length=length, only_last=only_last)
            for row, (layer, head) in enumerate(chosen)
        ]
        copies = ids.expand(len(chosen), -1)
        # A head whose activation equals its replacement has no effect: that is a valid result.
        with intervene(model, changes, may_do_nothing=True):
            captured = capture(model, copies, layers=None if keep else [], residual=keep)
        yield Ablated(chosen, captured)


# Self-repair: how far later layers compensate for an ablated head.

SMALL = 0.1  # logits: a share of a smaller direct effect is mostly noise


@dataclass(frozen=True)
class Repair:
    """The parts of the effect of ablating one head at the last position, in logits of the score.

    ``total = direct - heads - feed_forward - norm``, exactly.
    """

    total: float
    """How far the score falls."""
    direct: float
    """How far it would fall if nothing after the head changed."""
    heads: float
    """The increase of the direct effects of later heads."""
    feed_forward: float
    """The increase of the direct effects of feed-forward layers."""
    norm: float
    """What the final norm adds by rescaling the changed stream."""

    @property
    def share(self) -> float | None:
        """The repaired share of the direct loss: 1 for all, 0 for none, negative for the opposite.

        None where the direct loss is small.
        """
        return None if abs(self.direct) < SMALL else 1 - self.total / self.direct

    def to_dict(self) -> dict[str, float]:
        """Its values by name."""
        share = {} if self.share is None else {"share": self.share}
        return {**asdict(self), **share}


@torch.no_grad()
def self_repair(
    model: LanguageModel, text: str, target: Target, *, replacement: Replacement
) -> dict[tuple[int, int], Repair]:
    """By (layer, head): direct and total effect of ablating it, and what repairs the difference.

    McGrath et al., 2023, "The Hydra Effect" (https://arxiv.org/abs/2307.15771): total effect by
    ablation, direct effect through the unembedding, and the rise of the direct effects of later
    layers. They ablate whole attention layers; we ablate one head, at the last position, and
    separate the changes of heads and of feed-forward layers. The rescaling of the final norm, which
    Rushing and Nanda, 2024 (https://arxiv.org/abs/2402.15390) found to be a large part of it, is
    reported separately: every direct effect is taken at the scale of the unchanged run.
    """
    if not all(at.reaches_stream for at in model.layers):
        raise ModelError(
            f"{model.name} norms its stream after each addition: no direct effects to compare",
            hint="rank its heads without --self-repair",
        )
    ids = model.encode(text)
    clean = capture(model, ids, residual=True)
    before = _Parts.of(model, clean, clean, target)
    found: dict[tuple[int, int], Repair] = {}
    for rows in ablated_copies(model, ids, replacement, only_last=True, keep=True):
        after = _Parts.of(model, rows.captured, clean, target)
        for row, site in enumerate(rows.sites):
            found[site] = before.repair(after, row, site)
    return found


@dataclass(frozen=True)
class _Parts:
    """The parts of the score of each row, all at the scale of the clean run."""

    score: Float[Tensor, " batch"]
    stream: Float[Tensor, " batch"]
    """The score of the final residual stream at that scale."""
    heads: dict[int, Float[Tensor, " batch"]]
    """The sum of the direct effects of all heads of a layer."""

    @classmethod
    def of(cls, model: LanguageModel, run: Captured, clean: Captured, target: Target) -> _Parts:
        whole, end = clean.final_residual, run.final_residual
        assert whole is not None and end is not None, "captured with the residual stream"
        along = target.direction(model.unembedding)

        def score_of(stream: Tensor) -> Tensor:
            at_end = model.final_norm.frozen(stream[:, -1].to(whole), whole[:, -1])
            return at_end.to(along) @ along

        by_head = direct_scores(model, run._replace(final_residual=_like(whole, end)), target)
        return cls(
            score=target.score(model.unembedding.logits(run.final[:, -1]).float()),
            stream=score_of(end),
            heads={layer: scores.sum(-1) for layer, scores in by_head.items()},
        )

    def repair(self, after: _Parts, row: int, site: tuple[int, int]) -> Repair:
        layer = site[0]
        later = {index: after.heads[index][row] - self.heads[index][0] for index in self.heads}
        own, others = later[layer], sum((float(later[i]) for i in later if i > layer), 0.0)
        in_stream = float(after.stream[row] - self.stream[0])
        total = float(self.score[0] - after.score[row])
        return Repair(
            total=total,
            direct=-float(own),
            heads=others,
            feed_forward=in_stream - float(own) - others,
            norm=-total - in_stream,
        )


def _like(whole: Tensor, end: Tensor) -> Tensor:
    """The clean end of the stream for each row."""
    return whole.expand(len(end), -1, -1)
