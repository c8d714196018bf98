"""A memory as a vector in one of three forms, and its injection at a place of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.interp.heads.capture import Captured, capture, head_outputs
from saccade.interp.heads.intervene import InjectHead, InjectResidual
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.lens import activation_at

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses


# A memory as a vector: tokens as an activation of a head or of the residual stream.


class Pointed(NamedTuple):
    """A head, and how much its lens already predicts the memory."""

    layer: int
    head: int
    lift: float
    """Log-probability of the memory's tokens under the lens, minus that of the baseline lens."""


def memory_tokens(model: LanguageModel, text: str) -> list[int]:
    """The tokens of a memory after a space; a repeated token counts each time."""
    if not text.strip():
        raise UsageError(f"the memory is empty: {text!r}", hint='give a token, such as "France"')
    before = model.encode("a").shape[1]
    return model.encode(f"a {text.strip()}")[0, before:].tolist()


def unembedding_memory(model: LanguageModel, tokens: Sequence[int]) -> Float[Tensor, " d_model"]:
    """The direction of the residual stream that promotes these tokens; norm 1.

    Sakarvadia et al., 2023, "Memory Injections" (https://arxiv.org/abs/2309.05605), section 4: a
    bag of words through the transposed unembedding. We subtract the mean row, because a logit that
    rises for all tokens alike changes nothing.
    """
    weight = model.unembedding.weight.float()
    wanted = weight[torch.tensor(list(tokens), device=weight.device)].sum(0)
    return torch.nn.functional.normalize(wanted - len(tokens) * weight.mean(0), dim=0)


def lens_memory(
    lenses: Lenses, layer: int, head: int, memory: Float[Tensor, " d_model"]
) -> Float[Tensor, " d_head"]:
    """The activation of a head for which its lens predicts a memory; norm 1.

    The lens predicts ``W_U (A z + b) + c``. Its inverse is the z whose ``A z`` is nearest to the
    memory in the residual stream, by least squares.

    Raises:
        LensError: lenses of this kind have no inverse.
    """
    lens = lenses.by_layer.get(layer)
    if not isinstance(lens, HeadLens):
        raise LensError(
            f"the lenses of {lenses.provenance.model} are of kind {lenses.provenance.kind!r}, "
            "which has no inverse",
            hint="fit lenses of kind head, or use the form unembedding",
        )
    inverse = torch.linalg.pinv(lens.weight[head].float())  # [d_model, d_head]
    return torch.nn.functional.normalize(memory.to(inverse) @ inverse, dim=0)


class TextMemory(NamedTuple):
    """The activations of a model at the last token of a text."""

    residual: dict[int, Float[Tensor, " d_model"]]
    """By layer: the residual stream after its block."""
    z: dict[int, Float[Tensor, "head d_head"]]
    """By layer: the activations of its heads."""


@torch.no_grad()
def text_memory(model: LanguageModel, text: str, layers: Sequence[int] | None = None) -> TextMemory:
    """A fact as activations: those at the last token of "The country is France" encode France.

    Unlike tokens through the unembedding, this is the memory as the model itself represents it in
    its middle layers, long before it becomes a token.
    """
    captured = capture(model, model.encode(text), layers=layers, residual=True)
    return TextMemory(
        residual={layer: stream[0, -1] for layer, stream in captured.residual.items()},
        z={layer: z[0, -1] for layer, z in captured.z.items()},
    )


@torch.inference_mode()
def lens_lifts(
    lenses: Lenses, text: str, tokens: Sequence[int], *, position: int = -1
) -> Float[Tensor, "site token"]:
    """How far each lens raises the log-probability of tokens above the baseline lens.

    The baseline lens predicts the mean distribution, whatever the activation.
    """
    model = lenses.model
    captured = capture(model, model.encode(text), layers=list(lenses.by_layer), residual=True)
    activation = {
        layer: activation_at(model, captured, layer, lens.site, positions=[position])
        for layer, lens in lenses.by_layer.items()
    }
    log_p = lenses.logits(activation)[0].log_softmax(-1)  # [site, d_vocab]
    at = torch.tensor(list(tokens), device=log_p.device)
    return log_p[:, at] - lenses.baseline.to(log_p)[at]


def point_to_heads(
    lenses: Lenses, text: str, tokens: Sequence[int], *, position: int = -1
) -> list[Pointed]:
    """All heads, those whose lenses most predict a memory at a position of a text first."""
    lifts = lens_lifts(lenses, text, tokens, position=position).mean(-1).tolist()
    every = [Pointed(*site, lift) for site, lift in zip(lenses.sites, lifts, strict=True)]
    return sorted(every, key=lambda pointed: -pointed.lift)


Form: TypeAlias = Literal["unembedding", "lens", "text"]
Injection: TypeAlias = InjectHead | InjectResidual
Place: TypeAlias = tuple[int, int | None]
"""A head, as (layer, head); or the residual stream after a layer, as (layer, None)."""


class Memory:
    """A memory that can be injected at any place of a model.

    Args:
        form: its tokens through the unembedding, its tokens through the inverse of a head's lens,
            or the activations at the last token of the memory, read as a text.
        lenses: for the form "lens".
    """

    def __init__(
        self, model: LanguageModel, text: str, *, form: Form, lenses: Lenses | None = None
    ) -> None:
        self.model, self.form, self._lenses = model, form, lenses
        # The last word of a text is what the text leads to.
        word = " ".join(text.split()[-1:]) if form == "text" else text
        self.tokens = memory_tokens(model, word)
        self._read = text_memory(model, text) if form == "text" else None
        self._direction = unembedding_memory(model, self.tokens)

    def injection(
        self,
        activation: Captured,
        place: Place,
        *,
        strength: float,
        positions: Sequence[int] | None = (-1,),
    ) -> Injection:
        """The change that puts the memory at a place.

        Strength 1 has the norm of the activation there; for the form "text" it replaces that
        activation.

        Args:
            activation: the prompt, captured with ``residual=True`` and this layer.
            positions: of the prompt; None for all, with one vector for the mean of its tokens.
        """
        layer, head = place
        here = activation.residual[layer][0] if head is None else activation.z[layer][0]
        here = here.mean(0, keepdim=True) if positions is None else here[list(positions)]
        vector = self._vector(layer, head, here)
        vector = vector[0] if len(vector) == 1 else vector
        asked = None if positions is None else tuple(positions)
        if head is None:
            return InjectResidual(layer, vector, strength, asked)
        return InjectHead(layer, head, vector, strength, asked)

    def _vector(self, layer: int, head: int | None, here: Tensor) -> Tensor:
        """One vector per position, ``[pos, d]``; ``here`` is ``[pos, d]`` or ``[pos, head, d]``."""
        if head is None:
            if self.form == "lens":
                raise UsageError(
                    f"the form lens needs a head, got only layer {layer}",
                    hint=f"name a head, such as {layer}.0, or use another form",
                )
            if self._read is not None:
                return self._read.residual[layer] - here
            return _with_norm_of(here, self._direction)
        self.model.check_head(layer, head)
        if self._read is not None:
            return self._read.z[layer][head] - here[:, head]
        if self.form == "lens":
            assert self._lenses is not None, "the form lens comes with lenses"
            inverse = lens_memory(self._lenses, layer, head, self._direction)
            return _with_norm_of(here[:, head], inverse)
        written = head_outputs(self.model.layer(layer), here)[:, head]
        return _with_norm_of(written, self._direction)


def _with_norm_of(here: Tensor, direction: Tensor) -> Tensor:
    return here.float().norm(dim=-1, keepdim=True) * direction.to(here.device)


# A name in place of a description: the states of its tokens, aligned at their ends.


def span_of(model: LanguageModel, text: str, piece: str) -> tuple[int, ...] | None:
    """The positions of a piece's tokens, from the end of the text; None where it is not there.

    Letters count the same in upper and lower case; of several occurrences the last is taken.
    """
    start = text.lower().rfind(piece.strip().lower()) if piece.strip() else -1
    if start < 0:
        return None
    length = model.encode(text).shape[1]
    end = model.encode(text[: start + len(piece.strip())]).shape[1]
    before = text[:start].rstrip()
    begin = model.encode(before).shape[1] if before else len(model.encoding.prefix)
    return tuple(range(min(begin, end - 1) - length, end - length))


class Span(NamedTuple):
    """Tokens of a text that name something, and the streams of the text."""

    streams: dict[int, Float[Tensor, "pos d_model"]]
    """By layer: the residual stream after it, at all tokens."""
    positions: tuple[int, ...]
    """Counted from the end of the text."""


def aligned_injection(here: Span, there: Span, *, layer: int, strength: float) -> InjectResidual:
    """The states of a name's tokens in place of those of a description, the last on the last.

    Of the longer of the two, the last tokens alone are used. Sakarvadia et al., 2023
    (https://arxiv.org/abs/2309.05605) add the name's tokens through the unembedding, where the
    next token is predicted; here the model's own states of the name, in its early layers, replace
    those that the later tokens attend to.

    Args:
        strength: the share of the state that is replaced; 1 replaces it.
    """
    n = min(len(here.positions), len(there.positions))
    at, source = here.positions[-n:], there.positions[-n:]
    own = here.streams[layer][list(at)]
    return InjectResidual(layer, there.streams[layer][list(source)] - own, strength, at)
