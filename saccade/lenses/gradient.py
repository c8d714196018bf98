"""Train any lens towards any objective by gradient steps; also the published recipe.

This is the road for lenses and objectives that have no closed form: the dense lens of the paper, a
tuned lens, one of your own. It is slow by nature: every position costs a pass through the
vocabulary for every head, forward and back (bench/lens_fit.py says how slow).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.heads import Captured, capture
from saccade.lenses.batches import windows_of_step
from saccade.lenses.gather import Progress
from saccade.lenses.lens import Lens
from saccade.lenses.objectives import Objective, Target
from saccade.lenses.sites import held_at, needs_residual
from saccade.processes import Processes

if TYPE_CHECKING:
    from saccade.heads import LanguageModel
    from saccade.lenses.checkpoint import Checkpoint
    from saccade.lenses.corpus import Corpus

# Positions x heads x vocabulary in one piece is never larger than this.
CHUNK_BYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class GradientConfig:
    """How lenses are trained; the defaults are the published recipe's."""

    steps: int = 250
    """How many optimiser steps (the paper: about 250,000)."""
    rows: int = 4
    """How many windows of text a step reads."""
    learning_rate: float = 1e-3
    """Of Adam."""
    over: Literal["head", "layer"] = "head"
    """One loss a head (the paper), or one for the sum of a layer's lenses (the authors' code)."""
    positions: Literal["all", "last"] = "all"
    """Which positions of a window count; the authors' code takes the last."""
    seed: int = 0
    """Of the order of the text."""


class Piece(NamedTuple):
    """Some positions of a layer, with what the model makes of them."""

    held: Float[Tensor, "n head d_held"]
    target: Target


def train(
    model: LanguageModel,
    lenses: dict[int, Lens],
    objective: Objective,
    corpus: Corpus,
    *,
    config: GradientConfig,
    processes: Processes,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Train lenses in place with Adam; returns the mean loss of every step."""
    parameters = [p for lens in lenses.values() for p in lens.requires_grad_(True).parameters()]
    optimiser = torch.optim.Adam(parameters, lr=config.learning_rate)
    history: list[float] = []
    done = _restore(parameters, optimiser, history, checkpoint, processes)
    for step in range(done + 1, config.steps + 1):
        windows = windows_of_step(len(corpus.windows), step, rows=config.rows, seed=config.seed)
        ids = corpus.windows[windows].to(model.device)
        loss = _accumulate(model, lenses, objective, ids, config=config, processes=processes)
        for p in parameters:
            # A process without a window of its own still has to answer the others.
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            processes.add_up([p.grad])
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        history.append(loss)
        if progress:
            progress("training", step, config.steps)
        if checkpoint and processes.is_first:
            checkpoint.save_sometimes(lambda n=step: _tensors(parameters, optimiser, history, n))
    for lens in lenses.values():
        lens.requires_grad_(False)
    return history


def _accumulate(
    model: LanguageModel,
    lenses: dict[int, Lens],
    objective: Objective,
    ids: Tensor,
    *,
    config: GradientConfig,
    processes: Processes,
) -> float:
    """Add up the gradients of one step, piece by piece; returns the mean loss."""
    mine = ids[processes.rank :: processes.world]
    n = len(ids) * (1 if config.positions == "last" else ids.shape[1] - 1)
    total = torch.zeros(1)
    if len(mine):
        residual = any(needs_residual(lens.site) for lens in lenses.values())
        captured = capture(model, mine, layers=list(lenses), residual=residual)
        for layer, lens in lenses.items():
            for piece in _pieces(model, captured, mine, layer, lens, config):
                logits = lens(piece.held)
                if config.over == "layer":
                    logits = logits.sum(1, keepdim=True)
                # Summed over heads: each has parameters of its own, so each gets its own gradient.
                loss = objective(logits, piece.target).sum(0) / n  # [head]
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
    # The last word of a window has no next word to be judged by.
    columns = torch.tensor([window - 2]) if config.positions == "last" else torch.arange(window - 1)
    columns = columns.to(ids.device)
    held = held_at(model, captured, layer, lens.site).unflatten(0, (rows, window))[:, columns]
    held = held.flatten(0, 1)
    final = captured.final[:, columns].flatten(0, 1)
    next_ids = ids[:, columns + 1].flatten()
    row_of = torch.arange(rows, device=ids.device).repeat_interleave(len(columns))
    column_of = columns.repeat(rows)
    size = max(1, CHUNK_BYTES // (4 * model.d_vocab * held.shape[1]))
    for some in torch.arange(len(held), device=ids.device).split(size):
        with torch.no_grad():
            log_probs = model.unembedding.logits(final[some]).float().log_softmax(-1)
        seen = torch.arange(window, device=ids.device) <= column_of[some, None]
        target = Target(log_probs, next_ids[some], ids[row_of[some]], seen)
        yield Piece(held[some], target)


def _tensors(
    parameters: list[torch.nn.Parameter],
    optimiser: torch.optim.Adam,
    history: list[float],
    step: int,
) -> dict[str, Tensor]:
    named = {f"{i}.value": p.detach() for i, p in enumerate(parameters)}
    for i, p in enumerate(parameters):
        state = optimiser.state[p]
        named[f"{i}.mean"], named[f"{i}.square"] = state["exp_avg"], state["exp_avg_sq"]
    named["history"] = torch.tensor(history, dtype=torch.float64)
    return {**named, "done": torch.tensor(step)}


def _restore(
    parameters: list[torch.nn.Parameter],
    optimiser: torch.optim.Adam,
    history: list[float],
    checkpoint: Checkpoint | None,
    processes: Processes,
) -> int:
    """Take up what the first process has saved: all hold the same, and must be at the same step."""
    saved = checkpoint.load() if checkpoint and processes.is_first else None
    done = torch.zeros((), dtype=torch.long) if saved is None else saved["done"]
    processes.from_first([done])
    if done == 0:
        return 0
    past = torch.zeros(int(done), dtype=torch.float64) if saved is None else saved["history"]
    processes.from_first([past])
    history.extend(past.tolist())
    for i, p in enumerate(parameters):
        mean, square = torch.zeros_like(p.data), torch.zeros_like(p.data)
        if saved is not None:
            p.data.copy_(saved[f"{i}.value"])
            mean.copy_(saved[f"{i}.mean"])
            square.copy_(saved[f"{i}.square"])
        processes.from_first([p.data, mean, square])
        step = done.to(torch.float32)
        optimiser.state[p] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
    return int(done)
