"""Lenses for comparison: the parameter-free logit lenses, and tuned lenses solved from a text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import LensError, ModelError, UsageError
from saccade.interp.heads.capture import Captured, capture
from saccade.interp.heads.residual_path import Unembedding
from saccade.interp.heads.taps import FinalNorm
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.lens import Lens, Method
from saccade.interp.lenses.lens_set import Lenses, Provenance

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.gather import Fit


# Running sums of the residual stream, from which tuned lenses are solved in closed form.


class Translation(NamedTuple):
    """``r_final`` is estimated as ``r + weight @ r + bias``."""

    weight: Float[Tensor, "d_model d_model"]
    bias: Float[Tensor, " d_model"]


@dataclass
class ResidualStatistics:
    """Sums over positions of the stream ``r`` after each layer and of its products, in float64.

    The products too are computed in float64: a few features of the stream are often a thousand
    times larger than the others, and the rounding error of float32 there is as large as these.

    Two d_model x d_model sums per layer are stored: 160 MB for 30 layers of 576.
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
        """Number of positions seen."""
        return int(self.sums["n"])

    def add(self, captured: Captured, is_text: Bool[Tensor, "batch pos"] | None = None) -> None:
        """Add the positions of a run that was captured with ``residual=True``.

        Args:
            is_text: False = a position to leave out (a special token); none by default.
        """
        missing = [layer for layer in self.layers if layer not in captured.residual]
        if missing or captured.final_residual is None:
            raise UsageError(
                f"this capture does not contain the residual stream of layers {missing}",
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
                hint="merge only statistics of the same model",
            )
        sums = {name: total + other.sums[name] for name, total in self.sums.items()}
        return ResidualStatistics(sums=sums, layers=self.layers)

    def solve(self, *, ridge: float = 1e-4) -> dict[int, Translation]:
        """Least squares of the final residual on the stream after each layer.

        Args:
            ridge: strength of the penalty on ``weight``, as a share of the mean variance of the
                stream's features. It shrinks towards weight 0, the plain logit lens.
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
    # Singular without a ridge if the text has fewer positions than d_model: take the
    # minimum-norm solution.
    return torch.linalg.lstsq(matrix, right, driver="gelsd").solution


# The logit lens: the model's own unembedding applied to earlier layers. Nothing is learnt.


class LogitLens(Lens):
    """The residual stream after a layer, read as if the model ended there.

    nostalgebraist, 2020, "interpreting GPT: the logit lens". The final norm takes its statistics
    from the stream at this layer, and scale, bias and soft-cap of the logits are the model's own,
    so after the last layer the lens is the model.
    """

    kind = "logit"
    site = "residual"

    def __init__(self, *, final_norm: FinalNorm, unembedding: Unembedding) -> None:
        super().__init__()
        # Neither is a module of this lens: they belong to the model and are not saved with it.
        self.final_norm = final_norm
        self.unembedding = unembedding

    @classmethod
    def start(cls, model: LanguageModel, layer: int) -> LogitLens:
        """The lens of a layer; the same for all layers of a model."""
        model.layer(layer)  # raises an error for an unknown layer
        return cls(final_norm=model.final_norm, unembedding=model.unembedding)

    @classmethod
    def methods(cls) -> Mapping[str, Method]:
        """None: there is nothing to learn."""
        return {}

    def forward(
        self,
        activation: Float[Tensor, "n head d_activation"],
        *,
        tokens: Int[Tensor, " token"] | None = None,
    ) -> Float[Tensor, "n head token"]:
        """The model's own logits as if this were the last layer."""
        return self.unembedding.logits(self.final_norm.normed(activation), tokens=tokens).float()


class HeadLogitLens(Lens):
    """What a head adds directly to the logits: the raw unembedding of the head's output.

    The attention head's logit lens of Attention Lens (https://arxiv.org/abs/2310.16270), figure 1.
    Unlike there, every norm on the path keeps the scale it had in the run (Elhage et al., 2021, "A
    Mathematical Framework for Transformer Circuits"), so that the heads' logits add up with those
    of the rest of the model. Biases and the soft-cap belong to the sum, not to a part of it, and
    are left out; the scale of the logits is included.
    """

    kind = "logit-head"
    site = "direct"
    is_linear = True

    def __init__(self, *, unembedding: Unembedding) -> None:
        super().__init__()
        self.unembedding = unembedding

    @classmethod
    def start(cls, model: LanguageModel, layer: int) -> HeadLogitLens:
        """The lens of a layer; the same for all layers of a model."""
        model.layer(layer)
        return cls(unembedding=model.unembedding)

    @classmethod
    def methods(cls) -> Mapping[str, Method]:
        """None: there is nothing to learn."""
        return {}

    def forward(
        self,
        activation: Float[Tensor, "n head d_activation"],
        *,
        tokens: Int[Tensor, " token"] | None = None,
    ) -> Float[Tensor, "n head token"]:
        """The head's share of the model's logits."""
        return self.unembedding.linear(activation, tokens=tokens).float()


# The tuned lens: the logit lens with a learnt affine translation at each layer.


class TunedLens(Lens):
    """The residual stream after a layer, translated to the final residual, then unembedded.

    Belrose et al., 2023 (https://arxiv.org/abs/2303.08112), section 3:
    ``logits = unembed(norm(A h + b))``. As in the authors' code the difference from h is learnt,
    ``h + A h + b``, and starts at zero: the untrained lens is the logit lens.
    """

    kind = "tuned"
    site = "residual"

    def __init__(self, *, final_norm: FinalNorm, unembedding: Unembedding) -> None:
        super().__init__()
        d_model, device = unembedding.weight.shape[1], unembedding.weight.device
        # Neither is a module of this lens: they belong to the model and are not saved with it.
        self.final_norm = final_norm
        self.unembedding = unembedding
        self.translator = nn.Linear(d_model, d_model, device=device, dtype=torch.float32)
        nn.init.zeros_(self.translator.weight)
        nn.init.zeros_(self.translator.bias)

    @classmethod
    def start(cls, model: LanguageModel, layer: int) -> TunedLens:
        """The lens of a layer before any fitting: the logit lens."""
        model.layer(layer)  # raises an error for an unknown layer
        return cls(final_norm=model.final_norm, unembedding=model.unembedding)

    @classmethod
    def methods(cls) -> Mapping[str, Method]:
        """Least squares on the final residual; gradient steps from there or from zero."""
        return {
            "closed-form": Method(run=_solve_text),
            "polish": Method.training(_solve_text, takes_objective=False),
            **super().methods(),
        }

    def forward(
        self,
        activation: Float[Tensor, "n head d_activation"],
        *,
        tokens: Int[Tensor, " token"] | None = None,
    ) -> Float[Tensor, "n head token"]:
        """The model's own logits of the translated stream."""
        h = activation.to(self.translator.weight)
        translated = (h + self.translator(h)).to(self.unembedding.weight.dtype)
        return self.unembedding.logits(self.final_norm.normed(translated), tokens=tokens).float()


def _solve_text(fit: Fit) -> dict[int, Lens]:
    solved = tuned_from(fit.model, fit.add_up(ResidualStatistics.empty(fit.model)))
    return {layer: solved[layer] for layer in fit.layers}


def solve_tuned(
    model: LanguageModel, batches: Iterable[Int[Tensor, "_ pos"]], *, ridge: float = 1e-4
) -> dict[int, TunedLens]:
    """Tuned lenses of every layer in one pass: least squares on the final residual.

    The paper minimises the KL by SGD; squared error before the norm has a closed form, which is
    also a good start for gradient steps.

    Args:
        batches: token ids, a few rows at a time.
        ridge: see `ResidualStatistics.solve`.
    """
    statistics = ResidualStatistics.empty(model)
    for ids in batches:
        statistics.add(capture(model, ids, residual=True), model.is_text(ids))
    return tuned_from(model, statistics, ridge=ridge)


def tuned_from(
    model: LanguageModel, statistics: ResidualStatistics, *, ridge: float = 1e-4
) -> dict[int, TunedLens]:
    """Tuned lenses solved from statistics, which may be merged from several texts."""
    lenses = {layer: TunedLens.start(model, layer) for layer in statistics.layers}
    for layer, (weight, bias) in statistics.solve(ridge=ridge).items():
        lenses[layer].load_state_dict({"translator.weight": weight, "translator.bias": bias})
        lenses[layer].requires_grad_(False)
    return lenses


PARAMETERLESS = (HeadLogitLens.kind, LogitLens.kind)
# Tokens per batch while a text is read: the captured data is some hundred kB per token.
BATCH_TOKENS = 2048


def has_direct_path(model: LanguageModel) -> bool:
    """Whether the output of every head is added to the stream that is unembedded."""
    return all(layer.reaches_stream for layer in model.layers)


def default_kinds(model: LanguageModel) -> tuple[str, ...]:
    """The kinds for comparison that need no fitting for this model."""
    return PARAMETERLESS if has_direct_path(model) else (LogitLens.kind,)


def baseline_lenses(model: LanguageModel, kind: str) -> Lenses:
    """The lenses of a kind without parameters, for every layer of a model.

    Args:
        kind: "logit", "logit-head", or your own kind if it has no parameters.
    """
    from saccade.interp.lenses.lens import lens_kind

    lens_class = lens_kind(kind)
    if lens_class.site == "direct" and not has_direct_path(model):
        raise ModelError(
            f"the heads of {model.name} have no direct path to the tokens: its blocks norm the "
            "stream itself",
            hint=f"leave out the {kind} lens, or compare with the {LogitLens.kind} lens",
        )
    by_layer: dict[int, Lens] = {at.index: lens_class.start(model, at.index) for at in model.layers}
    if any(True for lens in by_layer.values() for _ in lens.parameters()):
        raise UsageError(
            f"a {kind} lens has to be fitted before it can be compared with",
            hint=f"these need no fitting: {', '.join(PARAMETERLESS)}",
        )
    return _bound(model, by_layer, corpus=None, kind=kind, method="none")


def tuned_lenses(model: LanguageModel, corpus: Corpus, *, ridge: float = 1e-4) -> Lenses:
    """Tuned lenses solved from one pass over a text (see `solve_tuned`)."""
    rows = max(1, BATCH_TOKENS // corpus.windows.shape[1])
    by_layer = solve_tuned(model, corpus.windows.split(rows), ridge=ridge)
    return _bound(model, by_layer, corpus=corpus, kind=TunedLens.kind, method="closed-form")


def _bound(
    model: LanguageModel,
    by_layer: Mapping[int, Lens],
    *,
    corpus: Corpus | None,
    kind: str,
    method: str,
) -> Lenses:
    provenance = Provenance(
        model=model.name,
        model_fingerprint=model.fingerprint,
        tokenizer_fingerprint=model.tokenizer_fingerprint if model.tokenizer is not None else "",
        kind=kind,
        method=method,
        objective="squared-error" if corpus is not None else "none",
        corpus=corpus.source if corpus is not None else "",
        corpus_fingerprint=corpus.fingerprint if corpus is not None else "",
        n_tokens=corpus.n_tokens if corpus is not None else 0,
        prefix=model.prefix,
        probe=model.probe,
    )
    return Lenses(
        model=model, by_layer=dict(by_layer), baseline=_uniform(model), provenance=provenance
    )


def _uniform(model: LanguageModel) -> Float[Tensor, " d_vocab"]:
    # No text was read to count tokens, so all tokens are equally likely.
    return torch.full((model.d_vocab,), -math.log(model.d_vocab)).to(
        model.unembedding.weight.device
    )
