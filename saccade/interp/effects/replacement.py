"""What replaces an ablated part: its mean over a text, zero, another token's or prompt's value."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import SaccadeError, UsageError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.parts import recorded_streams
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate
from saccade.interp.lenses.corpus import read_corpus
from saccade.interp.lenses.self_text import sample_batch, sampling_fingerprint
from saccade.store.atomic import cache_dir
from saccade.store.folder import read_folder, write_folder

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

SEED = 4  # arbitrary; differs from the seed of the text of a default fit
Ablation: TypeAlias = Literal["mean", "zero", "resample", "prompt"]


@dataclass(frozen=True)
class Replacement:
    """The values that replace the activations of heads and the outputs of feed-forward parts.

    What an effect is depends on it. The mean keeps what a head does on every text and removes what
    it does on this one; zero removes both, and leaves states that the model never has; a value from
    another token or prompt adds what the head does there.
    """

    by: Ablation
    heads: Mapping[int, Float[Tensor, "*pos head d_head"]] = field(default_factory=dict)
    """By layer; one for each position for resample and prompt."""
    feed_forward: Mapping[int, Float[Tensor, "*pos d_model"]] = field(default_factory=dict)
    """By layer, for layers whose attention reaches the stream."""

    @classmethod
    def zero(cls, model: LanguageModel) -> Replacement:
        """Nothing at all."""
        weight = model.unembedding.weight
        return cls(
            "zero",
            {at.index: torch.zeros(at.n_heads, at.d_head) for at in model.layers},
            {at.index: torch.zeros(weight.shape[1]) for at in model.layers if at.reaches_stream},
        )

    @classmethod
    @torch.no_grad()
    def mean(cls, model: LanguageModel, ids: Int[Tensor, "batch pos"]) -> Replacement:
        """The mean over the tokens of a text, special tokens and the first one left out."""
        heads, feed_forward = _activations(model, ids)
        return cls(
            "mean",
            {layer: z.mean(0).float() for layer, z in heads.items()},
            {layer: out.mean(0).float() for layer, out in feed_forward.items()},
        )

    @classmethod
    def usual(cls, model: LanguageModel) -> Replacement:
        """The mean over text that the model generates: computed once for a model, and cached."""
        text = sampling_fingerprint(model, **_sampling(model, USUAL_ROWS, USUAL_WINDOW))
        folder = cache_dir() / "means" / f"{model.fingerprint}-{text}"
        with contextlib.suppress(SaccadeError):  # not there yet, or damaged: computed again
            return _stored(folder)
        ids = reference_text(model, rows=USUAL_ROWS, window=USUAL_WINDOW)
        found = cls.mean(model, ids)
        with contextlib.suppress(SaccadeError):  # a cache that cannot be written is not needed
            _store(found, folder)
        return found

    @classmethod
    def resampled(
        cls, model: LanguageModel, ids: Int[Tensor, "batch pos"], *, length: int = 1, seed: int = 0
    ) -> Replacement:
        """The values at ``length`` tokens of a text, drawn at random."""
        generator = torch.Generator().manual_seed(seed)
        heads, feed_forward = _activations(model, ids)
        n_tokens = len(next(iter(heads.values())))
        at = torch.randint(n_tokens, (length,), generator=generator)
        return cls(
            "resample",
            {layer: z[at.to(z.device)].float() for layer, z in heads.items()},
            {layer: out[at.to(out.device)].float() for layer, out in feed_forward.items()},
        )

    @classmethod
    def last_of(cls, model: LanguageModel, ids: Int[Tensor, "1 pos"]) -> Replacement:
        """The values at the last token of another prompt, of any length."""
        run = run_copies(model, ids, [])
        return cls(
            "prompt",
            {layer: z[0].float() for layer, z in run.captured.z.items()},
            {layer: out.float() for layer, out in run.feed_forward.items()},
        )

    @classmethod
    def other_prompt(
        cls, model: LanguageModel, ids: Int[Tensor, "1 pos"], *, length: int
    ) -> Replacement:
        """The activations of heads at the same positions of another prompt."""
        if ids.shape[1] != length:
            raise UsageError(
                f"the other prompt has {ids.shape[1]} tokens, this one {length}",
                hint="give two prompts of the same number of tokens",
            )
        return cls("prompt", {layer: z[0].float() for layer, z in capture(model, ids).z.items()})

    def at_last(self) -> Replacement:
        """The values for the last position alone."""
        return Replacement(
            self.by,
            {layer: z if z.dim() == 2 else z[-1] for layer, z in self.heads.items()},
            {layer: x if x.dim() == 1 else x[-1] for layer, x in self.feed_forward.items()},
        )

    def ablation(
        self, layer: int, head: int, *, positions: Sequence[int] | None = None, row: int = 0
    ) -> Ablate:
        """The ablation of one head in one row of a batch, at some positions or all."""
        at = None if positions is None else list(positions)
        if self.by == "zero":
            return Ablate(layer, head, positions=at, rows=[row])
        value = self.heads[layer].select(-2, head)  # [pos, d_head] or [d_head]
        if value.dim() == 2 and at is not None:
            value = value[at]
        by = "mean" if self.by == "mean" else "resample"
        return Ablate(layer, head, by, value, positions=at, rows=[row])


def replacement_of(
    model: LanguageModel, by: str, *, other: str | None = None, corpus: str | None = None
) -> Replacement:
    """The replacement that a user asks for: "mean", "zero" or "resample", or another prompt's.

    Args:
        other: a prompt, whose values at its last token are taken.
        corpus: the text of the mean and of resampling; by default text that the model generates.
    """
    if other is not None:
        return Replacement.last_of(model, model.encode(other))
    if by == "zero":
        return Replacement.zero(model)
    if by == "mean" and corpus is None:
        return Replacement.usual(model)
    text = reference_text(model, corpus, rows=USUAL_ROWS, window=USUAL_WINDOW)
    return Replacement.mean(model, text) if by == "mean" else Replacement.resampled(model, text)


USUAL_ROWS, USUAL_WINDOW = 32, 48  # the text of the usual mean: 1,536 tokens, seconds to generate


def reference_text(
    model: LanguageModel, corpus: str | None = None, *, rows: int = 16, window: int = 48
) -> Int[Tensor, "batch pos"]:
    """The text of a mean: the beginning of a corpus, or text that the model generates."""
    if corpus is None:
        return sample_batch(model, index=0, **_sampling(model, rows, window)).ids
    window = min(window, model.max_positions or window)
    windows = read_corpus(corpus, model, window=window, max_tokens=rows * window).windows
    return windows[:rows].to(model.device)


class _Sampling(TypedDict):
    rows: int
    window: int
    seed: int
    temperature: float


def _sampling(model: LanguageModel, rows: int, window: int) -> _Sampling:
    """How the text of a mean is sampled."""
    window = min(window, model.max_positions or window)
    return {"rows": rows, "window": window, "seed": SEED, "temperature": 1.0}


@torch.no_grad()
def _activations(
    model: LanguageModel, ids: Int[Tensor, "batch pos"]
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Activations of heads, and what blocks add besides attention, by layer: at ordinary tokens."""
    is_text = model.is_text(ids)
    if not bool(is_text.any()):
        raise UsageError(
            "there is no text to average over: only special or first tokens",
            hint="give texts of at least two tokens",
        )
    with recorded_streams(model) as streams:
        z = capture(model, ids).z
    heads = {layer: each[is_text.to(each.device)] for layer, each in z.items()}
    feed_forward = {
        at.index: streams.feed_forward(at)[is_text.to(streams.left[at.index].device)]
        for at in model.layers
        if at.reaches_stream
    }
    return heads, feed_forward


def _store(found: Replacement, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    heads = {f"heads.{layer}": z.cpu() for layer, z in found.heads.items()}
    outputs = {f"feed_forward.{layer}": x.cpu() for layer, x in found.feed_forward.items()}
    write_folder(folder, {"kind": "means"}, {"means.safetensors": {**heads, **outputs}})


def _stored(folder: Path) -> Replacement:
    found: dict[str, dict[int, Tensor]] = {"heads": {}, "feed_forward": {}}
    for name, value in (
        read_folder(folder, needs=["means.safetensors"]).tensors["means.safetensors"].items()
    ):
        part, _, layer = name.partition(".")
        found[part][int(layer)] = value
    return Replacement("mean", found["heads"], found["feed_forward"])
