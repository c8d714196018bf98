"""Evaluate lenses on text that they were not fitted on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.interp.heads.capture import Captured, capture
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.evaluation import Evaluation, Scores
from saccade.interp.lenses.gather import Progress
from saccade.interp.lenses.lens import Lens, activation_at, needs_residual
from saccade.interp.lenses.lens_metrics import MEASURES, Predicted, Tally, predict, token_blocks
from saccade.interp.lenses.lens_set import Lenses
from saccade.interp.lenses.residual_lenses import BATCH_TOKENS, baseline_lenses, default_kinds

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

# Logits of one layer's lenses in memory at once, for a block of the vocabulary. They fit in the
# CPU cache, and the allocator reuses memory of this size.
CHUNK_BYTES = 32 * 2**20
# Positions scored together, and memory for their activations: more positions need fewer products
# of lenses with the unembedding, which all positions share.
POSITIONS_AT_ONCE = 1024
HELD_BYTES = 512 * 2**20
# Directions beyond the rank of a head, so that rounding does not lose one.
SPARE_DIRECTIONS = 8
# Largest relative error of the basis: rounding only.
BASIS_ERROR = 1e-5
# Each window costs one forward pass of the model. Applying 270 lenses at 16 of its positions costs
# several times as much; with fewer positions the forward pass would dominate.
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

    Each position costs one unembedding per lens (270 for the default model, about fifty times the
    model's forward pass), so a large text is sampled: ``max_positions`` evenly spaced positions of
    evenly spaced windows. Only positions of ordinary tokens (`Encoding.is_text`) whose next token
    is in the same window count.

    The whole vocabulary is scored, in blocks, for all lenses: neither positions x heads x
    vocabulary nor positions x vocabulary is ever in memory. Tokens are not sampled: with 32,768 of
    the 262,144 tokens of Gemma 3, drawn as for `HeldOut`, the error of the KL is up to 0.004 nats
    for a fitted lens and 2 nats for the logit lens of layer 3, whose probability mass may be on any
    tokens; and the top ten tokens have to be searched among all.

    Args:
        corpus: text that the lenses were not fitted on.
        baselines: other lenses to compare with; parameterless kinds by name. Default: "logit",
            and "logit-head" for models whose heads have a direct path to the tokens.
        best: the best known lenses for the same sites, to report the share of their gain.
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
    windows, picked = choose_positions(model, corpus.windows, max_positions)
    told = progress or _tell_nobody
    size = _positions_at_once(every, int(picked.sum()))
    blocks = token_blocks(model.d_vocab, max(1, chunk_bytes // (size * _widest(every) * 4)))
    n_chunks = -(-int(picked.sum()) // size)
    done, total = 0, n_chunks * len(blocks) * sum(len(each.by_layer) for each in every)
    for ids, chunk in _chunks(every, windows, picked, size, told):
        predicted, of_model = predict(model, chunk.final[0], ids, lenses.baseline, blocks)
        own += of_model
        for group in _groups(every, chunk, predicted):
            for block in blocks:
                tokens = torch.arange(block.start, block.stop, device=predicted.final.device)
                probs = predicted.probs(tokens)
                for reader in group:
                    reader.tally.add(reader.logits(tokens).to(probs.device), probs, block)
                done += len(group)
                told("scoring", done, total)
            for reader in group:
                tables[reader.of][:, reader.sites] += reader.tally.sums()
    n = int(picked.sum())
    return _evaluation(lenses, others, corpus, own / n, [table / n for table in tables], n)


def choose_positions(
    model: LanguageModel, windows: Int[Tensor, "window pos"], max_positions: int
) -> tuple[Int[Tensor, "chosen pos"], Bool[Tensor, "chosen pos"]]:
    """Windows, and a mask of the positions to score: at most ``max_positions``, evenly spaced.

    Only ordinary tokens whose next token is in the window count.
    """
    usable = model.is_text(windows)
    usable[:, -1:] = False  # the next token is not in the window
    with_text = usable.any(1).nonzero()[:, 0]
    if len(with_text) == 0 or max_positions < 1:
        raise UsageError(
            f"nothing to score: {len(windows)} windows of {windows.shape[1]} tokens, at most "
            f"{max_positions} positions",
            hint="give at least one window of three tokens, and at least one position",
        )
    n_windows = len(with_text)
    a_window = min(
        int(usable.sum()) // n_windows, max(POSITIONS_A_WINDOW, -(-max_positions // n_windows))
    )
    rows = with_text[_spaced(n_windows, min(n_windows, -(-max_positions // a_window)))]
    among = usable[rows].flatten().nonzero()[:, 0]
    picked = torch.zeros_like(usable[rows])
    picked.view(-1)[among[_spaced(len(among), min(len(among), max_positions))]] = True
    # Drop rows without a position; their forward pass would be wasted.
    kept = picked.any(1)
    return windows[rows][kept], picked[kept]


def _spaced(n: int, count: int) -> Int[Tensor, " count"]:
    return torch.arange(count) * n // count


@dataclass(frozen=True)
class _Reader:
    """The lenses of one layer at some positions; gives logits for one block of tokens at a time."""

    of: int
    """Index of the set of lenses."""
    sites: slice
    """Their slice of the sites of that set."""
    logits: Callable[[Int[Tensor, " token"]], Float[Tensor, "n head token"]]
    tally: Tally
    n_bytes: int
    """Memory that they need in addition to the capture."""


def _groups(every: list[Lenses], chunk: Captured, predicted: Predicted) -> Iterator[list[_Reader]]:
    """The lenses of all layers, in groups of at most `HELD_BYTES`."""
    group: list[_Reader] = []
    for of, lenses in enumerate(every):
        start = 0
        for layer, lens in lenses.by_layer.items():
            activation = activation_at(lenses.model, chunk, layer, lens.site)
            logits, n_bytes = _logits_of(lens, activation, lenses.model.layer(layer).d_head)
            if group and n_bytes + sum(each.n_bytes for each in group) > HELD_BYTES:
                yield group
                group = []
            sites = slice(start, start + activation.shape[1])
            group.append(_Reader(of, sites, logits, Tally(predicted, activation.shape[1]), n_bytes))
            start = sites.stop
    yield group


def _logits_of(
    lens: Lens, activation: Float[Tensor, "n head d_activation"], d_head: int
) -> tuple[Callable[[Int[Tensor, " token"]], Tensor], int]:
    """A function from tokens to the logits of a lens, and the bytes that it keeps in memory.

    What a head adds to the final state lies in d_head of d_model dimensions: a linear lens is
    applied to a basis of them, which all positions share.
    """
    if lens.site != "direct":
        return lambda tokens: lens(activation, tokens=tokens), 0  # a view of the capture
    basis = _basis(activation, d_head + SPARE_DIRECTIONS) if lens.is_linear else None
    if basis is None:
        return lambda tokens: lens(activation, tokens=tokens), activation.nbytes
    within = activation.transpose(0, 1).float() @ basis.transpose(1, 2)  # [head, n, direction]
    # Contiguous: the product with the unembedding is several times slower otherwise.
    directions = basis.transpose(0, 1).to(activation.dtype).contiguous()

    def logits(tokens: Int[Tensor, " token"]) -> Float[Tensor, "n head token"]:
        return (within @ lens(directions, tokens=tokens).transpose(0, 1)).transpose(0, 1)

    return logits, within.nbytes + basis.nbytes


def _basis(
    activation: Float[Tensor, "n head d_activation"], rank: int
) -> Float[Tensor, "head direction d_activation"] | None:
    """Orthonormal directions that span the activations; None if they would not save work.

    By a random range finder: Halko, Martinsson and Tropp, 2011, "Finding structure with
    randomness", https://arxiv.org/abs/0909.4061, algorithm 4.1.
    """
    n, n_heads, d_activation = activation.shape
    if rank * (d_activation + n) >= n * d_activation:
        return None
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(n_heads, rank, n, generator=generator).to(activation.device)
    rows = activation.transpose(0, 1).float()  # [head, n, d_activation]
    basis = torch.linalg.qr((mixed @ rows).transpose(1, 2)).Q.transpose(1, 2)
    rest = rows - rows @ basis.transpose(1, 2) @ basis
    return basis if float(rest.norm()) <= BASIS_ERROR * float(rows.norm()) else None


def _layers(every: list[Lenses]) -> list[int]:
    return sorted({layer for lenses in every for layer in lenses.by_layer})


def _widest(every: list[Lenses]) -> int:
    return max(every[0].model.layer(layer).n_heads for layer in _layers(every))


def _positions_at_once(every: list[Lenses], n: int) -> int:
    """Number of positions that are scored together: the size of all chunks but the last."""
    model = every[0].model
    sizes = [model.layer(layer).n_heads * model.layer(layer).d_head for layer in _layers(every)]
    most = HELD_BYTES // (4 * sum(size + model.d_model for size in sizes))
    n_chunks = -(-n // max(1, min(most, POSITIONS_AT_ONCE)))
    return -(-n // n_chunks)


def _chunks(
    every: list[Lenses], windows: Tensor, picked: Tensor, size: int, told: Progress
) -> Iterator[tuple[Tensor, Captured]]:
    """The next tokens of ``size`` picked positions at a time, with the activations there."""
    model, layers = every[0].model, _layers(every)
    residual = any(needs_residual(lens.site) for e in every for lens in e.by_layer.values())
    rows = max(1, BATCH_TOKENS // windows.shape[1])
    following: list[Tensor] = []
    parts: list[Captured] = []
    room, done = size, 0
    for ids, at in zip(windows.split(rows), picked.split(rows), strict=True):
        captured = capture(model, ids, layers=layers, residual=residual)
        done += len(ids)
        told("reading", done, len(windows))
        index = at.flatten().nonzero()[:, 0]
        while len(index):
            some, index = index[:room], index[room:]
            following.append(ids.roll(-1, dims=1).flatten()[some])
            parts.append(_at(captured, some))
            room -= len(some)
            if room == 0:
                yield torch.cat(following), _joined(parts)
                following, parts, room = [], [], size
    if parts:
        yield torch.cat(following), _joined(parts)


def _joined(parts: list[Captured]) -> Captured:
    """Several captures of single positions as one."""
    last = [part.final_residual for part in parts if part.final_residual is not None]
    return Captured(
        z={k: torch.cat([part.z[k] for part in parts], 1) for k in parts[0].z},
        final=torch.cat([part.final for part in parts], 1),
        residual={k: torch.cat([part.residual[k] for part in parts], 1) for k in parts[0].residual},
        final_residual=torch.cat(last, 1) if last else None,
        attention={},
    )


def _tell_nobody(stage: str, done: int, total: int) -> None:
    """The default progress callback: does nothing."""


def _at(captured: Captured, index: Int[Tensor, " n"]) -> Captured:
    """The same capture at single positions, as if they were one row of text; copied."""

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
                f"the {other.provenance.kind} lenses to compare with are bound to another model",
                hint="load them for the same model object",
            )
    if best is not None and best.sites != lenses.sites:
        raise LensError(
            f"the best lenses have {len(best.sites)} sites, these have {len(lenses.sites)}: their "
            "gains cannot be compared",
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
    baseline_kl, baseline_surprise, model_surprise = own.tolist()
    # Nats per token to bits per byte, by the tokens and bytes of the whole text.
    to_bits = corpus.n_tokens / max(corpus.n_bytes, 1) / math.log(2)
    best_gain = baseline_kl - tables[1 + len(others)][0] if len(tables) > 1 + len(others) else None

    def scores(each: Lenses, table: Tensor, best: Tensor | None = None) -> Scores:
        gain = baseline_kl - table[0]
        return Scores(
            kind=each.provenance.kind,
            method=each.provenance.method,
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
        is_fitted_on=corpus.fingerprint == lenses.provenance.corpus_fingerprint,
        n_tokens=corpus.n_tokens,
        n_positions=n_positions,
        baseline_kl=baseline_kl,
        baseline_bits_per_byte=baseline_surprise * to_bits,
        model_bits_per_byte=model_surprise * to_bits,
        lenses=scores(lenses, tables[0], best_gain),
        baselines=tuple(
            scores(each, table) for each, table in zip(others, tables[1:], strict=False)
        ),
    )


def _share(gain: Tensor, best: Tensor) -> Tensor:
    return torch.where(best > 0, gain / best, torch.nan)
