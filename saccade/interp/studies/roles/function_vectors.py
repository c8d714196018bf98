"""The role of function-vector heads: those that carry a task from examples to the answer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError, TaskError, UsageError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.target import behind_a_space
from saccade.interp.heads.capture import capture
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

# Todd et al., 2024, section 2.1: their six representative tasks.
TASKS = (
    *("antonym", "capitalize", "country-capital", "english-french", "present-past"),
    "singular-plural",
)
BATCH = 4  # prompts a pass


@dataclass(frozen=True, kw_only=True)
class VectorConfig:
    """How function-vector heads are looked for. Todd et al. use 10 shots, 100 and 25 prompts."""

    tasks: tuple[str, ...] = TASKS
    shots: int = 5
    clean: int = 24
    """Prompts for the mean activation and the accuracy of each task."""
    shuffled: int = 8
    """Prompts with shuffled answers for each task."""
    accuracy: float = 0.3
    """A task counts if the model gets more than this share of its clean prompts right, and more
    than the commonest answer would."""


class Examples(NamedTuple):
    """A prompt with examples of a task, and its answer."""

    ids: Int[Tensor, " pos"]
    answer: int
    """The first token of the answer."""


class Task(NamedTuple):
    """A task, with pairs of inputs and outputs."""

    name: str
    pairs: Sequence[tuple[str, str]]

    @classmethod
    def read(cls, folder: Path, name: str) -> Task:
        """A task of the data set of Todd et al."""
        path = folder / f"{name}.json"
        if not path.is_file():
            raise TaskError(
                f"there is no task {name} in {folder}",
                hint=f"give a folder with {name}.json, as published with function vectors",
            )
        rows = read_data(path)
        return cls(name, [(str(row["input"]), str(row["output"])) for row in rows])

    def prompts(
        self, model: LanguageModel, *, n: int, shots: int, is_shuffled: bool, chance: random.Random
    ) -> list[Examples]:
        """Prompts of examples that are drawn at random.

        Args:
            is_shuffled: the answers of the examples change places, none keeps its own.
        """
        if len(self.pairs) <= shots:
            raise TaskError(
                f"the task {self.name} has {len(self.pairs)} pairs, too few for {shots} examples",
                hint="give fewer shots",
            )
        found = []
        for _ in range(n):
            *shown, (asked, answer) = chance.sample(self.pairs, shots + 1)
            outputs = [output for _, output in shown]
            if is_shuffled:
                order = list(range(shots))
                chance.shuffle(order)  # a cycle in random order moves every answer
                moved = dict(zip(order, [*order[1:], order[0]], strict=True))
                outputs = [outputs[moved[i]] for i in range(shots)]
            text = "".join(
                f"Q: {given}\nA: {output}\n\n"
                for (given, _), output in zip(shown, outputs, strict=True)
            )
            found.append(_examples(model, f"{text}Q: {asked}\nA:", answer))
        return found


def _examples(model: LanguageModel, text: str, answer: str) -> Examples:
    return Examples(model.encode(text)[0].cpu(), behind_a_space(model, answer)[0])


def padded(texts: Sequence[Int[Tensor, " _"]]) -> tuple[Int[Tensor, "batch pos"], list[int]]:
    """Texts as rows, filled up on the right with their own last tokens, and their lengths."""
    lengths = [len(text) for text in texts]
    rows = [torch.cat([text, text[-1:].expand(max(lengths) - len(text))]) for text in texts]
    return torch.stack(rows), lengths


class CleanRun(NamedTuple):
    """What a model does after clean prompts of a task."""

    accuracy: float
    commonest: float
    """The share of the commonest answer."""
    means: dict[int, Float[Tensor, "head d_head"]]
    """Mean activations at the last token."""


@torch.no_grad()
def clean_run(model: LanguageModel, prompts: Sequence[Examples]) -> CleanRun:
    """Mean activations of heads at the last token, and how often the model answers right."""
    sums: dict[int, Tensor] = {}
    n_right = 0
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        ids, lengths = padded([prompt.ids for prompt in some])
        last = torch.tensor(lengths)[:, None] - 1
        run = capture(model, ids.to(model.device), positions=last)
        for layer, z in run.z.items():
            sums[layer] = sums.get(layer, 0) + z[:, 0].float().sum(0)
        best = model.unembedding.logits(run.final[:, 0]).argmax(-1).tolist()
        n_right += sum(a == prompt.answer for a, prompt in zip(best, some, strict=True))
    commonest = Counter(prompt.answer for prompt in prompts).most_common(1)[0][1]
    means = {layer: total / len(prompts) for layer, total in sums.items()}
    return CleanRun(n_right / len(prompts), commonest / len(prompts), means)


@torch.no_grad()
def indirect_effects(
    model: LanguageModel,
    prompts: Sequence[Examples],
    means: Mapping[int, Float[Tensor, "head d_head"]],
) -> Float[Tensor, "prompt site"]:
    """How far the probability of the answer rises when a head's activation becomes the mean.

    All heads of a prompt in one run, as changed copies of its last token.
    """
    changes = head_changes(model, means)
    found = []
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        ids, lengths = padded([prompt.ids for prompt in some])
        run = run_copies(model, ids.to(model.device), changes, lengths=lengths)
        for prompt, final, states in zip(some, run.captured.final, run.states, strict=True):
            at = predictions(model, final[0], states, [prompt.answer])
            found.append((at.log_p[:, 0].exp() - at.plain_log_p[0].exp()).cpu())
    return torch.stack(found)


class TaskEffects(NamedTuple):
    """What heads do for the tasks that a model does."""

    effects: Mapping[str, Float[Tensor, "prompt site"]]
    """By task: `indirect_effects`."""
    accuracy: Mapping[str, float]
    """Of every task that was asked."""
    cannot: Sequence[str]
    """Tasks that the model does not do, with its accuracy, or why it was not asked."""


def task_effects(
    model: LanguageModel,
    tasks: Sequence[Task],
    *,
    config: VectorConfig,
    chance: random.Random,
    progress: Progress | None = None,
) -> TaskEffects:
    """The indirect effect of every head, on each task that the model does from examples."""
    effects: dict[str, Tensor] = {}
    accuracy: dict[str, float] = {}
    cannot: list[str] = []
    for number, task in enumerate(tasks):
        try:
            clean, shuffled = (
                task.prompts(model, n=n, shots=config.shots, is_shuffled=is_shuffled, chance=chance)
                for n, is_shuffled in ((config.clean, False), (config.shuffled, True))
            )
        except UsageError as error:  # longer than the model's context
            cannot.append(f"{task.name} ({error})")
            continue
        run = clean_run(model, clean)
        accuracy[task.name] = run.accuracy
        if run.accuracy > max(config.accuracy, run.commonest):
            effects[task.name] = indirect_effects(model, shuffled, run.means)
        else:
            cannot.append(f"{task.name} {100 * run.accuracy:.0f}%")
        if progress is not None:
            progress("tasks", number + 1, len(tasks))
    if not effects:
        raise ModelError(
            f"{model.name} does none of the tasks from examples: {', '.join(cannot)} right, "
            f"{100 * config.accuracy:.0f}% needed",
            hint="choose other roles",
        )
    return TaskEffects(effects, accuracy, cannot)


def vector_roles(
    model: LanguageModel,
    seed: int,
    data: Path | None,
    progress: Progress | None,
    config: VectorConfig | None = None,
) -> Mapping[str, RoleScore]:
    """The average indirect effect of every head over tasks.

    Todd et al., 2024 (https://arxiv.org/abs/2310.15213), section 2.3: a head's mean activation at
    the last token of clean prompts replaces its activation in prompts whose examples have shuffled
    answers; the score is the rise of the probability of the answer's first token, averaged over
    prompts and tasks. Where we differ: fewer shots and prompts (`VectorConfig`), and of their tasks
    the six representative ones, those that the model can do.
    """
    config = config or VectorConfig()
    assert data is not None, "the role needs data"
    chance = random.Random(seed)
    tasks = [Task.read(data, name) for name in config.tasks]
    found = task_effects(model, tasks, config=config, chance=chance, progress=progress)
    does = [f"{name} {100 * found.accuracy[name]:.0f}%" for name in found.effects]
    notes = [f"tasks that the model does, with its accuracy: {', '.join(does)}"]
    if found.cannot:
        notes.append(f"left out: {', '.join(found.cannot)}")
    effects = split_heads(model, torch.cat(list(found.effects.values())))
    return {"function-vector": score_of(effects, seed=seed, notes=tuple(notes))}
