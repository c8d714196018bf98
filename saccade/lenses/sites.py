"""What a lens reads: gathered from a captured run, for each site a lens can have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.heads import Captured, direct_states
from saccade.lenses.lens import Site

if TYPE_CHECKING:
    from saccade.heads import LanguageModel


def needs_residual(site: Site) -> bool:
    """Whether `saccade.heads.capture` must be called with ``residual=True`` for this site.

    >>> needs_residual("head"), needs_residual("residual"), needs_residual("direct")
    (False, True, True)
    """
    return site != "head"


def held_at(
    model: LanguageModel,
    captured: Captured,
    layer: int,
    site: Site,
    *,
    positions: Sequence[int] | None = None,
) -> Float[Tensor, "n head d_held"]:
    """What a site of one layer holds, for every row and position, in row order.

    Args:
        site: "head" is ``z`` of each head; "residual" the stream after the layer, as one head;
            "direct" what each head adds to the final normed state.
        positions: which positions of each row; all by default.
    """
    if site == "direct":
        return direct_states(model, captured, layer, positions=positions).flatten(0, 1)
    held = captured.z if site == "head" else captured.residual
    if layer not in held:
        asked = "residual=True and " if site == "residual" else ""
        raise UsageError(
            f"this capture does not hold the {site} site of layer {layer}",
            hint=f"capture with {asked}layers that include {layer}",
        )
    every = held[layer] if site == "head" else held[layer][:, :, None]  # [batch, pos, head, d_held]
    chosen = every if positions is None else every[:, list(positions)]
    return chosen.flatten(0, 1)
