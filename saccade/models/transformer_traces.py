"""A Transformer's three kinds of attention as traces, every head a view."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from saccade.models.transformer import Looks
from saccade.trace import Trace


def head_traces(
    looks: Looks, *, source: Sequence[str], read: Sequence[str], said: Sequence[str], title: str
) -> list[Trace]:
    """Traces of one sentence: to the source, to what was said before, of the source to itself.

    Heads are named ``layer.head``.

    Args:
        looks: Of a batch of one.
        source: A label for each place of the source.
        read: A label for each symbol the decoder was given, BOS first.
        said: A label for each symbol it is to say, EOS last.
    """
    kinds = (
        ("cross-attention", said, source, looks.cross),
        ("past-attention", said, read, looks.past),
        ("source-attention", source, source, looks.source),
    )
    return [
        Trace(
            kind=kind,
            steps=tuple(steps),
            memory=tuple(memory),
            weights=weights[0].flatten(0, 1),  # [layer * head, step, key_pos]
            views=_names(weights),
            title=title,
        )
        for kind, steps, memory, weights in kinds
    ]


def _names(weights: Float[Tensor, "batch layer head query_pos key_pos"]) -> tuple[str, ...]:
    n_layers, n_heads = weights.shape[1:3]
    return tuple(f"{layer}.{head}" for layer in range(n_layers) for head in range(n_heads))
