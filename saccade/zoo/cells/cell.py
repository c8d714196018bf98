"""The interface of recurrent cells: one step from state to state, and the loop over steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError

# Operations on all tensors of a state.
#
# A state is a tensor, or a tuple or NamedTuple of states; other entries (None, a number) stay
# unchanged. The first axis of every tensor is the batch.

AnyState = TypeVar("AnyState")


def map_tensors(function: Callable[[Tensor], Tensor], state: AnyState) -> AnyState:
    """Apply ``function`` to each tensor of a state.

    >>> import torch
    >>> map_tensors(lambda t: t + 1, (torch.zeros(2), None, 3))
    (tensor([1., 1.]), None, 3)
    """
    changed: Any = state
    if isinstance(state, Tensor):
        changed = function(state)
    elif isinstance(state, tuple):
        parts = [map_tensors(function, part) for part in state]
        changed = type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return changed


def select_rows(state: AnyState, index: Int[Tensor, " new_batch"]) -> AnyState:
    """The rows ``index`` of a state, in that order; a row may be taken several times.

    >>> import torch
    >>> select_rows((torch.tensor([[5], [6], [7]]),), torch.tensor([2, 0, 0]))
    (tensor([[7],
            [5],
            [5]]),)
    """
    return map_tensors(lambda tensor: tensor.index_select(0, index), state)


def detach(state: AnyState) -> AnyState:
    """The same state detached: gradients stop here.

    For networks that carry their state from batch to batch (the stateful RNN).
    """
    return map_tensors(Tensor.detach, state)


def tensors_of(state: Any) -> list[Tensor]:
    """Every tensor of a state, in the order of its fields.

    >>> import torch
    >>> [len(tensor) for tensor in tensors_of((torch.zeros(2), (None, torch.zeros(3))))]
    [2, 3]
    """
    if isinstance(state, Tensor):
        return [state]
    parts = state if isinstance(state, tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def replace_rows(state: AnyState, index: Int[Tensor, " some"], rows: AnyState) -> AnyState:
    """The state with its rows ``index`` replaced by those of another, which has only these.

    >>> import torch
    >>> replace_rows(torch.tensor([5, 6, 7]), torch.tensor([2, 0]), torch.tensor([1, 9]))
    tensor([9, 6, 1])
    """
    new = iter(tensors_of(rows))
    return map_tensors(lambda tensor: tensor.index_copy(0, index, next(new)), state)


# Padded sequences for kernels without masks.


def is_right_padded(mask: Bool[Tensor, "batch pos"]) -> bool:
    """True if padding is only at the end of each row.

    >>> is_right_padded(torch.tensor([[True, True, False], [True, True, True]]))
    True
    >>> is_right_padded(torch.tensor([[False, True, True]]))
    False
    """
    return bool((mask[:, :-1] | ~mask[:, 1:]).all())


def blank_padding(
    steps: Float[Tensor, "batch pos d"], mask: Bool[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos d"]:
    """Zeros at padded steps, also in place of infinities, and no gradient for them."""
    return steps.masked_fill(~mask[:, :, None], 0.0)


def last_step(
    steps: Float[Tensor, "batch pos d"],
    mask: Bool[Tensor, "batch pos"],
    start: Float[Tensor, "batch d"],
) -> Float[Tensor, "batch d"]:
    """Each row's last real step; ``start`` for a row that has none."""
    place = (mask.sum(1) - 1).clamp_min(0)  # right-padded: the number of real steps says where
    rows = torch.arange(len(steps), device=steps.device)
    return torch.where(mask[:, :1], steps[rows, place], start)


def reverse(
    steps: Float[Tensor, "batch pos d"], mask: Bool[Tensor, "batch pos"] | None
) -> Float[Tensor, "batch pos d"]:
    """The real steps of each row in reverse order, padding left where it is: its own inverse.

    Any mask is allowed: the first real step is swapped with the last, and so on.
    """
    if mask is None:
        return steps.flip(1)
    batch, n = mask.shape
    pos = torch.arange(n, device=mask.device).expand(batch, n)
    # Sorting by this puts a row's real steps first, in order; counted from behind it pairs them.
    order = torch.where(mask, pos, pos + n).argsort(1)
    length = mask.sum(1, keepdim=True)
    partner = order.gather(1, torch.where(pos < length, length - 1 - pos, pos))
    index = torch.empty_like(order).scatter_(1, order, partner)
    return steps.gather(1, index[:, :, None].expand_as(steps))


__all__ = ["Cell", "CellOutput", "Unrolled", "detach", "select_rows"]

State = TypeVar("State")
"""A tensor, or a NamedTuple of states; the first axis of every tensor is the batch."""


class CellOutput(NamedTuple):
    """One step of a cell."""

    output: Float[Tensor, "batch d_hidden"]
    state: Any


class Unrolled(NamedTuple):
    """Many steps of a cell."""

    outputs: Float[Tensor, "batch pos d_hidden"]
    """Zero where the step was padding."""
    state: Any
    """After the last step of each row that was not padding."""


Advance = Callable[[Float[Tensor, "batch d_projected"], State], CellOutput]


class Cell(nn.Module, ABC, Generic[State]):
    """Reads a sequence step by step: ``output, state = step(x, state)``.

    A cell defines three methods. `project` is the part of a step that depends on the input alone:
    for a whole sequence it is one matrix product before the first step. `advance` is the step
    itself. `start` is the state before the first step. The loop over the steps is written once,
    here; a cell with a faster way to read a sequence overrides `run`.
    """

    def __init__(self, d_input: int, d_hidden: int) -> None:
        super().__init__()
        if d_input < 1 or d_hidden < 1:
            raise UsageError(
                f"a cell needs sizes of at least 1, got d_input {d_input} and d_hidden {d_hidden}",
                hint="check the sizes in the settings",
            )
        self.d_input = d_input
        self.d_hidden = d_hidden

    @abstractmethod
    def start(self, n: int) -> State:
        """The state of ``n`` rows before the first step."""

    @abstractmethod
    def advance(self, projected: Float[Tensor, "batch d_projected"], state: State) -> CellOutput:
        """One step, from a projected input."""

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_to"]:
        """The part that depends on the inputs alone, for any number of steps at once."""
        return inputs

    def advancing(self) -> Advance[State]:
        """`advance` for many steps: weights derived from others are computed here, once."""
        return self.advance

    def step(self, x: Float[Tensor, "batch d_input"], state: State) -> CellOutput:
        """One step: the new output and the new state."""
        return self.advance(self.project(x), state)

    def unroll(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: State | None = None,
        *,
        mask: Bool[Tensor, "batch pos"] | None = None,
    ) -> Unrolled:
        """Read whole sequences.

        Args:
            state: The initial state. Default: `start`.
            mask: True = a real step. Where it is False the state is kept and the output is zero.
        """
        if inputs.shape[1] == 0:
            raise UsageError(
                f"a cell reads at least one step, got inputs of shape {tuple(inputs.shape)}",
                hint="leave out empty sequences",
            )
        state = self.start(len(inputs)) if state is None else state
        if mask is not None and bool(mask.all()):
            mask = None
        return self.run(inputs, state, mask)

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: State,
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """`unroll` after its checks. A cell with its own kernel overrides this."""
        return self.loop(inputs, state, mask)

    def loop(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: State,
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """One `advance` after the other; padded rows are skipped."""
        # Time first, so that each step's slice is one block of memory; and unbind, because the
        # gradient of n single indexings would be n tensors as large as the whole.
        projected = self.project(inputs.transpose(0, 1)).unbind(0)
        advance = self.advancing()
        rows = [None] * len(projected) if mask is None else _rows(mask)
        outputs = []
        for x, some in zip(projected, rows, strict=True):
            if some is None:
                output, state = advance(x, state)
            else:
                output = self.zeros(len(x), self.d_hidden)
                if len(some):
                    shown, new = advance(x.index_select(0, some), select_rows(state, some))
                    output = output.index_copy(0, some, shown)
                    state = replace_rows(state, some, new)
            outputs.append(output)
        return Unrolled(torch.stack(outputs, dim=1), state)

    def zeros(self, *shape: int) -> Float[Tensor, "..."]:
        """Zeros with the device and dtype of the weights: the initial state of most cells."""
        weight = next(self.parameters())
        return torch.zeros(shape, dtype=weight.dtype, device=weight.device)


def _rows(mask: Bool[Tensor, "batch pos"]) -> list[Tensor | None]:
    """For each step the real rows; None = all of them."""
    is_full = mask.all(0).tolist()
    columns = mask.unbind(1)
    return [
        None if full else column.nonzero()[:, 0]
        for full, column in zip(is_full, columns, strict=True)
    ]


# torch's recurrent kernels: their weights, and padded sequences.


class KernelWeights(NamedTuple):
    """Weights of one layer, in the order of torch's kernels."""

    of_input: Float[Tensor, "d_gates d_input"]
    of_state: Float[Tensor, "d_gates d_hidden"]
    input_bias: Float[Tensor, " d_gates"]
    state_bias: Float[Tensor, " d_gates"]


def weights_of(kernel: nn.RNNBase) -> KernelWeights:
    """The weights of a kernel's only layer."""
    return KernelWeights(*kernel.all_weights[0])


def run_kernel(
    cell: Cell,
    kernel: nn.RNN | nn.GRU,
    inputs: Float[Tensor, "batch pos d_input"],
    *,
    state: Float[Tensor, "batch d_hidden"],
    mask: Bool[Tensor, "batch pos"] | None,
) -> Unrolled:
    """Read sequences by the kernel of a cell whose state is its output.

    Where padding is not at the end, which kernels do not support, the loop is used.
    """
    if mask is None:
        outputs, last = kernel(inputs, state[None])
        return Unrolled(outputs, last[0])
    if not is_right_padded(mask):
        return cell.loop(inputs, state, mask)
    outputs, _ = kernel(blank_padding(inputs, mask), state[None])
    return Unrolled(blank_padding(outputs, mask), last_step(outputs, mask, state))


# A learned initial state.


class LearnedStart(Cell):
    """Any cell with a learned initial state, itself initialised to zero.

    An unrolled network often has separate biases for its first step; an initial state is
    equivalent: it adds ``W s_0``.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell.d_input, cell.d_hidden)
        self.cell = cell
        first = [tensor[0].detach().clone() for tensor in tensors_of(cell.start(1))]
        # Counters are left to the cell.
        learned = [nn.Parameter(value) for value in first if value.is_floating_point()]
        self.first = nn.ParameterList(learned)

    def start(self, n: int) -> Any:
        """The learned state, the same for every row."""
        learned = iter(self.first)

        def fill(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            return next(learned).expand(n, *tensor.shape[1:])

        return map_tensors(fill, self.cell.start(n))

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_to"]:
        """The inner cell's."""
        return self.cell.project(inputs)

    def advance(self, projected: Float[Tensor, "batch d_projected"], state: Any) -> CellOutput:
        """The inner cell's."""
        return self.cell.advance(projected, state)

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: Any,
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """The inner cell's."""
        # A kernel needs contiguous memory, not an expanded row.
        return self.cell.run(inputs, map_tensors(torch.Tensor.contiguous, state), mask)


# A sequence read step by step, with all states recorded.


class Recorded(NamedTuple):
    """All states and outputs of a cell."""

    outputs: Float[Tensor, "batch pos d_hidden"]
    states: list[Any]
    """One more than there are steps: the first is the one before them.

    Each tensor has its own gradient: what reaches it from later steps, and from this
    step's output where that is the tensor, but not what passes through another tensor of the same
    state (the carried value of an LSTM is also in its hidden one).
    """


def record(cell: Cell, inputs: Float[Tensor, "batch pos d_input"], state: Any = None) -> Recorded:
    """Unroll a cell and record all its states, always by the loop and never by a kernel."""
    states = [cell.start(len(inputs)) if state is None else state]
    advance = cell.advancing()
    outputs = []
    for x in cell.project(inputs.transpose(0, 1)).unbind(0):
        output, new = advance(x, states[-1])
        alone = map_tensors(lambda tensor: tensor.view_as(tensor), new)
        pairs = zip(tensors_of(new), tensors_of(alone), strict=True)
        outputs.append(next((after for before, after in pairs if before is output), output))
        states.append(alone)
    return Recorded(torch.stack(outputs, dim=1), states)
