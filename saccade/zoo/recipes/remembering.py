"""Training, judging and watching a single cell on tasks that ask what it has kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.models.sequence_reader import SequenceReader, influence
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.tasks.long_range import (
    D_VOCAB,
    N_COPIED,
    N_KINDS,
    AddingBatch,
    CopyingBatch,
    adding_batch,
    copying_batch,
)
from saccade.zoo.tasks.mnist import Digits, RowBatch, as_rows, read_mnist, row_batches
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.adding import AddingSettings
    from saccade.zoo.recipes.copying import CopyingSettings
    from saccade.zoo.recipes.row_mnist import RowMnistSettings

# Far from every step of a training, whose seed is small.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002
# A validation and a line in the log come after so many batches, where data have no end.
EPOCH = 200
N_CLASSES = 10


def adding_job(settings: AddingSettings) -> Job:
    """New sequences at every step, until the held-out error is well below what counts as solved."""
    valid = adding_batch(0, length=settings.length, batch=settings.n_valid, seed=VALID_SEED)
    return Job(
        model=adding_model(settings),
        batches=lambda epoch: _without_end(adding_batch, settings, epoch),
        loss=lambda model, batch: LossOut(_error(model, batch), n=len(batch.targets)),
        validate=lambda model: {"mse": _error(model, valid).item()},
        score="mse",
        is_better="less",
        config=settings.training,
        is_done=lambda scores: scores["mse"] < settings.enough,
    )


def adding_model(settings: AddingSettings) -> SequenceReader:
    """The untrained model."""
    longest = settings.length if settings.is_keeping else None
    return SequenceReader(
        d_input=2, d_hidden=settings.d_hidden, d_output=1, cell=settings.cell, longest=longest
    )


def evaluate_adding(run: OpenRun) -> dict[str, float]:
    """Mean squared error on sequences that no step has seen."""
    settings = run.settings
    test = adding_batch(0, length=settings.length, batch=settings.n_test, seed=TEST_SEED)
    return {"mse": _error(run.model, test).item()}


def trace_adding(run: OpenRun, text: str) -> list[Trace]:
    """How much each number counts for the sum that is said."""
    words = text.split()
    try:
        numbers = [float(word.rstrip("*")) for word in words]
    except ValueError:
        numbers = []
    if not numbers:
        raise UsageError(
            f"expected numbers with spaces between them, got {text!r}",
            hint="mark those to be added with a star: '0.3 0.5* 0.1 0.9*'",
        )
    marks = [float(word.endswith("*")) for word in words]
    inputs = torch.tensor([numbers, marks]).T  # [pos, 2]
    said = _reader(run).at_end(inputs[None]).item()
    return [
        Trace(
            kind="influence",
            steps=(f"{said:.2f}",),
            memory=tuple(words),
            weights=_reader(run).influence_on_end(inputs),
            title="How much each number counts for the sum",
        )
    ]


def _error(model: nn.Module, batch: AddingBatch) -> Float[Tensor, ""]:
    return functional.mse_loss(_of(model).at_end(batch.inputs)[:, 0], batch.targets)


def copying_job(settings: CopyingSettings) -> Job:
    """New sequences at every step, until nearly all held-out symbols are said again."""
    valid = copying_batch(0, length=settings.length, batch=settings.n_valid, seed=VALID_SEED)
    return Job(
        model=copying_model(settings),
        batches=lambda epoch: _without_end(copying_batch, settings, epoch),
        loss=lambda model, batch: LossOut(_nats(model, batch), n=batch.targets.numel()),
        validate=lambda model: copying_figures(model, valid),
        score="nats",
        is_better="less",
        config=settings.training,
        is_done=lambda scores: scores["recalled"] > settings.enough,
    )


def copying_model(settings: CopyingSettings) -> SequenceReader:
    """The untrained model."""
    longest = settings.length + 2 * N_COPIED if settings.is_keeping else None
    return SequenceReader(
        d_input=D_VOCAB,
        d_hidden=settings.d_hidden,
        d_output=D_VOCAB,
        cell=settings.cell,
        longest=longest,
    )


def evaluate_copying(run: OpenRun) -> dict[str, float]:
    """The share of symbols recalled, on sequences that no step has seen."""
    settings = run.settings
    test = copying_batch(0, length=settings.length, batch=settings.n_test, seed=TEST_SEED)
    return copying_figures(run.model, test)


def copying_figures(model: nn.Module, batch: CopyingBatch) -> dict[str, float]:
    """``recalled``: of the ten symbols; ``nats``: a step, blanks included, as in the paper."""
    logits = model(_one_hot(batch.inputs))
    said = logits[:, -N_COPIED:].argmax(-1)
    right = (said == batch.targets[:, -N_COPIED:]).float().mean()
    nats = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    return {"recalled": right.item(), "nats": nats.item()}


def trace_copying(run: OpenRun, text: str) -> list[Trace]:
    """How much each symbol heard counts for each that is said."""
    symbols = [int(word) for word in text.split() if word.isdigit() and int(word) < N_KINDS]
    if len(symbols) != N_COPIED or len(text.split()) != N_COPIED:
        raise UsageError(
            f"expected {N_COPIED} numbers from 0 to {N_KINDS - 1}, got {text!r}",
            hint="for example '3 1 4 1 5 2 6 5 3 5'",
        )
    heard = copying_batch(0, length=run.settings.length, batch=1, seed=0).inputs
    heard[0, :N_COPIED] = torch.tensor(symbols)
    with torch.enable_grad():
        inputs = _one_hot(heard).requires_grad_()
        best = _reader(run)(inputs)[0, -N_COPIED:].log_softmax(-1).max(-1)
        weights = influence(best.values, inputs)[:, 0]  # [said, pos]
    return [
        Trace(
            kind="influence",
            steps=tuple(map(str, best.indices.tolist())),
            memory=tuple(map(str, symbols)),
            weights=weights[:, :N_COPIED],
            title="How much each symbol heard counts for each said; the silence has the rest",
        )
    ]


def _nats(model: nn.Module, batch: CopyingBatch) -> Float[Tensor, ""]:
    return functional.cross_entropy(
        model(_one_hot(batch.inputs)).flatten(0, 1), batch.targets.flatten()
    )


def _one_hot(symbols: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
    return functional.one_hot(symbols, D_VOCAB).float()


def row_mnist_job(settings: RowMnistSettings, data: Path | None) -> Job:
    """Digits read row by row."""
    train, valid = read_mnist("train", data), read_mnist("valid", data)
    seed = settings.training.seed

    def batches(epoch: int) -> list[RowBatch]:
        return list(row_batches(train, batch=settings.batch, seed=seed, epoch=epoch))

    def loss(model: nn.Module, batch: RowBatch) -> LossOut:
        logits = _of(model).at_end(_jittered(batch.inputs, settings.jitter))
        return LossOut(functional.cross_entropy(logits, batch.labels), n=len(batch.labels))

    return Job(
        model=row_mnist_model(settings),
        batches=batches,
        loss=loss,
        validate=lambda model: {"accuracy": accuracy(model, valid)},
        score="accuracy",
        is_better="more",
        config=settings.training,
    )


def row_mnist_model(settings: RowMnistSettings) -> SequenceReader:
    """The untrained model."""
    return SequenceReader(
        d_input=28, d_hidden=settings.d_hidden, d_output=N_CLASSES, cell=settings.cell
    )


def accuracy(model: nn.Module, digits: Digits) -> float:
    """Per cent of digits named right."""
    right = 0
    for images, labels in zip(digits.images.split(500), digits.labels.split(500), strict=True):
        right += int((_of(model).at_end(as_rows(images)).argmax(-1) == labels).sum())
    return 100 * right / len(digits.labels)


def evaluate_row_mnist(run: OpenRun, data: Path | None) -> dict[str, float]:
    """Per cent of the test digits named right."""
    return {"accuracy": accuracy(run.model, read_mnist("test", data))}


def trace_row_mnist(run: OpenRun, text: str) -> list[Trace]:
    """How much each row of a test digit counts for the class that is named."""
    test = read_mnist("test")
    if not text.strip().isdigit() or int(text) >= len(test.labels):
        raise UsageError(
            f"expected the number of a test digit, 0 to {len(test.labels) - 1}, got {text!r}",
            hint="for example 0, which shows a seven",
        )
    rows = as_rows(test.images[int(text)][None])
    return [
        Trace(
            kind="influence",
            steps=(str(_reader(run).at_end(rows).argmax().item()),),
            memory=tuple(f"row {place}" for place in range(rows.shape[1])),
            weights=_reader(run).influence_on_end(rows[0]),
            title=f"How much each row of test digit {int(text)} counts for its name",
        )
    ]


def _jittered(images: Float[Tensor, "batch height width"], most: int) -> Tensor:
    """The whole batch moved by up to ``most`` pixels either way; 0 leaves it as it is."""
    if most == 0:
        return images
    down, right = torch.randint(-most, most + 1, (2,)).tolist()
    return images.roll((down, right), dims=(1, 2))  # the margin of a digit is empty


def _without_end(
    make: Callable[..., Any], settings: AddingSettings | CopyingSettings, epoch: int
) -> Iterator[Any]:
    """The batches of one stretch of a generator's endless data."""
    seed = settings.training.seed
    for step in range(epoch * EPOCH, (epoch + 1) * EPOCH):
        yield make(step, length=settings.length, batch=settings.batch, seed=seed)


def _reader(run: OpenRun) -> SequenceReader:
    return _of(run.model)


def _of(model: nn.Module) -> SequenceReader:
    """The reader itself."""
    assert isinstance(model, SequenceReader), f"no reader but {type(model).__name__}"
    return model
