"""Change a model: its prediction before and after, and the change that the lenses predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.interp.heads.intervene import Change, InjectHead, InjectResidual, intervene
from saccade.interp.lenses.head_lens import output_maps, said_by_head
from saccade.interp.lenses.lens import activation_at
from saccade.interp.lenses.residual_lenses import LogitLens
from saccade.interp.lenses.top_tokens import TokenValue, largest, plain
from saccade.interp.studies.edit.edit_file import describe
from saccade.interp.studies.head_measures import token_asked
from saccade.interp.studies.prompts import go_on

if TYPE_CHECKING:
    from saccade.interp.lenses.lens_set import Lenses
    from saccade.interp.readings.text_run import TextRun


class Acted(NamedTuple):
    """The same text, run twice."""

    before: TextRun
    after: TextRun
    """Run with ``changes``."""


@dataclass(frozen=True, kw_only=True)
class FollowedToken:
    """A token before and after: probability, and rank (0 is the likeliest)."""

    id: int
    text: str
    before: float
    after: float
    rank_before: int
    rank_after: int


@dataclass(frozen=True, kw_only=True)
class MovedToken:
    """A token whose probability changed."""

    id: int
    text: str
    before: float
    after: float
    actual: float
    """The change of its log-probability."""
    predicted: float | None
    """The change that the lenses of the changed heads predict; None where none has a lens."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The prediction before and after, the tokens that changed, and what the lenses predict."""

    text: str
    tokens: list[str]
    position: int
    before: tuple[TokenValue, ...]
    after: tuple[TokenValue, ...]
    token: FollowedToken
    kl: float
    """KL(before || after) of the prediction, in nats."""
    moved: tuple[MovedToken, ...]
    """The tokens whose probability changes most."""
    agreement: float | None
    """The correlation of ``actual`` and ``predicted`` over all tokens, each weighted by its
    probability before."""
    changes: list[str]
    continuation: str
    """The continuation without the changes; empty unless requested."""
    continuation_after: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


@torch.inference_mode()
def what_happened(
    lenses: Lenses | None, acted: Acted, *, token: str | None = None, top: int = 10, say: int = 0
) -> Outcome:
    """The effect of changes on a prediction, and the effect that the lenses predict.

    Belrose et al., 2023 (https://arxiv.org/abs/2303.08112), section 4.2, compare the two in the
    same way, over many texts.

    Args:
        token: the token to follow; default: the predicted one.
        say: number of tokens to generate, before and after.
    """
    run, model = acted.before, acted.before.model
    old, new = (_log_probs(each) for each in (acted.before, acted.after))
    predicted = _predicted_change(lenses, acted)
    chances = old.exp()
    followed = int(old.argmax()) if token is None else token_asked(run, token)
    moved = (new.exp() - chances).abs().topk(min(top, len(old))).indices
    continuation, continuation_after = _continuations(acted, say)
    return Outcome(
        text=run.text,
        tokens=run.tokens,
        position=len(run.tokens) - 1,
        before=_top(run, old, top),
        after=_top(run, new, top),
        token=FollowedToken(
            id=followed,
            text=model.tokens([followed])[0],
            before=float(old[followed].exp()),
            after=float(new[followed].exp()),
            rank_before=int((old > old[followed]).sum()),
            rank_after=int((new > new[followed]).sum()),
        ),
        kl=float((chances * (old - new)).sum()),
        moved=_moved(run, old, new, predicted, moved.tolist()),
        agreement=None if predicted is None else _agreement(new - old, predicted, chances),
        changes=[describe(each) for each in acted.after.changes],
        continuation=continuation,
        continuation_after=continuation_after,
    )


def _log_probs(run: TextRun) -> Float[Tensor, " d_vocab"]:
    return run.model.unembedding.logits(run.captured.final[0, -1]).float().log_softmax(-1)


def _top(run: TextRun, log_p: Tensor, top: int) -> tuple[TokenValue, ...]:
    best = largest(log_p[None], min(top, len(log_p)))
    ids = best.ids[0].tolist()
    return tuple(map(TokenValue, ids, run.model.tokens(ids), best.values[0].exp().tolist()))


def _moved(
    run: TextRun, old: Tensor, new: Tensor, predicted: Tensor | None, ids: list[int]
) -> tuple[MovedToken, ...]:
    return tuple(
        MovedToken(
            id=id_,
            text=text,
            before=float(old[id_].exp()),
            after=float(new[id_].exp()),
            actual=float(new[id_] - old[id_]),
            predicted=None if predicted is None else float(predicted[id_]),
        )
        for id_, text in zip(ids, run.model.tokens(ids), strict=True)
    )


def _continuations(acted: Acted, say: int) -> tuple[str, str]:
    model, text = acted.before.model, acted.before.text
    if not say:
        return "", ""
    with intervene(model, acted.after.changes):
        changed = go_on(model, text, say)
    return go_on(model, text, say), changed


def _predicted_change(lenses: Lenses | None, acted: Acted) -> Float[Tensor, " d_vocab"] | None:
    """The summed changes of the lenses at the changed places; None without lenses."""
    found = None
    for layer, head in dict.fromkeys(map(_place, acted.after.changes)):
        change = _at_place(lenses, acted, layer, head)
        if change is not None:
            found = change if found is None else found + change
    return found


def _place(change: Change) -> tuple[int, int | None]:
    return change.layer, None if isinstance(change, InjectResidual) else change.head


def _at_place(
    lenses: Lenses | None, acted: Acted, layer: int, head: int | None
) -> Float[Tensor, " d_vocab"] | None:
    model, last = acted.before.model, [len(acted.before.tokens) - 1]
    if head is None:
        lens = LogitLens.start(model, layer)
        logits = [
            lens(activation_at(model, run.captured, layer, lens.site, positions=last))[0, 0]
            for run in (acted.before, acted.after)
        ]
        return logits[1].log_softmax(-1) - logits[0].log_softmax(-1)
    head_lens = None if lenses is None else lenses.by_layer.get(layer)
    if head_lens is None or head_lens.site != "head":
        return None
    activation = [
        activation_at(model, run.captured, layer, "head", positions=last)
        for run in (acted.before, acted.after)
    ]
    activation[1] = activation[1] + _written(acted, layer, head).to(activation[1])
    logits = [said_by_head(head_lens, each, head)[0] for each in activation]
    return logits[1].log_softmax(-1) - logits[0].log_softmax(-1)


def _written(acted: Acted, layer: int, head: int) -> Float[Tensor, "head d_head"]:
    """The vector injected after the projection, as the nearest activation of the head."""
    at = acted.before.model.layer(layer)
    added = torch.zeros(at.n_heads, at.d_head)
    n = len(acted.before.tokens)
    for change in acted.after.changes:
        if not isinstance(change, InjectHead) or (change.layer, change.head) != (layer, head):
            continue
        is_here = change.positions is None or {-1, n - 1} & {*change.positions}
        if change.vector.shape[-1] == at.d_head or change.vector.dim() > 1 or not is_here:
            continue  # a changed activation is in the run itself
        inverse = torch.linalg.pinv(output_maps(acted.before.model, layer)[head])
        added[head] += (change.strength * change.vector.to(inverse) @ inverse).cpu()
    return added


def _agreement(actual: Tensor, predicted: Tensor, weight: Tensor) -> float | None:
    """Weighted correlation; None where one of them does not vary."""
    a = actual - (weight * actual).sum()
    b = predicted - (weight * predicted).sum()
    size = float((weight * a * a).sum().sqrt() * (weight * b * b).sum().sqrt())
    return float((weight * a * b).sum()) / size if size > 0 else None
