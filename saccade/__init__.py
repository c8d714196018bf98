"""saccade reads what every attention head of a language model says.

>>> import saccade
>>> model = saccade.open_model()  # doctest: +SKIP
>>> lenses = saccade.fit_lenses(model)  # doctest: +SKIP
>>> lenses.read("The Eiffel Tower is located in the city of")  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from saccade.errors import (
    CorpusError,
    InterventionError,
    LensError,
    MissingPackageError,
    ModelError,
    RecipeError,
    SaccadeError,
    StoreError,
    TaskError,
    TrainingError,
    UsageError,
)

if TYPE_CHECKING:
    from saccade.heads import (
        DEFAULT_MODEL,
        Ablate,
        InjectHead,
        InjectResidual,
        LanguageModel,
        Patch,
        Scale,
        intervene,
        mean_z,
        open_model,
        wrap_model,
    )
    from saccade.lenses import (
        FitConfig,
        Lens,
        Lenses,
        Reading,
        evaluate_lenses,
        fit_lenses,
        load_lenses,
        merge_lenses,
        push_lenses,
        read_corpus,
        register_lens,
        register_objective,
    )
    from saccade.viewer import show

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_MODEL",
    "Ablate",
    "CorpusError",
    "FitConfig",
    "InjectHead",
    "InjectResidual",
    "InterventionError",
    "LanguageModel",
    "Lens",
    "LensError",
    "Lenses",
    "MissingPackageError",
    "ModelError",
    "Patch",
    "Reading",
    "RecipeError",
    "SaccadeError",
    "Scale",
    "StoreError",
    "TaskError",
    "TrainingError",
    "UsageError",
    "__version__",
    "evaluate_lenses",
    "fit_lenses",
    "intervene",
    "load_lenses",
    "mean_z",
    "merge_lenses",
    "open_model",
    "push_lenses",
    "read_corpus",
    "register_lens",
    "register_objective",
    "show",
    "wrap_model",
]

# Found on first use: they need torch, which takes seconds to import, and `saccade --help` does not.
_HOMES = {
    "saccade.heads": (
        "DEFAULT_MODEL",
        "Ablate",
        "InjectHead",
        "InjectResidual",
        "LanguageModel",
        "Patch",
        "Scale",
        "intervene",
        "mean_z",
        "open_model",
        "wrap_model",
    ),
    "saccade.lenses": (
        "FitConfig",
        "Lens",
        "Lenses",
        "Reading",
        "evaluate_lenses",
        "fit_lenses",
        "load_lenses",
        "merge_lenses",
        "push_lenses",
        "read_corpus",
        "register_lens",
        "register_objective",
    ),
    "saccade.viewer": ("show",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(home), name)
            globals()[name] = value  # the next look-up does not come here
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
