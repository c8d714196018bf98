"""Roles in indirect object identification: name movers and name suppressors."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.target import Target, behind_a_space, effects_on_targets
from saccade.interp.heads.capture import capture
from saccade.interp.heads.residual_path import direct_logits
from saccade.interp.studies.roles.ov_circuits import copied_names
from saccade.interp.studies.roles.role import (
    Progress,
    RoleScore,
    head_changes,
    read_data,
    score_of,
    split_heads,
)

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

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
# Rows: the scores of the default model then differ by less than 0.02 between seeds.
NAME_ROWS = 32


@dataclass(frozen=True)
class NameWords:
    """What prompts with two names are made of."""

    shapes: Sequence[str]
    """With ``{a}``, ``{b}``, the subject ``{s}``, ``{place}`` and ``{thing}``."""
    names: Sequence[str]
    places: Sequence[str]
    things: Sequence[str]
    source: str = "generated prompts"

    @classmethod
    def of(cls, folder: Path | None) -> NameWords:
        """Those of MIB's data set; our own without it.

        Mueller et al., 2025, MIB (https://arxiv.org/abs/2504.13151).
        """
        if folder is None:
            return cls(SHAPES, NAMES, PLACES, THINGS)
        shapes, names, places, things = (
            read_data(folder / f"mib_{part}.json")
            for part in ("templates", "names", "places", "objects")
        )
        shapes = [shape_of(template) for template in shapes]
        return cls(shapes, names, places, things, "prompts of MIB")

    def fill(self, chance: random.Random, *, shape: str | None = None, **names: str) -> str:
        """A prompt with these names; the rest by chance, also the shape if none is given."""
        place, thing = chance.choice(self.places), chance.choice(self.things)
        shape = chance.choice(self.shapes) if shape is None else shape
        article = "an" if thing[0] in "aeiou" else "a"
        shape = shape.replace(" an {thing}", f" {article} {{thing}}").replace(
            " a {thing}", f" {article} {{thing}}"
        )
        return shape.format(place=place, thing=thing, **names)


def shape_of(template: str) -> str:
    """A template with the names of MIB's fields, as one of `NameWords`.

    >>> shape_of("{name_A} met {name_B}. {name_C} gave it to")
    '{a} met {b}. {s} gave it to'
    """
    fields = (("name_A", "a"), ("name_B", "b"), ("name_C", "s"), ("object", "thing"))
    for theirs, ours in fields:
        template = template.replace(f"{{{theirs}}}", f"{{{ours}}}")
    return template


class NameTexts(NamedTuple):
    """Prompts whose next token is the name that occurs only once."""

    ids: Int[Tensor, "batch pos"]
    once: Int[Tensor, " batch"]
    """The token of the name that occurs once: the indirect object."""
    twice: Int[Tensor, " batch"]
    """The token of the name that occurs twice: the subject."""
    place: Int[Tensor, " batch"]
    """The position of the name that occurs once."""


def name_texts(
    model: LanguageModel, *, rows: int, seed: int, words: NameWords | None = None
) -> NameTexts:
    """Prompts with two names in alternating order, all of the same number of tokens."""
    words = words or NameWords.of(None)
    chance = random.Random(seed)
    names = short_names(model, words)
    # Prompts of one form with one-token names have one length; others are skipped.
    texts: dict[int, list[tuple[Tensor, int, int]]] = {}
    for turn in range(20 * rows):
        once, twice = chance.sample(names, 2)
        a, b = (once, twice) if turn % 2 else (twice, once)
        ids = model.encode(words.fill(chance, a=a, b=b, s=twice))[0]
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


def short_names(model: LanguageModel, words: NameWords) -> list[str]:
    """The names that are one token behind a space."""
    names = [name for name in words.names if len(behind_a_space(model, name)) == 1]
    if len(names) < 4:
        raise ModelError(
            f"{model.name} splits names into pieces: no prompts with two names can be made",
            hint="choose other roles",
        )
    return names


@torch.no_grad()
def name_roles(
    model: LanguageModel, seed: int, _: Path | None, progress: Progress | None
) -> Mapping[str, RoleScore]:
    """Name movers by direct logits, and heads that copy names, on generated prompts.

    - name-mover: what the head adds directly to the logit of the name that occurs once, minus that
      of the name that occurs twice (Wang et al., 2022, https://arxiv.org/abs/2211.00593, section
      3.1), times the attention weight from the last token to the name that occurs once. They show
      the two on the axes of a plot, and call heads that are high in both name movers; the product
      is one number that is high only if both are.
    - copy: see `saccade.interp.studies.roles.ov_circuits.copied_names`, in [0, 1].
    """
    text = name_texts(model, rows=NAME_ROWS, seed=seed)
    layers = [at.index for at in model.layers]
    captured = capture(model, text.ids, residual=True, attention=layers, attention_positions=[-1])
    rows = torch.arange(len(text.ids))
    added: dict[int, Tensor] = {}
    looked: dict[int, Tensor] = {}
    for at in model.layers:
        looked[at.index] = captured.attention[at.index][rows, :, 0, text.place.cpu()].float().cpu()
        if not at.reaches_stream:
            added[at.index] = torch.full((len(rows), at.n_heads), float("nan"))
            continue
        once, twice = (
            direct_logits(model, captured, at.index, name[:, None], positions=[-1])[:, 0]
            for name in (text.once, text.twice)
        )
        added[at.index] = (once - twice).cpu()
    copied = copied_names(model, text.ids, text.place)
    if progress is not None:
        progress("two names", 1, 1)
    movers = score_of(added, times=looked, beside={"direct": added, "weight": looked}, seed=seed)
    return {"name-mover": movers, "copy": score_of(copied, seed=seed)}


# By exact effects.

EFFECT_ROWS, EFFECT_BATCH = 48, 8


@torch.no_grad()
def name_effect_roles(
    model: LanguageModel, seed: int, data: Path | None, progress: Progress | None
) -> Mapping[str, RoleScore]:
    """Name movers and name suppressors by their exact effect, beside their attention to the name.

    Wang et al., 2022 (https://arxiv.org/abs/2211.00593), sections 3.1 and 3.4: how far the logit of
    the name that occurs once (IO) falls against that of the other (S) when the head at the last
    token is replaced by its mean over prompts with three different names (their p_ABC), times its
    weight on IO. Name movers raise IO; negative name movers, here name suppressors, look at the
    same name and lower it. Where we differ: they find heads by path patching to the logits and take
    means by prompt template; we measure the whole effect, and take one mean over all templates.
    """
    words = NameWords.of(data)
    text = name_texts(model, rows=EFFECT_ROWS, seed=seed, words=words)
    changes = head_changes(model, _unrelated(model, words, seed))
    effects, looked = [], {at.index: [] for at in model.layers}
    starts = range(0, len(text.ids), EFFECT_BATCH)
    for start in starts:
        part = NameTexts(*(each[start : start + EFFECT_BATCH] for each in text))
        run = run_copies(model, part.ids, changes, attention=True)
        targets = [
            Target(once, twice)
            for once, twice in zip(part.once.tolist(), part.twice.tolist(), strict=True)
        ]
        effects.append(effects_on_targets(model, run, targets).cpu())
        at = torch.arange(len(part.ids))
        for layer, weights in run.captured.attention.items():
            looked[layer].append(weights[at, :, 0, part.place.cpu()].float().cpu())
        if progress is not None:
            progress("effects on names", start + len(part.ids), len(text.ids))
    effect = split_heads(model, torch.cat(effects))
    weight = {layer: torch.cat(each) for layer, each in looked.items()}
    beside: dict[str, Mapping[int, Float[Tensor, "row head"]]] = {
        "effect": effect,
        "weight": weight,
    }
    against = {layer: -rows for layer, rows in effect.items()}
    kept = {"beside": beside, "seed": seed, "notes": (f"{len(text.ids)} {words.source}",)}
    return {
        "name-mover-effect": score_of(effect, times=weight, **kept),
        "name-suppressor": score_of(against, times=weight, **kept),
    }


def _unrelated(
    model: LanguageModel, words: NameWords, seed: int
) -> dict[int, Float[Tensor, "head d_head"]]:
    """Mean activations at the last token of prompts with three different names."""
    chance = random.Random(f"unrelated {seed}")  # other draws than those of the prompts
    names = short_names(model, words)
    sums: dict[int, Tensor] = {}
    groups: dict[int, list[Tensor]] = {}
    for _ in range(NAME_ROWS):
        a, b, s = chance.sample(names, 3)
        ids = model.encode(words.fill(chance, a=a, b=b, s=s))[0]
        groups.setdefault(len(ids), []).append(ids)
    for same in groups.values():
        ids = torch.stack(same)
        last = torch.full((len(ids), 1), ids.shape[1] - 1)
        for layer, z in capture(model, ids, positions=last).z.items():
            sums[layer] = sums.get(layer, 0) + z[:, 0].float().sum(0)
    return {layer: total / NAME_ROWS for layer, total in sums.items()}
