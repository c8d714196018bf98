"""Roles by what a head writes for the token it reads: copying names, successors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import ModelError
from saccade.interp.effects.parts import recorded_streams
from saccade.interp.effects.target import behind_a_space
from saccade.interp.heads.capture import capture, head_outputs, run_base
from saccade.interp.heads.intervene import Ablate, intervene
from saccade.interp.studies.roles.role import Progress, RoleScore, score_of

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# What every head writes for one state. We need no value matrix by name: in a text of one token
# every head attends to that token alone, so one run, in which every layer reads the given state,
# gives what all heads would write. The first layer reads its own input.


@torch.no_grad()
def written_logits(
    model: LanguageModel,
    token: Int[Tensor, " batch"],
    state: Float[Tensor, "batch d_model"],
    *,
    tokens: Int[Tensor, " token"] | None = None,
) -> Mapping[int, Float[Tensor, "batch head n"]]:
    """By layer: the logits of what each head writes if it attends to a token with this state alone.

    Args:
        token: the token itself, which the first layer reads.
        tokens: whose logits; None for all.
    """
    activation = _activation_alone(model, token, state)
    found = {}
    for at in model.layers:
        written = head_outputs(at, activation[at.index])  # [batch, head, d_model]
        if at.post_norm is not None:
            written = at.post_norm.module(written)
        found[at.index] = model.unembedding.linear(model.final_norm.module(written), tokens=tokens)
    return found


def _activation_alone(
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
    return {layer: activation[:, 0] for layer, activation in z.items()}


# Copying.

TOP = 5  # Wang et al.: among the first five tokens


@torch.no_grad()
def copied_names(
    model: LanguageModel,
    ids: Int[Tensor, "batch pos"],
    places: Int[Tensor, " batch"],
    *,
    suppressed: bool = False,
) -> dict[int, Float[Tensor, "batch head"]]:
    """By layer: whether a head that attends to a token has it among its top five tokens.

    Wang et al., 2022 (https://arxiv.org/abs/2211.00593), section 3.1: the state of a token after
    the first layer goes through a head's value and output matrices and the unembedding, as if the
    head attended to it alone.

    Args:
        ids: texts.
        places: in each, the position of the token that the heads attend to.
        suppressed: among its last five tokens instead, as their negative name movers have it.
    """
    rows = torch.arange(len(ids), device=ids.device)
    token = ids[rows, places.to(ids.device)]
    first = model.layers[0].index
    states = capture(model, ids, layers=[first], residual=True).residual[first]
    state = states[rows.to(states.device), places.to(states.device)]
    found = {}
    for layer, logits in written_logits(model, token, state).items():
        best = logits.topk(min(TOP, logits.shape[-1]), dim=-1, largest=not suppressed).indices
        found[layer] = (best == token.to(best.device)[:, None, None]).any(-1).float().cpu()
    return found


def copy_scores(
    model: LanguageModel,
    ids: Int[Tensor, "batch pos"],
    places: Int[Tensor, " batch"],
) -> dict[int, Float[Tensor, " head"]]:
    """By layer: how often, over texts, each head is one of `copied_names`."""
    return {layer: rows.mean(0) for layer, rows in copied_names(model, ids, places).items()}


# Successors.

ORDINALS: Mapping[str, str] = {
    "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "months": "January February March April May June July August September October November "
    "December",
    "digits": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
    "numbers": "one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty",
    "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth",
    "letters": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
}
CYCLES = ("days", "months")
"""Their first element follows their last."""


def successions(model: LanguageModel) -> tuple[list[int], list[tuple[int, int]]]:
    """The ordinal tokens, and pairs of one and its successor, as places among them.

    Only elements of one token, in the middle of a text, take part.
    """
    tokens: dict[int, None] = {}
    pairs = []
    for name, sequence in ORDINALS.items():
        ids = [behind_a_space(model, element) for element in sequence.split()]
        following = [*ids[1:], ids[0]] if name in CYCLES else ids[1:]
        for a, b in zip(ids, following, strict=False):
            tokens |= {each[0]: None for each in (a, b) if len(each) == 1}
            if len(a) == len(b) == 1 and a != b:
                pairs.append((a[0], b[0]))
    place = {token: n for n, token in enumerate(tokens)}
    return list(tokens), [(place[a], place[b]) for a, b in pairs]


@torch.no_grad()
def first_outputs(
    model: LanguageModel, tokens: Int[Tensor, " token"]
) -> Float[Tensor, "token d_model"]:
    """What the first layer's MLP writes for each token alone, without its attention.

    For a model whose blocks norm the stream, the stream after the first block.
    """
    first = model.layers[0]
    changes = [Ablate(first.index, head) for head in range(first.n_heads)]
    with intervene(model, changes, may_do_nothing=True), recorded_streams(model) as streams:
        run_base(model.hf, tokens[:, None])
    if not first.reaches_stream:
        return streams.left[first.index][:, 0]
    return streams.feed_forward(first)[:, 0]


def successor_roles(
    model: LanguageModel, seed: int, _: Path | None, progress: Progress | None
) -> Mapping[str, RoleScore]:
    """How often a head that reads an ordinal token promotes its successor most.

    Gould et al., 2023 (https://arxiv.org/abs/2312.09230), section 2: the effective OV circuit, from
    the output of the first MLP on the token alone, through the head's value and output maps, to the
    unembedding; the successor has to be first among the ordinal tokens. ``top5``: among the first
    five of them; ``itself``: the share of tokens that the head copies instead. Where we differ: one
    list of all ordinal tokens (days, months, digits, numbers, ordinals, letters), as far as the
    tokenizer has them as one token; the head's own norms are kept, with those of the unembedding.
    """
    tokens, pairs = successions(model)
    if len(pairs) < 2:
        raise ModelError(
            f"{model.name} splits days, months and numbers into pieces: no successor to look for",
            hint="choose other roles",
        )
    ids = torch.tensor(tokens, device=model.device)
    from_, to = (torch.tensor(each) for each in zip(*pairs, strict=True))
    read = ids[from_.to(ids.device)]
    state = first_outputs(model, read)
    best, top, same = {}, {}, {}
    for layer, logits in written_logits(model, read, state, tokens=ids).items():
        order = logits.cpu().argsort(-1, descending=True)  # [pair, head, token]
        best[layer] = (order[..., 0] == to[:, None]).float()
        top[layer] = (order[..., :TOP] == to[:, None, None]).any(-1).float()
        same[layer] = (order[..., 0] == from_[:, None]).float()
    if progress is not None:
        progress("successors", 1, 1)
    note = f"{len(pairs)} pairs among {len(tokens)} ordinal tokens"
    found = score_of(best, beside={"top5": top, "itself": same}, seed=seed, notes=(note,))
    return {"successor": found}
