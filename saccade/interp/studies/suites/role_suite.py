"""Suite roles: heads by published definitions, found on one half of the items, tested on the other.

The definitions are those of the papers; how many heads have a role is the number that the papers
name for their model, not chosen here. A head that is found by the largest of many scores keeps them
on other items only as far as the role is real: so every role is found on half of the items
(templates, tasks, rows) and measured on the other half, beside the other heads of the same layers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import ModelError, SaccadeError, TaskError
from saccade.interp.studies.roles.function_vectors import Task, VectorConfig, task_effects
from saccade.interp.studies.roles.names import NAMES, PLACES, THINGS, NameWords, shape_of
from saccade.interp.studies.roles.patterns import ROWS, pattern_rows
from saccade.interp.studies.roles.role import read_data, role_data
from saccade.interp.studies.suites.name_circuit import (
    NamePrompt,
    copy_rates,
    exact_paths,
    name_prompts,
    name_run,
    paths_at_first_order,
    unrelated_means,
)
from saccade.interp.studies.suites.stable_heads import (
    HeldOut,
    RoleRows,
    by_item,
    largest_of,
    others_of,
)
from saccade.interp.studies.suites.suite import Found, Item, Progress, Row, Suite, SuiteConfig

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

# As many heads as the papers name: Wang et al. (2022), figure 2: 9.9, 9.6 and 10.0; 10.7 and 11.10;
# 7.3, 7.9, 8.6 and 8.10. Todd et al. (2024), section 2.3: ten. Olsson et al. (2022) name no number.
MOVERS, NEGATIVE, INHIBITION, VECTORS, INDUCTION = 3, 2, 4, 10, 5
COPY = 0.95  # Wang et al., section 3.1: the copy score of their name movers is above 95 %
VECTOR_DATA = "function-vectors"
BLOCKS = "repeated tokens"


class RoleSuite(Suite):
    """Name movers, negative name movers, S-inhibition, induction and function-vector heads."""

    name = "roles"
    about = "heads by published definitions, found on half of the items and tested on the others"
    source = "IOI templates of MIB, Apache-2.0; function vectors of Todd et al. (2024), MIT"
    folder = "ioi"
    fields = frozenset({"template"})

    def read(self, folder: Path) -> Mapping[str, Sequence[Item]]:
        """The templates of MIB, and the tasks of function vectors where they are beside them."""
        parts = {
            part: read_data(folder / f"mib_{part}.json")
            for part in ("templates", "names", "places", "objects")
        }
        words = {part: parts[part] for part in ("names", "places", "objects")}
        items: list[Item] = [{"template": each, **words} for each in parts["templates"]]
        for number, item in enumerate(items, 1):
            if (wrong := self.fault(item)) is not None:
                raise TaskError(
                    f"{folder}: template {number}: {wrong}", hint="fetch the data set again"
                )
        found: dict[str, Sequence[Item]] = {"ioi": items}
        tasks = role_data(VECTOR_DATA, folder.parent)
        if tasks is not None:
            found[VECTOR_DATA] = [
                {"task": path.stem, "pairs": Task.read(tasks, path.stem).pairs}
                for path in sorted(tasks.glob("*.json"))
            ]
        return found

    def fault(self, item: Item) -> str | None:
        """A template has three names, and no field that is not known."""
        template = item["template"]
        if not isinstance(template, str):
            return f"template is no text: {str(template)[:60]!r}"
        names = ("{name_A}", "{name_B}", "{name_C}")
        if missing := [name for name in names if name not in template]:
            return f"template has no {' and no '.join(missing)}: {template[:60]!r}"
        try:
            shape_of(template).format(a="", b="", s="", place="", thing="")
        except (KeyError, IndexError, ValueError) as error:
            return f"template has an unknown field, {error}: {template[:60]!r}"
        for part in ("names", "places", "objects"):
            words = item.get(part, ["x"])
            if not isinstance(words, list) or not all(isinstance(w, str) and w for w in words):
                return f"{part} is no list of words: {str(words)[:60]!r}"
        return None

    def run(
        self,
        model: LanguageModel,
        items: Mapping[str, Sequence[Item]],
        config: SuiteConfig,
        progress: Progress | None = None,
    ) -> Found:
        """Rows of each role; a role that cannot be measured on this model is left out."""
        rows: list[Row] = []
        notes: list[str] = []
        left_out: dict[str, str] = {}
        parts = dict(items)
        tasks = parts.pop(VECTOR_DATA, None)
        runs: dict[str, Callable[[], Found]] = {
            data: partial(_names, model, data, each, config, progress)
            for data, each in parts.items()
        }
        runs[BLOCKS] = partial(_induction, model, config)
        if tasks is not None:
            runs[VECTOR_DATA] = partial(_vectors, model, tasks, config, progress)
        elif "ioi" in parts:
            left_out[VECTOR_DATA] = f"the data set {VECTOR_DATA} is not there"
        for data, run in runs.items():
            try:
                found = run()
            except SaccadeError as error:
                left_out[data] = str(error)
                continue
            rows += found.rows
            notes += found.notes
        if not any(each.data in parts for each in rows):
            why = "; ".join(f"{data}: {left_out[data]}" for data in parts)
            raise ModelError(f"{model.name}: {why}", hint="take a larger model, or more templates")
        return Found(rows, notes, left_out)


# Indirect object identification.

LEAST_TEMPLATES = 4


def _words(items: Sequence[Item]) -> NameWords:
    """Templates that differ in ``a`` and ``an`` alone are one: the article is that of the word."""
    shapes = dict.fromkeys(
        shape_of(str(item["template"])).replace(" an {thing}", " a {thing}") for item in items
    )
    first = items[0]
    return NameWords(
        list(shapes),
        first.get("names", NAMES),
        first.get("places", PLACES),
        first.get("objects", THINGS),
        "items",
    )


def _names(
    model: LanguageModel,
    data: str,
    items: Sequence[Item],
    config: SuiteConfig,
    progress: Progress | None,
) -> Found:
    """The heads of IOI, by direct effects, copying, and paths into name movers."""
    words = _words(items)
    prompts = name_prompts(model, words, seed=config.seed)
    n_templates = len({prompt.template for prompt in prompts})
    if n_templates < LEAST_TEMPLATES:
        raise ModelError(
            f"{n_templates} of {len(words.shapes)} templates are left, of which {LEAST_TEMPLATES} "
            "are needed to find heads on some and test them on others",
            hint="give more templates",
        )
    means = unrelated_means(model, words, seed=config.seed)
    run = name_run(model, prompts, means, progress)
    roles = RoleRows(model, data, config)
    direct, total, io, s2 = (
        by_item(each, run.template) for each in (run.direct, run.total, run.io, run.s2)
    )
    roles.add("model", "accuracy", by_item((run.difference > 0).float(), run.template))
    roles.add("model", "logit difference", by_item(run.difference, run.template))
    some = _one_each(prompts)
    halves = HeldOut.of(direct, MOVERS, seed=config.seed)
    first, second = (direct[each].mean(0) for each in halves.halves)
    agrees = float(torch.corrcoef(torch.stack([first, second]))[0, 1])
    metric = "direct effects, correlation of the halves"
    roles.rows.append(
        Row(data=data, method="all heads", metric=metric, value=agrees, n=n_templates)
    )
    n_all = len(items)
    notes = [
        (
            f"{data}: {len(prompts)} prompts of {n_templates} templates ({n_all} with a and an "
            "apart), both orders of the names; intervals over templates"
        )
    ]
    for method, sign, n in (("name movers", 1, MOVERS), ("negative name movers", -1, NEGATIVE)):
        found = HeldOut.of(sign * direct, n, seed=config.seed)
        copied = copy_rates(model, some, suppressed=sign < 0)
        roles.held_out(method, "direct effect", found, direct)
        roles.held_out(method, "total effect", found, total)
        roles.held_out(method, "attention to IO", found, io)
        score = "copy score" if sign > 0 else "negative copy score"
        roles.held_out(method, score, found, copied)
        roles.stability(method, found)
        every = largest_of(sign * direct, n)
        rates = copied.mean(0)
        n_copy = int((rates >= COPY).sum())
        notes.append(
            f"{data}: {method} of all templates: {roles.names(every)}, with a {score} of "
            f"{', '.join(f'{float(rates[each]):.2f}' for each in every)}; heads with at least "
            f"{COPY:.2f}: {n_copy} of {len(rates)}"
        )
    notes += _inhibition(model, some, means, halves, s2, roles, progress)
    return Found(roles.rows, [*notes, *_NAME_NOTES])


_NAME_NOTES = (
    (
        "name movers (Wang et al., 2022, sections 3.1 and 3.4): the 3 heads with the largest "
        "direct effect at END and the 2 with the least, as many as they name; they hold the later "
        "heads and let feed-forward layers follow, we hold both; means of prompts with three "
        "names, by template, as theirs; found on half of the templates, measured on the other half"
    ),
    (
        "S-inhibition (section 3.2): the 4 heads with the largest path effect at END through the "
        "name movers found on the same half, chosen at first order, measured exactly on the other "
        "half by patching the path, each name mover by itself and summed (theirs together)"
    ),
    "control: the other heads of the same layers",
)


def _one_each(prompts: Sequence[NamePrompt]) -> list[NamePrompt]:
    """A prompt of each template, the orders of the names by turns."""
    by_template: dict[int, list[NamePrompt]] = {}
    for prompt in prompts:
        by_template.setdefault(prompt.template, []).append(prompt)
    return [each[at % len(each)] for at, each in enumerate(by_template.values())]


# As many parameters as the role rests on.
def _inhibition(
    model: LanguageModel,
    prompts: Sequence[NamePrompt],
    means: Mapping[int, Float[Tensor, "template head d_head"]],
    movers: HeldOut,
    s2: Float[Tensor, "item site"],
    roles: RoleRows,
    progress: Progress | None,
) -> list[str]:
    """S-inhibition heads: one prompt of each template, in the order of the items."""
    method = "S-inhibition heads"
    both = tuple(
        paths_at_first_order(model, prompts, means, [roles.sites[each] for each in heads], progress)
        for heads in movers.heads
    )
    chosen = tuple(
        largest_of(paths[half], INHIBITION) for paths, half in zip(both, movers.halves, strict=True)
    )
    found = HeldOut(movers.halves, (chosen[0], chosen[1]))
    exact = torch.full((len(prompts), len(roles.sites)), float("nan"))
    # Heads and name movers of one half are measured on the prompts of the other.
    for heads, own, half in zip(chosen, movers.heads, movers.halves[::-1], strict=True):
        wanted = sorted(
            {*heads, *(o for head in heads for o in others_of(head, heads, roles.layer))}
        )
        for at in half.tolist():
            sites, through = ([roles.sites[i] for i in each] for each in (wanted, own))
            exact[at, wanted] = exact_paths(model, prompts[at], means, sites, through)
            if progress is not None:
                progress("paths, measured", at + 1, len(prompts))
    roles.held_out(method, "path effect", found, exact)
    roles.held_out(method, "attention to the second S", found, s2)
    roles.stability(method, found)
    return [
        f"{roles.data}: {method} of the halves: {roles.names(chosen[0])}; {roles.names(chosen[1])}"
    ]


# Induction, and function vectors.


def _induction(model: LanguageModel, config: SuiteConfig) -> Found:
    roles = RoleRows(model, BLOCKS, config)
    by_layer = pattern_rows(model, rows=2 * ROWS, seed=config.seed)["induction"]
    scores = torch.cat([each.float().cpu() for each in by_layer.values()], 1)
    found = HeldOut.of(scores, INDUCTION, seed=config.seed)
    roles.held_out("induction heads", "prefix matching", found, scores)
    roles.stability("induction heads", found)
    every = largest_of(scores, INDUCTION)
    note = (
        f"{BLOCKS}: prefix matching of Olsson et al., 2022 (25 random tokens, four times; no "
        f"number of heads is published, we take {INDUCTION}); of all rows: {roles.names(every)}"
    )
    return Found(roles.rows, [note])


def _vectors(
    model: LanguageModel, items: Sequence[Item], config: SuiteConfig, progress: Progress | None
) -> Found:
    roles = RoleRows(model, VECTOR_DATA, config)
    settings = VectorConfig()
    tasks = [Task(str(item["task"]), item["pairs"]) for item in items]
    chance = random.Random(config.seed)
    done = task_effects(model, tasks, config=settings, chance=chance, progress=progress)
    roles.add("model", "accuracy", torch.tensor(list(done.accuracy.values())))
    method = "function-vector heads"
    scores = torch.stack([each.mean(0) for each in done.effects.values()])
    if len(scores) >= LEAST_TEMPLATES:
        found = HeldOut.of(scores, VECTORS, seed=config.seed)
        roles.held_out(method, "indirect effect", found, scores)
        roles.stability(method, found)
    names = ", ".join(done.effects)
    does = (
        f"{VECTOR_DATA}: the model does {len(scores)} of {len(tasks)} tasks ({names}); "
        f"heads of all of these: {roles.names(largest_of(scores, VECTORS))}"
    )
    test = (
        f"{VECTOR_DATA} (Todd et al., 2024, section 2.3): rise of the answer's probability after "
        f"shuffled examples; {settings.shots} shots, {settings.clean} and {settings.shuffled} "
        "prompts a task (theirs: 10, 100 and 25); the 10 heads of half of the tasks are measured "
        "on the other half; control: other heads of the same layers"
    )
    return Found(roles.rows, [does, test])
