"""The loss of a choice among candidates."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.attention.masks import masked_log_softmax


def cloze_loss(
    logits: Float[Tensor, "batch label"],
    answers: Int[Tensor, " batch"],
    candidates: Bool[Tensor, "batch label"],
) -> Float[Tensor, ""]:
    """The mean of ``-log p(answer)``, with p a softmax over the candidates alone.

    Chen et al., 2016 (https://arxiv.org/abs/1606.02858), section 4.1, equation 3, restrict the
    softmax of Hermann et al., 2015 to what could be the answer; the rest need not be unlearnt.

    >>> import torch
    >>> cloze_loss(torch.zeros(1, 5), torch.tensor([2]), torch.tensor([[0, 1, 1, 0, 0]]).bool())
    tensor(0.6931)
    """
    log_probs = masked_log_softmax(logits, candidates)
    return -log_probs.gather(1, answers[:, None]).mean()
