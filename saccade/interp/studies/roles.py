"""What each head is there for: induction, previous and duplicate tokens, names, copying."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import ModelError, UsageError, suggest
from saccade.interp.heads.capture import capture, head_outputs
from saccade.interp.heads.residual_path import direct_logits
from saccade.interp.studies.bias.bias_words import behind_a_space

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Scores of attention patterns: where a head looks, on a text made so that the answer is known.
#
# The text of the first three is a block of random tokens said again and again. A token's earlier
# appearances are then exactly so many blocks back, and nothing but the repetition can be learnt.


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


# Generated texts on which the roles of heads show: repeated random tokens, and two names.

# Olsson et al., 2022: 25 random tokens, said four times.
BLOCK, REPEATS = 25, 4
NAMES = (
    *("Mary", "John", "Tom", "James", "Dan", "Sarah", "Emma", "Anna", "Peter", "Paul"),
    *("Mark", "David", "Alice", "Kate", "Laura", "Simon", "Adam", "Jack", "Rose", "Ben"),
)
PLACES = ("store", "park", "school", "office", "station", "garden", "library", "market")
THINGS = ("book", "ball", "drink", "letter", "flower", "ticket", "cake", "pen")
# Wang et al., 2022, appendix: the shapes of their prompts, in words of our own.
SHAPES = (
    "When {a} and {b} went to the {place}, {s} gave a {thing} to",
    "After {a} and {b} met at the {place}, {s} handed a {thing} to",
    "While {a} and {b} were sitting in the {place}, {s} passed a {thing} to",
    "{a} and {b} had a long walk to the {place}. Then {s} offered a {thing} to",
)


class RepeatedBlocks(NamedTuple):
    """Rows of random tokens that are said again and again."""

    ids: Int[Tensor, "batch pos"]
    block: int
    start: int
    """How many tokens stand before the first block."""


class NameTexts(NamedTuple):
    """Prompts that end where the name comes that was said only once."""

    ids: Int[Tensor, "batch pos"]
    once: Int[Tensor, " batch"]
    """The token of the name said once: the indirect object."""
    twice: Int[Tensor, " batch"]
    """The token of the name said twice: the subject."""
    place: Int[Tensor, " batch"]
    """Where the name said once stands."""


def repeated_blocks(
    model: LanguageModel, *, rows: int, seed: int, block: int = BLOCK, repeats: int = REPEATS
) -> RepeatedBlocks:
    """Random tokens of the vocabulary, each row another block.

    The first and last tenth of the vocabulary are left out: special tokens, single bytes and the
    rarest pieces are at its ends. Where the tokenizer begins a text with a token of its own, the
    rows do too.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = model.d_vocab // 10, model.d_vocab * 9 // 10
    # Without repetition inside a block, so that a token has one earlier place in each of them.
    drawn = [low + torch.randperm(high - low, generator=generator)[:block] for _ in range(rows)]
    ids = torch.stack(drawn).repeat(1, repeats)
    start = len(model.encoding.prefix)
    return RepeatedBlocks(model.encoding.with_prefix(ids).to(model.device), block, start)


def name_texts(model: LanguageModel, *, rows: int, seed: int) -> NameTexts:
    """Prompts with two names, all of as many tokens; the order of the names changes by turns."""
    chance = random.Random(seed)
    names = [name for name in NAMES if len(behind_a_space(model, name)) == 1]
    if len(names) < 4:
        raise ModelError(
            f"{model.name} splits names into pieces: no prompts with two names can be made",
            hint="ask for the other roles",
        )
    # Prompts of one shape and tokens of one token have one length; others are left out.
    texts: dict[int, list[tuple[Tensor, int, int]]] = {}
    for turn in range(20 * rows):
        once, twice = chance.sample(names, 2)
        a, b = (once, twice) if turn % 2 else (twice, once)
        nouns = {"place": chance.choice(PLACES), "thing": chance.choice(THINGS)}
        ids = model.encode(chance.choice(SHAPES).format(a=a, b=b, s=twice, **nouns))[0]
        tokens = [behind_a_space(model, name)[0] for name in (once, twice)]
        if (ids == tokens[0]).sum() == 1:  # a first token may be another token than elsewhere
            same = texts.setdefault(len(ids), [])
            same.append((ids, tokens[0], tokens[1]))
            if len(same) == rows:
                break
    ids, once, twice = zip(*max(texts.values(), key=len), strict=True)
    rows_of_ids, wanted = torch.stack(ids), torch.tensor(once, device=model.device)
    place = (rows_of_ids == wanted[:, None]).int().argmax(1)
    return NameTexts(rows_of_ids, wanted, torch.tensor(twice, device=model.device), place)


# Whether a head, when it looks at a token, writes that token.

TOP = 5  # Wang et al.: among the first five tokens


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
    alone = _activation_alone(
        model, token, states[rows.to(states.device), places.to(states.device)]
    )
    found = {}
    for at in model.layers:
        written = head_outputs(at, alone[at.index])  # [batch, head, d_model]
        if at.post_norm is not None:
            written = at.post_norm.module(written)
        logits = model.unembedding.linear(model.final_norm.module(written))
        best = logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices
        found[at.index] = (best == token.to(best.device)[:, None, None]).any(-1).float().mean(0)
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


Role: TypeAlias = Literal["induction", "previous", "duplicate", "name-mover", "copy"]
ROLES: tuple[Role, ...] = get_args(Role)
# Rows of each generated text: the scores of the default model then move by less than 0.02 from
# seed to seed.
ROWS = 8
NAME_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class Roles:
    """A score of every role for every head, and the sites in their order."""

    model: str
    seed: int
    scores: dict[Role, dict[int, Float[Tensor, " head"]]]
    """Role -> layer -> one figure a head."""

    def ranked(self, role: Role, n: int = 5) -> list[tuple[int, int, float]]:
        """The heads that play a role most: layer, head, score."""
        every = [
            (layer, head, float(score))
            for layer, row in self.scores[role].items()
            for head, score in enumerate(row)
        ]
        return sorted(every, key=lambda each: -each[2])[:n]

    def to_json(self) -> str:
        """One JSON object."""
        layers = next(iter(self.scores.values()))
        heads = [
            {"layer": layer, "head": head}
            | {role: float(rows[layer][head]) for role, rows in self.scores.items()}
            for layer, row in layers.items()
            for head in range(len(row))
        ]
        return json.dumps({"model": self.model, "seed": self.seed, "heads": heads})


@torch.no_grad()
def find_roles(model: LanguageModel, *, roles: tuple[Role, ...] = ROLES, seed: int = 0) -> Roles:
    """Score every head for every role, each by its published definition, on generated text.

    - induction, previous, duplicate: mean attention weights on repeated random tokens, in [0, 1];
      see `saccade.interp.studies.roles`.
    - name-mover: what the head adds directly to the logit of the name said once, less that of the
      name said twice (Wang et al., 2022, https://arxiv.org/abs/2211.00593, section 3.1), times the
      weight with which the last token looks at the name said once. They show the two on the axes
      of a figure, and call the heads that have both name movers; the product is one number that
      wants both.
    - copy: see `saccade.interp.studies.roles.copy_scores`, for the names, in [0, 1].
    """
    found: dict[Role, dict[int, Tensor]] = {}
    if {"induction", "previous", "duplicate"} & {*roles}:
        found.update(_attention_roles(model, seed))
    if {"name-mover", "copy"} & {*roles}:
        found.update(_name_roles(model, seed))
    return Roles(model=model.name, seed=seed, scores={role: found[role] for role in roles})


def checked_roles(asked: Sequence[str]) -> tuple[Role, ...]:
    """The roles of these names, in the order of `ROLES`."""
    if unknown := [name for name in asked if name not in ROLES]:
        hint = suggest(unknown[0], ROLES, f"roles are {', '.join(ROLES)}")
        raise UsageError(f"no role {unknown[0]!r}", hint=hint)
    return tuple(role for role in ROLES if role in asked)


def _attention_roles(model: LanguageModel, seed: int) -> dict[Role, dict[int, Tensor]]:
    text = repeated_blocks(model, rows=ROWS, seed=seed)
    found: dict[Role, dict[int, Tensor]] = {"induction": {}, "previous": {}, "duplicate": {}}
    weights = capture(
        model, text.ids, layers=[], attention=[at.index for at in model.layers]
    ).attention
    for layer, each in weights.items():
        found["induction"][layer] = induction_score(each, block=text.block, start=text.start)
        found["duplicate"][layer] = duplicate_token_score(each, block=text.block, start=text.start)
        found["previous"][layer] = previous_token_score(each)
    return found


def _name_roles(model: LanguageModel, seed: int) -> dict[Role, dict[int, Tensor]]:
    text = name_texts(model, rows=NAME_ROWS, seed=seed)
    layers = [at.index for at in model.layers]
    captured = capture(model, text.ids, residual=True, attention=layers, attention_positions=[-1])
    rows = torch.arange(len(text.ids))
    movers: dict[int, Tensor] = {}
    for at in model.layers:
        looks = captured.attention[at.index][rows, :, 0, text.place.cpu()].float()
        if not at.reaches_stream:
            movers[at.index] = torch.full((at.n_heads,), float("nan"))
            continue
        once, twice = (
            direct_logits(model, captured, at.index, name[:, None], positions=[-1])[:, 0]
            for name in (text.once, text.twice)
        )
        movers[at.index] = ((once - twice).mean(0) * looks.to(once.device).mean(0)).cpu()
    return {"name-mover": movers, "copy": copy_scores(model, text.ids, text.place)}
