"""Positions of a text, with all that the lenses of a model need to know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """The activations of the heads at some positions, and the model's final state there."""

    z: dict[int, Float[Tensor, "n head d_head"]]
    final: Float[Tensor, "n d_model"]
    priority: Int[Tensor, " n"] | None = None
    """Which positions are kept when there are too many: those with the smallest."""

    def __len__(self) -> int:
        return len(self.final)

    @classmethod
    def take(
        cls,
        z: Mapping[int, Float[Tensor, "batch pos head d_head"]],
        final: Float[Tensor, "batch pos d_model"],
        index: Int[Tensor, " n"],
        *,
        priority: Int[Tensor, " n"] | None = None,
    ) -> Sample:
        """The positions ``index`` of a batch, counted row by row; copied, so the batch can go."""
        at = index.to(final.device)
        return cls(
            z={layer: held.flatten(0, 1)[at.to(held.device)] for layer, held in z.items()},
            final=final.flatten(0, 1)[at],
            priority=priority,
        )

    @classmethod
    def join(cls, samples: Sequence[Sample]) -> Sample:
        """All positions of several samples."""
        layers = samples[0].z
        priority = [each.priority for each in samples if each.priority is not None]
        return cls(
            z={layer: torch.cat([each.z[layer] for each in samples]) for layer in layers},
            final=torch.cat([each.final for each in samples]),
            priority=torch.cat(priority) if len(priority) == len(samples) else None,
        )

    def __getitem__(self, index: Int[Tensor, " n"] | slice) -> Sample:
        return Sample(
            z={layer: held[index] for layer, held in self.z.items()},
            final=self.final[index],
            priority=None if self.priority is None else self.priority[index],
        )

    def smallest(self, n: int) -> Sample:
        """The ``n`` positions with the smallest priorities, in their order."""
        assert self.priority is not None, "these positions were not sampled by priority"
        return self[self.priority.argsort(stable=True)[:n]]

    def to(self, dtype: torch.dtype) -> Sample:
        """The same in another type: bfloat16 halves the memory of what is kept."""
        z = {layer: held.to(dtype) for layer, held in self.z.items()}
        return Sample(z=z, final=self.final.to(dtype), priority=self.priority)

    def tensors(self) -> dict[str, Tensor]:
        """As named tensors, to be stored."""
        named = {f"sample.{layer}.z": held for layer, held in self.z.items()}
        if self.priority is not None:
            named["sample.priority"] = self.priority
        return {**named, "sample.final": self.final}

    @classmethod
    def from_tensors(cls, named: Mapping[str, Tensor]) -> Sample:
        """Back from named tensors; others among them are passed over."""
        z = {
            int(name.split(".")[1]): held
            for name, held in named.items()
            if name.startswith("sample.") and name.endswith(".z")
        }
        return cls(z=z, final=named["sample.final"], priority=named.get("sample.priority"))
