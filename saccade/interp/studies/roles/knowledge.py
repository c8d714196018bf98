"""The role of knowledge retrievers: heads that look at a subject and promote its attribute."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import behind_a_space
from saccade.interp.heads.capture import capture
from saccade.interp.studies.fidelity.geometry import estimate, resampled_means
from saccade.interp.studies.prompts import PromptEnds
from saccade.interp.studies.roles.function_vectors import BATCH, padded
from saccade.interp.studies.roles.role import (
    Progress,
    RoleScore,
    head_changes,
    predictions,
    read_data,
    score_of,
    split_heads,
)

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

Site = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class KnowledgeConfig:
    """How knowledge retrievers are looked for."""

    shots: int = 2
    """Other facts of the relation before each prompt."""
    asked: int = 10
    """Facts of each relation that the model is asked for."""
    facts: int = 4
    """At most so many of each relation that it knows."""
    heads: int = 8
    """Heads that are ablated together in the check."""
    controls: int = 20
    """Sets of random heads beside them."""


class Relation(NamedTuple):
    """A relation between subjects and objects."""

    name: str
    template: str
    """With ``{}`` for the subject; the object follows."""
    samples: Sequence[tuple[str, str]]

    @classmethod
    def read(cls, path: Path) -> Relation:
        """A relation of the data set of Hernandez et al.: its first template."""
        row = read_data(path)
        samples = [(str(each["subject"]), str(each["object"])) for each in row["samples"]]
        return cls(path.stem, str(row["prompt_templates"][0]), samples)


class Fact(NamedTuple):
    """A prompt whose next token is the attribute of a subject."""

    relation: str
    ids: Int[Tensor, " pos"]
    subject: tuple[int, int]
    """The positions of the subject, from the first to before the second."""
    attribute: int
    """The first token of the object."""
    others: tuple[int, ...]
    """Those of the relation's other objects."""

    def contrast(self, logits: Float[Tensor, "*batch token"]) -> Float[Tensor, "*batch"]:
        """The attribute's logit minus the mean of the other objects, from those of `tokens`."""
        return logits[..., 0] - logits[..., 1:].mean(-1)

    @property
    def tokens(self) -> list[int]:
        """The attribute, and the others."""
        return [self.attribute, *self.others]


MOST_OBJECTS = 48  # of a relation


def facts_of(
    model: LanguageModel, relation: Relation, *, config: KnowledgeConfig, chance: random.Random
) -> list[Fact]:
    """Prompts for facts of a relation, each after other facts of it.

    No object of an example is among a prompt's answer and its other objects: the model could copy
    it. Prompts that the model cannot read are left out.
    """
    samples = chance.sample(relation.samples, min(len(relation.samples), MOST_OBJECTS))
    first: dict[str, int] = {}
    for _, name in samples:
        if name not in first and name.strip():
            first[name] = behind_a_space(model, name)[0]
    found = []
    for subject, name in samples[: config.asked]:
        rest = [each for each in samples if first[each[1]] != first[name]]
        if len(rest) < config.shots:
            continue
        shown = chance.sample(rest, config.shots)
        lines = [f"{relation.template.format(a)} {b}." for a, b in shown]
        copied = {first[name], *(first[b] for _, b in shown)}
        others = tuple(dict.fromkeys(id_ for id_ in first.values() if id_ not in copied))
        if not others:
            continue
        before = "\n".join([*lines, relation.template.partition("{}")[0]])
        try:
            ids = model.encode("\n".join([*lines, relation.template.format(subject)]))[0].cpu()
            end = model.encode(f"{before}{subject}").shape[1]
            start = model.encode(before.rstrip(" ")).shape[1] if before.strip() else 0
        except UsageError:  # longer than the model's context
            continue
        start = max(start, model.encoding.n_skipped)  # the first position is a sink
        if start < end <= len(ids):
            found.append(Fact(relation.name, ids, (start, end), first[name], others))
    return found


@torch.no_grad()
def known(model: LanguageModel, facts: Sequence[Fact]) -> list[Fact]:
    """The facts whose attribute the model ranks above all other objects of the relation."""
    found = []
    for start in range(0, len(facts), 2 * BATCH):
        some = facts[start : start + 2 * BATCH]
        ids, lengths = padded([fact.ids for fact in some])
        last = torch.tensor(lengths)[:, None] - 1
        final = capture(model, ids.to(model.device), layers=[], positions=last).final[:, 0]
        for fact, state in zip(some, final, strict=True):
            logits = model.unembedding.logits(state)[fact.tokens]
            if int(logits.argmax()) == 0:
                found.append(fact)
    return found


class FactEffects(NamedTuple):
    """What every head does after each fact, at the last token."""

    effect: Float[Tensor, "fact site"]
    """How far the attribute's logit, above the mean of the other objects, falls without it."""
    weight: Float[Tensor, "fact site"]
    """Its attention to the subject."""
    kl: Float[Tensor, "fact site"]


@torch.no_grad()
def fact_effects(
    model: LanguageModel,
    facts: Sequence[Fact],
    replacement: Replacement,
    progress: Progress | None = None,
) -> FactEffects:
    """Effects and attention of all heads, all of them in one run of each prompt."""
    changes = head_changes(model, replacement.at_last().heads)
    rows: list[FactEffects] = []
    for start in range(0, len(facts), BATCH):
        some = facts[start : start + BATCH]
        ids, lengths = padded([fact.ids for fact in some])
        run = run_copies(model, ids.to(model.device), changes, lengths=lengths, attention=True)
        for row, fact in enumerate(some):
            at = predictions(model, run.captured.final[row, 0], run.states[row], fact.tokens)
            fallen = fact.contrast(at.plain_logits) - fact.contrast(at.logits)
            weights = [
                each[row, :, 0, slice(*fact.subject)].float().sum(-1).cpu()
                for each in run.captured.attention.values()
            ]
            rows.append(FactEffects(fallen.cpu(), torch.cat(weights), at.kl.cpu()))
        if progress is not None:
            progress("facts", start + len(some), len(facts))
    return FactEffects(*(torch.stack(each) for each in zip(*rows, strict=True)))


def knowledge_roles(
    model: LanguageModel,
    seed: int,
    data: Path | None,
    progress: Progress | None,
    config: KnowledgeConfig | None = None,
) -> Mapping[str, RoleScore]:
    """The effect of a head on the attribute of a subject, times its attention to the subject.

    Both at the last token of a fact that the model knows, averaged over facts. Geva et al., 2023
    (https://arxiv.org/abs/2304.14767), section 6, find that attributes are extracted by attention
    from the subject to the last token, through few heads; relations are those of Hernandez et al.,
    2024 (https://arxiv.org/abs/2308.09124). Where we differ: they block attention edges and read
    heads through the unembedding; we measure the exact effect on the attribute's logit, minus the
    mean of the relation's other objects, so that what only promotes its kind does not count.

    The check: the best heads by one half of the relations, ablated together at the last token of
    the facts of the other half, beside random heads of the same layers with the nearest mean KL.
    """
    config = config or KnowledgeConfig()
    assert data is not None, "the role needs data"
    chance = random.Random(seed)
    relations = [Relation.read(path) for path in sorted(data.rglob("*.json"))]
    facts: list[Fact] = []
    for number, relation in enumerate(relations):
        found = known(model, facts_of(model, relation, config=config, chance=chance))
        facts += found[: config.facts] if len(found) > 1 else []
        if progress is not None:
            progress("relations", number + 1, len(relations))
    names = list(dict.fromkeys(fact.relation for fact in facts))
    if len(names) < 2:
        raise ModelError(
            f"{model.name} knows facts of {len(names)} of {len(relations)} relations, too few to "
            "find heads on some and check them on others",
            hint="choose other roles",
        )
    replacement = Replacement.usual(model)
    measured = fact_effects(model, facts, replacement, progress)
    chance.shuffle(names)
    searched = {*names[: len(names) // 2]}
    is_searched = torch.tensor([fact.relation in searched for fact in facts])
    held_out = [fact for fact in facts if fact.relation not in searched]
    half = FactEffects(*(each[is_searched] for each in measured))
    check = ablation_check(model, half, held_out, replacement, config=config, seed=seed)
    note = f"{len(facts)} facts of {len(names)} relations that the model knows, of {len(relations)}"
    parts = {
        name: split_heads(model, each)
        for name, each in zip(("effect", "weight"), measured[:2], strict=True)
    }
    rows = split_heads(model, measured.effect * measured.weight)
    return {
        "knowledge": score_of(
            rows,
            beside=parts,
            seed=seed,
            notes=(note,),
            check={"n_relations": len(names) - len(searched), **check},
        )
    }


# The check on held-out relations.


@torch.no_grad()
def ablation_check(
    model: LanguageModel,
    half: FactEffects,
    held_out: Sequence[Fact],
    replacement: Replacement,
    *,
    config: KnowledgeConfig,
    seed: int,
) -> dict[str, Any]:
    """What is lost on held-out facts without the best heads, and without random ones.

    Args:
        half: effects on the facts that the heads are found on.
    """
    sites = [(at.index, head) for at in model.layers for head in range(at.n_heads)]
    score = (half.effect * half.weight).mean(0)
    best = score.argsort(descending=True)[: config.heads].tolist()
    kl = dict(zip(sites, half.kl.mean(0).tolist(), strict=True))
    chosen = [sites[i] for i in best]
    controls = matched_heads(chosen, kl, n=config.controls, seed=seed)
    ends = [
        _Ends(model, held_out[at : at + 2 * BATCH]) for at in range(0, len(held_out), 2 * BATCH)
    ]
    own = _without(ends, chosen, replacement)
    others = [_without(ends, each, replacement) for each in controls]
    found: dict[str, Any] = {
        "heads": [f"{layer}.{head}" for layer, head in chosen],
        "n_facts": len(held_out),
        "n_controls": len(controls),
        "fall": _interval(own[:, 0]),
        "kl": _interval(own[:, 1]),
    }
    if others:
        mean = torch.stack(others).mean(0)  # [fact, 2]
        found |= {
            "control_fall": _interval(mean[:, 0]),
            "control_kl": _interval(mean[:, 1]),
            "difference": _interval(own[:, 0] - mean[:, 0]),
            "controls_above": sum(
                float(each[:, 0].mean()) >= float(own[:, 0].mean()) for each in others
            ),
        }
    return found


DRAWN = 2000  # sets of random heads to choose from


def matched_heads(
    heads: Sequence[Site], kl: Mapping[Site, float], *, n: int, seed: int
) -> list[list[Site]]:
    """Sets of other heads, as many of each layer, whose summed KL is nearest to that of ``heads``.

    Fewer or none where the layers have no other heads.
    """
    chance = random.Random(seed)
    wanted = sum(kl[site] for site in heads)
    free = {
        layer: [site for site in kl if site[0] == layer and site not in heads] for layer, _ in heads
    }
    counts = {layer: sum(site[0] == layer for site in heads) for layer in free}
    if any(len(free[layer]) < count for layer, count in counts.items()):
        return []
    drawn = {
        tuple(sorted(site for layer in free for site in chance.sample(free[layer], counts[layer])))
        for _ in range(DRAWN)
    }
    nearest = sorted(drawn, key=lambda each: (abs(sum(kl[s] for s in each) - wanted), each))
    return [list(each) for each in nearest[:n]]


class _Ends:
    """Held-out facts, whose last tokens are run again for each set of heads."""

    def __init__(self, model: LanguageModel, facts: Sequence[Fact]) -> None:
        self.model, self.facts = model, facts
        self.ends = PromptEnds(model, [fact.ids for fact in facts])
        self.plain = self.ends.states()[:, -1]

    def without(self, heads: Sequence[Site], replacement: Replacement) -> Tensor:
        """``[fact, 2]``: the fall of the contrast, and the KL."""
        changes = [replacement.ablation(layer, head) for layer, head in heads]
        found = []
        for fact, plain, state in zip(
            self.facts, self.plain, self.ends.states(changes)[:, -1], strict=True
        ):
            at = predictions(self.model, plain, state[None], fact.tokens)
            fallen = fact.contrast(at.plain_logits) - fact.contrast(at.logits[0])
            found.append(torch.stack([fallen, at.kl[0]]).cpu())
        return torch.stack(found)


def _without(
    ends: Sequence[_Ends], heads: Sequence[Site], replacement: Replacement
) -> Float[Tensor, "fact 2"]:
    """With `Replacement.ablation` for every row of the batch."""
    return torch.cat([each.without(heads, replacement) for each in ends])


def _interval(values: Float[Tensor, " fact"]) -> dict[str, float]:
    found = estimate(resampled_means(values[:, None])[:, 0])
    return {name: float(value) for name, value in found._asdict().items()}
