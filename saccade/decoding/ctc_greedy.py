"""The text of the likeliest path: each frame says what it likes best."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.decoding.hypothesis import Hypothesis
from saccade.objectives.ctc import BLANK


@torch.no_grad()
def ctc_greedy(
    log_probs: Float[Tensor, "batch frame d_vocab"], mask: Bool[Tensor, "batch frame"]
) -> list[Hypothesis]:
    """Take the best symbol of every frame, make repeated ones one, leave out blanks.

    Graves et al., 2006, section 3.2, "best path decoding". It is the likeliest path, and nearly
    always reads as the likeliest text, but a text may gain more from many lesser paths:
    `prefix_beam` adds them up. ``log_prob`` is the path's.

    >>> said = torch.tensor([[4, 4, 0, 4, 5, 0]])
    >>> log_probs = torch.nn.functional.one_hot(said, 6).float().log_softmax(-1)
    >>> ctc_greedy(log_probs, torch.ones(1, 6, dtype=torch.bool))[0].ids
    [4, 4, 5]
    """
    best = log_probs.max(-1)
    said = best.indices.masked_fill(~mask, BLANK)
    before = torch.nn.functional.pad(said[:, :-1], (1, 0), value=BLANK)
    is_new = (said != BLANK) & (said != before)
    total = best.values.masked_fill(~mask, 0.0).sum(1).tolist()
    return [
        Hypothesis(row[new].tolist(), log_prob, log_prob)
        for row, new, log_prob in zip(said, is_new, total, strict=True)
    ]
