"""Fidelity of lenses: intervene on heads, and compare the effects with the lenses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.gather import Progress
from saccade.interp.lenses.lens import Lens
from saccade.interp.lenses.lens_set import Lenses
from saccade.interp.lenses.residual_lenses import HeadLogitLens, has_direct_path
from saccade.interp.studies.fidelity.ablation_check import (
    AT_TEXT,
    AblationCheck,
    check_ablation,
    rules_of,
)
from saccade.interp.studies.fidelity.causal_basis import (
    Influence,
    causal_basis,
    direction_variance,
    lens_influence,
    model_influence,
    random_basis,
)
from saccade.interp.studies.fidelity.config import FidelityConfig
from saccade.interp.studies.fidelity.geometry import estimate
from saccade.interp.studies.fidelity.report import Fidelity, HeadFidelity
from saccade.interp.studies.fidelity.stage import FIRST, Stage

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Progress of a measurement.


class RunCounter:
    """Counts windows, because a run for a direction has fewer of them than a run for a head."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def steps(self, windows: int) -> Callable[[], None]:
        """A function to call after each run of ``windows`` windows."""

        def tick() -> None:
            self.done += windows
            if self.progress is not None:
                self.progress("touching heads", self.done, self.total)

        return tick


OWN, RAW = "lens", "unembedding"
_PREFIX = {OWN: "", RAW: "raw_", AT_TEXT.name: "gradient_"}
# With fewer directions a rank correlation means nothing.
LEAST_DIRECTIONS = 4


def measure_fidelity(
    lenses: Lenses,
    corpus: Corpus,
    *,
    layers: Sequence[int],
    heads: Sequence[int] | None = None,
    config: FidelityConfig | None = None,
    progress: Progress | None = None,
) -> Fidelity:
    """How far the lenses of some heads agree with the effects of those heads.

    The checks of Belrose et al., 2023 (https://arxiv.org/abs/2303.08112), section 4, applied to
    attention heads: `check_ablation` ablates and resamples whole heads, `causal_basis` ablates
    single directions of each. The raw unembedding of the same heads is the baseline of the first,
    the variance of the activation along each direction that of the second. Attribution by gradients
    (`first_order`), which is not one map for every text, is measured beside them.

    Args:
        corpus: text that the lenses were not fitted on; windows of at least ``config.window``.
        layers: the cost is proportional to their number.
        heads: heads of these layers; all by default.
    """
    config = config or FidelityConfig()
    model = lenses.model
    windows = choose_windows(corpus, config)
    chosen = {layer: _checked(lenses, layer, heads) for layer in layers}
    counter = RunCounter(_n_windows_run(chosen, model, config), progress)
    rows: list[HeadFidelity] = []
    means: dict[str, list[Tensor]] = {}
    for layer, of_layer in chosen.items():
        found = _measure_layer(lenses, windows, layer, of_layer, config, counter)
        rows += _rows(layer, of_layer, found)
        for name, metrics in _metrics(found).items():
            means.setdefault(name, []).append(metrics)
    return Fidelity.of(
        lenses,
        corpus,
        heads=tuple(rows),
        metrics={name: torch.cat(each, 1) for name, each in means.items()},
        n_positions=windows[:, FIRST:].numel(),
    )


def choose_windows(corpus: Corpus, config: FidelityConfig) -> Int[Tensor, "window pos"]:
    """Windows to measure heads on, evenly spaced over a text.

    Raises:
        UsageError: there is too little text, or the options ask for too little.
    """
    if config.window <= FIRST or config.windows < 2 or config.basis_windows < 1:
        raise UsageError(
            f"cannot measure on {config.windows} windows of {config.window} tokens",
            hint=f"give at least two windows of more than {FIRST} tokens",
        )
    if corpus.windows.shape[1] < config.window or len(corpus.windows) < 2:
        raise UsageError(
            f"{corpus.source} holds {len(corpus.windows)} windows of {corpus.windows.shape[1]} "
            f"tokens: two of {config.window} are needed",
            hint="give more text, or fewer tokens with --window",
        )
    count = min(config.windows, len(corpus.windows))
    return corpus.windows[_spaced(len(corpus.windows), count), : config.window]


def few_windows(
    windows: Int[Tensor, "window pos"], config: FidelityConfig
) -> Int[Tensor, "few pos"]:
    """The windows on which single directions are measured."""
    return windows[_spaced(len(windows), min(config.basis_windows, len(windows)))]


def runs_per_head(config: FidelityConfig) -> int:
    """Runs of the model to ablate and resample one head, and to take the gradients of both."""
    points = {point for rule in rules_of(config.gradients) for point in rule.points}
    return 2 * (1 + 2 * len(points))


class _Found(NamedTuple):
    """The measurements at one layer."""

    checks: dict[str, AblationCheck]
    own: Influence | None
    control: Influence | None


def _measure_layer(
    lenses: Lenses,
    windows: Tensor,
    layer: int,
    heads: tuple[int, ...],
    config: FidelityConfig,
    counter: RunCounter,
) -> _Found:
    model, lens = lenses.model, lenses.by_layer[layer]
    tried: dict[str, Lens] = {OWN: lens}
    if has_direct_path(model):
        tried[RAW] = HeadLogitLens.start(model, layer)
    stage = Stage.of(model, windows, layer, seed=config.seed)
    rules = rules_of(config.gradients)
    checks = check_ablation(
        stage, tried, rules=rules, heads=heads, tick=counter.steps(config.windows)
    )
    n = _n_directions(model, layer, config)
    if not n:
        return _Found(checks, None, None)
    stage = Stage.of(model, few_windows(windows, config), layer, seed=config.seed)
    tick = counter.steps(config.basis_windows)
    own = causal_basis(stage, lens, directions=n)
    control = random_basis(stage, directions=_n_control(n, config), seed=config.seed)
    return _Found(
        checks,
        own=_influence(stage, lens, own, heads, tick),
        control=_influence(stage, lens, control, heads, tick),
    )


def _influence(
    stage: Stage,
    lens: Lens,
    basis: Float[Tensor, "head direction d_head"],
    heads: tuple[int, ...],
    tick: Callable[[], None],
) -> Influence:
    return Influence(
        lens=lens_influence(stage, lens, basis)[:, list(heads)],
        model=model_influence(stage, basis, heads=heads, tick=tick),
        variance=direction_variance(stage, basis)[:, list(heads)],
    )


def _metrics(found: _Found) -> dict[str, Float[Tensor, "bootstrap head"]]:
    """Every measure of the heads of a layer, resampled."""
    metrics: dict[str, Tensor] = {}
    for name, check in found.checks.items():
        metrics[f"{_PREFIX.get(name, 'path_')}ablation"] = check.correlations()
        metrics[f"{_PREFIX.get(name, 'path_')}alignment"] = check.alignments()
    for name, prefix, influence in (
        ("spearman", "", found.own),
        ("control", "control_", found.control),
    ):
        if influence is not None:
            metrics[name] = influence.correlations()
            metrics[f"{prefix}variance"] = influence.variances()
            metrics[f"{prefix}partial"] = influence.partials()
    return metrics


def _rows(layer: int, heads: tuple[int, ...], found: _Found) -> list[HeadFidelity]:
    metrics = _metrics(found)
    effect = found.checks[OWN].effect.mean(0).tolist()
    return [
        HeadFidelity(
            layer=layer,
            head=head,
            effect=effect[place],
            **{name: estimate(each[:, place]) for name, each in metrics.items()},
        )
        for place, head in enumerate(heads)
    ]


def _checked(lenses: Lenses, layer: int, heads: Sequence[int] | None) -> tuple[int, ...]:
    n_heads = lenses.model.layer(layer).n_heads
    if layer not in lenses.by_layer:
        raise LensError(
            f"there is no lens for layer {layer}: these are for layers "
            f"{', '.join(map(str, lenses.by_layer))}",
            hint="fit lenses for this layer, or measure another one",
        )
    for head in heads or ():
        lenses.model.check_head(layer, head)
    return tuple(dict.fromkeys(heads)) if heads else tuple(range(n_heads))


def _n_directions(model: LanguageModel, layer: int, config: FidelityConfig) -> int:
    n = min(config.directions, model.layer(layer).d_head)
    return n if n >= LEAST_DIRECTIONS else 0


def _n_control(directions: int, config: FidelityConfig) -> int:
    return max(LEAST_DIRECTIONS, min(config.control, directions))


def _n_windows_run(
    chosen: Mapping[int, tuple[int, ...]], model: LanguageModel, config: FidelityConfig
) -> int:
    total = 0
    for layer, heads in chosen.items():
        n = _n_directions(model, layer, config)
        tried = n + _n_control(n, config) if n else 0
        whole = runs_per_head(config) * config.windows
        total += len(heads) * (whole + tried * config.basis_windows)
    return total


def _spaced(n: int, count: int) -> Int[Tensor, " count"]:
    return torch.arange(count) * n // count
