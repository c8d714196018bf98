"""Roles of heads: induction, previous token, duplicate token, name mover, copying."""

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
from saccade.interp.effects.target import behind_a_space
from saccade.interp.heads.capture import capture, head_outputs
from saccade.interp.heads.residual_path import direct_logits

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Scores of attention patterns on generated text.
#
# The text of the first three is a repeated block of random tokens. The earlier occurrences of a
# token are then a whole number of blocks back, and only the repetition can be predicted.


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
    """The mean weight on all earlier occurrences of the token itself.

    Wang et al., 2022 (https://arxiv.org/abs/2211.00593), section 3: duplicate token heads.

    Args:
        block: number of tokens per block.
        start: number of tokens before the first block.
    """
    return _weight_on(weights, block=block, start=start, ahead=0)


def induction_score(
    weights: Float[Tensor, "batch head query_pos key_pos"], *, block: int, start: int = 0
) -> Float[Tensor, " head"]:
    """The mean weight on the tokens just after earlier occurrences of the token.

    Olsson et al., 2022 (https://arxiv.org/abs/2209.11895): prefix matching, over all earlier
    occurrences, from the second block on.
    """
    return _weight_on(weights, block=block, start=start, ahead=1)


def _weight_on(weights: Tensor, *, block: int, start: int, ahead: int) -> Tensor:
    n = weights.shape[-1]
    place = torch.arange(n, device=weights.device) - start
    back = place[:, None] - place + ahead  # [query_pos, key_pos]
    # A token after an earlier occurrence has that occurrence before it, in the first block too.
    wanted = (back > 0) & (back % block == 0) & (place >= ahead) & (place[:, None] >= block)
    on = (weights.float() * wanted).sum(-1)  # [batch, head, query_pos]
    return on[..., start + block :].mean((0, 2))


# Generated texts: repeated random tokens, and prompts with two names.

# Olsson et al., 2022: 25 random tokens, repeated four times.
BLOCK, REPEATS = 25, 4
NAMES = (
    *("Mary", "John", "Tom", "James", "Dan", "Sarah", "Emma", "Anna", "Peter", "Paul"),
    *("Mark", "David", "Alice", "Kate", "Laura", "Simon", "Adam", "Jack", "Rose", "Ben"),
)
PLACES = ("store", "park", "school", "office", "station", "garden", "library", "market")
THINGS = ("book", "ball", "drink", "letter", "flower", "ticket", "cake", "pen")
# Wang et al., 2022, appendix: the forms of their prompts, in our own words.
SHAPES = (
    "When {a} and {b} went to the {place}, {s} gave a {thing} to",
    "After {a} and {b} met at the {place}, {s} handed a {thing} to",
    "While {a} and {b} were sitting in the {place}, {s} passed a {thing} to",
    "{a} and {b} had a long walk to the {place}. Then {s} offered a {thing} to",
)


class RepeatedBlocks(NamedTuple):
    """Rows of repeated blocks of random tokens."""

    ids: Int[Tensor, "batch pos"]
    block: int
    start: int
    """Number of tokens before the first block."""


class NameTexts(NamedTuple):
    """Prompts whose next token is the name that occurs only once."""

    ids: Int[Tensor, "batch pos"]
    once: Int[Tensor, " batch"]
    """The token of the name that occurs once: the indirect object."""
    twice: Int[Tensor, " batch"]
    """The token of the name that occurs twice: the subject."""
    place: Int[Tensor, " batch"]
    """The position of the name that occurs once."""


def repeated_blocks(
    model: LanguageModel, *, rows: int, seed: int, block: int = BLOCK, repeats: int = REPEATS
) -> RepeatedBlocks:
    """Random tokens of the vocabulary, a different block in each row.

    The first and last tenth of the vocabulary are left out: special tokens, single bytes and the
    rarest pieces are at its ends. Where the tokenizer begins a text with a token of its own, the
    rows do too.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = model.d_vocab // 10, model.d_vocab * 9 // 10
    # No repetition inside a block, so that a token occurs once in each block.
    drawn = [low + torch.randperm(high - low, generator=generator)[:block] for _ in range(rows)]
    ids = torch.stack(drawn).repeat(1, repeats)
    start = len(model.encoding.prefix)
    return RepeatedBlocks(model.encoding.with_prefix(ids).to(model.device), block, start)


def name_texts(model: LanguageModel, *, rows: int, seed: int) -> NameTexts:
    """Prompts with two names in alternating order, all of the same number of tokens."""
    chance = random.Random(seed)
    names = [name for name in NAMES if len(behind_a_space(model, name)) == 1]
    if len(names) < 4:
        raise ModelError(
            f"{model.name} splits names into pieces: no prompts with two names can be made",
            hint="choose other roles",
        )
    # Prompts of one form with one-token names have one length; others are skipped.
    texts: dict[int, list[tuple[Tensor, int, int]]] = {}
    for turn in range(20 * rows):
        once, twice = chance.sample(names, 2)
        a, b = (once, twice) if turn % 2 else (twice, once)
        nouns = {"place": chance.choice(PLACES), "thing": chance.choice(THINGS)}
        ids = model.encode(chance.choice(SHAPES).format(a=a, b=b, s=twice, **nouns))[0]
        tokens = [behind_a_space(model, name)[0] for name in (once, twice)]
        if (ids == tokens[0]).sum() == 1:  # at the start of a text a name may be another token
            same = texts.setdefault(len(ids), [])
            same.append((ids, tokens[0], tokens[1]))
            if len(same) == rows:
                break
    ids, once, twice = zip(*max(texts.values(), key=len), strict=True)
    rows_of_ids, wanted = torch.stack(ids), torch.tensor(once, device=model.device)
    place = (rows_of_ids == wanted[:, None]).int().argmax(1)
    return NameTexts(rows_of_ids, wanted, torch.tensor(twice, device=model.device), place)


# Whether a head that attends to a token promotes that token.

TOP = 5  # Wang et al.: among the first five tokens


@torch.no_grad()
def copy_scores(
    model: LanguageModel,
    ids: Int[Tensor, "batch pos"],
    places: Int[Tensor, " batch"],
) -> dict[int, Float[Tensor, " head"]]:
    """By layer: how often a head that attends to a token has it among its top five tokens.

    Wang et al., 2022 (https://arxiv.org/abs/2211.00593), section 3.1: the state of a token after
    the first layer goes through a head's value and output matrices and the unembedding, as if the
    head attended to it alone. We need no value matrix by name: in a text of one token every head
    attends to that token alone, so one run, in which every layer reads the state after the first,
    gives what all heads would write. The first layer reads its own input.

    Args:
        ids: texts.
        places: in each, the position of the token that the heads attend to.
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
# Rows of each generated text: the scores of the default model then differ by less than 0.02
# between seeds.
ROWS = 8
NAME_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class Roles:
    """A score of every role for every head, and the sites in their order."""

    model: str
    seed: int
    scores: dict[Role, dict[int, Float[Tensor, " head"]]]
    """Role -> layer -> one score per head."""

    def ranked(self, role: Role, n: int = 5) -> list[tuple[int, int, float]]:
        """The heads with the highest scores for a role: layer, head, score."""
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
    - name-mover: what the head adds directly to the logit of the name that occurs once, minus that
      of the name that occurs twice (Wang et al., 2022, https://arxiv.org/abs/2211.00593, section
      3.1), times the attention weight from the last token to the name that occurs once. They show
      the two on the axes of a plot, and call heads that are high in both name movers; the product
      is one number that is high only if both are.
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
        weights = captured.attention[at.index][rows, :, 0, text.place.cpu()].float()
        if not at.reaches_stream:
            movers[at.index] = torch.full((at.n_heads,), float("nan"))
            continue
        once, twice = (
            direct_logits(model, captured, at.index, name[:, None], positions=[-1])[:, 0]
            for name in (text.once, text.twice)
        )
        movers[at.index] = ((once - twice).mean(0) * weights.to(once.device).mean(0)).cpu()
    return {"name-mover": movers, "copy": copy_scores(model, text.ids, text.place)}
