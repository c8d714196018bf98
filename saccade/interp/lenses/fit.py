"""Fit the lenses of a model: the front door to the closed form, the polish and plain training."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.distributed import Processes, joined
from saccade.errors import LensError, UsageError, suggest
from saccade.interp.heads.capture import capture
from saccade.interp.lenses.batches import Batches, CorpusBatches, SelfBatches
from saccade.interp.lenses.closed_form import constant_lens, solve
from saccade.interp.lenses.corpus import Corpus, read_corpus
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.gather import Gathered, Progress, UnfinishedFit, gather, unfinished_fit
from saccade.interp.lenses.gradient import GradientConfig, find_objective, train
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.held_out import HeldOut
from saccade.interp.lenses.jacobian_lens import fit_jacobian
from saccade.interp.lenses.lens import Lens, lens_kind
from saccade.interp.lenses.lens_set import Lenses, Made
from saccade.interp.lenses.polish import PolishConfig, polish
from saccade.interp.lenses.residual_lenses import ResidualStatistics, TunedLens, tuned_from
from saccade.interp.lenses.self_text import WINDOW

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# What cannot be fitted is refused before any text is read, all problems in one message.


def checked(model: LanguageModel, config: FitConfig, *, is_own_text: bool = False) -> FitConfig:
    """The settings with what follows from them filled in.

    Args:
        is_own_text: the model writes the text, in windows of its own.

    Raises:
        UsageError: the settings contradict each other or the model.
    """
    if config.method == "published":
        config = replace(config, kind="dense")
    lens_kind(config.kind)
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
            "; ".join(problems), hint="see `saccade lens fit --help` for what goes together"
        )
    return config


def _unknown_names(config: FitConfig) -> list[str]:
    found = []
    for name, kind in get_type_hints(FitConfig).items():
        value = getattr(config, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            guess = suggest(str(value), get_args(kind))
            meant = f" ({guess})" if guess else ""
            found.append(f"{name}: {value!r} is none of {', '.join(get_args(kind))}{meant}")
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
        if not value >= least  # which a learning rate that is no number is not either
    ]


def _contradictions(config: FitConfig) -> list[str]:
    found = []
    if config.method in ("closed-form", "polish") and config.objective != "kl":
        found.append(f"objective: {config.method} minimises kl, not {config.objective}; use train")
    if config.method == "closed-form" and config.kind not in ("head", "jacobian", "tuned"):
        found.append(f"method: a {config.kind} lens has no closed form; use train")
    if config.method == "train" and config.kind == "jacobian":
        found.append("method: a jacobian lens is the model's own slope, not trained; leave it out")
    if config.method == "polish" and config.kind not in ("head", "tuned"):
        found.append(f"method: a {config.kind} lens cannot be polished; use train")
    if config.layers and config.kind == "head" and config.method != "train":
        found.append("layers: the closed form gives all layers at once; leave them out")
    return found


SELF = "self"
# Of the held-out positions, which come in a random order: enough to choose five numbers a head. The
# polish chooses among states of 37 thousand numbers, and needs all of them.
FEW, FEW_WORDS = 128, 1024
SELF_ROWS = 96


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
    steps for 1,200 GPU-hours a layer, the default solves all layers and heads from one forward pass
    (`saccade.interp.lenses.closed_form`). A fit that was killed goes on where it was when it is
    started again with the same settings. Started by ``torchrun``, the processes share the text.

    Args:
        corpus: files, folders or a dataset (`read_corpus`), or "self": text the model writes.
        save_to: a folder to write the lenses to. A fit that cannot be saved is not lost: started
            again, it goes on from its end.

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
            f"{text.source} holds one window of {config.window} tokens, and two are needed: "
            "one to fit on, one to choose the ridge with",
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
    """Fit lenses on batches of text, sharing the work with the other processes."""
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
    with unfinished.stage("reading") as checkpoint:
        gathered = gather(
            model, batches, processes=processes, checkpoint=checkpoint, progress=progress
        )
    lenses = from_statistics(model, gathered, _made(model, batches, config))
    text = _text(gathered, batches)
    if config.method == "polish" and config.kind == "head":
        own = _given(config, PolishConfig(rows=config.rows, seed=config.seed))
        heads = {k: v for k, v in lenses.by_layer.items() if isinstance(v, HeadLens)}
        held_out = HeldOut.of(model, gathered.held_out(), lenses.constant, seed=config.seed)
        with unfinished.stage("polishing") as checkpoint:
            polish(
                model,
                heads,
                gathered.statistics,
                held_out,
                text,
                config=own,
                processes=processes,
                checkpoint=checkpoint,
                progress=progress,
            )
    elif config.kind != "head" or config.method == "train":
        windows = _windows(gathered)[batches.held_out_rows()]
        lenses = _trained(model, lenses, text, windows, config, processes, unfinished, progress)
    return score_quickly(lenses)


def from_statistics(model: LanguageModel, gathered: Gathered, made: Made) -> Lenses:
    """The closed form, from sums and held-out positions."""
    constant = constant_lens(gathered.statistics)
    sample = gathered.held_out()
    held_out = HeldOut.of(model, sample[:FEW], constant, seed=made.seed, n_words=FEW_WORDS)
    return Lenses(
        model=model,
        by_layer=dict(solve(model, gathered.statistics, held_out, z=sample.z)),
        constant=constant.to(model.unembedding.weight.device),
        made=made,
        statistics=gathered.statistics,
        held_out=sample,
    )


def _trained(
    model: LanguageModel,
    start: Lenses,
    text: Corpus,
    held_out: Int[Tensor, "window pos"],
    config: FitConfig,
    processes: Processes,
    unfinished: UnfinishedFit,
    progress: Progress | None,
) -> Lenses:
    layers = config.layers or tuple(at.index for at in model.layers)
    kind = lens_kind(config.kind)
    by_layer: dict[int, Lens] = {
        layer: start.by_layer[layer] if config.kind == "head" else kind.start(model, layer)
        for layer in layers
    }
    if config.kind == "tuned" and config.method != "train":
        solved = _solve_tuned(model, text, config.rows, processes, progress)
        by_layer = {layer: solved[layer] for layer in layers}
    if config.kind == "jacobian":
        # Every process follows the whole text: the lenses are the same on all of them.
        by_layer = dict(
            fit_jacobian(
                model,
                text.windows,
                start.constant,
                layers=layers,
                seed=config.seed,
                progress=progress,
            )
        )
    if config.method != "closed-form":
        own = GradientConfig(
            over=config.over, positions=config.positions, rows=config.rows, seed=config.seed
        )
        with unfinished.stage("training") as checkpoint:
            train(
                model,
                by_layer,
                find_objective(config.objective),
                text,
                config=_given(config, own),
                processes=processes,
                held_out=held_out,
                checkpoint=checkpoint,
                progress=progress,
            )
    return replace(start, by_layer=by_layer, statistics=None)


def _solve_tuned(
    model: LanguageModel,
    text: Corpus,
    rows: int,
    processes: Processes,
    progress: Progress | None,
) -> dict[int, TunedLens]:
    sums = ResidualStatistics.empty(model)
    mine = text.windows.split(rows)[processes.rank :: processes.world]
    for count, ids in enumerate(mine, start=1):
        sums.add(capture(model, ids.to(model.device), residual=True), model.is_text(ids))
        if progress:
            progress("reading the residual stream", count, len(mine))
    processes.add_up(sums.sums.values())
    return tuned_from(model, sums)


_Own = TypeVar("_Own", PolishConfig, GradientConfig)


def _given(config: FitConfig, own: _Own) -> _Own:
    """The method's own numbers, where the user gave none."""
    if config.steps:
        own = replace(own, steps=config.steps)
    if config.learning_rate:
        own = replace(own, learning_rate=config.learning_rate)
    return own


def _text(gathered: Gathered, batches: Batches) -> Corpus:
    """The rows that were fitted on, to be read again."""
    windows = _windows(gathered)[~batches.held_out_rows()]
    return Corpus(batches.source, batches.fingerprint, windows, n_bytes=0)


def _windows(gathered: Gathered) -> Int[Tensor, "window pos"]:
    return torch.cat([gathered.ids[index] for index in sorted(gathered.ids)])


def score_quickly(lenses: Lenses) -> Lenses:
    """Put a first figure beside every lens, from its held-out positions.

    A few hundred positions and a part of the vocabulary: good for telling a lens that hears
    something from one that does not. `evaluate_lenses` measures on all words and text of your own.
    """
    sample = lenses.held_out
    if sample is None or any(lens.site != "head" for lens in lenses.by_layer.values()):
        return lenses
    held_out = HeldOut.of(lenses.model, sample[:FEW], lenses.constant, seed=lenses.made.seed + 1)
    constant = held_out.constant_kl()
    found = {str(k): held_out.kl(lens, k) for k, lens in lenses.by_layer.items()}
    kl = {layer: values.tolist() for layer, values in found.items()}
    gain = {layer: (constant - values).tolist() for layer, values in found.items()}
    return lenses.with_quality({"kl": kl, "gain": gain})


def _made(model: LanguageModel, batches: Batches, config: FitConfig) -> Made:
    told = ("kind", "method", "objective", "seed")
    # A list, as JSON has no tuples: what is loaded has to equal what was saved.
    own = {**asdict(config), "layers": list(config.layers)}
    own = {name: value for name, value in own.items() if name not in told}
    return Made(
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


# One set of lenses from several that were fitted apart, on different text.

_BETWEEN = " + "  # the names of merged texts, and their fingerprints


def merge_lenses(parts: Sequence[Lenses]) -> Lenses:
    """The lenses that one fit over the texts of all parts gives.

    The sums add up, and the positions to choose on are sampled from the same held-out windows as in
    one fit (`saccade.interp.lenses.batches.priorities`).

    Raises:
        LensError: the parts are of several models, hold no sums, or share a text.
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
    made = replace(
        first.made,
        corpus=_BETWEEN.join(part.made.corpus for part in parts),
        corpus_fingerprint=_BETWEEN.join(part.made.corpus_fingerprint for part in parts),
        n_tokens=sum(part.made.n_tokens for part in parts),
    )
    return score_quickly(from_statistics(first.model, gathered, made))


def _check(part: Lenses, first: Lenses) -> None:
    if part.made.model_fingerprint != first.made.model_fingerprint:
        raise LensError(
            f"cannot merge lenses of {part.made.model} ({part.made.model_fingerprint}) with "
            f"those of {first.made.model} ({first.made.model_fingerprint})",
            hint="merge only lenses that were fitted for one model",
        )
    if part.statistics is None or part.held_out is None or part.made.method != "closed-form":
        raise LensError(
            f"lenses made by {part.made.method} on {part.made.corpus} hold no sums to merge",
            hint="merge lenses that were fitted with `--method closed-form`",
        )


def _refuse_one_text_twice(parts: Sequence[Lenses]) -> None:
    """A text that is counted twice would weigh twice, and be held out and fitted on at once."""
    seen: dict[str, str] = {}
    for part in parts:
        names = part.made.corpus.split(_BETWEEN)
        for number, text in enumerate(part.made.corpus_fingerprint.split(_BETWEEN)):
            name = names[number] if number < len(names) else part.made.corpus
            if text in seen:
                raise LensError(
                    f"cannot merge lenses of one text with itself: {seen[text]} and {name} hold "
                    f"the same tokens ({text})",
                    hint="name each shard once",
                )
            seen[text] = name
