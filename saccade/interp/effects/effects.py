"""What every head does to the next-token prediction: exact effects, all heads in one pass.

The effect of a part of the model (a head, a whole attention layer, a feed-forward part) at the last
token of a prompt is the change of the prediction when the part's activation there is replaced
(`saccade.interp.effects.replacement`). Nothing is estimated: for each part the model runs with it
replaced (`saccade.interp.effects.copies`), and the whole next-token distribution is compared.

What an effect does not tell: the part is replaced at one position only, what it wrote at earlier
tokens stays; and where two heads do the same, the model may lose little without either one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.joined_pass import CopyRun, Method
from saccade.interp.effects.parts import Change, FeedForwardValue, HeadsValue
from saccade.interp.effects.target import LOGIT_ROWS, Target
from saccade.interp.heads.capture import head_outputs
from saccade.interp.heads.onednn import fast_products
from saccade.interp.lenses.top_tokens import TokenValue, TopTokens, largest, token_rows

if TYPE_CHECKING:
    from saccade.interp.effects.replacement import Ablation, Replacement
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.heads.taps import HeadLayer

Kind: TypeAlias = Literal["head", "attention", "feed-forward"]

LensLogits: TypeAlias = Callable[[int, Tensor], Tensor | None]
"""From a layer and activations ``[n, head, d_head]`` to the logits of its lens."""


class Part(NamedTuple):
    """A head, all heads of a layer together, or what a block adds besides its attention."""

    layer: int
    head: int | None
    kind: Kind

    @property
    def name(self) -> str:
        """``29.0`` is head 0 of layer 29; ``29.attention`` and ``29.feed-forward`` are whole."""
        return f"{self.layer}.{self.kind if self.head is None else self.head}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """The effect of one part on the prediction at one position."""

    kl: float
    """KL(with || without), in nats: how far the prediction changes when the part is replaced."""
    on_token: float
    """How far the logit of the target token falls, against the other token's or the mean logit."""
    direct: float | None
    """The share of ``on_token`` that reaches the logits directly, every norm at the scale it has in
    the plain run (direct logit attribution); the rest works through later layers. None for models
    without a direct path."""
    promotes: Sequence[TokenValue]
    """Tokens that the part makes likelier, each with the change of its log-probability, in nats."""
    suppresses: Sequence[TokenValue]
    """Tokens that it makes less likely, with changes below 0."""
    lens_agreement: float | None = None
    """The correlation over tokens of the change that a lens predicts with the measured change,
    tokens weighted by their probability; None without a lens."""

    @property
    def through_later(self) -> float | None:
        """The share of ``on_token`` that works through later layers."""
        return None if self.direct is None else self.on_token - self.direct


class Effects(NamedTuple):
    """The effects of all parts of a model at the last token of one prompt."""

    by: Ablation
    """What replaces a part."""
    method: Method
    """How the model was run; the numbers do not depend on it."""
    target: Target
    prediction: TopTokens
    """The likeliest next tokens, with their probabilities: one row."""
    target_score: float
    parts: Mapping[Part, Effect]


class EffectRun(NamedTuple):
    """Effects at the last token of each prompt of a batch, and the run that they come from."""

    effects: tuple[Effects, ...]
    run: CopyRun


HEADS: tuple[Kind, ...] = ("head",)
EVERY_KIND: tuple[Kind, ...] = ("head", "attention", "feed-forward")


# More parameters than the house style has: each is one choice of what is measured.
@torch.no_grad()
def measure_effects(  # noqa: PLR0913
    model: LanguageModel,
    ids: Int[Tensor, "batch pos"],
    *,
    replacement: Replacement,
    lengths: Sequence[int] | None = None,
    kinds: Sequence[Kind] = HEADS,
    targets: Sequence[Target | None] | Target | None = None,
    top: int = 10,
    attention: bool = False,
    lens_logits: LensLogits | None = None,
    method: Method = "joined",
) -> EffectRun:
    """Measure the effect of every head at the last token of each prompt.

    Args:
        replacement: what replaces a part; of values for several positions the last is taken.
        lengths: how many tokens of each row are the prompt; the rest is padding.
        kinds: which kinds of parts.
        targets: the score of ``Effect.on_token``, one for all prompts or one for each; by default
            the likeliest next token.
        top: tokens per ranking.
        attention: also record where the last token attends, in ``run.captured``.
        lens_logits: a lens to compare with the effects of heads.
        method: the first method of `run_copies` to try.
    """
    _, changes = part_changes(model, replacement.at_last(), kinds)
    run = run_copies(model, ids, changes, lengths=lengths, attention=attention, method=method)
    found = effects_of_run(
        model,
        run,
        replacement=replacement,
        kinds=kinds,
        targets=targets,
        top=top,
        lens_logits=lens_logits,
    )
    return EffectRun(found, run)


@torch.no_grad()
def effects_of_run(
    model: LanguageModel,
    run: CopyRun,
    *,
    replacement: Replacement,
    kinds: Sequence[Kind] = HEADS,
    targets: Sequence[Target | None] | Target | None = None,
    top: int = 10,
    lens_logits: LensLogits | None = None,
    layers: Collection[int] | None = None,
) -> tuple[Effects, ...]:
    """The effects in a run of `measure_effects`: another target or lens needs no new run.

    Args:
        run: of the same replacement and kinds.
        layers: the layers whose effects are wanted; None for all.
    """
    at_last = replacement.at_last()
    parts, _ = part_changes(model, at_last, kinds)
    wanted = [at for at in model.layers if layers is None or at.index in layers]
    n_prompts = len(run.states)
    chosen = list(targets) if isinstance(targets, Sequence) else [targets] * n_prompts
    found = []
    for row, target in enumerate(chosen):
        measured = _Measured.of(model, run, row, target, top)
        effects: dict[Part, Effect] = {}
        for group in _groups(wanted, parts):
            every = [i for at in group for i in _of_layer(parts, at)]
            with fast_products():
                logits = model.unembedding.logits(run.states[row, every]).float()
            starts = logits.split([len(_of_layer(parts, at)) for at in group])
            for at, changed in zip(group, starts, strict=True):
                here = [parts[i] for i in _of_layer(parts, at)]
                effects |= measured.layer(at, here, changed, at_last, lens_logits)
        found.append(
            Effects(
                by=replacement.by,
                method=run.method,
                target=measured.target,
                prediction=measured.prediction,
                target_score=measured.score,
                parts=effects,
            )
        )
    return tuple(found)


def part_changes(
    model: LanguageModel, replacement: Replacement, kinds: Sequence[Kind] = HEADS
) -> tuple[list[Part], list[Change]]:
    """The parts of a model, and the change that measures each at one position."""
    parts: list[Part] = []
    changes: list[Change] = []
    for at in model.layers:
        value, every = replacement.heads[at.index], range(at.n_heads)
        if "head" in kinds:
            parts += [Part(at.index, head, "head") for head in every]
            changes += [HeadsValue(at.index, (head,), value[head : head + 1]) for head in every]
        if "attention" in kinds:
            parts.append(Part(at.index, None, "attention"))
            changes.append(HeadsValue(at.index, tuple(every), value))
        if "feed-forward" in kinds and at.index in replacement.feed_forward:
            parts.append(Part(at.index, None, "feed-forward"))
            changes.append(FeedForwardValue(at.index, replacement.feed_forward[at.index]))
    return parts, changes


def _of_layer(parts: Sequence[Part], at: HeadLayer) -> list[int]:
    return [i for i, part in enumerate(parts) if part.layer == at.index]


def _groups(layers: Sequence[HeadLayer], parts: Sequence[Part]) -> list[list[HeadLayer]]:
    """Layers whose logits are computed together, at most `LOGIT_ROWS` rows."""
    groups: list[list[HeadLayer]] = []
    n_rows = 0
    for at in layers:
        more = len(_of_layer(parts, at))
        if not groups or n_rows + more > LOGIT_ROWS:
            groups.append([])
            n_rows = 0
        groups[-1].append(at)
        n_rows += more
    return groups


@dataclass(frozen=True)
class _Measured:
    """One prompt: its plain prediction, to compare those of the copies with."""

    model: LanguageModel
    run: CopyRun
    row: int
    target: Target
    score: float
    along: Float[Tensor, " d_model"]
    prediction: TopTokens
    logits: Float[Tensor, " d_vocab"]
    p: Float[Tensor, " d_vocab"]
    top: int

    @classmethod
    def of(
        cls, model: LanguageModel, run: CopyRun, row: int, target: Target | None, top: int
    ) -> _Measured:
        with fast_products():
            logits = model.unembedding.logits(run.captured.final[row, 0]).float()
        p = logits.softmax(-1)
        prediction = largest(p[None], min(top, len(p)))
        target = Target(int(prediction.ids[0, 0])) if target is None else target
        score = float(target.score(logits))
        along = target.direction(model.unembedding)
        return cls(model, run, row, target, score, along, prediction, logits, p, min(top, len(p)))

    def layer(
        self,
        at: HeadLayer,
        parts: Sequence[Part],
        changed: Float[Tensor, "part d_vocab"],
        replacement: Replacement,
        lens_logits: LensLogits | None,
    ) -> dict[Part, Effect]:
        """The effects of the parts of one layer, from their logits."""
        if not parts:
            return {}
        with fast_products():
            lens = None if lens_logits is None else self._lens_change(at, replacement, lens_logits)
        on_token = (self.score - self.target.score(changed)).tolist()
        moved = changed.sub_(self.logits)
        agreement: list[float | None] = [None] * len(parts)
        if lens is not None:
            n_heads = min(len(lens), len(parts))  # heads come first
            agreement[:n_heads] = correlation(lens[:n_heads], moved[:n_heads], self.p).tolist()
        compared = compare(moved, self.p, self.top)
        direct = self._direct(at, parts, replacement)
        columns = zip(
            parts,
            compared.kl.tolist(),
            on_token,
            direct,
            token_rows(compared.promotes, self.model.tokens, sign=1),
            token_rows(compared.suppresses, self.model.tokens, sign=-1),
            agreement,
            strict=True,
        )
        return {
            part: Effect(
                kl=kl,
                on_token=lost,
                direct=straight,
                promotes=promotes,
                suppresses=suppresses,
                lens_agreement=agrees,
            )
            for part, kl, lost, straight, promotes, suppresses, agrees in columns
        }

    def _direct(
        self, at: HeadLayer, parts: Sequence[Part], replacement: Replacement
    ) -> list[float | None]:
        """What each part adds directly to the score, above what its replacement would add."""
        if not at.reaches_stream:
            return [None] * len(parts)
        captured = self.run.captured
        assert captured.final_residual is not None, "copies are run with the residual stream"
        whole = captured.final_residual[self.row]  # [1, d_model]
        z = captured.z[at.index][self.row, 0]  # [head, d_head]
        added = head_outputs(at, z - replacement.heads[at.index].to(z))  # [head, d_model]
        if at.post_norm is not None:
            added = at.post_norm.frozen(added, at.projection(z.flatten())[None])
        by_head = added * at.multiplier
        rows = {"head": list(by_head), "attention": [by_head.sum(0)], "feed-forward": []}
        if at.index in replacement.feed_forward:
            own = self.run.feed_forward[at.index][self.row]
            rows["feed-forward"] = [own - replacement.feed_forward[at.index].to(own)]
        stacked = torch.stack([rows[part.kind][part.head or 0] for part in parts])
        states = self.model.final_norm.frozen(stacked.to(whole), whole)
        return (states.to(self.along) @ self.along).tolist()

    def _lens_change(
        self, at: HeadLayer, replacement: Replacement, lens_logits: LensLogits
    ) -> Float[Tensor, "head d_vocab"] | None:
        """The change of the logits of each head's lens when the head is replaced."""
        z = self.run.captured.z[at.index][self.row, 0]
        found = lens_logits(at.index, torch.stack([z, replacement.heads[at.index].to(z)]))
        return None if found is None else found[1] - found[0]


class Comparison(NamedTuple):
    """The predictions without each part, compared with the plain one."""

    kl: Float[Tensor, " part"]
    """KL(with || without), in nats."""
    shift: Float[Tensor, " part"]
    """What normalises the changed logits: a token loses ``shift - moved`` of log-probability."""
    promotes: TopTokens
    """With the change of log-probability of each token, in nats."""
    suppresses: TopTokens


def compare(
    moved: Float[Tensor, "part d_vocab"], p: Float[Tensor, " d_vocab"], top: int
) -> Comparison:
    """KL from the change of the logits, and the tokens that change the prediction most.

    A token's change of log-probability is weighted by the square root of the mean of its two
    probabilities. The change alone would put tokens first that are unlikely with and without the
    part; weighted by the probability itself, as in the KL, the likeliest tokens would come first
    for every part.
    """
    grown = moved.expm1()  # [part, d_vocab]
    # log of the sum of p exp(moved): written so, a small change keeps its digits.
    shift = torch.log1p(grown @ p)[:, None]
    kl = shift[:, 0] - moved @ p
    fallen = shift - moved  # log(p / q), positive for a promoted token
    both = grown.add_(1).mul_((-shift).exp()).add_(1).mul_(p / 2)  # the mean of p and q
    weighted = both.sqrt_().mul_(fallen)
    up, down = largest(weighted, top), largest(weighted.neg_(), top)
    return Comparison(
        kl.clamp_min(0.0),
        shift[:, 0],
        TopTokens(up.ids, fallen.gather(1, up.ids)),
        TopTokens(down.ids, fallen.gather(1, down.ids)),
    )


def correlation(
    a: Float[Tensor, "part d_vocab"],
    b: Float[Tensor, "part d_vocab"],
    weight: Float[Tensor, " d_vocab"],
) -> Float[Tensor, " part"]:
    """The weighted correlation over tokens of each row; 0 where one of them does not vary."""
    a = a.to(b) - (a.to(b) @ weight)[:, None]
    b = b - (b @ weight)[:, None]
    spread = ((a * a) @ weight) * ((b * b) @ weight)
    return ((a * b) @ weight) / spread.clamp_min(1e-30).sqrt()
