"""Recipes `adding-*`, `copying-*`, `row-mnist`: what a single cell remembers over many steps.

- The adding problem: which cell can carry a number over 150 steps? Le et al., 2015
  (https://arxiv.org/abs/1504.00941), figure 1, and Arjovsky et al., 2016
  (https://arxiv.org/abs/1511.06464), figure 2.
- The copying problem: which cell can carry ten symbols over a delay of 100 steps? Arjovsky et
  al., 2016, figure 1.
- MNIST read row by row, as a sequence of 28 steps. Le et al. read it pixel by pixel, in 784.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.models.sequence_reader import SequenceReader, influence
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.run import TrainedRun
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
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import Batch, FewOrNone, Many, NonNegative, TrainConfig, Width

LE = "https://arxiv.org/abs/1504.00941, figure 1"
ARJOVSKY = "https://arxiv.org/abs/1511.06464, figure 2"
PICTURE = "The paper shows curves and no numbers; always predicting 1 has an error of 0.167."
# Far from the seeds of training runs, which are small.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002
# Number of batches between validations and log lines; generated data have no end.
EPOCH = 200
N_CLASSES = 10

ADDING = TrainConfig(steps=6000, minutes=15.0, learning_rate=0.01, clip=1.0)
COPYING = TrainConfig(
    steps=4000, minutes=15.0, learning_rate=0.01, clip=1.0, schedule="cosine", warmup=100
)
ROW_MNIST = TrainConfig(
    epochs=16, minutes=15.0, learning_rate=0.004, clip=1.0, schedule="cosine", warmup=200
)


@dataclass(frozen=True, kw_only=True)
class AddingSettings:
    """The cell, and the length of the sequences."""

    cell: str = "lstm"
    """Any cell of saccade.zoo.cells."""
    d_hidden: Width = 128
    """Hidden size."""
    is_keeping: bool = False
    """Initialise the gates of lstm and gru to keep values for up to the whole sequence."""
    length: Many = 150
    """Sequence length."""
    batch: Batch = 64
    """Sequences in a batch."""
    enough: NonNegative = 0.003
    """Training ends when the held-out error is below this."""
    n_valid: Many = 1000
    """Validation sequences."""
    n_test: Many = 5000
    """Test sequences."""
    training: TrainConfig = ADDING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class AddingRecipe(Recipe):
    """The adding problem, solved at an error of 0.01."""

    system: str = "sequence_reader"
    task: str = "adding"
    metric: str = "mse"
    is_better: Literal["less", "more"] = "less"
    target: float | None = 0.01
    source: str = LE
    note: str = PICTURE

    def build(self, settings: AddingSettings, data: Path | None) -> Job:
        """New sequences at every step, until the held-out error is well below 0.01."""
        del data  # sequences are generated, not read
        valid = adding_batch(0, length=settings.length, batch=settings.n_valid, seed=VALID_SEED)
        return Job(
            model=self.restore(settings, {}),
            batches=lambda epoch: _without_end(adding_batch, settings, epoch),
            loss=lambda model, batch: LossOut(_error(model, batch), n=len(batch.targets)),
            validate=lambda model: {"mse": _error(model, to_device_of(model, valid)).item()},
            score="mse",
            is_better="less",
            config=settings.training,
            is_done=lambda scores: scores["mse"] < settings.enough,
        )

    def restore(self, settings: AddingSettings, kept: Mapping[str, Any]) -> SequenceReader:
        """The untrained model."""
        del kept
        longest = settings.length if settings.is_keeping else None
        return SequenceReader(
            d_input=2, d_hidden=settings.d_hidden, d_output=1, cell=settings.cell, longest=longest
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Mean squared error on held-out sequences."""
        del data
        settings = run.settings
        test = adding_batch(0, length=settings.length, batch=settings.n_test, seed=TEST_SEED)
        return {"mse": _error(run.model, to_device_of(run.model, test)).item()}

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The influence of each number on the predicted sum."""
        del data
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
        reader = _reader(run.model)
        inputs = to_device_of(reader, torch.tensor([numbers, marks]).T)  # [pos, 2]
        said = reader.at_end(inputs[None]).item()
        return [
            Trace(
                kind="influence",
                steps=(f"{said:.2f}",),
                memory=tuple(words),
                weights=reader.influence_on_end(inputs).cpu(),
                title="Influence of each number on the predicted sum",
            )
        ]


def _error(model: nn.Module, batch: AddingBatch) -> Float[Tensor, ""]:
    return functional.mse_loss(_reader(model).at_end(batch.inputs)[:, 0], batch.targets)


@dataclass(frozen=True, kw_only=True)
class CopyingSettings:
    """The cell, and the length of the delay."""

    cell: str = "unitary"
    """Any cell of saccade.zoo.cells."""
    d_hidden: Width = 128
    """Hidden size."""
    is_keeping: bool = False
    """Initialise the gates of lstm and gru to keep values for up to the whole sequence."""
    length: Many = 100
    """Steps of the delay."""
    batch: Batch = 64
    """Sequences in a batch."""
    enough: NonNegative = 0.9999
    """Training ends when this fraction of the held-out symbols is recalled."""
    n_valid: Many = 500
    """Validation sequences."""
    n_test: Many = 2000
    """Test sequences."""
    training: TrainConfig = COPYING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class CopyingRecipe(Recipe):
    """The copying problem, solved when nearly all symbols are recalled."""

    system: str = "sequence_reader"
    task: str = "copying"
    metric: str = "recalled"
    source: str = "https://arxiv.org/abs/1511.06464, figure 1"

    def build(self, settings: CopyingSettings, data: Path | None) -> Job:
        """New sequences at every step, until nearly all held-out symbols are recalled."""
        del data  # sequences are generated, not read
        valid = copying_batch(0, length=settings.length, batch=settings.n_valid, seed=VALID_SEED)
        return Job(
            model=self.restore(settings, {}),
            batches=lambda epoch: _without_end(copying_batch, settings, epoch),
            loss=lambda model, batch: LossOut(_nats(model, batch), n=batch.targets.numel()),
            validate=lambda model: _copying_metrics(model, to_device_of(model, valid)),
            score="nats",
            is_better="less",
            config=settings.training,
            is_done=lambda scores: scores["recalled"] > settings.enough,
        )

    def restore(self, settings: CopyingSettings, kept: Mapping[str, Any]) -> SequenceReader:
        """The untrained model."""
        del kept
        longest = settings.length + 2 * N_COPIED if settings.is_keeping else None
        return SequenceReader(
            d_input=D_VOCAB,
            d_hidden=settings.d_hidden,
            d_output=D_VOCAB,
            cell=settings.cell,
            longest=longest,
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """The fraction of symbols recalled, on held-out sequences."""
        del data
        settings = run.settings
        test = copying_batch(0, length=settings.length, batch=settings.n_test, seed=TEST_SEED)
        return _copying_metrics(run.model, to_device_of(run.model, test))

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The influence of each input symbol on each output symbol."""
        del data
        symbols = [int(word) for word in text.split() if word.isdigit() and int(word) < N_KINDS]
        if len(symbols) != N_COPIED or len(text.split()) != N_COPIED:
            raise UsageError(
                f"expected {N_COPIED} numbers from 0 to {N_KINDS - 1}, got {text!r}",
                hint="for example '3 1 4 1 5 2 6 5 3 5'",
            )
        heard = copying_batch(0, length=run.settings.length, batch=1, seed=0).inputs
        heard[0, :N_COPIED] = torch.tensor(symbols)
        reader = _reader(run.model)
        with torch.enable_grad():
            inputs = _one_hot(to_device_of(reader, heard)).requires_grad_()
            best = reader(inputs)[0, -N_COPIED:].log_softmax(-1).max(-1)
            weights = influence(best.values, inputs)[:, 0].cpu()  # [said, pos]
        return [
            Trace(
                kind="influence",
                steps=tuple(map(str, best.indices.tolist())),
                memory=tuple(map(str, symbols)),
                weights=weights[:, :N_COPIED],
                title="Influence of each input symbol on each output; the delay has the rest",
            )
        ]


def _copying_metrics(model: nn.Module, batch: CopyingBatch) -> dict[str, float]:
    """``recalled``: of the ten symbols; ``nats``: loss a step, blanks included, as in the paper."""
    logits = model(_one_hot(batch.inputs))
    said = logits[:, -N_COPIED:].argmax(-1)
    right = (said == batch.targets[:, -N_COPIED:]).float().mean()
    nats = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    return {"recalled": right.item(), "nats": nats.item()}


def _nats(model: nn.Module, batch: CopyingBatch) -> Float[Tensor, ""]:
    return functional.cross_entropy(
        model(_one_hot(batch.inputs)).flatten(0, 1), batch.targets.flatten()
    )


def _one_hot(symbols: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
    return functional.one_hot(symbols, D_VOCAB).float()


@dataclass(frozen=True, kw_only=True)
class RowMnistSettings:
    """The cell, and its input."""

    cell: str = "lstm"
    """Any cell of saccade.zoo.cells."""
    d_hidden: Width = 128
    """Hidden size."""
    batch: Batch = 128
    """Digits in a batch."""
    max_shift: FewOrNone = 1
    """Data augmentation: maximum shift of a batch in pixels; 0: none."""
    training: TrainConfig = ROW_MNIST
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class RowMnistRecipe(Recipe):
    """MNIST read row by row."""

    system: str = "sequence_reader"
    task: str = "row_mnist"
    metric: str = "accuracy"

    def build(self, settings: RowMnistSettings, data: Path | None) -> Job:
        """Digits read row by row."""
        train, valid = read_mnist("train", data), read_mnist("valid", data)
        seed = settings.training.seed

        def batches(epoch: int) -> list[RowBatch]:
            return list(row_batches(train, batch=settings.batch, seed=seed, epoch=epoch))

        def loss(model: nn.Module, batch: RowBatch) -> LossOut:
            logits = _reader(model).at_end(_shifted(batch.inputs, settings.max_shift))
            return LossOut(functional.cross_entropy(logits, batch.labels), n=len(batch.labels))

        return Job(
            model=self.restore(settings, {}),
            batches=batches,
            loss=loss,
            validate=lambda model: {"accuracy": accuracy(model, valid)},
            score="accuracy",
            is_better="more",
            config=settings.training,
        )

    def restore(self, settings: RowMnistSettings, kept: Mapping[str, Any]) -> SequenceReader:
        """The untrained model."""
        del kept
        return SequenceReader(
            d_input=28, d_hidden=settings.d_hidden, d_output=N_CLASSES, cell=settings.cell
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Accuracy on the test digits in per cent."""
        return {"accuracy": accuracy(run.model, read_mnist("test", data))}

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The influence of each row of a test digit on the predicted class."""
        test = read_mnist("test", data)
        if not text.strip().isdigit() or int(text) >= len(test.labels):
            raise UsageError(
                f"expected the number of a test digit, 0 to {len(test.labels) - 1}, got {text!r}",
                hint="for example 0, which shows a seven",
            )
        reader = _reader(run.model)
        rows = to_device_of(reader, as_rows(test.images[int(text)][None]))
        return [
            Trace(
                kind="influence",
                steps=(str(reader.at_end(rows).argmax().item()),),
                memory=tuple(f"row {place}" for place in range(rows.shape[1])),
                weights=reader.influence_on_end(rows[0]).cpu(),
                title=f"Influence of each row of test digit {int(text)} on the predicted class",
            )
        ]


def accuracy(model: nn.Module, digits: Digits) -> float:
    """Accuracy in per cent."""
    reader, right = _reader(model), 0
    for images, labels in zip(digits.images.split(500), digits.labels.split(500), strict=True):
        named = reader.at_end(to_device_of(reader, as_rows(images))).argmax(-1).cpu()
        right += int((named == labels).sum())
    return 100 * right / len(digits.labels)


def _shifted(images: Float[Tensor, "batch height width"], most: int) -> Tensor:
    """The whole batch shifted by up to ``most`` pixels in each direction; 0: unchanged."""
    if most == 0:
        return images
    down, right = torch.randint(-most, most + 1, (2,)).tolist()
    return images.roll((down, right), dims=(1, 2))  # the margin of a digit is empty


def _without_end(
    make: Callable[..., Any], settings: AddingSettings | CopyingSettings, epoch: int
) -> Iterator[Any]:
    """The batches of one epoch of generated data."""
    seed = settings.training.seed
    for step in range(epoch * EPOCH, (epoch + 1) * EPOCH):
        yield make(step, length=settings.length, batch=settings.batch, seed=seed)


def _reader(model: nn.Module) -> SequenceReader:
    """The reader itself."""
    assert isinstance(model, SequenceReader), f"no reader but {type(model).__name__}"
    return model


RECIPES = (
    AddingRecipe(
        name="adding-lstm",
        about="An LSTM adds two numbers of a sequence of 150.",
        settings=AddingSettings(cell="lstm", is_keeping=True),
        minutes=2.0,
    ),
    AddingRecipe(
        name="adding-gru",
        about="A GRU adds two numbers of a sequence of 150.",
        settings=AddingSettings(cell="gru", is_keeping=True),
        minutes=1.0,
        source=ARJOVSKY,
    ),
    AddingRecipe(
        name="adding-irnn",
        about="Rectified units initialised as the identity add two numbers of a sequence of 150.",
        settings=AddingSettings(
            cell="irnn",
            training=TrainConfig(
                steps=20_000, minutes=30.0, learning_rate=0.002, clip=1.0, warmup=1000
            ),
        ),
        minutes=2.0,
    ),
    AddingRecipe(
        name="adding-unitary",
        about="A unitary RNN with a complex state adds two numbers of a sequence of 150.",
        settings=AddingSettings(
            cell="unitary",
            training=TrainConfig(
                steps=10_000, minutes=40.0, learning_rate=0.003, clip=1.0, schedule="cosine"
            ),
        ),
        minutes=20.0,
        source=ARJOVSKY,
    ),
    AddingRecipe(
        name="adding-tanh",
        about="The control: a simple tanh RNN does not learn to add over 150 steps.",
        settings=AddingSettings(cell="elman", training=replace(ADDING, learning_rate=0.001)),
        target=None,
        minutes=5.0,
        note="It is expected to fail: the result is near 0.167, the error of always predicting 1.",
    ),
    CopyingRecipe(
        name="copying-unitary",
        about="A unitary RNN with a complex state recalls ten symbols after 100 blank steps.",
        settings=CopyingSettings(),
        target=0.99,
        published=1.0,
        minutes=0.5,
        note="The paper's curve reaches an error of zero; guessing recalls 0.125.",
    ),
    CopyingRecipe(
        name="copying-lstm",
        about="The control: an LSTM in the same time.",
        settings=CopyingSettings(cell="lstm", is_keeping=True),
        minutes=15.0,
        note="In the paper it stays at chance, 0.125, for delays of 100 and more.",
    ),
    RowMnistRecipe(
        name="row-mnist",
        about="An LSTM reads a digit row by row and classifies it.",
        settings=RowMnistSettings(),
        target=98.5,
        source="https://arxiv.org/abs/1504.00941 reads pixel by pixel (97.0 with an IRNN)",
        note="Row by row is easier than the paper's pixel by pixel: 28 steps, not 784.",
        minutes=4.0,
    ),
)
