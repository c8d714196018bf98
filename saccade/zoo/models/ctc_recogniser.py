"""A CTC recogniser: every frame predicts a symbol or blank, and CTC sums over the paths.

Graves et al., 2006 ("Connectionist temporal classification: labelling unsegmented sequence data
with recurrent neural networks"), for speech; Graves et al., 2009 ("A novel connectionist system for
unconstrained handwriting recognition"), for handwriting. Here one network serves both.
"""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.cell import blank_padding
from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.cells.stacks import Bidirectional
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.speech import Frames

REACH = 2  # frames to each side that a convolution sees: 50 ms of speech, a bend of a letter


class CtcRecogniser(nn.Module):
    """``log p(symbol | frames)`` at each step: convolutions, bidirectional LSTMs, a softmax.

    Section 5 of the 2006 paper has one bidirectional LSTM of 100 units per direction over 10 ms
    frames, and a softmax over symbols and blank; predictions of different steps are independent.

    Where we differ: convolutions with strides come first, so that the LSTM, which is sequential,
    has 2 to 4 times fewer steps; a text must still have fewer symbols than there are steps. Layers
    are wider and there are two, with dropout in place of the paper's noise on the inputs.

    >>> import torch
    >>> model = CtcRecogniser(d_frame=3, n_symbols=7, d_hidden=5)
    >>> model(torch.randn(2, 13, 3), torch.ones(2, 13, dtype=torch.bool)).values.shape
    torch.Size([2, 4, 7])
    """

    def __init__(
        self,
        *,
        d_frame: int,
        n_symbols: int,
        d_hidden: int = 128,
        n_layers: int = 2,
        strides: Sequence[int] = (2, 2),
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        widths = [d_frame, *[d_hidden] * len(strides)]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(below, d_hidden, 2 * REACH + 1, stride=stride, padding=REACH)
            for below, stride in zip(widths, strides, strict=False)
        )
        for convolution in self.convolutions:
            init_preserving_variance(convolution)
        self.strides = tuple(strides)
        reads = [widths[-1], *[2 * d_hidden] * (n_layers - 1)]
        self.layers = nn.ModuleList(
            Bidirectional(LstmCell(below, d_hidden), LstmCell(below, d_hidden)) for below in reads
        )
        self.output = nn.Linear(2 * d_hidden, n_symbols)
        self.dropout = Dropout(dropout)

    def forward(
        self, frames: Float[Tensor, "batch frame d_frame"], mask: Bool[Tensor, "batch frame"]
    ) -> Frames:
        """Log-probabilities of all symbols at each step, and which steps are real."""
        hidden = frames
        for convolution, stride in zip(self.convolutions, self.strides, strict=True):
            # Padding must be zero, or a row would depend on the others in its batch.
            thinned = convolution(blank_padding(hidden, mask).mT).mT  # [batch, step, d_hidden]
            hidden, mask = functional.relu(thinned), mask[:, ::stride]
        for layer in self.layers:
            assert isinstance(layer, Bidirectional)
            hidden = layer.unroll(self.dropout(hidden), mask=mask).outputs
        return Frames(self.output(self.dropout(hidden)).log_softmax(-1), mask)


def init_preserving_variance(convolution: nn.Module) -> None:
    """Initialise a convolution followed by a ReLU so that it preserves the variance.

    He et al., 2015 (https://arxiv.org/abs/1502.01852), equation 10. With torch's initialisation
    each layer shrinks the signal 2.4 times (a variance of 1/3, halved by the ReLU). CTC predicts
    only blanks at first: on spoken digits for 380 steps with torch's initialisation, and for 180
    with this one.
    """
    assert isinstance(convolution, nn.Conv1d) and convolution.bias is not None
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    nn.init.zeros_(convolution.bias)
