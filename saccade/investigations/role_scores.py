"""Scores of attention patterns: where a head looks, on a text made so that the answer is known.

The text of the first three is a block of random tokens said again and again. A token's earlier
appearances are then exactly so many blocks back, and nothing but the repetition can be learnt.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def previous_token_score(
    weights: Float[Tensor, "batch head query_pos key_pos"],
) -> Float[Tensor, " head"]:
    """The mean weight on the token just before.

    Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al., 2022
    (https://arxiv.org/abs/2209.11895), appendix "Head activation evaluators".
    """
    before = weights.diagonal(-1, dim1=-2, dim2=-1)  # [batch, head, query_pos - 1]
    return before.float().mean((0, 2))


def duplicate_token_score(
    weights: Float[Tensor, "batch head query_pos key_pos"], *, block: int, start: int = 0
) -> Float[Tensor, " head"]:
    """The mean weight on all earlier appearances of the token itself.

    Wang et al., 2022 (https://arxiv.org/abs/2211.00593), section 3: duplicate token heads.

    Args:
        block: how many tokens are said again and again.
        start: how many tokens stand before the first block.
    """
    return _weight_on(weights, block=block, start=start, ahead=0)


def induction_score(
    weights: Float[Tensor, "batch head query_pos key_pos"], *, block: int, start: int = 0
) -> Float[Tensor, " head"]:
    """The mean weight on the tokens that came just after the earlier appearances of the token.

    Olsson et al., 2022 (https://arxiv.org/abs/2209.11895): prefix matching, over all earlier
    appearances, from the second block on.
    """
    return _weight_on(weights, block=block, start=start, ahead=1)


def _weight_on(weights: Tensor, *, block: int, start: int, ahead: int) -> Tensor:
    n = weights.shape[-1]
    place = torch.arange(n, device=weights.device) - start
    back = place[:, None] - place + ahead  # [query_pos, key_pos]
    # What came after an earlier appearance has that appearance before it, in the first block too.
    wanted = (back > 0) & (back % block == 0) & (place >= ahead) & (place[:, None] >= block)
    on = (weights.float() * wanted).sum(-1)  # [batch, head, query_pos]
    return on[..., start + block :].mean((0, 2))
