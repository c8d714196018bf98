"""The IRNN: rectified units whose recurrent weights begin as the identity."""

from torch import nn

from saccade.cells.elman import ElmanCell
from saccade.cells.kernel import weights_of

# "sampled from a Gaussian distribution with mean of zero and standard deviation of 0.001":
# section 4 of the paper.
INPUT_SCALE = 0.001


def irnn_cell(d_input: int, d_hidden: int, *, scale: float = 1.0) -> ElmanCell:
    """An Elman cell with relu that begins by copying its state.

    Le, Jaitly and Hinton, 2015 (https://arxiv.org/abs/1504.00941), section 2: with
    ``W = scale * I`` and ``b = 0`` the state stays as it is while the inputs add to it, and a
    gradient comes back from any distance with its length unchanged. The paper takes a ``scale``
    below one (0.01) where long ranges are not wanted.

    >>> irnn_cell(2, 3).kernel.weight_hh_l0.tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    cell = ElmanCell(d_input, d_hidden, activation="relu")
    weights = weights_of(cell.kernel)
    nn.init.normal_(weights.of_input, std=INPUT_SCALE)
    nn.init.eye_(weights.of_state).data.mul_(scale)
    return cell
