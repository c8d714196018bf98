"""The averaged-Jacobian lens: the effect of a small change of a head on the final state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from saccade.interp.heads.capture import keep_in, on_input, run_base
from saccade.interp.heads.taps import HeadLayer
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.lens import Lens, Method

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.gather import Fit

# Attention sinks sit at the first positions; the authors of the Jacobian lens leave out 16.
FIRST = 16
# A backward pass keeps about 1.5 MB per token for the default model.
BATCH_TOKENS = 512


class JacobianLens(Lens):
    """``logits = W_U J (z - mean) + c`` with J the mean Jacobian from z to the final normed state.

    The Jacobian lens ("jlens", https://github.com/anthropics/jacobian-lens) at the tap of a head,
    as in fmerlo/head-level-jlens. Nothing is fitted to a prediction: it is the model's own
    response, linearised. ``c`` is the baseline lens, so that a head at its mean activation predicts
    the baseline. We differ in three things: only the effect on the same position counts (the
    authors also sum over later positions, and accept both); the final norm is part of J instead of
    being applied to its output; and J is estimated (`fit_jacobian`).
    """

    kind = "jacobian"
    site = "head"

    def __init__(self, *, inner: HeadLens) -> None:
        super().__init__()
        self.inner = inner
        """A lens of the same form; only the source of its weights differs."""

    @classmethod
    def start(cls, model: LanguageModel, layer: int) -> JacobianLens:
        """A lens with all weights zero: the uniform distribution."""
        return cls(inner=HeadLens.start(model, layer))

    @classmethod
    def methods(cls) -> Mapping[str, Method]:
        """Only the model's own gradient; nothing is trained."""
        return {"closed-form": Method(run=_follow_text)}

    def forward(
        self,
        activation: Float[Tensor, "n head d_activation"],
        *,
        tokens: Int[Tensor, " token"] | None = None,
    ) -> Float[Tensor, "n head token"]:
        """Vocabulary logits for each position and head; of all tokens by default."""
        return self.inner(activation, tokens=tokens)


def fit_jacobian(
    model: LanguageModel,
    windows: Int[Tensor, "window pos"],
    baseline: Float[Tensor, " d_vocab"],
    *,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[int, JacobianLens]:
    """Jacobian lenses of all heads of all layers, from one backward pass over a text.

    The exact Jacobian costs d_model backward passes per text. Instead every position p gets one
    random probe u_p with ``E u u^T = I``: the gradient of ``sum_p u_p . final_p`` at z_p, times
    u_p, has the Jacobian of position p as its expectation (the probes of other positions have
    independent signs), and the mean over the text estimates the mean Jacobian. Probes are columns
    of one orthogonal matrix, so that d_model positions with equal Jacobians give it without error.

    Args:
        windows: text; the first positions of each window and special tokens are left out.
        baseline: the log of the mean predicted distribution.
        layers: which layers; all by default.
    """
    chosen = [at for at in model.layers if layers is None or at.index in layers]
    sums = {at.index: torch.zeros(at.n_heads, at.d_head, model.d_model) for at in chosen}
    means = {at.index: torch.zeros(at.n_heads, at.d_head) for at in chosen}
    n = 0
    for ids, counted, u in _probed(model, windows, seed=seed, progress=progress):
        n += int(counted.sum())
        for at, z, slope in _slopes(model, ids, chosen, u):
            kept = slope[counted].flatten(1)  # [n, head * d_head]
            sums[at.index] += (kept.T @ u[counted]).view_as(sums[at.index]).cpu()
            means[at.index] += z[counted].sum(0).cpu()
    return {
        at.index: _lens(model, at, sums[at.index] / n, means[at.index] / n, baseline)
        for at in chosen
    }


def residual_jacobians(
    model: LanguageModel,
    windows: Int[Tensor, "window pos"],
    *,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[int, Float[Tensor, "d_model d_model"]]:
    """By layer: the mean Jacobian from the stream after it to the input of the final norm.

    The published Jacobian lens reads ``unembed(norm(J h))``. Where we differ: J counts the effect
    on the same position only (the authors' per-position estimator, which they accept), and it is
    estimated with random probes as in `fit_jacobian`. What is estimated is J - I, the part that
    later layers add: it is small where the probes' noise would otherwise matter most.

    Args:
        windows: text; the first positions of each window and special tokens are left out.
    """
    sums = {at.index: torch.zeros(model.d_model, model.d_model) for at in model.layers}
    n = 0
    for ids, counted, u in _probed(model, windows, seed=seed, progress=progress):
        n += int(counted.sum())
        probe = u[counted]
        for layer, slope in _stream_slopes(model, ids, u):
            sums[layer] += (probe.T @ (slope[counted].to(probe) - probe)).cpu()
    return {layer: total / n + torch.eye(model.d_model) for layer, total in sums.items()}


def _follow_text(fit: Fit) -> dict[int, JacobianLens]:
    # Every process reads the whole text: the lenses are the same in all processes.
    return fit_jacobian(
        fit.model,
        fit.text.windows,
        fit.baseline,
        layers=fit.layers,
        seed=fit.config.seed,
        progress=fit.progress,
    )


class _Probes:
    """Columns of a random orthogonal matrix, scaled to ``E u u^T = I``, with random signs."""

    def __init__(self, d_model: int, *, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(d_model, d_model, generator=self.generator)
        self.columns = torch.linalg.qr(noise).Q * d_model**0.5
        self.next = 0

    def draw(self, n: int) -> Float[Tensor, "n d_model"]:
        at = (self.next + torch.arange(n)) % len(self.columns)
        self.next = (self.next + n) % len(self.columns)
        sign = torch.randint(2, (n, 1), generator=self.generator) * 2.0 - 1
        return self.columns.T[at] * sign


def _probed(
    model: LanguageModel,
    windows: Int[Tensor, "window pos"],
    *,
    seed: int,
    progress: Callable[[str, int, int], None] | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of a text: ids, which positions count, and a probe at each of these."""
    probes = _Probes(model.d_model, seed=seed)
    first = min(FIRST, windows.shape[1] - 1)
    batches = windows.split(max(1, BATCH_TOKENS // windows.shape[1]))
    for count, ids in enumerate(batches, start=1):
        counted = model.is_text(ids).to(model.device)
        counted[:, :first] = False
        u = torch.zeros(*ids.shape, model.d_model, device=model.device)
        # Probes are drawn for these positions only, so that all probes are used equally often.
        u[counted] = probes.draw(int(counted.sum())).to(model.device)
        yield ids.to(model.device), counted, u
        if progress is not None:
            progress("following gradients", count, len(batches))


def _stream_slopes(
    model: LanguageModel, ids: Tensor, u: Tensor
) -> Iterator[tuple[int, Float[Tensor, "batch pos d_model"]]]:
    """For each layer, the gradient of ``u . (input of the final norm)`` at the stream after it."""
    seen: dict[int, Tensor] = {}
    end: dict[str, Tensor] = {}
    with torch.enable_grad(), ExitStack() as stack:
        for at in model.layers:
            hook = partial(_begin_stream, seen, at.index)
            stack.enter_context(at.block.register_forward_hook(hook))
        stack.enter_context(on_input(model.final_norm.module, keep_in(end, "final")))
        final = run_base(model.hf, ids)
        final = end.get("final", final)
        slopes = torch.autograd.grad(final, list(seen.values()), grad_outputs=u.to(final))
    yield from zip(seen, slopes, strict=True)


def _begin_stream(
    seen: dict[int, Tensor], layer: int, _: nn.Module, __: tuple[Any, ...], output: Any
) -> Any:
    stream = output[0] if isinstance(output, tuple | list) else output
    stream = stream if stream.requires_grad else stream.detach().requires_grad_()
    seen[layer] = stream
    return stream if isinstance(output, Tensor) else type(output)([stream, *output[1:]])


def _slopes(
    model: LanguageModel, ids: Tensor, layers: Sequence[HeadLayer], u: Tensor
) -> Iterator[tuple[HeadLayer, Tensor, Tensor]]:
    """For each layer, the activation of its heads and the gradient of ``u . final`` there."""
    seen: dict[int, Tensor] = {}
    with torch.enable_grad(), ExitStack() as stack:
        for at in layers:
            stack.enter_context(_in_graph(at, seen))
        final = run_base(model.hf, ids)
        slopes = torch.autograd.grad(final, list(seen.values()), grad_outputs=u.to(final))
    for (index, z), slope in zip(seen.items(), slopes, strict=True):
        at = model.layer(index)
        shape = (*ids.shape, at.n_heads, at.d_head)
        yield at, z.detach().reshape(shape).float(), slope.reshape(shape).float()


def _in_graph(at: HeadLayer, seen: dict[int, Tensor]) -> RemovableHandle:
    return at.projection.register_forward_pre_hook(partial(_begin_graph, at, seen))


def _begin_graph(
    at: HeadLayer, seen: dict[int, Tensor], _: nn.Module, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    # The weights are frozen: the graph begins at the first requested layer.
    flat = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
    seen[at.index] = flat
    return (flat, *args[1:])


def _lens(
    model: LanguageModel, at: HeadLayer, jacobian: Tensor, mean: Tensor, baseline: Tensor
) -> JacobianLens:
    lens = JacobianLens.start(model, at.index)
    # Cohere and Granite scale the logits; the lens uses the plain matrix.
    weight = jacobian * model.unembedding.scale
    lens.inner.weight.data.copy_(weight)
    lens.inner.bias.data.copy_(-torch.einsum("hi,hid->hd", mean, weight))
    lens.inner.token_bias.data.copy_(baseline.expand_as(lens.inner.token_bias))
    lens.requires_grad_(False)
    return lens
