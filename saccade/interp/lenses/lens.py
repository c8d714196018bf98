"""The base class of all lenses: a map from an activation of the model to vocabulary logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError, suggest
from saccade.interp.heads.capture import Captured
from saccade.interp.heads.residual_path import direct_states

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.gather import Fit, Gathered


Site = Literal["head", "residual", "direct"]
"""Where a lens reads: ``z`` of each head; the residual stream after the layer (one "head"); or what
each head adds directly to the final normed state, every norm on the path frozen at its scale."""


class Lens(nn.Module, ABC):
    """Maps the activation of one layer at a position to vocabulary logits.

    Attention Lens (https://arxiv.org/abs/2310.16270), section 2: ``a' = L[layer, head](a)``.
    One module holds the lenses of all heads of a layer, so that they run as one batched product.
    A lens on the residual stream is the same with a single "head".

    To add a kind, subclass, set ``kind`` and ``site``, write ``start`` and ``forward``, and
    decorate with `register_lens`; every command then accepts it (docs/guide/own-lens.md). A kind
    defines its own fitting in ``methods``; `saccade.interp.lenses.fit` needs nothing else.
    """

    kind: ClassVar[str]
    """The name on the command line and in the manifest."""
    site: ClassVar[Site]
    """What is read; `saccade.interp.lenses.lens.activation_at` returns it."""
    is_linear: ClassVar[bool] = False
    """True = the logits of a sum are the sum of the logits; evaluation is then faster."""

    @classmethod
    @abstractmethod
    def start(cls, model: LanguageModel, layer: int) -> Lens:
        """The untrained lens of one layer of a model, on the unembedding's device."""

    @classmethod
    def methods(cls) -> Mapping[str, Method]:
        """Fitting methods of this kind, by name. Default: gradient steps from ``start``.

        The names are those of `saccade.interp.lenses.fit_config.FitConfig.method`.
        """

        def untrained(fit: Fit) -> dict[int, Lens]:
            return {layer: cls.start(fit.model, layer) for layer in fit.layers}

        return {"train": Method.training(untrained)}

    @abstractmethod
    def forward(
        self,
        activation: Float[Tensor, "n head d_activation"],
        *,
        tokens: Int[Tensor, " token"] | None = None,
    ) -> Float[Tensor, "n head token"]:
        """Vocabulary logits for each position and head; of all tokens by default."""


Run = Callable[["Fit"], Mapping[int, Lens]]
Solve = Callable[["LanguageModel", "Gathered", int], Mapping[int, Lens]]


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to fit a kind of lens: the function that does it, and what it supports."""

    run: Run
    """Fits the lenses of the layers `Fit.layers` after the pass over the text."""
    solve: Solve | None = None
    """Fits the lenses of all layers from a model, the statistics gathered from a text and a seed,
    and nothing else. With it the lenses of several texts can be merged."""
    takes_objective: bool = False
    """True = it supports any objective; False = it has a fixed objective."""
    keeps_sums: bool = False
    """True = it fits all layers at once, and the sums are stored with the lenses."""

    @classmethod
    def closed_form(cls, solve: Solve) -> Method:
        """A method that solves the lenses from sums and held-out positions."""

        def run(fit: Fit) -> Mapping[int, Lens]:
            return solve(fit.model, fit.gathered, fit.config.seed)

        return cls(run=run, solve=solve, keeps_sums=True)

    @classmethod
    def training(cls, start: Run, *, takes_objective: bool = True) -> Method:
        """A method that takes gradient steps from the lenses that ``start`` returns."""

        def run(fit: Fit) -> Mapping[int, Lens]:
            from saccade.interp.lenses.gradient import GradientConfig, find_objective, train

            lenses, asked = dict(start(fit)), fit.config
            config = GradientConfig(
                over=asked.over,
                positions=asked.positions,
                rows=asked.rows,
                seed=asked.seed,
                **asked.given_numbers(),
            )
            with fit.unfinished.stage("training") as checkpoint:
                train(
                    fit.model,
                    lenses,
                    find_objective(asked.objective),
                    fit.text,
                    config=config,
                    processes=fit.processes,
                    held_out=fit.held_out,
                    checkpoint=checkpoint,
                    progress=fit.progress,
                )
            return lenses

        return cls(run=run, takes_objective=takes_objective)


# The kinds of lens: those of this package, and those registered by plugins.

_REGISTERED: dict[str, type[Lens]] = {}
_Kind = TypeVar("_Kind", bound=Lens)


def register_lens(lens: type[_Kind]) -> type[_Kind]:
    """Register a kind of lens under its name; used as a decorator."""
    _REGISTERED[lens.kind] = lens
    return lens


def own_kinds() -> tuple[type[Lens], ...]:
    """The package's own kinds; each class defines how it is fitted."""
    from saccade.interp.lenses.head_lens import DenseHeadLens, HeadLens
    from saccade.interp.lenses.jacobian_lens import JacobianLens
    from saccade.interp.lenses.residual_lenses import HeadLogitLens, LogitLens, TunedLens

    return (HeadLens, DenseHeadLens, JacobianLens, LogitLens, HeadLogitLens, TunedLens)


def _known() -> Mapping[str, type[Lens]]:
    return {**{kind.kind: kind for kind in own_kinds()}, **_REGISTERED}


def lens_kinds() -> tuple[str, ...]:
    """The names of all registered kinds.

    >>> lens_kinds()
    ('dense', 'head', 'jacobian', 'logit', 'logit-head', 'tuned')
    """
    return tuple(sorted(_known()))


def lens_kind(name: str) -> type[Lens]:
    """The kind of lens with this name."""
    if name not in _known():
        raise UsageError(
            f"no lens kind {name!r}: known are {', '.join(lens_kinds())}",
            hint=suggest(
                name, _known(), "load a file that defines your own kind with `--plugin FILE.py`"
            ),
        )
    return _known()[name]


def kinds_fitted_by(method: str) -> tuple[str, ...]:
    """The names of the kinds that can be fitted by a method.

    >>> kinds_fitted_by("polish")
    ('head', 'tuned')
    """
    return tuple(name for name in lens_kinds() if method in lens_kind(name).methods())


def fitted_kinds() -> tuple[str, ...]:
    """The names of the kinds that can be fitted; the others have no parameters.

    >>> fitted_kinds()
    ('dense', 'head', 'jacobian', 'tuned')
    """
    return tuple(name for name in lens_kinds() if lens_kind(name).methods())


class FrozenUnembedding(nn.Module):
    """The model's own unembedding for use in a lens: shared, never trained, never saved.

    The lens uses the plain matrix; scale and soft-cap belong to the model's own logits, which the
    lens is fitted to reproduce.
    """

    weight: Tensor

    def __init__(self, weight: Float[Tensor, "d_vocab d_model"]) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach(), persistent=False)

    def forward(
        self,
        hidden: Float[Tensor, "*batch d_model"],
        tokens: Int[Tensor, " token"] | None,
    ) -> Float[Tensor, "*batch token"]:
        """Logits of the given tokens, or of all."""
        weight = self.weight if tokens is None else self.weight[tokens]
        # Contiguous: einsum leaves axes in an order that makes the product four times slower.
        return hidden.to(weight.dtype).contiguous() @ weight.T


def new_parameter(*shape: int, like: Tensor) -> nn.Parameter:
    """A parameter of zeros on the device of ``like``, always in float32."""
    return nn.Parameter(torch.zeros(*shape, device=like.device, dtype=torch.float32))


# The input of a lens, taken from a captured run, for each site.


def needs_residual(site: Site) -> bool:
    """Whether `saccade.interp.heads.capture` must be called with ``residual=True`` for this site.

    >>> needs_residual("head"), needs_residual("residual"), needs_residual("direct")
    (False, True, True)
    """
    return site != "head"


def activation_at(
    model: LanguageModel,
    captured: Captured,
    layer: int,
    site: Site,
    *,
    positions: Sequence[int] | None = None,
) -> Float[Tensor, "n head d_activation"]:
    """The activation at a site of one layer, for every row and position, in row order.

    Args:
        site: "head" is ``z`` of each head; "residual" the stream after the layer, as one head;
            "direct" what each head adds to the final normed state.
        positions: positions of each row; all by default.
    """
    if site == "direct":
        return direct_states(model, captured, layer, positions=positions).flatten(0, 1)
    activation = captured.z if site == "head" else captured.residual
    if layer not in activation:
        asked = "residual=True and " if site == "residual" else ""
        raise UsageError(
            f"this capture does not hold the {site} site of layer {layer}",
            hint=f"capture with {asked}layers that include {layer}",
        )
    every = (
        activation[layer] if site == "head" else activation[layer][:, :, None]
    )  # [batch, pos, head, d_activation]
    chosen = every if positions is None else every[:, list(positions)]
    return chosen.flatten(0, 1)
