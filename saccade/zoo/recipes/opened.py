"""A run opened again: the trained system, its settings and what it kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from saccade.errors import RecipeError
from saccade.processor import within_memory
from saccade.zoo.recipes.finding import find_recipe
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.settings import read_settings
from saccade.zoo.training.checkpoint import load_weights
from saccade.zoo.training.run_folder import RunFolder, differences

# What a recipe may raise when it is given what it did not keep itself.
UNFIT = (LookupError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError)


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A trained system and all that is needed to use it; several of them make an ensemble."""

    recipe: Recipe
    settings: Any
    kept: Mapping[str, Any]
    """What the job kept beside the weights."""
    models: tuple[nn.Module, ...]
    """In eval mode, with their best weights."""

    @property
    def model(self) -> nn.Module:
        """The one model of a run that is no ensemble."""
        if len(self.models) != 1:
            raise RecipeError(
                f"{self.recipe.name} cannot do this with {len(self.models)} runs together",
                hint="give one run",
            )
        (model,) = self.models
        return model

    def unknown_words(self, text: str) -> list[str]:
        """The words of a text that the system reads as ``<unk>``, each once."""
        find = self.recipe.unknown_words
        return [] if find is None else list(dict.fromkeys(find(self, text)))


def open_run(folder: str | Path | Sequence[str | Path]) -> OpenRun:
    """Open a run by its folder, or several runs of one recipe to be used together.

    The data it was trained on is not needed.
    """
    paths = [folder] if isinstance(folder, str | Path) else list(folder)
    opened = [_open(Path(path)) for path in paths]
    for path, other in zip(paths[1:], opened[1:], strict=True):
        _check_together(paths[0], opened[0], path, other)
    models = tuple(model for run in opened for model in run.models)
    first = opened[0]
    return OpenRun(recipe=first.recipe, settings=first.settings, kept=first.kept, models=models)


def _open(path: Path) -> OpenRun:
    folder = RunFolder(path)
    manifest = folder.manifest
    if not manifest.get("recipe"):
        raise RecipeError(
            f"{path} was not made by a recipe", hint="open it with the code that made it"
        )
    recipe = find_recipe(manifest["recipe"])
    settings = read_settings(recipe.settings, manifest["settings"])
    weights, kept = folder.read_best()[0], folder.kept
    try:
        with within_memory(copies=1):
            model = recipe.restore(settings, kept)
    except UNFIT as error:
        raise RecipeError(
            f"{path} cannot be opened: what it kept does not fit its recipe "
            f"({type(error).__name__}: {str(error)[:80]})",
            hint="copy the run again, or train it again",
        ) from error
    load_weights(model, weights, source=folder.best)
    model.eval().requires_grad_(False)
    return OpenRun(recipe=recipe, settings=settings, kept=kept, models=(model,))


def _check_together(path: str | Path, run: OpenRun, other_path: str | Path, other: OpenRun) -> None:
    wrong = ""
    if run.recipe.name != other.recipe.name:
        wrong = f"one is of {run.recipe.name}, the other of {other.recipe.name}"
    elif changed := differences(run.kept, other.kept, free=frozenset()):
        wrong = f"what they kept differs ({changed[:80]})"
    elif changed := differences(
        _without_training(run.settings),
        _without_training(other.settings),
        free=run.recipe.may_differ,
    ):
        wrong = changed
    if wrong:
        raise RecipeError(
            f"{path} and {other_path} cannot be used together: {wrong}",
            hint="an ensemble is of runs that differ in their training alone, such as its seed",
        )


def _without_training(settings: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if name != "training"}
