"""Roles by where a head looks: induction, previous and duplicate tokens, sinks, retrieval."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError
from saccade.interp.effects.copies import run_copies
from saccade.interp.heads.capture import capture
from saccade.interp.lenses.self_text import sample_batch
from saccade.interp.studies.roles.role import (
    Progress,
    RoleScore,
    head_changes,
    predictions,
    score_of,
    split_heads,
)

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


# Olsson et al., 2022: 25 random tokens, repeated four times.
BLOCK, REPEATS = 25, 4
# Rows of repeated blocks: the scores of the default model then differ by less than 0.02 between
# seeds.
ROWS = 8


class RepeatedBlocks(NamedTuple):
    """Rows of repeated blocks of random tokens."""

    ids: Int[Tensor, "batch pos"]
    block: int
    start: int
    """Number of tokens before the first block."""


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


def pattern_roles(
    model: LanguageModel, seed: int, _: Path | None, progress: Progress | None
) -> Mapping[str, RoleScore]:
    """Induction, previous-token and duplicate-token scores on repeated random tokens."""
    found = pattern_rows(model, rows=ROWS, seed=seed)
    if progress is not None:
        progress("repeated tokens", 1, 1)
    return {role: score_of(rows, seed=seed) for role, rows in found.items()}


@torch.no_grad()
def pattern_rows(
    model: LanguageModel, *, rows: int, seed: int
) -> dict[str, dict[int, Float[Tensor, "row head"]]]:
    """By role and layer: the scores of `pattern_roles` on each row of repeated random tokens."""
    text = repeated_blocks(model, rows=rows, seed=seed)
    every = [at.index for at in model.layers]
    weights = capture(model, text.ids, layers=[], attention=every).attention
    found: dict[str, dict[int, Tensor]] = {"induction": {}, "previous": {}, "duplicate": {}}
    where = {"block": text.block, "start": text.start}
    for layer, each in weights.items():
        texts = each.split(1)
        found["induction"][layer] = torch.stack([induction_score(row, **where) for row in texts])
        found["duplicate"][layer] = torch.stack(
            [duplicate_token_score(row, **where) for row in texts]
        )
        found["previous"][layer] = torch.stack([previous_token_score(row) for row in texts])
    return found


# Attention sinks.

# Gu et al., 2024: texts of 64 tokens; a head has a sink if its mean weight is above 0.3.
SINK_WINDOW, SINK_WEIGHT = 64, 0.3
SINK_ROWS, SINK_BATCH = 16, 4


def sink_score(
    weights: Float[Tensor, "batch head query_pos key_pos"],
) -> Float[Tensor, "batch head"]:
    """The mean weight of all tokens on the first one, by text.

    Gu et al., 2024 (https://arxiv.org/abs/2410.10781), section 3: the importance score of the first
    token. Theirs counts the first token's own weight on itself, which is always 1; we leave it out.
    """
    return weights[:, :, 1:, 0].float().mean(-1)


def sink_roles(
    model: LanguageModel, seed: int, _: Path | None, progress: Progress | None
) -> Mapping[str, RoleScore]:
    """The weight on the first token of text that the model writes, and what its value does.

    Xiao et al., 2023 (https://arxiv.org/abs/2309.17453), find that heads put the weight there that
    they do not need; then the value they read there should not matter. ``value_kl`` measures it:
    the change of the prediction when the head keeps its weights and reads zero there, at the last
    token. The first token of a text sees itself alone, so that its activation is that value, up to
    its weight, and no value matrix is needed. ``write_kl`` stands beside it: the same when the
    whole activation becomes zero.
    """
    window = min(SINK_WINDOW, model.max_positions or SINK_WINDOW)
    ids = sample_batch(
        model, index=0, rows=SINK_ROWS, window=window, seed=seed, temperature=1.0
    ).ids
    parts = ids.split(SINK_BATCH)
    found: list[dict[str, dict[int, Tensor]]] = []
    for number, some in enumerate(parts):
        found.append(_sinks(model, some))
        if progress is not None:
            progress("sinks", number + 1, len(parts))
    joined = {
        name: {layer: torch.cat([each[name][layer] for each in found]) for layer in rows}
        for name, rows in found[0].items()
    }
    weights = joined.pop("weight")
    return {"sink": score_of(weights, beside=joined, seed=seed)}


def _sinks(model: LanguageModel, ids: Int[Tensor, "batch pos"]) -> dict[str, dict[int, Tensor]]:
    layers = [at.index for at in model.layers]
    ends = torch.tensor([[0, ids.shape[1] - 1]]).expand(len(ids), -1)
    run = capture(model, ids, positions=ends, attention=layers)
    without, nothing = {}, {}
    for layer in layers:
        own = run.attention[layer][:, :, 0, 0].clamp_min(1e-6)  # 1, unless the model has a sink
        share = run.attention[layer][:, :, -1, 0] / own  # [batch, head]
        first, last = run.z[layer].unbind(1)  # [batch, head, d_head]
        without[layer] = last - share.to(last)[..., None] * first
        nothing[layer] = torch.zeros_like(last)
    changes = head_changes(model, without) + head_changes(model, nothing)
    copies = run_copies(model, ids, changes)
    kl = torch.stack(
        [
            predictions(model, final[0], states, [0]).kl
            for final, states in zip(copies.captured.final, copies.states, strict=True)
        ]
    ).cpu()  # [batch, site twice]
    value, write = kl.chunk(2, 1)
    return {
        "weight": {layer: sink_score(run.attention[layer]).cpu() for layer in layers},
        "value_kl": split_heads(model, value),
        "write_kl": split_heads(model, write),
    }


# Retrieval from a long text.

# Wu et al., 2024, use 1,000 to 50,000 tokens, ten depths and three needles. The default model
# finds less in longer texts, and attention over them takes longer.
LENGTHS, DEPTHS = (256, 512, 1024), (0.1, 0.35, 0.6, 0.85)
CITIES = ("Paris", "London", "Berlin", "Boston", "Rome", "Madrid", "Chicago", "Tokyo")
PLANS = (
    "eat warm bread and sit beside the old harbor",
    "rent a blue boat and watch birds on the lake",
    "climb the stone tower and draw a map of the hills",
    "visit the glass market and buy a jar of honey",
    "listen to street music and dance near the fountain",
    "walk through the rose garden and feed the red fish",
)
SUBJECTS = ("The teacher", "A farmer", "My neighbor", "The doctor", "A young man", "Her sister")
DEEDS = ("was reading", "had found", "talked about", "forgot", "was looking for", "brought")
OBJECTS = ("a letter", "the newspaper", "some flowers", "an old coat", "the keys", "a new chair")
TIMES = ("in the morning", "last week", "after lunch", "on Sunday", "before the storm", "at night")


class Needle(NamedTuple):
    """A long text with one fact in it, and a question whose answer is that fact."""

    ids: Int[Tensor, " pos"]
    """The text, the question, and the answer as the fact has it."""
    at: Int[Tensor, " token"]
    """Positions of the answer's tokens in the fact."""
    asked: Int[Tensor, " token"]
    """Positions whose next token is each token of the answer."""


def needles(model: LanguageModel, *, seed: int) -> list[Needle]:
    """Texts of all lengths and depths that the model can read, each with another fact."""
    chance = random.Random(seed)
    most = model.max_positions or max(LENGTHS)
    lengths = [length for length in LENGTHS if length <= most] or [most]
    found = [
        needle
        for length in dict.fromkeys(lengths)
        for depth in DEPTHS
        if (needle := _needle(model, length, depth, chance)) is not None
    ]
    if not found:
        raise ModelError(
            f"{model.name} reads {most} tokens: too few for a text with a fact and a question",
            hint="choose other roles",
        )
    return found


def _needle(
    model: LanguageModel, length: int, depth: float, chance: random.Random
) -> Needle | None:
    """A fact among sentences that have nothing to do with it; None where there is no room."""
    city, plan = chance.choice(CITIES), chance.choice(PLANS)
    fact, answer = f" The best thing to do in {city} is to", f" {plan}"
    question = f"\nQuestion: What is the best thing to do in {city}?\nAnswer:{fact}"
    prefix = list(model.encoding.prefix)

    def tokens(text: str) -> list[int]:
        # In the middle of a text: some tokenizers change its start.
        before = model.encode("a")[0].tolist()
        return model.encode(f"a{text}")[0].tolist()[len(before) :]

    stated, wanted, asked = tokens(fact), tokens(answer), tokens(question)
    room = length - len(prefix) - len(stated) - 2 * len(wanted) - len(asked)
    if room < 2:
        return None
    filler: list[int] = []
    while len(filler) < room:
        parts = (chance.choice(words) for words in (SUBJECTS, DEEDS, OBJECTS, TIMES))
        filler += tokens(f" {' '.join(parts)}.")
    cut = int(depth * room)
    before = [*prefix, *filler[:cut], *stated]
    ids = [*before, *wanted, *filler[cut:room], *asked, *wanted]
    place = torch.arange(len(wanted))
    return Needle(torch.tensor(ids), len(before) + place, len(ids) - len(wanted) - 1 + place)


def retrieval_roles(
    model: LanguageModel, seed: int, _: Path | None, progress: Progress | None
) -> Mapping[str, RoleScore]:
    """The share of a fact's tokens that a head looks at while the model copies them.

    Wu et al., 2024 (https://arxiv.org/abs/2404.15574), section 2: a head copies a token if the
    model writes a token of the fact while the head's largest weight is on that token in the fact.
    They take a head for a retrieval head from a score of 0.1. Where we differ: texts are generated
    and shorter; the answer is given token by token, and a token counts as written if it is the
    model's likeliest, so that one pass does for all of them; facts that the model does not copy
    count too, with 0. ``looks`` is the same share whether or not the model writes the token.
    """
    texts = needles(model, seed=seed)
    copied: dict[int, list[Tensor]] = {at.index: [] for at in model.layers}
    looked: dict[int, list[Tensor]] = {at.index: [] for at in model.layers}
    n_written, n_tokens = 0, 0
    for number, text in enumerate(texts):
        ids, asked = text.ids[None].to(model.device), text.asked.tolist()
        run = capture(
            model,
            ids,
            positions=text.asked[None],
            attention=list(copied),
            attention_positions=asked,
        )
        wanted = text.ids[text.at]
        written = model.unembedding.logits(run.final[0]).argmax(-1).cpu() == wanted  # [token]
        for layer, weights in run.attention.items():
            hits = weights[0].argmax(-1).cpu() == text.at  # [head, token]
            looked[layer].append(hits.float().mean(-1))
            copied[layer].append((hits & written).float().mean(-1))
        n_written, n_tokens = n_written + int(written.sum()), n_tokens + len(wanted)
        if progress is not None:
            progress("needles", number + 1, len(texts))
    rows = {layer: torch.stack(each) for layer, each in copied.items()}
    beside = {"looks": {layer: torch.stack(each) for layer, each in looked.items()}}
    longest = max(len(text.ids) for text in texts)
    note = (
        f"the model writes {100 * n_written / n_tokens:.0f}% of the tokens of {len(texts)} facts, "
        f"in texts of up to {longest} tokens"
    )
    return {"retrieval": score_of(rows, beside=beside, seed=seed, notes=(note,))}
