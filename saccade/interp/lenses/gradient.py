"""Train any lens towards any objective by gradient steps; also the published recipe.

Use it for lenses and objectives without a closed form: the dense lens of the paper, a tuned lens, a
custom lens. It is slow: every position needs a forward and a backward pass through the unembedding
for every head (bench/lens_fit.py measures it).

The loss on held-out windows is evaluated a few times during training. The state with the lowest
loss is kept, and training stops if it diverges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.distributed import Processes
from saccade.errors import LensError, UsageError, suggest
from saccade.interp.heads.capture import Captured, capture
from saccade.interp.lenses.batches import windows_of_step
from saccade.interp.lenses.gather import Progress
from saccade.interp.lenses.lens import Lens, activation_at, needs_residual

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.corpus import Corpus
    from saccade.interp.lenses.gather import Checkpoint


# Training objectives.
#
# An objective compares the lens's logits with a `Target` and returns one loss per position and
# lens. To add one, decorate such a function with `register_objective`; every command then accepts
# its name (docs/guide/own-lens.md).


class Target(NamedTuple):
    """The training target: the model's predictions and the text at the same positions."""

    log_probs: Float[Tensor, "n d_vocab"]
    """The model's own prediction."""
    next_ids: Int[Tensor, " n"]
    """The actual next token."""
    input_ids: Int[Tensor, "n pos"]
    """The text up to and including each position; later tokens are masked."""
    input_mask: Bool[Tensor, "n pos"]
    """True = part of the text so far."""


Objective = Callable[[Float[Tensor, "n head d_vocab"], Target], Float[Tensor, "n head"]]

_OBJECTIVES: dict[str, Objective] = {}


def register_objective(name: str) -> Callable[[Objective], Objective]:
    """Decorator that registers an objective under a name.

    >>> @register_objective("squared")
    ... def squared(logits, target):
    ...     return (logits.softmax(-1) - target.log_probs.exp()[:, None]).square().sum(-1)
    >>> find_objective("squared") is squared
    True
    """

    def add(objective: Objective) -> Objective:
        _OBJECTIVES[name] = objective
        return objective

    return add


def objectives() -> tuple[str, ...]:
    """The names of the registered objectives."""
    return tuple(sorted(_OBJECTIVES))


def find_objective(name: str) -> Objective:
    """The objective with this name."""
    if name not in _OBJECTIVES:
        raise UsageError(
            f"no objective {name!r}: known are {', '.join(objectives())}",
            hint=suggest(
                name,
                _OBJECTIVES,
                "load a file with your own objective with `--plugin FILE.py`",
            ),
        )
    return _OBJECTIVES[name]


@register_objective("kl")
def kl(logits: Float[Tensor, "n head d_vocab"], target: Target) -> Float[Tensor, "n head"]:
    """KL(model || lens): the lens must cover every token that is likely under the model.

    The direction that the authors' code of Attention Lens computes, and convex in a linear lens.
    """
    model = target.log_probs[:, None]  # [n, 1, d_vocab]
    return (model.exp() * (model - logits.log_softmax(-1))).sum(-1)


@register_objective("reverse-kl")
def reverse_kl(logits: Float[Tensor, "n head d_vocab"], target: Target) -> Float[Tensor, "n head"]:
    """KL(lens || model): the lens may only predict tokens that are likely under the model.

    Attention Lens (https://arxiv.org/abs/2310.16270), equation 1 as printed.
    """
    lens = logits.log_softmax(-1)
    return (lens.exp() * (lens - target.log_probs[:, None])).sum(-1)


@register_objective("cross-entropy")
def cross_entropy(
    logits: Float[Tensor, "n head d_vocab"], target: Target
) -> Float[Tensor, "n head"]:
    """The negative log-likelihood of the actual next token; ignores the model's prediction."""
    log_probs = logits.log_softmax(-1)
    index = target.next_ids[:, None, None].expand(-1, logits.shape[1], 1)
    return -log_probs.gather(-1, index).squeeze(-1)


@register_objective("input")
def input_relevance(
    logits: Float[Tensor, "n head d_vocab"], target: Target
) -> Float[Tensor, "n head"]:
    """The mean negative log-likelihood of the prompt's tokens: relevance to the input.

    Attention Lens, section 2, names this as the authors' hypothesis and leaves it to future work.
    Each occurrence of a token in the text so far counts once.
    """
    log_probs = logits.log_softmax(-1)
    tokens = target.input_ids[:, None].expand(-1, logits.shape[1], -1)  # [n, head, pos]
    surprise = -log_probs.gather(-1, tokens)
    mask = target.input_mask[:, None]
    return torch.where(mask, surprise, 0.0).sum(-1) / mask.sum(-1)


# Number of evaluations of the held-out loss after the start, and maximum number of windows.
CHOICES, CHOICE_WINDOWS = 8, 4
# Training has diverged if the held-out loss exceeds this multiple of the initial loss plus one nat:
# a healthy training run improves within an eighth of its steps.
DIVERGED = 2.0
SMALLER = "use a smaller --learning-rate (0.001 is usual); nothing was saved"
# Maximum size of positions x heads x vocabulary in one piece.
CHUNK_BYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class GradientConfig:
    """Training hyperparameters; the defaults are those of the published recipe."""

    steps: int = 250
    """Number of optimiser steps (the paper: about 250,000)."""
    rows: int = 4
    """Batch size: windows of text per step."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    over: Literal["head", "layer"] = "head"
    """One loss per head (the paper), or one for the sum of a layer's lenses (the authors' code)."""
    positions: Literal["all", "last"] = "all"
    """Which positions of a window count; the authors' code uses the last."""
    seed: int = 0
    """Seed of the order of the text."""


class Piece(NamedTuple):
    """Activations at some positions of a layer, with their targets."""

    activation: Float[Tensor, "n head d_activation"]
    target: Target


@dataclass
class Best:
    """The state of all parameters with the lowest held-out loss so far."""

    values: list[Tensor]
    loss: float = math.inf
    start: float = math.inf
    """The held-out loss of the untrained lenses."""

    def offer(self, parameters: list[torch.nn.Parameter], loss: float, *, step: int) -> None:
        """Keep a state if it is better; refuse one that has diverged."""
        if step == 0:
            self.start = loss
        if not math.isfinite(loss) or loss > DIVERGED * abs(self.start) + 1.0:
            raise LensError(
                f"the training diverged: after {step} steps the held-out loss is {loss:.4g}, "
                f"initially {self.start:.4g}",
                hint=SMALLER,
            )
        if loss < self.loss:
            self.loss = loss
            for value, p in zip(self.values, parameters, strict=True):
                value.copy_(p.detach())

    def restore(self, parameters: list[torch.nn.Parameter]) -> None:
        """Restore the best state."""
        for value, p in zip(self.values, parameters, strict=True):
            p.data.copy_(value)


# More parameters than the house style allows: each is an input of training.
def train(  # noqa: PLR0913
    model: LanguageModel,
    lenses: dict[int, Lens],
    objective: Objective,
    corpus: Corpus,
    *,
    config: GradientConfig,
    processes: Processes,
    held_out: Int[Tensor, "window pos"] | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Train lenses in place with Adam; returns the mean loss of every step.

    Args:
        held_out: windows that are not in ``corpus``, to select the best state. Without them the
            last state is kept, and only a loss that is not finite stops the training.

    Raises:
        LensError: the training diverged.
    """
    parameters = [p for lens in lenses.values() for p in lens.requires_grad_(True).parameters()]
    optimiser = torch.optim.Adam(parameters, lr=config.learning_rate)
    history: list[float] = []
    best = Best([p.detach().clone() for p in parameters])

    def loss_of(ids: Tensor) -> float:
        ids = ids.to(model.device)
        return _accumulate(model, lenses, objective, ids, config=config, processes=processes)

    choose_at = {0, *(max(1, round(config.steps * (k + 1) / CHOICES)) for k in range(CHOICES))}

    def choose(step: int) -> None:
        if held_out is not None and step in choose_at:
            with torch.no_grad():
                best.offer(parameters, loss_of(held_out[:CHOICE_WINDOWS]), step=step)

    done = _restore(parameters, optimiser, history, best, checkpoint, processes)
    if done == 0:
        choose(0)
    for step in range(done + 1, config.steps + 1):
        windows = windows_of_step(len(corpus.windows), step, rows=config.rows, seed=config.seed)
        history.append(loss_of(corpus.windows[windows]))
        _update(parameters, optimiser, processes, loss=history[-1], step=step)
        choose(step)
        if progress:
            progress("training", step, config.steps)
        if checkpoint:
            checkpoint.save_sometimes(
                lambda n=step: _tensors(parameters, optimiser, history, best, n),
                together=processes,
            )
    if held_out is not None:
        best.restore(parameters)
    for lens in lenses.values():
        lens.requires_grad_(False)
    return history


def _update(
    parameters: list[torch.nn.Parameter],
    optimiser: torch.optim.Adam,
    processes: Processes,
    *,
    loss: float,
    step: int,
) -> None:
    """Take one optimiser step with the summed gradients of all processes."""
    if not math.isfinite(loss):
        raise LensError(f"the training diverged: the loss of step {step} is {loss}", hint=SMALLER)
    for p in parameters:
        # A process without a window must still take part in the all-reduce.
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        processes.add_up([p.grad])
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def _accumulate(
    model: LanguageModel,
    lenses: dict[int, Lens],
    objective: Objective,
    ids: Tensor,
    *,
    config: GradientConfig,
    processes: Processes,
) -> float:
    """The mean loss of some windows, piece by piece; accumulates gradients if enabled."""
    mine = ids[processes.rank :: processes.world]
    n = int(_counted(model, ids, config).sum())
    total = torch.zeros(1)
    if len(mine):
        residual = any(needs_residual(lens.site) for lens in lenses.values())
        captured = capture(model, mine, layers=list(lenses), residual=residual)
        for layer, lens in lenses.items():
            for piece in _pieces(model, captured, mine, layer, lens, config):
                logits = lens(piece.activation)
                if config.over == "layer":
                    logits = logits.sum(1, keepdim=True)
                # Summed over heads: heads share no parameters, so each gets its own gradient.
                loss = objective(logits, piece.target).sum(0) / n  # [head]
                if torch.is_grad_enabled():
                    loss.sum().backward()
                total += float(loss.detach().mean()) / len(lenses)
    processes.add_up([total])
    return float(total)


def _pieces(
    model: LanguageModel,
    captured: Captured,
    ids: Tensor,
    layer: int,
    lens: Lens,
    config: GradientConfig,
) -> Iterator[Piece]:
    rows, window = ids.shape
    row_of, column_of = _counted(model, ids, config).nonzero().unbind(1)
    activation = activation_at(model, captured, layer, lens.site).unflatten(0, (rows, window))
    activation = activation[row_of.to(activation.device), column_of.to(activation.device)]
    final = captured.final[row_of, column_of]
    next_ids = ids[row_of, column_of + 1]
    size = max(1, CHUNK_BYTES // (4 * model.d_vocab * activation.shape[1]))
    for some in torch.arange(len(activation), device=ids.device).split(size):
        with torch.no_grad():
            log_probs = model.unembedding.logits(final[some]).float().log_softmax(-1)
        seen = torch.arange(window, device=ids.device) <= column_of[some, None]
        target = Target(log_probs, next_ids[some], ids[row_of[some]], seen)
        yield Piece(activation[some], target)


def _counted(model: LanguageModel, ids: Tensor, config: GradientConfig) -> Bool[Tensor, "row pos"]:
    """True = a position to train on: an ordinary token with a next token in the window."""
    counted = model.is_text(ids)
    counted[:, -1:] = False
    if config.positions == "last":
        counted[:, :-2] = False
    return counted


def _tensors(
    parameters: list[torch.nn.Parameter],
    optimiser: torch.optim.Adam,
    history: list[float],
    best: Best,
    step: int,
) -> dict[str, Tensor]:
    named = {f"{i}.value": p.detach() for i, p in enumerate(parameters)}
    named |= {f"{i}.best": value for i, value in enumerate(best.values)}
    named["best"] = torch.tensor([best.loss, best.start], dtype=torch.float64)
    for i, p in enumerate(parameters):
        state = optimiser.state[p]
        named[f"{i}.mean"], named[f"{i}.square"] = state["exp_avg"], state["exp_avg_sq"]
    named["history"] = torch.tensor(history, dtype=torch.float64)
    return {**named, "done": torch.tensor(step)}


def _restore(
    parameters: list[torch.nn.Parameter],
    optimiser: torch.optim.Adam,
    history: list[float],
    best: Best,
    checkpoint: Checkpoint | None,
    processes: Processes,
) -> int:
    """Load what the first process saved, in all processes: state and step must be the same."""
    saved = checkpoint.load() if checkpoint and processes.is_first else None
    done = torch.zeros((), dtype=torch.long) if saved is None else saved["done"]
    processes.from_first([done])
    if done == 0:
        return 0
    past = torch.zeros(int(done), dtype=torch.float64) if saved is None else saved["history"]
    processes.from_first([past])
    history.extend(past.tolist())
    scores = torch.zeros(2, dtype=torch.float64) if saved is None else saved["best"]
    processes.from_first([scores])
    best.loss, best.start = scores.tolist()
    for i, p in enumerate(parameters):
        mean, square = torch.zeros_like(p.data), torch.zeros_like(p.data)
        if saved is not None:
            p.data.copy_(saved[f"{i}.value"])
            mean.copy_(saved[f"{i}.mean"])
            square.copy_(saved[f"{i}.square"])
            best.values[i].copy_(saved[f"{i}.best"])
        processes.from_first([p.data, mean, square, best.values[i]])
        step = done.to(torch.float32)
        optimiser.state[p] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
    return int(done)
