"""A reading: what the lenses of a model say at one position of a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError
from saccade.heads import Captured, capture, direct_states
from saccade.lenses.head_reading import HeadReading, Source, Word, Words, plain
from saccade.lenses.reading_order import Order, in_order
from saccade.lenses.sites import held_at
from saccade.lenses.top_words import TopWords, largest, what_is_said

if TYPE_CHECKING:
    from saccade.heads import LanguageModel
    from saccade.lenses.collection import Lenses
    from saccade.lenses.text_run import TextRun

SOURCES = 5  # attended positions kept for each head; what is left is mostly next to nothing


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What every lens of a model says at one position of a text."""

    model: str
    text: str
    tokens: list[str]
    position: int
    """Of the token after which was read, counted from the start."""
    prediction: tuple[Word, ...]
    """The model's own likeliest next words, with their probabilities."""
    heads: tuple[HeadReading, ...]
    """All of them, in order of depth."""

    def ranked(self, by: Order = "says") -> tuple[HeadReading, ...]:
        """The heads, largest first, by one of three figures.

        Args:
            by: "says", how much the head says here; "contributes", what it adds to the predicted
                word; "quality", how good its lens is on held-out text. Heads without the figure
                come last.
        """
        return in_order(self.heads, by)

    def at(self, layer: int, head: int | None = None) -> HeadReading:
        """What one head says; without a head, what the residual stream after the layer says."""
        for reading in self.heads:
            if (reading.layer, reading.head) == (layer, head):
                return reading
        wanted = f"layer {layer}" if head is None else f"layer {layer} head {head}"
        raise UsageError(
            f"this reading has no {wanted}: it holds {self.heads[0].name} to {self.heads[-1].name}",
            hint="layers and heads are counted from 0",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, as `to_json` writes them."""
        return {
            "model": self.model,
            "text": self.text,
            "tokens": self.tokens,
            "position": self.position,
            "prediction": plain(self.prediction),
            "heads": [head.to_dict() for head in self.heads],
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def to_table(self, *, by: Order = "says", heads: int = 8, width: int = 100) -> str:
        """The prediction and the first heads of an order, as plain text."""
        from saccade.lenses.reading_table import table_text

        return table_text(self, self.ranked(by)[:heads], width=width)

    def to_html(self) -> str:
        """One page that works offline: a map of all heads, and a card for each."""
        from saccade.lenses.reading_html import page

        return page(self)

    def _repr_html_(self) -> str:
        from saccade.lenses.reading_html import fragment

        return fragment(self)


@torch.inference_mode()
def read(
    lenses: Lenses, text: str, *, position: int = -1, top: int = 10, unembedding: bool = False
) -> Reading:
    """Read every head at one position of a text: one run of the model, one product for all lenses.

    Args:
        position: of the token after which to read; negative ones count from the end.
        top: how many words of each order.
        unembedding: also show what the raw unembedding makes of each head (figure 1 of Attention
            Lens, https://arxiv.org/abs/2310.16270), every norm on the way frozen at its scale.

    Raises:
        UsageError: the text is empty or too long, or there is no such position.
    """
    model, top = lenses.model, _checked_top(top, lenses.model)
    ids = model.encode(text)
    at = _checked_position(position, ids.shape[1])
    captured = _capture(lenses, ids, at)
    looks = {layer: weights[0, :, 0] for layer, weights in captured.attention.items()}
    seen = _Seen(text, model.words(ids[0]), at, captured, looks)
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
    """The same from a run that was kept: several lenses and positions need one run only."""
    at = run.position(position)
    looks = run.attention_at(at) if _of_heads(lenses) else {}
    seen = _Seen(run.text, run.tokens, at, run.captured, looks)
    return _read(lenses, seen, top=_checked_top(top, run.model), unembedding=unembedding)


class _Seen(NamedTuple):
    """What a reading is made from."""

    text: str
    tokens: list[str]
    position: int
    captured: Captured
    looks: dict[int, Float[Tensor, "head key_pos"]]


def _read(lenses: Lenses, seen: _Seen, *, top: int, unembedding: bool) -> Reading:
    model, at, captured = lenses.model, seen.position, seen.captured
    held = {
        layer: held_at(model, captured, layer, lens.site, positions=[at])
        for layer, lens in lenses.by_layer.items()
    }
    said = what_is_said(lenses.logits(held)[0], lenses.constant, top=top)
    chances = model.unembedding.logits(captured.final[:, at]).float().softmax(-1)
    prediction = largest(chances, top)
    direct = _direct(lenses, captured, at)
    raw = None
    if unembedding and direct is not None:
        raw = largest(model.unembedding.linear(direct).float(), top)
    columns = zip(
        _names(lenses),
        said.says.tolist(),
        _contributions(model, direct, prediction.ids[0, 0], n=len(said.says)),
        _in_words(model, said.predicts),
        # With fewer than `top` words on one side of the constant lens, an order goes on with
        # words of the other side, which are not added, or not suppressed.
        _in_words(model, said.adds, sign=1),
        _in_words(model, said.suppresses, sign=-1),
        [()] * len(said.says) if raw is None else _in_words(model, raw),
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
                says=says,
                contributes=contributes,
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
            ), says, contributes, predicts, adds, suppresses, unembedded, attends in columns
        ),
    )


def _names(lenses: Lenses) -> list[tuple[int, int | None]]:
    is_stream = {layer: lens.site == "residual" for layer, lens in lenses.by_layer.items()}
    return [(layer, None if is_stream[layer] else head) for layer, head in lenses.sites]


def _checked_top(top: int, model: LanguageModel) -> int:
    if top < 1:
        raise UsageError(f"cannot show {top} words of a head", hint="ask for 1 or more")
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
    except ModelError:  # a kernel that hides its weights: the heads can be read all the same
        return capture(model, ids, layers=layers, residual=True)


def _direct(lenses: Lenses, captured: Captured, at: int) -> Float[Tensor, "site d_model"] | None:
    """What each head adds to the final normed state, where heads are read and have such a path."""
    model, layers = lenses.model, list(lenses.by_layer)
    if not _of_heads(lenses) or not all(model.layer(layer).reaches_stream for layer in layers):
        return None
    device = model.unembedding.weight.device
    states = [direct_states(model, captured, layer, positions=[at])[0, 0] for layer in layers]
    return torch.cat([state.to(device) for state in states])


def _contributions(
    model: LanguageModel, direct: Tensor | None, word: Tensor, *, n: int
) -> Sequence[float | None]:
    """Direct logit attribution, as `saccade.heads.direct_logits` has it, for all layers at once."""
    if direct is None:
        return [None] * n
    row = model.unembedding.weight[word].float()
    return (direct.float() @ row * model.unembedding.scale).tolist()


def _in_words(model: LanguageModel, order: TopWords, *, sign: int = 0) -> list[Words]:
    """The words of each row, or only those whose values have this sign."""
    rows = zip(order.ids.tolist(), order.values.tolist(), strict=True)
    if not sign:
        return [Words(ids, values, model.words) for ids, values in rows]
    kept = ((ids, values, sum(sign * value > 0 for value in values)) for ids, values in rows)
    return [Words(ids[:n], values[:n], model.words) for ids, values, n in kept]


def _attended(lenses: Lenses, seen: _Seen) -> list[tuple[Source, ...]]:
    if not seen.looks:
        return [()] * len(lenses.sites)
    weights = torch.cat([seen.looks[layer].float().cpu() for layer in lenses.by_layer])
    top = weights.topk(min(SOURCES, len(seen.tokens)), dim=-1)
    return [
        tuple(Source(key, seen.tokens[key], weight) for key, weight in zip(keys, row, strict=True))
        for keys, row in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
