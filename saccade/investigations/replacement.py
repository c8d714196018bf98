"""What takes the place of a head that is ablated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.heads import Ablate, capture, mean_z
from saccade.lenses.corpus import read_corpus
from saccade.lenses.self_text import sample_batch

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

SEED = 4  # any; not one that a default fit writes its text with
Ablation: TypeAlias = Literal["zero", "mean", "resample"]


@dataclass(frozen=True)
class Replacement:
    """What every head of a model is replaced by, one head at a time."""

    by: Ablation
    values: dict[int, Float[Tensor, "*pos head d_head"]] = field(default_factory=dict)
    """By layer; none for zero, and one for each position for resample."""

    @classmethod
    def mean(cls, model: LanguageModel, ids: Int[Tensor, "batch pos"]) -> Replacement:
        """The mean over a text."""
        return cls("mean", mean_z(model, ids))

    @classmethod
    def resampled(
        cls, model: LanguageModel, ids: Int[Tensor, "batch pos"], *, length: int, seed: int = 0
    ) -> Replacement:
        """The activations at ``length`` tokens of a text, drawn at random."""
        generator = torch.Generator().manual_seed(seed)
        among = model.is_text(ids).flatten().nonzero()[:, 0].cpu()
        places = among[torch.randint(len(among), (length,), generator=generator)]
        z = capture(model, ids).z
        return cls(
            "resample", {k: each.flatten(0, 1)[places.to(each.device)] for k, each in z.items()}
        )

    @classmethod
    def other_prompt(
        cls, model: LanguageModel, ids: Int[Tensor, "1 pos"], *, length: int
    ) -> Replacement:
        """What the heads held in another prompt at the same places."""
        if ids.shape[1] != length:
            raise UsageError(
                f"the other prompt has {ids.shape[1]} tokens, this one {length}",
                hint="give two prompts of as many tokens, that differ in a word or two",
            )
        return cls("resample", {layer: z[0] for layer, z in capture(model, ids).z.items()})

    def change(self, layer: int, head: int, *, row: int, length: int, only_last: bool) -> Ablate:
        """The ablation of one head in one row of a batch."""
        positions = [length - 1] if only_last else list(range(length))
        if self.by == "zero":
            return Ablate(layer, head, positions=positions, rows=[row])
        value = self.values[layer].select(-2, head)  # [pos, d_head] or [d_head]
        if value.dim() == 2:
            value = value[positions]
        return Ablate(layer, head, self.by, value, positions=positions, rows=[row])


def reference_text(
    model: LanguageModel, corpus: str | None = None, *, rows: int = 16, window: int = 48
) -> Int[Tensor, "batch pos"]:
    """The text a mean is taken over: the beginning of a corpus, or words of the model itself."""
    window = min(window, model.max_positions or window)
    if corpus is None:
        return sample_batch(
            model, index=0, rows=rows, window=window, seed=SEED, temperature=1.0
        ).ids
    windows = read_corpus(corpus, model, window=window, max_tokens=rows * window).windows
    return windows[:rows].to(model.device)
