"""Whether a head, when it looks at a token, writes that token."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.heads import capture, head_outputs

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

TOP = 5  # Wang et al.: among the first five words


@torch.no_grad()
def copy_scores(
    model: LanguageModel,
    ids: Int[Tensor, "batch pos"],
    places: Int[Tensor, " batch"],
) -> dict[int, Float[Tensor, " head"]]:
    """By layer: how often a head that looks at a token has it among the first five it writes.

    Wang et al., 2022 (https://arxiv.org/abs/2211.00593), section 3.1: the state of a token after
    the first layer goes through a head's value and output matrices and the unembedding, as if the
    head looked at it alone. No value matrix is searched for: in a text of one token every head
    looks at that token alone, so one run, in which every layer reads the state after the first,
    gives what all heads would write. The first layer reads its own input.

    Args:
        ids: texts.
        places: of the token in each that the heads are to look at.
    """
    rows = torch.arange(len(ids), device=ids.device)
    token = ids[rows, places.to(ids.device)]
    first = model.layers[0].index
    states = capture(model, ids, layers=[first], residual=True).residual[first]
    alone = _held_alone(model, token, states[rows.to(states.device), places.to(states.device)])
    found = {}
    for at in model.layers:
        written = head_outputs(at, alone[at.index])  # [batch, head, d_model]
        if at.post_norm is not None:
            written = at.post_norm.module(written)
        logits = model.unembedding.linear(model.final_norm.module(written))
        best = logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices
        found[at.index] = (best == token.to(best.device)[:, None, None]).any(-1).float().mean(0)
    return found


def _held_alone(
    model: LanguageModel, token: Tensor, state: Tensor
) -> dict[int, Float[Tensor, "batch head d_head"]]:
    def read_state(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (state[:, None].to(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": state[:, None].to(kwargs["hidden_states"])}

    with ExitStack() as stack:
        for at in model.layers[1:]:
            hook = at.block.register_forward_pre_hook(read_state, with_kwargs=True)
            stack.enter_context(hook)
        z = capture(model, token[:, None]).z
    return {layer: held[:, 0] for layer, held in z.items()}
