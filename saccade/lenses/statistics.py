"""Running sums over a text, from which the lenses of every head are solved in closed form.

One forward pass serves every layer and head. The sums add: those of two shards of text, two
processes or two machines merge into exactly what one pass over both would have given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import LensError

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

# What heads hold is taken at every other position: neighbours are alike, and adding them up, which
# is what a fit costs beside the model's own pass, takes half the time.
POSITION_EVERY = 2
# The model's own word probabilities are only taken at every so-many-th of the positions: for all of
# them they would cost a third of the forward pass. On WikiText-2 (65,536 tokens, every other
# position) the constant lens has 3.462 nats of held-out KL with all of them or every second, and
# 3.471 with every fourth.
PREDICTED_EVERY = 2
# The word vectors that they expect cost as much again. What is done with them bears more noise.
EXPECTED_EVERY = 2 * PREDICTED_EVERY


@dataclass
class Statistics:
    """Sums of what the heads hold, with what the model ends up with, in float64.

    ``f`` is the final normed state, ``p`` the model's predicted distribution, ``u = W_U^T p`` the
    word vector it expects. ``p`` is summed over the *predicted* positions only, ``u`` over the
    *expected* ones among them.
    """

    sums: dict[str, Float[Tensor, "..."]]
    layers: tuple[int, ...]

    @classmethod
    def empty(cls, model: LanguageModel) -> Statistics:
        """No text seen yet."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64)

        d = model.d_model
        sums = {
            "n": zeros(1),
            "f": zeros(d),
            "predicted.n": zeros(1),
            "predicted.p": zeros(model.d_vocab),
            "expected.n": zeros(1),
            "expected.u": zeros(d),
        }
        for at in model.layers:
            heads = (at.n_heads, at.d_head)
            sums[f"{at.index}.z"] = zeros(*heads)
            sums[f"{at.index}.zz"] = zeros(*heads, at.d_head)
            sums[f"{at.index}.zf"] = zeros(*heads, d)
            sums[f"{at.index}.expected.z"] = zeros(*heads)
            sums[f"{at.index}.expected.zu"] = zeros(*heads, d)
        return cls(sums=sums, layers=tuple(at.index for at in model.layers))

    @property
    def n(self) -> int:
        """How many positions were seen."""
        return int(self.sums["n"])

    def mean(self, name: str) -> Float[Tensor, "..."]:
        """The mean over the positions that were summed for ``name``."""
        where = next((each for each in ("predicted.", "expected.") if each in name), "")
        return self.sums[name] / self.sums[f"{where}n"]

    def add(
        self,
        model: LanguageModel,
        z: Mapping[int, Float[Tensor, "batch pos head d_head"]],
        final: Float[Tensor, "batch pos d_model"],
    ) -> None:
        """Add one batch of text: every position, and the model's predictions at some of them."""
        f = final.flatten(0, 1).float()  # [n, d_model]
        rows, window = final.shape[:2]
        # One place further with the rows: they may begin alike, and all places have to be seen.
        row, column = (torch.arange(n, device=f.device) for n in (rows, window))
        place = row[:, None] // POSITION_EVERY + column
        predicted = (place % PREDICTED_EVERY == 0).flatten().nonzero()[:, 0]
        expected = (place.flatten()[predicted] % EXPECTED_EVERY == 0).nonzero()[:, 0]
        p = model.unembedding.logits(f[predicted]).float().softmax(-1)  # [n, d_vocab]
        u = p[expected] @ model.unembedding.weight.float()  # [n, d_model]
        some = predicted[expected]
        self._add("n", torch.tensor([len(f)]))
        self._add("f", f.sum(0))
        self._add("predicted.n", torch.tensor([len(p)]))
        self._add("predicted.p", p.sum(0))
        self._add("expected.n", torch.tensor([len(u)]))
        self._add("expected.u", u.sum(0))
        for layer, held in z.items():
            flat = held.flatten(0, 1).float()  # [n, head, d_head]
            by_head = flat.transpose(0, 1)  # [head, n, d_head]
            self._add(f"{layer}.z", flat.sum(0))
            self._add(f"{layer}.zz", by_head.transpose(1, 2) @ by_head)
            self._add(f"{layer}.zf", _cross(flat, f.to(flat.device)))
            flat = flat[some.to(flat.device)]
            self._add(f"{layer}.expected.z", flat.sum(0))
            self._add(f"{layer}.expected.zu", _cross(flat, u.to(flat.device)))

    def _add(self, name: str, value: Tensor) -> None:
        self.sums[name] += value.to("cpu", torch.float64)

    def merge(self, other: Statistics) -> Statistics:
        """The statistics of both texts together."""
        mine = {name: tuple(total.shape) for name, total in self.sums.items()}
        theirs = {name: tuple(total.shape) for name, total in other.sums.items()}
        if mine != theirs:
            raise LensError(
                "cannot merge statistics of models with different layers, heads or sizes",
                hint="merge only lenses that were fitted for one model",
            )
        sums = {name: total + other.sums[name] for name, total in self.sums.items()}
        return Statistics(sums=sums, layers=self.layers)


def _cross(
    flat: Float[Tensor, "n head d_head"], target: Float[Tensor, "n d_target"]
) -> Float[Tensor, "head d_head d_target"]:
    # One product for all heads of the layer: much quicker than one for each.
    return (flat.flatten(1).T @ target).unflatten(0, flat.shape[1:])
