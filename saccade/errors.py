"""The errors a user can meet: each says what was expected, what was found and what to do next."""

import difflib
from collections.abc import Iterable


class SaccadeError(Exception):
    """A mistake or a failure that the user can do something about.

    >>> error = ModelError("no model named 'gtp2'", hint="did you mean 'gpt2'?")
    >>> print(error)
    no model named 'gtp2'
    >>> error.hint, error.exit_code
    ("did you mean 'gpt2'?", 1)
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(SaccadeError):
    """The request itself cannot be met: an empty prompt, a layer that does not exist."""

    exit_code = 2


class ModelError(SaccadeError):
    """A model that does not exist, is not a causal language model, or has no heads to read."""


class InterventionError(UsageError):
    """A change to a model that cannot be made, or that changed nothing."""


class LensError(SaccadeError):
    """A lens that is missing, damaged, or fitted for another model."""


class CorpusError(SaccadeError):
    """A text that cannot be read, or is too short to fit a lens on."""


class TaskError(SaccadeError):
    """A data set that is missing, or whose files have unexpected contents."""


class TrainingError(SaccadeError):
    """A training run that cannot start, continue or resume."""


class RecipeError(SaccadeError):
    """A recipe that does not exist, or a run of another recipe."""


class StoreError(SaccadeError):
    """A file that cannot be written, or cannot be read completely."""


class MissingPackageError(SaccadeError):
    """An optional package that this command needs and that is not installed."""


def suggest(name: str, known: Iterable[str], more: str = "") -> str:
    """The hint for an unknown name: the nearest known one, if there is one, followed by ``more``.

    >>> suggest("gtp2", ["gpt2", "llama"])
    "did you mean 'gpt2'?"
    >>> suggest("x", ["gpt2", "llama"])
    ''
    >>> suggest("gtp2", ["gpt2", "llama"], "two models are known")
    "did you mean 'gpt2'? two models are known"
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}?" if near else ""
    return f"{guess} {more}".strip()
