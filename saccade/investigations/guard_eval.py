"""How well a guard catches injected prompts, beside what needs no lens at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch
from jaxtyping import Float, Int
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from saccade.investigations.guard import Guard
from saccade.investigations.guard_baselines import BagOfWords, lengths
from saccade.investigations.guard_measures import Detection, auroc, detection
from saccade.investigations.guard_prompts import Part, paired_prompts
from saccade.investigations.guard_requests import splice_requests
from saccade.investigations.prompt_batches import encode_prompts, prompt_rows

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

Progress = Callable[[str, int, int], None]
TRIED = ("held_out", "second")
TITLES = {"held_out": "held-out templates", "second": "second task"}
METHODS = ("guard", "perplexity", "bag of words", "bag of words, no attacks", "length")
# The bags of words are shown this many prompts of each kind.
SHOWN = 400
ROWS = 32  # final states turned into logits at once: 6 MB in the default model


@dataclass(frozen=True, kw_only=True)
class GuardEvaluation:
    """Detections by part and method, with what the guard's own threshold does."""

    model: str
    n_fit: int
    n: int
    """Prompts of each kind in each part."""
    found: dict[str, dict[str, Detection]]
    """Part -> method -> how well it does."""
    reported: dict[str, tuple[float, float]]
    """Part -> share of ordinary and of injected prompts above the guard's own threshold."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "model": self.model,
            "n_fit": self.n_fit,
            "n_ordinary": self.n,
            "n_injected": self.n,
            "parts": {
                part: {
                    "methods": {name: each._asdict() for name, each in methods.items()},
                    "at_threshold": dict(
                        zip(("false_alarms", "recall"), self.reported[part], strict=True)
                    ),
                }
                for part, methods in self.found.items()
            },
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_table(self) -> Table:
        """AUROC with its interval, and false alarms at 95 % recall."""
        table = Table(
            title="Injected prompts against ordinary ones",
            caption=f"{self.model}; {self.n} ordinary and {self.n} injected prompts a row. The "
            "first bag of words has seen attacks, all others none.",
        )
        table.add_column("prompts", no_wrap=True)
        table.add_column("score", no_wrap=True)
        for name in ("AUROC", "95 % interval", "false alarms at 95 % recall"):
            table.add_column(name, justify="right")
        for part, methods in self.found.items():
            for name, each in methods.items():
                row = (f"{each.auroc:.3f}", f"{each.low:.3f} to {each.high:.3f}")
                table.add_row(TITLES[part], name, *row, f"{100 * each.false_alarms:.1f} %")
        return table


def evaluate_guard(
    guard: Guard, *, n: int = 300, seed: int = 1, progress: Progress | None = None
) -> GuardEvaluation:
    """Score a guard on prompts of templates and texts that it was not fitted on.

    ``held_out`` has the same kinds of task in other words; ``second`` is another kind. Beside the
    guard stand the perplexity of the prompt under the model, a bag of words that was trained on
    ordinary and injected prompts of the ``fit`` part, one that was trained on what the guard is
    fitted on, and the bare length, which tells nothing because lengths are matched. Perplexity is
    taken with the sign that serves it better.
    """
    shown = [_texts(kind) for kind in paired_prompts("fit", SHOWN, seed=seed)]
    bags = {
        "bag of words": BagOfWords.fit(*shown),
        "bag of words, no attacks": BagOfWords.fit(shown[0], splice_requests(shown[0], seed=seed)),
    }
    found: dict[str, dict[str, Detection]] = {}
    reported: dict[str, tuple[float, float]] = {}
    for done, part in enumerate(TRIED):
        assert part in get_args(Part)
        kinds = [_texts(kind) for kind in paired_prompts(part, n, seed=seed)]
        own, odd = zip(*(read_prompts(guard, texts) for texts in kinds), strict=True)
        scores: dict[str, Sequence[Tensor]] = {
            "guard": own,
            "perplexity": _better(odd),
            **{name: [bag.score(texts) for texts in kinds] for name, bag in bags.items()},
            "length": [lengths(texts) for texts in kinds],
        }
        found[part] = {
            name: detection(scores[name][0], scores[name][1], seed=seed) for name in METHODS
        }
        above = [float((each > guard.threshold).double().mean()) for each in scores["guard"]]
        reported[part] = (above[0], above[1])
        if progress is not None:
            progress("scoring parts", done + 1, len(TRIED))
    return GuardEvaluation(
        model=guard.lenses.model.name,
        n_fit=len(guard.ordinary),
        n=n,
        found=found,
        reported=reported,
    )


def read_prompts(
    guard: Guard, prompts: Sequence[str]
) -> tuple[Float[Tensor, " prompt"], Float[Tensor, " prompt"]]:
    """The guard's scores and the log perplexities of prompts, from the same forward passes."""
    model = guard.lenses.model
    encoded = encode_prompts(model, prompts)
    scores = torch.zeros(2, len(prompts), dtype=torch.double)
    for row in prompt_rows(model, encoded, layers=guard.layers):
        scores[0, row.prompt] = guard.score_of(row.z)
        scores[1, row.prompt] = surprise(model, row.final, encoded[row.prompt])
    return scores[0], scores[1]


@torch.no_grad()
def surprise(
    model: LanguageModel, final: Float[Tensor, "pos d_model"], ids: Int[Tensor, " pos"]
) -> float:
    """The log of a text's perplexity: the mean of minus the log chance of its tokens."""
    total = 0.0
    for states, following in zip(final[:-1].split(ROWS), ids[1:].split(ROWS), strict=True):
        said = model.unembedding.logits(states).float()
        total += float(cross_entropy(said, following.to(said.device), reduction="sum"))
    return total / max(len(ids) - 1, 1)


def _better(kinds: Sequence[Float[Tensor, " _"]]) -> Sequence[Float[Tensor, " _"]]:
    """Injected prompts may be less surprising than ordinary ones; the baseline gets that right."""
    ordinary, injected = kinds
    return kinds if auroc(ordinary, injected) >= 0.5 else [-each for each in kinds]


def _texts(prompts: Sequence[Any]) -> list[str]:
    return [prompt.text for prompt in prompts]
