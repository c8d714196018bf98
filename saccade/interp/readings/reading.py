"""A reading: what the lenses of a model predict at one position of a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import LensError, ModelError, UsageError
from saccade.interp.heads.capture import Captured, capture
from saccade.interp.heads.residual_path import direct_states
from saccade.interp.lenses.lens import activation_at
from saccade.interp.lenses.top_tokens import TopTokens, largest, lens_prediction
from saccade.viewer.export import Shown, reading_page

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses
    from saccade.interp.readings.text_run import TextRun


# The prediction of one lens at one position, with the quality of that lens.


@dataclass(frozen=True, slots=True)
class Source:
    """A position that a head attends to."""

    position: int
    text: str
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadReading:
    """What the lens of one head predicts."""

    layer: int
    head: int | None
    """None where the lens reads the residual stream after the layer."""
    kl_from_baseline: float
    """KL of the lens's prediction here from that of the baseline lens, in nats."""
    direct: float | None
    """What the head adds directly to the logit of the token that the model predicts (direct logit
    attribution); None for the residual stream and for models without a direct path."""
    quality: dict[str, float]
    """The metrics of the lens on held-out text; empty if it was never scored."""
    predicts: Sequence[TokenValue]
    """The likeliest tokens, with their probabilities."""
    adds: Sequence[TokenValue]
    """The tokens it predicts more than the baseline, each with its share of the KL."""
    suppresses: Sequence[TokenValue]
    """The tokens it predicts less than the baseline, with ``baseline log(lens / baseline)`` < 0."""
    unembedded: Sequence[TokenValue]
    """The tokens of the raw unembedding, with logits; empty unless requested."""
    attends: Sequence[Source]
    """The positions it attends to most."""

    @property
    def name(self) -> str:
        """The name of the head: ``29.0`` is head 0 of layer 29, ``29`` the stream after it."""
        return str(self.layer) if self.head is None else f"{self.layer}.{self.head}"

    @property
    def explained(self) -> float | None:
        """The share of the baseline lens's KL that this lens removes, on held-out text.

        0 is a lens no better than the baseline, 1 would be the model itself; None if the lens was
        never scored.
        """
        return share_explained(self.quality)

    @property
    def fidelity(self) -> float | None:
        """The correlation of the lens with the effect of ablating the head on the model.

        Measured by `saccade lens fidelity`; None if not measured.
        """
        return self.quality.get("ablation")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; numbers to six digits."""
        return plain(self)


# The ranking of the heads of a reading.

Order = Literal["lens", "direct", "quality"]
"""By the KL of its lens from the baseline, its direct effect on the predicted token, or quality."""


def in_order(heads: Sequence[HeadReading], by: Order) -> tuple[HeadReading, ...]:
    """The heads, largest value first; ties by depth, heads without the metric last.

    Raises:
        LensError: no head has the metric.
    """
    if by not in get_args(Order):
        raise UsageError(
            f"unknown order {by!r}: expected one of {', '.join(get_args(Order))}",
            hint="the default order is lens",
        )
    figures = [_figure(head, by) for head in heads]
    if all(figure is None for figure in figures):
        raise _no_figures(by)
    ranks = [float("-inf") if figure is None else figure for figure in figures]
    return tuple(heads[at] for at in sorted(range(len(ranks)), key=lambda at: -ranks[at]))


def _figure(head: HeadReading, by: Order) -> float | None:
    if by == "lens":
        return head.kl_from_baseline
    return head.direct if by == "direct" else head.quality.get("gain")


def _no_figures(by: Order) -> LensError:
    if by == "direct":
        return LensError(
            "no head has a direct effect on a token: these lenses read the residual stream, "
            "or the model has no direct path from a head to the tokens",
            hint="rank by lens instead",
        )
    return LensError(
        "these lenses were never scored, so they cannot be ranked by quality",
        hint="score them with `saccade lens eval`",
    )


SOURCES = 5  # attended positions kept for each head; the others mostly have very small weights


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What every lens of a model predicts at one position of a text."""

    model: str
    text: str
    tokens: list[str]
    position: int
    """The token after which the heads are read, counted from the start."""
    prediction: tuple[TokenValue, ...]
    """The model's own likeliest next tokens, with their probabilities."""
    heads: tuple[HeadReading, ...]
    """All heads, in order of depth."""

    def ranked(self, by: Order = "lens") -> tuple[HeadReading, ...]:
        """The heads, largest first, by one of three metrics.

        Args:
            by: "lens", the KL of its lens from the baseline here; "direct", what the head adds
                to the logit of the predicted token; "quality", the gain of its lens on held-out
                text. Heads without the metric come last.
        """
        return in_order(self.heads, by)

    def at(self, layer: int, head: int | None = None) -> HeadReading:
        """The reading of one head; without a head, of the residual stream after the layer."""
        for reading in self.heads:
            if (reading.layer, reading.head) == (layer, head):
                return reading
        wanted = f"layer {layer}" if head is None else f"layer {layer} head {head}"
        raise UsageError(
            f"this reading has no {wanted}: it has {self.heads[0].name} to {self.heads[-1].name}",
            hint="layers and heads are counted from 0",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, as `to_json` writes them."""
        return plain(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def to_table(self, *, by: Order = "lens", heads: int = 8, width: int = 100) -> str:
        """The prediction and the first heads of a ranking, as plain text."""
        from saccade.interp.readings.reading_table import table_text

        return table_text(self, self.ranked(by)[:heads], width=width)

    def to_html(self) -> str:
        """One page that works offline: a map of all heads, and a card for each."""
        return reading_page(self.to_dict())

    def _repr_html_(self) -> str:
        return Shown(self.to_html())._repr_html_()


@torch.inference_mode()
def read(
    lenses: Lenses, text: str, *, position: int = -1, top: int = 10, unembedding: bool = False
) -> Reading:
    """Read every head at one position of a text: one run of the model, one product for all lenses.

    Args:
        position: the token after which to read; negative positions count from the end.
        top: tokens per ranking.
        unembedding: also show the raw unembedding of each head (figure 1 of Attention Lens,
            https://arxiv.org/abs/2310.16270), every norm on the path frozen at its scale.

    Raises:
        UsageError: the text is empty or too long, or the position does not exist.
    """
    model, top = lenses.model, _checked_top(top, lenses.model)
    ids = model.encode(text)
    at = _checked_position(position, ids.shape[1])
    captured = _capture(lenses, ids, at)
    looks = {layer: weights[0, :, 0] for layer, weights in captured.attention.items()}
    seen = _Seen(text, model.tokens(ids[0]), at, captured, looks)
    return _read(lenses, seen, top=top, unembedding=unembedding)


@torch.inference_mode()
def read_run(
    lenses: Lenses,
    run: TextRun,
    *,
    position: int = -1,
    top: int = 10,
    unembedding: bool = False,
) -> Reading:
    """The same from a stored run: several lenses and positions need only one run."""
    at = run.position(position)
    looks = run.attention_at(at) if _of_heads(lenses) else {}
    seen = _Seen(run.text, run.tokens, at, run.captured, looks)
    return _read(lenses, seen, top=_checked_top(top, run.model), unembedding=unembedding)


class _Seen(NamedTuple):
    """The inputs of a reading."""

    text: str
    tokens: list[str]
    position: int
    captured: Captured
    looks: dict[int, Float[Tensor, "head key_pos"]]


def _read(lenses: Lenses, seen: _Seen, *, top: int, unembedding: bool) -> Reading:
    model, at, captured = lenses.model, seen.position, seen.captured
    activation = {
        layer: activation_at(model, captured, layer, lens.site, positions=[at])
        for layer, lens in lenses.by_layer.items()
    }
    said = lens_prediction(lenses.logits(activation)[0], lenses.baseline, top=top)
    chances = model.unembedding.logits(captured.final[:, at]).float().softmax(-1)
    prediction = largest(chances, top)
    direct = _direct(lenses, captured, at)
    raw = None
    if unembedding and direct is not None:
        raw = largest(model.unembedding.linear(direct).float(), top)
    columns = zip(
        _names(lenses),
        said.kl_from_baseline.tolist(),
        _contributions(model, direct, prediction.ids[0, 0], n=len(said.kl_from_baseline)),
        _in_words(model, said.predicts),
        # If fewer than `top` tokens are above (or below) the baseline, the ranking continues with
        # tokens of the other sign, which are not added (or not suppressed).
        _in_words(model, said.adds, sign=1),
        _in_words(model, said.suppresses, sign=-1),
        [()] * len(said.kl_from_baseline) if raw is None else _in_words(model, raw),
        _attended(lenses, seen),
        strict=True,
    )
    return Reading(
        model=model.name,
        text=seen.text,
        tokens=seen.tokens,
        position=at,
        prediction=tuple(_in_words(model, prediction)[0]),
        heads=tuple(
            HeadReading(
                layer=layer,
                head=head,
                kl_from_baseline=kl,
                direct=added,
                quality=lenses.quality_of(layer, head or 0),
                predicts=predicts,
                adds=adds,
                suppresses=suppresses,
                unembedded=unembedded,
                attends=attends,
            )
            for (
                layer,
                head,
            ), kl, added, predicts, adds, suppresses, unembedded, attends in columns
        ),
    )


def _names(lenses: Lenses) -> list[tuple[int, int | None]]:
    is_stream = {layer: lens.site == "residual" for layer, lens in lenses.by_layer.items()}
    return [(layer, None if is_stream[layer] else head) for layer, head in lenses.sites]


def _checked_top(top: int, model: LanguageModel) -> int:
    if top < 1:
        raise UsageError(f"cannot show {top} tokens of a head", hint="ask for 1 or more")
    return min(top, model.d_vocab)


def _checked_position(position: int, n_tokens: int) -> int:
    if not -n_tokens <= position < n_tokens:
        raise UsageError(
            f"no position {position}: the text has {n_tokens} tokens, 0-{n_tokens - 1}",
            hint="positions count tokens from 0; -1 is the last",
        )
    return position % n_tokens


def _of_heads(lenses: Lenses) -> bool:
    return all(lens.site != "residual" for lens in lenses.by_layer.values())


def _capture(lenses: Lenses, ids: Int[Tensor, "1 pos"], at: int) -> Captured:
    model, layers = lenses.model, list(lenses.by_layer)
    if not _of_heads(lenses):
        return capture(model, ids, layers=layers, residual=True)
    try:
        return capture(
            model, ids, layers=layers, residual=True, attention=layers, attention_positions=[at]
        )
    except ModelError:  # a kernel that does not return its weights: the heads can still be read
        return capture(model, ids, layers=layers, residual=True)


def _direct(lenses: Lenses, captured: Captured, at: int) -> Float[Tensor, "site d_model"] | None:
    """What each head adds to the final normed state, if heads are read and have a direct path."""
    model, layers = lenses.model, list(lenses.by_layer)
    if not _of_heads(lenses) or not all(model.layer(layer).reaches_stream for layer in layers):
        return None
    device = model.unembedding.weight.device
    states = [direct_states(model, captured, layer, positions=[at])[0, 0] for layer in layers]
    return torch.cat([state.to(device) for state in states])


def _contributions(
    model: LanguageModel, direct: Tensor | None, token: Tensor, *, n: int
) -> Sequence[float | None]:
    """Direct logit attribution for all layers at once; see `capture.direct_logits`."""
    if direct is None:
        return [None] * n
    row = model.unembedding.weight[token].float()
    return (direct.float() @ row * model.unembedding.scale).tolist()


def _attended(lenses: Lenses, seen: _Seen) -> list[tuple[Source, ...]]:
    if not seen.looks:
        return [()] * len(lenses.sites)
    weights = torch.cat([seen.looks[layer].float().cpu() for layer in lenses.by_layer])
    top = weights.topk(min(SOURCES, len(seen.tokens)), dim=-1)
    return [
        tuple(Source(key, seen.tokens[key], weight) for key, weight in zip(keys, row, strict=True))
        for keys, row in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
