"""How good lenses are, on text they were not fitted on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.heads import Captured, capture
from saccade.lenses.baselines import BATCH_TOKENS, baseline_lenses, default_kinds
from saccade.lenses.collection import Lenses
from saccade.lenses.corpus import Corpus
from saccade.lenses.evaluation import Evaluation, Scores
from saccade.lenses.gather import Progress
from saccade.lenses.scoring import MEASURES, Predicted, predict, score
from saccade.lenses.sites import held_at, needs_residual

# Logits of one layer's lenses held at once; twice as much is used while they are compared. Factored
# lenses are quick only when many positions share the product with the unembedding: with 64 MB the
# default model takes six times as long.
CHUNK_BYTES = 256 * 2**20
# A window costs the model's pass over it; reading 270 lenses at 16 of its positions costs several
# times as much, so with fewer the time would go into the pass.
POSITIONS_A_WINDOW = 16


@torch.no_grad()
def evaluate_lenses(
    lenses: Lenses,
    corpus: Corpus,
    *,
    max_positions: int = 1024,
    baselines: Sequence[str | Lenses] | None = None,
    best: Lenses | None = None,
    progress: Progress | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Evaluation:
    """Score every lens on held-out text: KL to the model, gain, agreement, bits per byte.

    Each position costs one unembedding a lens (270 for the default model, some fifty times the
    model's own pass), so a large text is sampled: ``max_positions`` evenly spaced positions of
    evenly spaced windows. Only positions whose next word is in the same window count.

    Memory does not grow with the text: the lenses of one layer are read at a time, at so many
    positions that their logits take ``chunk_bytes``.

    Args:
        corpus: text that the lenses were not fitted on.
        baselines: other lenses to score beside; parameterless kinds by name. By default "logit",
            and "logit-head" for models whose heads have a direct path to the words.
        best: the best lenses known for the same sites, to take the share of their gain.
        progress: called after each step.
    """
    model = lenses.model
    if baselines is None:
        baselines = default_kinds(model)
    others = [baseline_lenses(model, b) if isinstance(b, str) else b for b in baselines]
    _check(lenses, others, best)
    every = [lenses, *others, *([best] if best is not None else [])]
    tables = [torch.zeros(len(MEASURES), len(each.sites), dtype=torch.float64) for each in every]
    own = torch.zeros(3, dtype=torch.float64)
    windows, picked = choose_positions(corpus.windows, max_positions)
    total = int(picked.sum()) * sum(len(each.sites) for each in every)
    done = 0
    for ids, chunk in _chunks(every, windows, picked, chunk_bytes):
        predicted, of_model = predict(model, chunk.final[0], ids, lenses.constant)
        own += of_model
        for each, table in zip(every, tables, strict=True):
            for sites, scores in _score_layers(each, chunk, predicted):
                table[:, sites] += scores
                done += len(ids) * (sites.stop - sites.start)
                if progress is not None:
                    progress("scoring", done, total)
    n = int(picked.sum())
    return _evaluation(lenses, others, corpus, own / n, [table / n for table in tables], n)


def choose_positions(
    windows: Int[Tensor, "window pos"], max_positions: int
) -> tuple[Int[Tensor, "chosen pos"], Bool[Tensor, "chosen pos"]]:
    """Windows, and which of their positions to score: at most so many, evenly spaced.

    >>> windows = torch.arange(30).view(6, 5)
    >>> chosen, picked = choose_positions(windows, 12)
    >>> chosen[picked]
    tensor([ 0,  1,  2,  3, 10, 11, 12, 13, 20, 21, 22, 23])
    """
    n_windows, length = windows.shape
    if length < 2 or n_windows == 0 or max_positions < 1:
        raise UsageError(
            f"nothing to score: {n_windows} windows of {length} tokens, at most {max_positions} "
            "positions",
            hint="give at least one window of two tokens, and at least one position",
        )
    usable = length - 1  # the last position's next word is not in the window
    a_window = min(usable, max(POSITIONS_A_WINDOW, -(-max_positions // n_windows)))
    rows = _spaced(n_windows, min(n_windows, -(-max_positions // a_window)))
    flat = _spaced(len(rows) * usable, min(len(rows) * usable, max_positions))
    picked = torch.zeros(len(rows), usable, dtype=torch.bool)
    picked.view(-1)[flat] = True
    # A row may be left without a position; it would be run for nothing.
    picked = torch.nn.functional.pad(picked, (0, 1))
    kept = picked.any(1)
    return windows[rows][kept], picked[kept]


def _spaced(n: int, count: int) -> Int[Tensor, " count"]:
    return torch.arange(count) * n // count


def _score_layers(
    lenses: Lenses, chunk: Captured, predicted: Predicted
) -> Iterator[tuple[slice, Tensor]]:
    """For each layer, its place among the sites and the sums of its lenses' measures."""
    start = 0
    for layer, lens in lenses.by_layer.items():
        held = held_at(lenses.model, chunk, layer, lens.site)
        scores = score(lens(held).to(predicted.probs.device), predicted)
        yield slice(start, start + scores.shape[1]), scores
        start += scores.shape[1]


def _chunks(
    every: list[Lenses], windows: Tensor, picked: Tensor, chunk_bytes: int
) -> Iterator[tuple[Tensor, Captured]]:
    """The next words of a few picked positions at a time, with what the model held there."""
    model = every[0].model
    layers = sorted({layer for lenses in every for layer in lenses.by_layer})
    residual = any(needs_residual(lens.site) for e in every for lens in e.by_layer.values())
    widest = max(model.layer(layer).n_heads for layer in layers)
    size = max(1, chunk_bytes // (widest * model.d_vocab * 4))
    rows = max(1, BATCH_TOKENS // windows.shape[1])
    for ids, at in zip(windows.split(rows), picked.split(rows), strict=True):
        captured = capture(model, ids, layers=layers, residual=residual)
        following = ids.roll(-1, dims=1).flatten()
        every_index = at.flatten().nonzero()[:, 0]
        # Chunks of equal size: a short last one would be as slow as a full one.
        for index in every_index.chunk(-(-len(every_index) // size)):
            yield following[index], _at(captured, index)


def _at(captured: Captured, index: Int[Tensor, " n"]) -> Captured:
    """The same capture at single positions, as if they were one row of text."""

    def pick(tensor: Tensor) -> Tensor:
        return tensor.flatten(0, 1)[index.to(tensor.device)][None]

    last = captured.final_residual
    return Captured(
        z={layer: pick(z) for layer, z in captured.z.items()},
        final=pick(captured.final),
        residual={layer: pick(r) for layer, r in captured.residual.items()},
        final_residual=None if last is None else pick(last),
        attention={},
    )


def _check(lenses: Lenses, others: list[Lenses], best: Lenses | None) -> None:
    for other in (*others, *([best] if best is not None else [])):
        if other.model is not lenses.model:
            raise LensError(
                f"the {other.made.kind} lenses to compare with are bound to another model",
                hint="load them for the same opened model",
            )
    if best is not None and best.sites != lenses.sites:
        raise LensError(
            f"the best lenses are for {len(best.sites)} sites, these for {len(lenses.sites)}: no "
            "share can be taken",
            hint="give best lenses for the same layers and heads",
        )


def _evaluation(
    lenses: Lenses,
    others: list[Lenses],
    corpus: Corpus,
    own: Tensor,
    tables: list[Tensor],
    n_positions: int,
) -> Evaluation:
    constant_kl, constant_surprise, model_surprise = own.tolist()
    # Nats a token to bits a byte, by the tokens and bytes of the whole text.
    to_bits = corpus.n_tokens / max(corpus.n_bytes, 1) / math.log(2)
    best_gain = constant_kl - tables[1 + len(others)][0] if len(tables) > 1 + len(others) else None

    def scores(each: Lenses, table: Tensor, best: Tensor | None = None) -> Scores:
        gain = constant_kl - table[0]
        return Scores(
            kind=each.made.kind,
            method=each.made.method,
            sites=tuple(each.sites),
            kl=table[0],
            gain=gain,
            share=None if best is None else _share(gain, best),
            total_share=None if best is None else float(_share(gain.sum(), best.sum())),
            top1=table[2],
            top10=table[3],
            bits_per_byte=table[1] * to_bits,
        )

    return Evaluation(
        model=lenses.model.name,
        corpus=corpus.source,
        corpus_fingerprint=corpus.fingerprint,
        is_fitted_on=corpus.fingerprint == lenses.made.corpus_fingerprint,
        n_tokens=corpus.n_tokens,
        n_positions=n_positions,
        constant_kl=constant_kl,
        constant_bits_per_byte=constant_surprise * to_bits,
        model_bits_per_byte=model_surprise * to_bits,
        lenses=scores(lenses, tables[0], best_gain),
        baselines=tuple(
            scores(each, table) for each, table in zip(others, tables[1:], strict=False)
        ),
    )


def _share(gain: Tensor, best: Tensor) -> Tensor:
    return torch.where(best > 0, gain / best, torch.nan)
