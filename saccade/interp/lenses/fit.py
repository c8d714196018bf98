"""Fit the lenses of a model: read the text, run the method of the lens kind, check, save."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.distributed import Processes, joined
from saccade.errors import LensError, UsageError, suggest
from saccade.interp.lenses.batches import Batches, CorpusBatches, SelfBatches
from saccade.interp.lenses.closed_form import baseline_lens
from saccade.interp.lenses.corpus import Corpus, read_corpus
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.gather import (
    Fit,
    Gathered,
    Progress,
    UnfinishedFit,
    gather,
    unfinished_fit,
)
from saccade.interp.lenses.gradient import find_objective
from saccade.interp.lenses.held_out import HeldOut
from saccade.interp.lenses.lens import (
    Lens,
    Method,
    fitted_kinds,
    kinds_fitted_by,
    lens_kind,
    needs_residual,
)
from saccade.interp.lenses.lens_set import Lenses, Provenance
from saccade.interp.lenses.self_text import WINDOW

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Invalid settings are refused before any text is read, all problems in one message.


def checked(model: LanguageModel, config: FitConfig, *, is_own_text: bool = False) -> FitConfig:
    """The settings, with derived values filled in.

    Args:
        is_own_text: the text is sampled from the model, in windows of a fixed size.

    Raises:
        UsageError: the settings contradict each other or the model.
    """
    can = config.method in lens_kind(config.kind).methods()
    if not can and len(kinds := kinds_fitted_by(config.method)) == 1:
        config = replace(config, kind=kinds[0])  # the only kind with this method
    if config.objective != FitConfig.objective:
        find_objective(config.objective)
    for layer in config.layers:
        model.layer(layer)
    problems = [
        *_unknown_names(config),
        *_bad_numbers(config, least_tokens=1 if is_own_text else 2 * config.window),
        *_contradictions(config),
    ]
    if problems:
        raise UsageError(
            "; ".join(problems), hint="see `saccade lens fit --help` for valid combinations"
        )
    return config


def _unknown_names(config: FitConfig) -> list[str]:
    found = []
    for name, kind in get_type_hints(FitConfig).items():
        value = getattr(config, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            guess = suggest(str(value), get_args(kind))
            meant = f" ({guess})" if guess else ""
            found.append(f"{name}: {value!r} is not one of {', '.join(get_args(kind))}{meant}")
    return found


def _bad_numbers(config: FitConfig, *, least_tokens: int) -> list[str]:
    return [
        f"{name}: {value} is less than {least}"
        for name, value, least in (
            ("tokens", config.tokens, least_tokens),
            ("window", config.window, 2),
            ("rows", config.rows, 1),
            ("steps", config.steps, 0),
            ("learning_rate", config.learning_rate, 0),
        )
        if not value >= least  # `not >=` also refuses a NaN learning rate
    ]


def _contradictions(config: FitConfig) -> list[str]:
    methods = lens_kind(config.kind).methods()
    if not methods:
        kinds = ", ".join(fitted_kinds())
        return [f"kind: a {config.kind} lens has nothing to fit; kinds that can be fitted: {kinds}"]
    if config.method not in get_args(get_type_hints(FitConfig)["method"]):
        return []  # `_unknown_names` reports it
    if config.method not in methods:
        others = " or ".join(methods)
        return [f"method: a {config.kind} lens cannot be fitted by {config.method}; use {others}"]
    method, found = methods[config.method], []
    if config.objective != FitConfig.objective and not method.takes_objective:
        free = [name for name, each in methods.items() if each.takes_objective]
        way_out = f"use {' or '.join(free)}" if free else "leave it out"
        found.append(
            f"objective: {config.method} has a fixed objective, not {config.objective}; {way_out}"
        )
    if config.layers and method.keeps_sums:
        found.append(f"layers: {config.method} fits all layers at once; leave the option out")
    return found


SELF = "self"
SELF_ROWS = 96
# Held-out positions for the first score of a lens; they are in random order.
QUICK_POSITIONS = 128


def fit_lenses(
    model: LanguageModel,
    corpus: str | Path | Sequence[str | Path] = SELF,
    config: FitConfig | None = None,
    *,
    progress: Progress | None = None,
    save_to: str | Path | None = None,
) -> Lenses:
    """Fit a lens for every head of a model.

    Attention Lens (https://arxiv.org/abs/2310.16270), section 2. Where the paper takes gradient
    steps for 1,200 GPU-hours per layer, the default solves all layers and heads from one forward
    pass (`saccade.interp.lenses.closed_form`). A killed fit resumes when it is started again with
    the same settings. Under ``torchrun``, the processes share the text.

    Args:
        corpus: files, folders or a dataset (`read_corpus`), or "self": text sampled from the model.
        save_to: a folder to write the lenses to. If saving fails, the fit is not lost: started
            again, it resumes at its end.

    Example:
        >>> lenses = fit_lenses(model, "books/", FitConfig(method="polish"))  # doctest: +SKIP
    """
    config = checked(model, config or FitConfig(), is_own_text=corpus == SELF)
    with joined() as processes:
        batches = open_batches(model, corpus, config)
        return fit_on(
            model, batches, config, processes=processes, progress=progress, save_to=save_to
        )


def open_batches(
    model: LanguageModel, corpus: str | Path | Sequence[str | Path], config: FitConfig
) -> Batches:
    """The text of a fit."""
    if corpus == SELF:
        window = min(WINDOW, model.max_positions or WINDOW)
        n_rows = max(2, -(-config.tokens // window))
        return SelfBatches(model, n_rows, min(SELF_ROWS, n_rows), window, config.seed)
    text = read_corpus(corpus, model, window=config.window, max_tokens=config.tokens)
    if len(text.windows) < 2:
        raise UsageError(
            f"{text.source} has one window of {config.window} tokens, and two are needed: "
            "one for fitting, one held out to choose the ridge",
            hint=f"give more text, or a window of at most {config.window // 2} tokens",
        )
    return CorpusBatches(model, text, config.rows)


def fit_on(
    model: LanguageModel,
    batches: Batches,
    config: FitConfig,
    *,
    processes: Processes,
    progress: Progress | None = None,
    save_to: str | Path | None = None,
) -> Lenses:
    """Fit lenses on batches of text; the processes share the work."""
    settings = {
        **asdict(config),
        "model": model.fingerprint,
        "text": batches.fingerprint,
        "world": processes.world,
    }

    with unfinished_fit(settings, rank=processes.rank) as unfinished:
        lenses = _fitted(model, batches, config, processes, unfinished, progress)
        if save_to is not None and processes.is_first:
            lenses.save(save_to)
        processes.wait()
    return lenses


def _fitted(
    model: LanguageModel,
    batches: Batches,
    config: FitConfig,
    processes: Processes,
    unfinished: UnfinishedFit,
    progress: Progress | None,
) -> Lenses:
    method = _method(config)
    with unfinished.stage("reading") as checkpoint:
        gathered = gather(
            model, batches, processes=processes, checkpoint=checkpoint, progress=progress
        )
    gathered.held_out()  # refuses a text without held-out positions
    fit = Fit(
        model=model,
        config=config,
        gathered=gathered,
        baseline=baseline_lens(gathered.statistics).to(model.unembedding.weight.device),
        text=_text(gathered, batches),
        held_out=_windows(gathered)[batches.held_out_rows()],
        processes=processes,
        unfinished=unfinished,
        progress=progress,
    )
    by_layer = method.run(fit)
    _refuse_strange(by_layer, config.kind, fit.layers)
    lenses = _bound(model, by_layer, gathered, _made(model, batches, config))
    # Without the sums nothing is stored; the sample only serves the first scores.
    sample = gathered.held_out().tensors()
    return score_quickly(lenses if method.keeps_sums else replace(lenses, stored=sample))


def from_statistics(model: LanguageModel, gathered: Gathered, provenance: Provenance) -> Lenses:
    """The closed-form lenses of a kind, from sums and held-out positions."""
    method = lens_kind(provenance.kind).methods()[provenance.method]
    assert method.solve is not None, f"{provenance.method} needs more than sums"
    by_layer = method.solve(model, gathered, provenance.seed)
    _refuse_strange(by_layer, provenance.kind, gathered.statistics.layers)
    return _bound(model, by_layer, gathered, provenance)


def _method(config: FitConfig) -> Method:
    methods = lens_kind(config.kind).methods()
    assert config.method in methods, "the settings have been checked"
    return methods[config.method]


def _bound(
    model: LanguageModel, by_layer: Mapping[int, Lens], gathered: Gathered, provenance: Provenance
) -> Lenses:
    return Lenses(
        model=model,
        by_layer={layer: lens.requires_grad_(False) for layer, lens in by_layer.items()},
        baseline=baseline_lens(gathered.statistics).to(model.unembedding.weight.device),
        provenance=provenance,
        stored={**gathered.statistics.sums, **gathered.held_out().tensors()},
    )


def _refuse_strange(by_layer: Mapping[int, Lens], name: str, layers: Sequence[int]) -> None:
    """A user-defined kind can return anything; loading needs a lens of that kind for each layer."""
    kind = lens_kind(name)
    given = {layer: type(lens).__name__ for layer, lens in by_layer.items()}
    if set(given) != set(layers) or not all(isinstance(each, kind) for each in by_layer.values()):
        raise LensError(
            f"the fit of {name} lenses must return a {kind.__name__} for each of the layers "
            f"{list(layers)}, got {given}",
            hint="return a dict from layer to lens from the method; see docs/guide/own-lens.md",
        )


def _text(gathered: Gathered, batches: Batches) -> Corpus:
    """The rows used for fitting, to be read again."""
    windows = _windows(gathered)[~batches.held_out_rows()]
    return Corpus(batches.source, batches.fingerprint, windows, n_bytes=0)


def _windows(gathered: Gathered) -> Int[Tensor, "window pos"]:
    return torch.cat([gathered.ids[index] for index in sorted(gathered.ids)])


def score_quickly(lenses: Lenses) -> Lenses:
    """Add a first score to every lens, from its held-out positions.

    It uses a few hundred positions and a part of the vocabulary: enough to tell an informative lens
    from one at the baseline. `evaluate_lenses` scores all tokens, on any text.
    """
    sample = lenses.held_out
    if sample is None or any(needs_residual(lens.site) for lens in lenses.by_layer.values()):
        return lenses
    some = sample[:QUICK_POSITIONS]
    held_out = HeldOut.of(lenses.model, some, lenses.baseline, seed=lenses.provenance.seed + 1)
    baseline = held_out.baseline_kl()
    found = {str(k): held_out.kl(lens, k) for k, lens in lenses.by_layer.items()}
    kl = {layer: values.tolist() for layer, values in found.items()}
    gain = {layer: (baseline - values).tolist() for layer, values in found.items()}
    return lenses.with_quality({"kl": kl, "gain": gain})


def _made(model: LanguageModel, batches: Batches, config: FitConfig) -> Provenance:
    told = ("kind", "method", "objective", "seed")
    # A list, because JSON has no tuples: loaded settings must equal saved ones.
    own = {**asdict(config), "layers": list(config.layers)}
    own = {name: value for name, value in own.items() if name not in told}
    return Provenance(
        model=model.name,
        model_fingerprint=model.fingerprint,
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        kind=config.kind,
        method=config.method,
        objective=config.objective,
        corpus=batches.source,
        corpus_fingerprint=batches.fingerprint,
        n_tokens=batches.n_tokens,
        prefix=model.prefix,
        probe=model.probe,
        seed=config.seed,
        settings=own,
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("saccade", "torch", "transformers")},
        },
    )


# One set of lenses from several that were fitted separately, on different text.

_BETWEEN = " + "  # the names of merged texts, and their fingerprints


def merge_lenses(parts: Sequence[Lenses]) -> Lenses:
    """The lenses that one fit over the texts of all parts gives.

    The sums add up, and the held-out positions are sampled from the same held-out windows as in
    one fit (`saccade.interp.lenses.batches.priorities`).

    Raises:
        LensError: the parts have different models or kinds, contain no sums, or share a text.
    """
    if len(parts) < 2:
        raise UsageError(
            f"merging needs at least two sets of lenses, got {len(parts)}", hint="name two folders"
        )
    first = parts[0]
    for part in parts:
        _check(part, first)
    _refuse_one_text_twice(parts)
    gathered: Gathered | None = None
    for part in parts:
        assert part.statistics is not None and part.held_out is not None, "parts have been checked"
        if gathered is None:
            gathered = Gathered(part.statistics)
        else:
            gathered.statistics = gathered.statistics.merge(part.statistics)
        gathered.keep(part.held_out)
    assert gathered is not None, "there are at least two parts"
    provenance = replace(
        first.provenance,
        corpus=_BETWEEN.join(part.provenance.corpus for part in parts),
        corpus_fingerprint=_BETWEEN.join(part.provenance.corpus_fingerprint for part in parts),
        n_tokens=sum(part.provenance.n_tokens for part in parts),
    )
    return score_quickly(from_statistics(first.model, gathered, provenance))


def _check(part: Lenses, first: Lenses) -> None:
    if part.provenance.model_fingerprint != first.provenance.model_fingerprint:
        raise LensError(
            f"cannot merge lenses of {part.provenance.model} "
            f"({part.provenance.model_fingerprint}) with those of "
            f"{first.provenance.model} ({first.provenance.model_fingerprint})",
            hint="merge only lenses that were fitted for one model",
        )
    if part.provenance.kind != first.provenance.kind:
        raise LensError(
            f"cannot merge {part.provenance.kind} lenses with {first.provenance.kind} lenses",
            hint="merge only lenses of one kind",
        )
    method = lens_kind(part.provenance.kind).methods().get(part.provenance.method)
    can_merge = method is not None and method.solve is not None
    if part.statistics is None or part.held_out is None or not can_merge:
        raise LensError(
            f"lenses fitted by {part.provenance.method} on {part.provenance.corpus} "
            "contain no sums to merge",
            hint="merge lenses that were fitted with `--method closed-form`",
        )


def _refuse_one_text_twice(parts: Sequence[Lenses]) -> None:
    """A duplicate text would have twice the weight, and be both held out and fitted on."""
    seen: dict[str, str] = {}
    for part in parts:
        names = part.provenance.corpus.split(_BETWEEN)
        for number, text in enumerate(part.provenance.corpus_fingerprint.split(_BETWEEN)):
            name = names[number] if number < len(names) else part.provenance.corpus
            if text in seen:
                raise LensError(
                    f"cannot merge lenses of one text with itself: {seen[text]} and {name} have "
                    f"the same tokens ({text})",
                    hint="name each shard once",
                )
            seen[text] = name
