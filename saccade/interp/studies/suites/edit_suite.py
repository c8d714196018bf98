"""The suite of memory injection: prompts that name someone by a description, and the name."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import TaskError
from saccade.interp.heads.intervene import Change, InjectHead, InjectResidual
from saccade.interp.studies.edit.injection import aligned_injection
from saccade.interp.studies.suites.memories import FOLDS, KNOWN, Trial
from saccade.interp.studies.suites.suite import (
    Found,
    Interval,
    Item,
    Progress,
    Row,
    Suite,
    SuiteConfig,
    interval,
    interval_of,
    row,
)

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

FEWEST = 2 * FOLDS  # items, for settings that are chosen on the other folds
CLIP = 1.0  # nats: settings are compared by log-ratios within it, so that no single item decides
MAGNITUDES = (0.03, 0.1, 0.3, 1.0)
STRENGTHS = (0.5, 0.75, 1.0)
PUBLISHED = {
    "ratio of means": "1.23; best encoding 1.38",
    "geometric mean": "1.24; best encoding 1.52",
    "share raised": "0.66; best encoding 0.65",
}
ALL_POSITIONS, EVERY = "all positions, as in their code", "all items"
AS_PUBLISHED = f"authors' method, {ALL_POSITIONS}"
FORM = (
    "which tokens and which states our method takes was chosen with the default model's results on "
    "these items in view, its layers and strengths were not: another model is the better test"
)
AUTHORS = (
    "published: GPT-2 small (another model), layer 8, best of layers and magnitudes on all items; "
    "here layer and magnitude of each item are chosen on the other folds"
)


class EditSuite(Suite):
    """Prompts of Sakarvadia et al.: a description, the name that is meant, and the answer."""

    name: ClassVar[str] = "edit"
    about: ClassVar[str] = "how far an injected memory raises the answer, beside other memories"
    source: ClassVar[str] = "hand-written prompts of Sakarvadia et al. 2023 (MIT)"
    folder: ClassVar[str] = "memory-injections"
    fields: ClassVar[frozenset[str]] = frozenset(
        {
            *("explicit_sentence", "obscure_sentence", "explicit_entity", "obscure_entity"),
            "answer",
        }
    )

    def read(self, folder: Path) -> Mapping[str, Sequence[Item]]:
        """The 106 prompts."""
        path = folder / "handwritten_obscure_explicit_data.csv"
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise TaskError(
                f"cannot read {path}: {error}", hint=f"give the folder {self.folder} as published"
            ) from error
        items = list(csv.DictReader(io.StringIO(text)))
        for number, item in enumerate(items, 1):
            missing = sorted(name for name in self.fields if not (item.get(name) or "").strip())
            if missing:
                raise TaskError(
                    f"{path}: item {number} has no {' and no '.join(missing)}",
                    hint=f"an item has the fields {', '.join(sorted(self.fields))}",
                )
        return {self.folder: items}

    def run(
        self,
        model: LanguageModel,
        items: Mapping[str, Sequence[Item]],
        config: SuiteConfig,
        progress: Progress | None = None,
    ) -> Found:
        """Inject the right memory, another one and a random direction, by two methods."""
        rows: list[Row] = []
        notes: list[str] = []
        left_out: dict[str, str] = {}
        for name, each in items.items():
            if len(each) < FEWEST:
                left_out[name] = f"{len(each)} items, fewer than {FEWEST}"
                continue
            trial = Trial(model, each, seed=config.seed)
            groups = trial.groups()
            notes.append(_count_note(name, trial))
            for group, chosen in groups.items():
                if int(chosen.sum()) < FEWEST:
                    left_out[f"{name}, {group}"] = (
                        f"the model knows {int(chosen.sum())} of {len(each)} answers, too few to "
                        f"choose settings on {FOLDS} folds"
                    )
            groups = {k: v for k, v in groups.items() if int(v.sum()) >= FEWEST}
            found = evaluate_methods(trial, groups, progress)
            rows += [r for group in groups for r in _rows(f"{name}, {group}", group, trial, found)]
            notes += found.notes
        return Found(rows, [*notes, FORM] if rows else notes, left_out)


def _count_note(name: str, trial: Trial) -> str:
    first, among = (int((trial.rank < n).sum()) for n in (1, KNOWN))
    return (
        f"{name}: of {len(trial.rank)} answers (their first tokens) {first} are the likeliest token"
        f" of their explicit prompt and {among} among its {KNOWN} likeliest; settings are chosen on"
        f" the other of {FOLDS} folds, which share no name, by the mean log-ratio clipped to "
        f"{CLIP:g} nat"
    )


# The methods: what is injected for an item, with the memory of the same item or of another.


class Setting(NamedTuple):
    """A layer and how strongly."""

    layer: int
    strength: float


Inject = Callable[[Setting, int, int], Change]
"""From a setting, an item and the item whose memory it gets."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to inject a memory, and the settings that are tried."""

    name: str
    inject: Inject
    random: Inject
    """The same with a random direction of the same norm."""
    settings: tuple[Setting, ...]
    at_end: bool = False
    """It changes the last token alone."""


def methods_of(trial: Trial) -> list[Method]:
    """That of the authors, at the last position and, as in their code, at all of them; and ours."""
    layers = [at.index for at in trial.model.layers]
    third = layers[:: max(1, len(layers) // 10)]
    early = third[: max(1, 2 * len(third) // 3)]
    weight = trial.model.unembedding.weight.float()
    mean = weight.mean(0)
    size = float((weight - mean).norm(dim=1).mean())
    bags = [(weight[list(p.tokens)].sum(0) - len(p.tokens) * mean) / size for p in trial.prompts]
    found = [
        Method(
            name=f"authors' method, {where}",
            inject=partial(_authors, trial, bags, positions),
            random=partial(_authors_at_random, trial, bags, positions),
            # At all positions a setting costs the whole prompt: every second of these layers.
            settings=tuple(
                Setting(layer, s) for layer in third[:: 1 if positions else 2] for s in MAGNITUDES
            ),
            at_end=positions is not None,
        )
        for where, positions in (("last position", (-1,)), (ALL_POSITIONS, None))
    ]
    ours = Method(
        name="states of the name on those of the description",
        inject=partial(_aligned, trial),
        random=partial(_aligned_at_random, trial),
        settings=tuple(Setting(layer, s) for layer in early for s in STRENGTHS),
    )
    return [*found, ours]


def _authors(
    trial: Trial,
    bags: Sequence[Tensor],
    positions: tuple[int, ...] | None,
    setting: Setting,
    item: int,
    memory: int,
) -> InjectHead:
    """The name's tokens through the unembedding, added to the output of an attention layer."""
    # The stream of the prompt's own tokens: that of the first token is many times larger.
    stream = trial.prompts[item].here.streams[setting.layer]
    size = float(stream[1:].norm(dim=-1).mean())
    return InjectHead(setting.layer, 0, bags[memory] * size, setting.strength, positions)


def _authors_at_random(
    trial: Trial,
    bags: Sequence[Tensor],
    positions: tuple[int, ...] | None,
    setting: Setting,
    item: int,
    memory: int,
) -> InjectHead:
    change = _authors(trial, bags, positions, setting, item, memory)
    return replace(change, vector=_same_norm(change.vector, trial.seed + item))


def _aligned(trial: Trial, setting: Setting, item: int, memory: int) -> InjectResidual:
    here, there = trial.prompts[item].here, trial.prompts[memory].there
    return aligned_injection(here, there, layer=setting.layer, strength=setting.strength)


def _aligned_at_random(trial: Trial, setting: Setting, item: int, memory: int) -> InjectResidual:
    change = _aligned(trial, setting, item, memory)
    return replace(change, vector=_same_norm(change.vector, trial.seed + item))


def _same_norm(vector: Tensor, seed: int) -> Tensor:
    """Random directions with the norms of these vectors."""
    chance = torch.Generator().manual_seed(seed)
    drawn = torch.randn(vector.shape, generator=chance).to(vector)
    return drawn / drawn.norm(dim=-1, keepdim=True) * vector.norm(dim=-1, keepdim=True)


# Cross-validation, and the table.


class Methods(NamedTuple):
    """For each group and method: log-ratios of the answers, with each memory."""

    log_ratio: Mapping[tuple[str, str], Mapping[str, Float[Tensor, " item"]]]
    """By group and method, then by memory: the right one, another item's, a random direction."""
    notes: list[str]


def evaluate_methods(
    trial: Trial, groups: Mapping[str, Bool[Tensor, " item"]], progress: Progress | None = None
) -> Methods:
    """Try all settings of all methods, and take for each item the one of the other folds."""
    found: dict[tuple[str, str], Mapping[str, Tensor]] = {}
    notes = []
    items = range(len(trial.prompts))
    for method in methods_of(trial):
        tried = []
        for done, setting in enumerate(method.settings, 1):
            change = partial(_change, method.inject, [setting] * len(items), items)
            tried.append(trial.after(change, at_end=method.at_end) - trial.before)
            if progress is not None:
                progress(f"settings of {method.name[:40]}", done, len(method.settings))
        every = torch.stack(tried)  # [setting, item]
        for group, wanted in groups.items():
            chosen = crossed(every, wanted, trial.fold)
            settings = [method.settings[at] for at in chosen.tolist()]
            controls = [
                trial.after(partial(_change, inject, settings, memory_of), at_end=method.at_end)
                for inject, memory_of in ((method.inject, trial.other), (method.random, items))
            ]
            found[group, method.name] = {
                "": every[chosen, list(items)],
                ", memory of another item": controls[0] - trial.before,
                ", random direction": controls[1] - trial.before,
            }
            used = dict.fromkeys(settings[i] for i in items if bool(wanted[i]))
            shown = ", ".join(f"layer {s.layer} x {s.strength:g}" for s in used)
            notes.append(f"{method.name}, {group}: settings chosen on the other folds: {shown}")
    return Methods(found, notes)


def _change(
    inject: Inject, settings: Sequence[Setting], memory_of: Sequence[int], item: int
) -> Change:
    return inject(settings[item], item, memory_of[item])


def crossed(
    log_ratio: Float[Tensor, "setting item"],
    wanted: Bool[Tensor, " item"],
    fold: Int[Tensor, " item"],
) -> Int[Tensor, " item"]:
    """For each item the setting that is best on the wanted items of the other folds."""
    clipped = log_ratio.clamp(-CLIP, CLIP)
    best = torch.zeros(len(fold), dtype=torch.long)
    for each in fold.unique().tolist():
        others = wanted & (fold != each)
        best[fold == each] = int(clipped[:, others].mean(1).argmax())
    return best


def _rows(data: str, group: str, trial: Trial, found: Methods) -> list[Row]:
    wanted = trial.groups()[group]
    rows = _metrics(
        data, "explicit prompt instead (no injection)", trial, wanted, trial.named - trial.before
    )
    for (of, method), by_memory in found.log_ratio.items():
        if of == group:
            for memory, ratio in by_memory.items():
                rows += _metrics(data, method + memory, trial, wanted, ratio)
    return rows


def _metrics(
    data: str,
    method: str,
    trial: Trial,
    wanted: Bool[Tensor, " item"],
    log_ratio: Float[Tensor, " item"],
) -> list[Row]:
    """The ratio of the mean probabilities, the geometric mean of the ratios, the share raised."""
    before, ratio = trial.before[wanted].exp(), log_ratio[wanted]
    after, n, seed = before * ratio.exp(), int(wanted.sum()), trial.seed
    geometric = interval(ratio, seed=seed)
    values = {
        "ratio of means": interval_of(
            lambda counts: float(counts @ after / (counts @ before)), n, seed=seed
        ),
        "geometric mean": Interval(*(float(torch.tensor(each).exp()) for each in geometric)),
        "share raised": interval((ratio > 0).double(), seed=seed),
    }
    is_published = method == AS_PUBLISHED and data.endswith(EVERY)
    return [
        row(
            data,
            method,
            metric,
            value,
            n,
            published=f"{PUBLISHED[metric]} (GPT-2 small)" if is_published else "",
            note=AUTHORS if is_published else "",
        )
        for metric, value in values.items()
    ]
