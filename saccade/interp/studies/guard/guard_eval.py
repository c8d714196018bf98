"""How well a guard catches injected prompts, beside what needs no lens at all."""

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

from saccade.interp.studies.guard.guard import Guard
from saccade.interp.studies.guard.guard_fit import splice_requests
from saccade.interp.studies.guard.guard_prompts import Part, paired_prompts
from saccade.interp.studies.prompts import encode_prompts, prompt_rows

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# What a guard is compared with: how odd a prompt is, its words, and its length.

LEAST_OFTEN = 2  # a word that only one prompt has tells nothing of others
RIDGE = 1e-3  # of the weights, beside a mean loss: keeps them finite where the words separate


@dataclass(frozen=True)
class BagOfWords:
    """A logistic regression on which words a prompt has, in any order.

    Unlike a guard it has to be shown attacks: it is fitted on ordinary *and* injected prompts.
    """

    places: dict[str, int]
    weight: Float[Tensor, " word"]
    bias: float

    @classmethod
    def fit(cls, ordinary: Sequence[str], injected: Sequence[str]) -> BagOfWords:
        """The least logistic loss with a small ridge, found by L-BFGS."""
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
    """How many words each text has: what must not tell injected prompts from ordinary ones.

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
    # The second "the" of a text tells less than the first.
    return counts.log1p()


# How well scores tell injected prompts from ordinary ones.

RECALL = 0.95  # the share of injected prompts that has to be caught when false alarms are counted
DRAWS = 1000
LIKELY = 0.95  # of the interval


class Detection(NamedTuple):
    """How well one score tells the two kinds apart."""

    auroc: float
    low: float
    high: float
    """The middle 95 % of the AUROC when prompts are drawn again, with replacement."""
    false_alarms: float
    """Share of ordinary prompts that are reported when 95 % of the injected ones are."""


def auroc(ordinary: Float[Tensor, " n_ordinary"], injected: Float[Tensor, " n_injected"]) -> float:
    """The chance that an injected prompt scores higher than an ordinary one; a tie counts half.

    The area under the receiver operating characteristic, written as the Mann-Whitney statistic
    U / (n m) (Hanley and McNeil, 1982, https://doi.org/10.1148/radiology.143.1.7063747).

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))
    0.875
    """
    return float(_aurocs(ordinary[None], injected[None]))


def _aurocs(
    ordinary: Float[Tensor, "draw n_ordinary"], injected: Float[Tensor, "draw n_injected"]
) -> Float[Tensor, " draw"]:
    """One for each row, from SciPy's ranks: its `mannwhitneyu` ranks as well, and tests besides."""
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
    """The share of ordinary prompts at or above the score that so many injected ones reach.

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
    a seed gives the intervals that it always gave.
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
