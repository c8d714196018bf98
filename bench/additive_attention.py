"""Cost of additive attention over its matrix products: `python bench/additive_attention.py`.

Prints one JSON object; takes some seconds. All times are from the same run: the fastest of many
rounds in which the two sides alternate, so that a ratio does not depend on the load of the machine.

The *products* of a decoder step are the projection of the query, the product of the hidden layer
with v and the weighted sum of the values, with torch's own operators and (for backward) torch's own
gradients. The *step* is all of `saccade.zoo.attention.attend.Attention`: these products, tanh, mask
and softmax. A *sentence* is 30 steps; both sides project the keys once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from saccade.zoo.attention.attend import Attention
from saccade.zoo.attention.scores import AdditiveScore
from saccade.zoo.attention.select import SoftSelect
from saccade.zoo.training.optim import prepare_for_long_work

STEPS = 30
STEP_ROUNDS = 1000
SENTENCE_ROUNDS = 6

Side = Callable[[], tuple[list[Tensor], list[Tensor]]]
"""Outputs, and the gradients passed back to them."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder with a bidirectional encoder, whose states are twice as wide."""

    d_hidden: int
    batch: int = 64
    n_keys: int = 30

    @property
    def d_value(self) -> int:
        """Size of keys and values."""
        return 2 * self.d_hidden


class Bench:
    """Both sides of the comparison, on the same tensors."""

    def __init__(self, sizes: Sizes) -> None:
        torch.manual_seed(0)
        d, d_value = sizes.d_hidden, sizes.d_value
        score = AdditiveScore(d_query=d, d_key=d_value, d_hidden=d)
        self.attention = Attention(score, SoftSelect())
        self.query = _leaf(sizes.batch, 1, d)
        self.keys = _leaf(sizes.batch, sizes.n_keys, d_value)
        lengths = torch.randint(sizes.n_keys // 2, sizes.n_keys + 1, (sizes.batch,))
        lengths[0] = sizes.n_keys
        mask = torch.arange(sizes.n_keys) < lengths[:, None]
        with torch.no_grad():
            memory = self.attention.remember(self.keys, mask=mask)
        # Leaves, so that a step's backward pass ends at the projected keys, as it does in training.
        projected, values = (x.detach().clone().requires_grad_() for x in memory[:2])
        self.memory = memory._replace(keys=projected, values=values)
        self.hidden = _leaf(sizes.batch, sizes.n_keys, d)
        self.weights = torch.rand(sizes.batch, 1, sizes.n_keys).requires_grad_()
        self.wanted = torch.randn(sizes.batch, 1, d_value)
        self.wanted_query = torch.randn(sizes.batch, 1, d)
        self.wanted_scores = torch.randn(sizes.batch, sizes.n_keys)

    def step(self) -> tuple[list[Tensor], list[Tensor]]:
        """A decoder step of attention, and the gradient passed back to it."""
        return [self.attention(self.query, self.memory).context], [self.wanted]

    def products(self) -> tuple[list[Tensor], list[Tensor]]:
        """The matrix products of that step."""
        score = self.attention.score
        query = functional.linear(self.query, score.query_proj.weight)
        scores = self.hidden @ score.score_proj.weight[0]
        context = self.weights @ self.memory.values
        return [query, scores, context], [self.wanted_query, self.wanted_scores, self.wanted]

    def sentence(self) -> tuple[list[Tensor], list[Tensor]]:
        """Keys projected once, and all steps of a sentence."""
        memory = self.attention.remember(self.keys, mask=self.memory.mask)
        contexts = [self.attention(self.query, memory).context for _ in range(STEPS)]
        return contexts, [self.wanted] * STEPS

    def sentence_products(self) -> tuple[list[Tensor], list[Tensor]]:
        """The matrix products of that sentence."""
        key_proj = self.attention.score.key_proj.weight
        projected = functional.linear(self.keys, key_proj)
        outputs, gradients = [projected], [torch.ones_like(projected)]
        for _ in range(STEPS):
            more, wanted = self.products()
            outputs += more
            gradients += wanted
        return outputs, gradients

    def forget(self) -> None:
        """Drop all gradients, as an optimiser's zero_grad does."""
        self.attention.zero_grad()
        for leaf in (self.query, self.keys, self.hidden, self.weights, *self.memory[:2]):
            leaf.grad = None


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def fastest(sides: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Seconds of the fastest call of each side; the sides alternate."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, call in sides.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def forward(bench: Bench, side: Side) -> Callable[[], object]:
    """A side as decoding runs it."""
    del bench
    return torch.no_grad()(side)


def forward_backward(bench: Bench, side: Side) -> Callable[[], object]:
    """A side as training runs it."""

    def call() -> None:
        bench.forget()
        torch.autograd.backward(*side())

    return call


def ratios(bench: Bench) -> dict[str, float]:
    """Attention over its products, for steps and sentences, forward and forward-backward."""
    row = {}
    pairs = {
        "step": (bench.step, bench.products, STEP_ROUNDS),
        "sentence": (bench.sentence, bench.sentence_products, SENTENCE_ROUNDS),
    }
    for mode in (forward, forward_backward):
        for what, (ours, products, rounds) in pairs.items():
            sides = {"ours": mode(bench, ours), "products": mode(bench, products)}
            seconds = fastest(sides, rounds=rounds)
            name = f"{what}_{mode.__name__}"
            row[name] = round(seconds["ours"] / seconds["products"], 3)
            row[f"{name}_microseconds"] = round(1e6 * seconds["ours"])
    return row


def measure(d_hiddens: tuple[int, ...] = (256, 512)) -> dict[str, object]:
    """Ratios of additive attention to its matrix products.

    ``additive_over_matmul`` is the ratio of a step forward and backward, as in training, for the
    worst of the sizes; the other ratios are listed too.
    """
    prepare_for_long_work()  # as `saccade train` does
    rows = {d_hidden: ratios(Bench(Sizes(d_hidden))) for d_hidden in d_hiddens}
    return {
        "additive_over_matmul": max(row["step_forward_backward"] for row in rows.values()),
        "threads": torch.get_num_threads(),
        "d_hidden": rows,
    }


def main() -> None:
    """Measure and print JSON."""
    print(json.dumps(measure(), indent=2))


if __name__ == "__main__":
    main()
