"""Running sums of the residual stream, from which tuned lenses are solved in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.heads import Captured

if TYPE_CHECKING:
    from saccade.heads import LanguageModel


class Translation(NamedTuple):
    """``r_final`` is taken to be ``r + weight @ r + bias``."""

    weight: Float[Tensor, "d_model d_model"]
    bias: Float[Tensor, " d_model"]


@dataclass
class ResidualStatistics:
    """Sums over positions of the stream ``r`` after each layer and of its products, in float64.

    The products too are made in float64: a few features of the stream are often a thousand times
    larger than the others, and what float32 rounds away there is of the size of the rest.

    Two sums of d_model x d_model a layer are held: 160 MB for 30 layers of 576.
    """

    sums: dict[str, Float[Tensor, "..."]]
    layers: tuple[int, ...]

    @classmethod
    def empty(cls, model: LanguageModel) -> ResidualStatistics:
        """No text seen yet."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64)

        layers = tuple(at.index for at in model.layers)
        sums = {"n": zeros(1), "final": zeros(model.d_model)}
        for layer in layers:
            sums[f"{layer}.r"] = zeros(model.d_model)
            sums[f"{layer}.rr"] = zeros(model.d_model, model.d_model)
            sums[f"{layer}.rf"] = zeros(model.d_model, model.d_model)
        return cls(sums=sums, layers=layers)

    @property
    def n(self) -> int:
        """How many positions were seen."""
        return int(self.sums["n"])

    def add(self, captured: Captured, is_text: Bool[Tensor, "batch pos"] | None = None) -> None:
        """Add the positions of a run that was captured with ``residual=True``.

        Args:
            is_text: False = a position to leave out (a special token); none by default.
        """
        missing = [layer for layer in self.layers if layer not in captured.residual]
        if missing or captured.final_residual is None:
            raise UsageError(
                f"this capture does not hold the residual stream of layers {missing}",
                hint="capture with residual=True and all layers",
            )
        shape = captured.final_residual.shape[:2]
        kept = torch.ones(shape, dtype=torch.bool) if is_text is None else is_text.cpu()
        final = captured.final_residual.cpu()[kept].double()  # [n, d_model]
        self.sums["n"] += len(final)
        self.sums["final"] += final.sum(0)
        for layer in self.layers:
            r = captured.residual[layer].cpu()[kept].double()
            self.sums[f"{layer}.r"] += r.sum(0)
            self.sums[f"{layer}.rr"].addmm_(r.T, r)
            self.sums[f"{layer}.rf"].addmm_(r.T, final)

    def merge(self, other: ResidualStatistics) -> ResidualStatistics:
        """The statistics of both texts together."""
        mine = {name: tuple(total.shape) for name, total in self.sums.items()}
        theirs = {name: tuple(total.shape) for name, total in other.sums.items()}
        if mine != theirs:
            raise LensError(
                "cannot merge residual statistics of models with different layers or sizes",
                hint="merge only what was gathered from one model",
            )
        sums = {name: total + other.sums[name] for name, total in self.sums.items()}
        return ResidualStatistics(sums=sums, layers=self.layers)

    def solve(self, *, ridge: float = 1e-4) -> dict[int, Translation]:
        """Least squares of the final residual on the stream after each layer.

        Args:
            ridge: strength of the penalty on ``weight``, as a share of the mean variance of the
                stream's features. It pulls towards no difference, which is the plain logit lens.
        """
        if self.n == 0:
            raise UsageError("no text was seen yet", hint="add at least one captured run first")
        return {layer: self._solve_layer(layer, ridge) for layer in self.layers}

    def _solve_layer(self, layer: int, ridge: float) -> Translation:
        mean_r, mean_f, rr, rf = (
            self.sums[name] / self.sums["n"]
            for name in (f"{layer}.r", "final", f"{layer}.rr", f"{layer}.rf")
        )
        variance = rr - torch.outer(mean_r, mean_r)  # [d_model, d_model]
        covariance = rf - torch.outer(mean_r, mean_f)
        penalty = ridge * variance.diagonal().mean() * torch.eye(len(mean_r), dtype=rr.dtype)
        weight = _solve(variance + penalty, covariance - variance).T
        return Translation(weight=weight, bias=mean_f - mean_r - weight @ mean_r)


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not bool(failed):
        return torch.cholesky_solve(right, factor)
    # Singular without a ridge, when the text is shorter than the stream is wide: of the many
    # solutions the smallest is wanted.
    return torch.linalg.lstsq(matrix, right, driver="gelsd").solution
