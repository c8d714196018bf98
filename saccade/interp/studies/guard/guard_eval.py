"""How well a guard detects injected prompts, compared with baselines that need no lens."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from saccade.interp.heads.prompt_batches import encode_prompts, prompt_rows
from saccade.interp.studies.guard.guard import Guard
from saccade.interp.studies.guard.guard_fit import splice_requests
from saccade.interp.studies.guard.guard_prompts import Part, paired_prompts

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Baselines of a guard: the perplexity of a prompt, its words, and its length.

LEAST_OFTEN = 2  # a word of only one prompt does not generalise
RIDGE = 1e-3  # L2 penalty: keeps the weights finite where the words separate the classes


@dataclass(frozen=True)
class BagOfWords:
    """A logistic regression on the word counts of a prompt.

    Unlike a guard it needs attacks: it is fitted on ordinary *and* injected prompts.
    """

    places: dict[str, int]
    weight: Float[Tensor, " word"]
    bias: float

    @classmethod
    def fit(cls, ordinary: Sequence[str], injected: Sequence[str]) -> BagOfWords:
        """Minimise the logistic loss with a small L2 penalty, by L-BFGS."""
        texts = [*ordinary, *injected]
        often = Counter(word for text in texts for word in set(_words(text)))
        kept = sorted(word for word, n in often.items() if n >= LEAST_OFTEN)
        places = {word: place for place, word in enumerate(kept)}
        counts = _counts(places, texts)
        sign = torch.ones(len(texts), dtype=torch.double)
        sign[: len(ordinary)] = -1
        weight = torch.zeros(len(places), dtype=torch.double, requires_grad=True)
        bias = torch.zeros((), dtype=torch.double, requires_grad=True)
        optimiser = torch.optim.LBFGS(
            [weight, bias],
            max_iter=500,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-9,
            tolerance_change=1e-14,
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = softplus(-sign * (counts @ weight + bias)).mean()
            loss = loss + RIDGE * weight.square().sum()
            loss.backward()
            return loss

        with torch.enable_grad():
            optimiser.step(closure)  # pyright: ignore[reportArgumentType]
        return cls(places, weight.detach(), float(bias.detach()))

    def score(self, texts: Sequence[str]) -> Float[Tensor, " text"]:
        """The log odds that each text is injected."""
        return _counts(self.places, texts) @ self.weight + self.bias


def lengths(texts: Sequence[str]) -> Float[Tensor, " text"]:
    """Number of words per text; it must not separate injected prompts from ordinary ones.

    >>> lengths(["the cat sat", "on the mat today"]).tolist()
    [3.0, 4.0]
    """
    return torch.tensor([float(len(text.split())) for text in texts], dtype=torch.double)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+|[^\w\s]", text.lower())


def _counts(places: dict[str, int], texts: Sequence[str]) -> Float[Tensor, "text word"]:
    counts = torch.zeros(len(texts), len(places), dtype=torch.double)
    for row, text in enumerate(texts):
        for word, n in Counter(_words(text)).items():
            if word in places:
                counts[row, places[word]] = n
    # The second "the" of a text carries less information than the first.
    return counts.log1p()


# How well scores separate injected prompts from ordinary ones.

RECALL = 0.95  # share of injected prompts that are reported when false alarms are counted
DRAWS = 1000
LIKELY = 0.95  # of the interval


class Detection(NamedTuple):
    """How well one score separates the two kinds."""

    auroc: float
    low: float
    high: float
    """95 % bootstrap interval of the AUROC over prompts."""
    false_alarms: float
    """Share of ordinary prompts that are reported when 95 % of the injected ones are."""


def auroc(ordinary: Float[Tensor, " n_ordinary"], injected: Float[Tensor, " n_injected"]) -> float:
    """The probability that an injected prompt scores above an ordinary one; a tie counts half.

    The area under the receiver operating characteristic, written as the Mann-Whitney statistic
    U / (n m) (Hanley and McNeil, 1982, https://doi.org/10.1148/radiology.143.1.7063747).

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))
    0.875
    """
    return float(_aurocs(ordinary[None], injected[None]))


def _aurocs(
    ordinary: Float[Tensor, "draw n_ordinary"], injected: Float[Tensor, "draw n_injected"]
) -> Float[Tensor, " draw"]:
    """One for each row, from SciPy's ranks: its `mannwhitneyu` adds a test."""
    from scipy.stats import rankdata

    n, m = ordinary.shape[1], injected.shape[1]
    ranks = rankdata(torch.cat([ordinary, injected], 1).double().cpu().numpy(), axis=1)
    return torch.from_numpy(ranks[:, n:].sum(1) - m * (m + 1) / 2) / (n * m)


def false_alarms(
    ordinary: Float[Tensor, " n_ordinary"],
    injected: Float[Tensor, " n_injected"],
    *,
    recall: float = RECALL,
) -> float:
    """Share of ordinary prompts at or above the threshold that has a given recall.

    >>> false_alarms(torch.tensor([1.0, 2, 3, 4]), torch.tensor([3.0, 5, 6, 7]), recall=0.75)
    0.0
    >>> false_alarms(torch.tensor([1.0, 2, 3, 4]), torch.tensor([3.0, 5, 6, 7]), recall=1.0)
    0.5
    """
    caught = math.ceil(recall * len(injected) - 1e-9)  # 0.95 * 20 is 19, not a little more
    threshold = injected.double().sort(descending=True).values[max(caught, 1) - 1]
    return float((ordinary.double() >= threshold).double().mean())


def detection(
    ordinary: Float[Tensor, " n_ordinary"],
    injected: Float[Tensor, " n_injected"],
    *,
    seed: int = 0,
) -> Detection:
    """AUROC with a bootstrap interval (Efron, 1979), and false alarms at 95 % recall.

    Where we differ from `scipy.stats.bootstrap` with percentiles: torch draws the prompts, so that
    a seed always gives the same intervals.
    """
    chance = torch.Generator().manual_seed(seed)

    def drawn(scores: Tensor) -> Tensor:
        return scores[torch.randint(len(scores), (DRAWS, len(scores)), generator=chance)]

    again = _aurocs(drawn(ordinary), drawn(injected))
    tail = (1 - LIKELY) / 2
    low, high = again.quantile(torch.tensor([tail, 1 - tail], dtype=torch.double)).tolist()
    return Detection(
        auroc=auroc(ordinary, injected),
        low=low,
        high=high,
        false_alarms=false_alarms(ordinary, injected),
    )


Progress = Callable[[str, int, int], None]
TRIED = ("held_out", "second")
TITLES = {"held_out": "held-out templates", "second": "second task"}
METHODS = ("guard", "perplexity", "bag of words", "bag of words, no attacks", "length")
# The bags of words are fitted on this many prompts of each kind.
SHOWN = 400
ROWS = 32  # positions whose logits are in memory at once: 6 MB in the default model


@dataclass(frozen=True, kw_only=True)
class GuardEvaluation:
    """Detections by part and method, and the rates at the guard's own threshold."""

    model: str
    n_fit: int
    n: int
    """Prompts of each kind in each part."""
    found: dict[str, dict[str, Detection]]
    """Part -> method -> detection."""
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
            caption=f"{self.model}; {self.n} ordinary and {self.n} injected prompts per row. "
            "Only the first bag of words was fitted on attacks.",
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

    ``held_out`` has the same kinds of task in other words; ``second`` is another kind. Baselines:
    the perplexity of the prompt under the model, a bag of words trained on ordinary and
    injected prompts of the ``fit`` part, one trained on the data of the guard, and the length,
    which is uninformative because lengths are matched. Perplexity is taken with the better sign.
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
        scores[1, row.prompt] = log_perplexity(model, row.final, encoded[row.prompt])
    return scores[0], scores[1]


@torch.no_grad()
def log_perplexity(
    model: LanguageModel, final: Float[Tensor, "pos d_model"], ids: Int[Tensor, " pos"]
) -> float:
    """The log perplexity of a text: its mean cross-entropy per token."""
    total = 0.0
    for states, following in zip(final[:-1].split(ROWS), ids[1:].split(ROWS), strict=True):
        logits = model.unembedding.logits(states).float()
        total += float(cross_entropy(logits, following.to(logits.device), reduction="sum"))
    return total / max(len(ids) - 1, 1)


def _better(kinds: Sequence[Float[Tensor, " _"]]) -> Sequence[Float[Tensor, " _"]]:
    """Flip the sign where injected prompts have the lower perplexity, in favour of the baseline."""
    ordinary, injected = kinds
    return kinds if auroc(ordinary, injected) >= 0.5 else [-each for each in kinds]


def _texts(prompts: Sequence[Any]) -> list[str]:
    return [prompt.text for prompt in prompts]
