"""The best continuations among all hypotheses of a sentence and all symbols."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

# `topk` over a whole vocabulary costs more than half of the matrix product that made it (measured:
# 8,000 symbols, 320 rows of 256); with the largest of each block first, a fifth of that. A multiple
# of the widest vector register, 16 floats.
BLOCK = 128


class Largest(NamedTuple):
    """The k best, best first."""

    value: Float[Tensor, "sentence k"]
    beam: Int[Tensor, "sentence k"]
    """Which hypothesis is continued."""
    token: Int[Tensor, "sentence k"]
    """With which symbol."""


def largest_sums(
    so_far: Float[Tensor, "sentence beam"],
    log_probs: Float[Tensor, "sentence beam d_vocab"],
    k: int,
) -> Largest:
    """The k largest ``so_far + log_probs`` of each sentence, over hypotheses and symbols.

    The k largest numbers lie in the k blocks with the largest maxima, so only those are sorted.
    """
    n_blocks, d_vocab = log_probs.shape[2] // BLOCK, log_probs.shape[2]
    n_beams = log_probs.shape[1]
    if n_beams * n_blocks <= k:
        value, at = (so_far[:, :, None] + log_probs).flatten(1).topk(k)
        return Largest(value, at // d_vocab, at % d_vocab)
    # The symbols left over when the vocabulary is cut into blocks are candidates in any case.
    whole = log_probs[:, :, : n_blocks * BLOCK].unflatten(2, (n_blocks, BLOCK))
    block_best = whole.amax(-1) + so_far[:, :, None]  # [sentence, beam, block]
    at = block_best.flatten(1).topk(k, sorted=False).indices  # [sentence, k]
    beam, block = at // n_blocks, at % n_blocks
    sentence = torch.arange(len(log_probs), device=at.device)[:, None]
    inside = whole[sentence, beam, block] + so_far.gather(1, beam)[:, :, None]
    rest = log_probs[:, :, n_blocks * BLOCK :] + so_far[:, :, None]
    value, at = torch.cat([inside.flatten(1), rest.flatten(1)], dim=1).topk(k)
    return Largest(value, *_where(at, beam, block, n_blocks=n_blocks, d_vocab=d_vocab))


def _where(
    at: Int[Tensor, "sentence k"],
    beam: Int[Tensor, "sentence k"],
    block: Int[Tensor, "sentence k"],
    *,
    n_blocks: int,
    d_vocab: int,
) -> tuple[Int[Tensor, "sentence k"], Int[Tensor, "sentence k"]]:
    """The hypothesis and symbol of each place among the candidates."""
    k, n_rest = at.shape[1], max(1, d_vocab - n_blocks * BLOCK)
    is_inside = at < k * BLOCK
    of = (at // BLOCK).clamp_max(k - 1)
    beyond = at - k * BLOCK
    in_beam = torch.where(is_inside, beam.gather(1, of), beyond // n_rest)
    in_block = block.gather(1, of) * BLOCK + at % BLOCK
    return in_beam, torch.where(is_inside, in_block, n_blocks * BLOCK + beyond % n_rest)
