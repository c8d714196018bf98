"""Connectionist temporal classification: the likelihood of a text, wherever its symbols are said.

Graves et al., 2006 ("Connectionist temporal classification: labelling unsegmented sequence data
with recurrent neural networks"). At each frame a network says a symbol, or nothing: *blank*. A path
of frames reads as a text once repeated symbols are made one and blanks are left out. The likelihood
of the text is the sum over all paths that read as it. In the words of attention: a hard,
stochastic, monotonic alignment whose marginal is tractable, because frames are independent given
the input.

The blank's id is PAD's, 0: neither is ever a symbol of a text, and so the ids of a coder are the
outputs of a network as they are.
"""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from saccade.tasks.symbols import PAD

BLANK = PAD


class CtcLoss(NamedTuple):
    """How likely texts are."""

    loss: Float[Tensor, ""]
    """To minimise: nats for each symbol of the texts that can be said."""
    n_symbols: int
    n_impossible: int
    """Texts with too few frames for them, which are left out of the loss."""


def ctc_loss(
    log_probs: Float[Tensor, "batch frame d_vocab"],
    frame_mask: Bool[Tensor, "batch frame"],
    text: Int[Tensor, "batch pos"],
    text_mask: Bool[Tensor, "batch pos"],
) -> CtcLoss:
    """Minus the log-likelihood of texts, by torch's own loss.

    Equations 6 to 8 and 15. A text of n symbols, r of them the same as the one before, needs n + r
    frames: equal symbols need a blank between them. One with fewer frames has no path.

    Args:
        log_probs: Of each symbol, BLANK among them, at each frame.
        frame_mask: True = a real frame; these come first.
        text_mask: True = a real symbol; these come first.

    >>> import torch
    >>> log_probs = torch.full((1, 3, 5), 0.2).log()
    >>> mask = torch.ones(1, 3, dtype=torch.bool)
    >>> found = ctc_loss(log_probs, mask, torch.tensor([[4, 4]]), mask[:, :2])
    >>> found.loss * 2, 3 * torch.tensor(5.0).log()  # one path: 4, blank, 4
    (tensor(4.8283), tensor(4.8283))
    """
    n_frames, n_symbols = frame_mask.sum(1), text_mask.sum(1)
    nats = functional.ctc_loss(
        log_probs.transpose(0, 1),
        text,
        n_frames,
        n_symbols,
        blank=BLANK,
        reduction="none",
        zero_infinity=True,
    )
    is_possible = n_frames >= frames_needed(text, text_mask)
    n = int(n_symbols[is_possible].sum())
    return CtcLoss(nats.sum() / max(1, n), n, int((~is_possible).sum()))


def frames_needed(
    text: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"]
) -> Int[Tensor, " batch"]:
    """The fewest frames in which a text can be said.

    >>> import torch
    >>> frames_needed(torch.tensor([[5, 5, 6]]), torch.ones(1, 3, dtype=torch.bool))
    tensor([4])
    """
    is_repeated = (text[:, 1:] == text[:, :-1]) & mask[:, 1:]
    return mask.sum(1) + is_repeated.sum(1)
