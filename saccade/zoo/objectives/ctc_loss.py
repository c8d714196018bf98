"""The CTC loss, and the lattice of all paths that produce a text.

The lattice is the forward-backward algorithm of Graves et al., 2006, section 4.1, in log space.
Training uses torch's loss and does not need it; alignments do: a trace shows the occupancy.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from saccade.zoo.tasks.vocabulary import PAD

# Connectionist temporal classification: the likelihood of a text, summed over alignments.
#
# Graves et al., 2006 ("Connectionist temporal classification: labelling unsegmented sequence data
# with recurrent neural networks"). At each frame a network outputs a symbol or *blank*. A path
# becomes a text when repeated symbols are merged and blanks are removed. The likelihood of the text
# is the sum over all its paths. In terms of attention: a hard, stochastic, monotonic alignment
# whose marginal is tractable, because frames are independent given the input.
#
# The blank has PAD's id, 0: neither is a symbol of a text, so token ids are the network's outputs
# without an offset.

BLANK = PAD


class CtcLoss(NamedTuple):
    """Loss of a batch of texts."""

    loss: Float[Tensor, ""]
    """To minimise: nats per symbol, over the texts that have a path."""
    n_symbols: int
    n_impossible: int
    """Texts with too few frames, which are left out of the loss."""


def ctc_loss(
    log_probs: Float[Tensor, "batch frame d_vocab"],
    frame_mask: Bool[Tensor, "batch frame"],
    text: Int[Tensor, "batch pos"],
    text_mask: Bool[Tensor, "batch pos"],
) -> CtcLoss:
    """Negative log-likelihood of texts, by torch's CTC loss.

    Equations 6 to 8 and 15. A text of n symbols, r of them the same as the one before, needs n + r
    frames: equal symbols need a blank between them. One with fewer frames has no path.

    Args:
        log_probs: Of each symbol, including BLANK, at each frame.
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
    """The smallest number of frames in which a text has a path.

    >>> import torch
    >>> frames_needed(torch.tensor([[5, 5, 6]]), torch.ones(1, 3, dtype=torch.bool))
    tensor([4])
    """
    is_repeated = (text[:, 1:] == text[:, :-1]) & mask[:, 1:]
    return mask.sum(1) + is_repeated.sum(1)


class CtcLattice(NamedTuple):
    """Sums over paths. The states of a text are its symbols with blanks around: ``_ a _ b _``."""

    states: Int[Tensor, "batch state"]
    """The symbol of each state; blanks at even positions and after the end of a shorter text."""
    log_forward: Float[Tensor, "batch frame state"]
    """Sum over path prefixes that end in this state at this frame, including the frame."""
    log_backward: Float[Tensor, "batch frame state"]
    """Sum over path suffixes from this state at this frame, excluding the frame."""
    log_likelihood: Float[Tensor, " batch"]
    """Log-likelihood of the text; minus infinity if it has too few frames."""

    @property
    def occupancy(self) -> Float[Tensor, "batch frame state"]:
        """The probability that a path of the text is in a state at a frame.

        The states of a real frame sum to one. It is also the gradient of the log-likelihood with
        respect to the log-probability of the state's symbol there: equation 15.
        """
        whole = self.log_likelihood[:, None, None]
        found = (self.log_forward + self.log_backward - whole).exp()
        return found.where(whole > -torch.inf, 0.0)


@torch.no_grad()
def ctc_lattice(
    log_probs: Float[Tensor, "batch frame d_vocab"],
    frame_mask: Bool[Tensor, "batch frame"],
    text: Int[Tensor, "batch pos"],
    text_mask: Bool[Tensor, "batch pos"],
) -> CtcLattice:
    """Forward and backward sums, equations 6 to 11, all texts and states of a frame at once.

    At padded frames both stay unchanged, and the occupancy is zero.
    """
    said, can_leap, is_end = _states(log_probs, text, text_mask)
    states, n_frames = said.states, log_probs.shape[1]
    forward = torch.full_like(said.scores, -torch.inf)
    forward[:, 0, :2] = said.scores[:, 0, :2]
    for frame in range(1, n_frames):
        before = forward[:, frame - 1]
        moved = _sum(before, _shifted(before, 1), _shifted(before, 2).where(can_leap, -torch.inf))
        forward[:, frame] = (moved + said.scores[:, frame]).where(
            frame_mask[:, frame, None], before
        )
    backward = torch.full_like(forward, -torch.inf)
    last = torch.where(is_end, 0.0, -torch.inf)
    backward[:, -1] = last.where(frame_mask[:, -1:], -torch.inf)
    for frame in range(n_frames - 2, -1, -1):
        after = backward[:, frame + 1] + said.scores[:, frame + 1]
        leapt = _shifted(after.where(can_leap, -torch.inf), -2)
        moved = _sum(after, _shifted(after, -1), leapt)
        is_last = frame_mask[:, frame] & ~frame_mask[:, frame + 1]
        backward[:, frame] = torch.where(is_last[:, None], last, moved)
    whole = (forward[:, -1] + last).logsumexp(-1)
    return CtcLattice(states, forward, backward.where(frame_mask[:, :, None], -torch.inf), whole)


@torch.no_grad()
def ctc_best_path(
    log_probs: Float[Tensor, "batch frame d_vocab"],
    frame_mask: Bool[Tensor, "batch frame"],
    text: Int[Tensor, "batch pos"],
    text_mask: Bool[Tensor, "batch pos"],
) -> Int[Tensor, "batch frame"]:
    """The state of the most likely path of a text at each frame; -1 at padded frames.

    Viterbi's algorithm over the same lattice: symbol n of the text is state ``2 n + 1``.
    """
    said, can_leap, is_end = _states(log_probs, text, text_mask)
    best, came_from = said.scores[:, 0].clone(), []
    best[:, 2:] = -torch.inf
    for frame in range(1, log_probs.shape[1]):
        leapt = _shifted(best, 2).where(can_leap, -torch.inf)
        found = torch.stack([best, _shifted(best, 1), leapt]).max(0)
        is_real = frame_mask[:, frame, None]
        best = (found.values + said.scores[:, frame]).where(is_real, best)
        came_from.append(found.indices.where(is_real, 0))
    state = best.masked_fill(~is_end, -torch.inf).argmax(-1, keepdim=True)
    path = [state]
    for steps in reversed(came_from):
        state = state - steps.gather(1, state)
        path.append(state)
    return torch.cat(path[::-1], dim=1).masked_fill(~frame_mask, -1)


class _Said(NamedTuple):
    states: Int[Tensor, "batch state"]
    scores: Float[Tensor, "batch frame state"]
    """The log-probability of each state's symbol at each frame."""


def _states(
    log_probs: Tensor, text: Tensor, mask: Tensor
) -> tuple[_Said, Bool[Tensor, "batch state"], Bool[Tensor, "batch state"]]:
    """The states, which of them can be reached by a skip, and at which a path may end."""
    batch, n = text.shape
    states = text.new_full((batch, 2 * n + 1), BLANK)
    states[:, 1::2] = text.where(mask, BLANK)
    can_leap = torch.zeros_like(states, dtype=torch.bool)
    can_leap[:, 2:] = (states[:, 2:] != BLANK) & (states[:, 2:] != states[:, :-2])
    ends = 2 * mask.sum(1, keepdim=True)  # the blank after the last symbol
    place = torch.arange(2 * n + 1, device=text.device)
    is_end = (place == ends) | (place == ends - 1)
    # Padded states are blank, too, but no path goes there.
    scores = log_probs.gather(2, states[:, None].expand(-1, log_probs.shape[1], -1))
    scores = scores.masked_fill((place > ends)[:, None], -torch.inf)
    return _Said(states, scores), can_leap, is_end


def _shifted(values: Float[Tensor, "batch state"], by: int) -> Float[Tensor, "batch state"]:
    """Values shifted right by ``by`` states."""
    gap = values.new_full((len(values), abs(by)), -torch.inf)
    if by > 0:
        return torch.cat([gap, values[:, :-by]], dim=1)[:, : values.shape[1]]
    return torch.cat([values[:, -by:], gap], dim=1)[:, : values.shape[1]]


def _sum(*logs: Tensor) -> Tensor:
    return torch.stack(logs).logsumexp(0)
