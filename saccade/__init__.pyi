# The public names, once each: `saccade/__init__.py` loads them from here on first use.
from .errors import (
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
from .interp.atlas.atlas import Atlas, load_atlas, merge_atlases
from .interp.atlas.atlas_config import AtlasConfig
from .interp.atlas.build import build_atlas
from .interp.effects.effects import Effect, measure_effects
from .interp.effects.replacement import Replacement
from .interp.heads.intervene import (
    Ablate,
    InjectHead,
    InjectResidual,
    Patch,
    Scale,
    intervene,
    mean_z,
)
from .interp.heads.model import DEFAULT_MODEL, LanguageModel, open_model, wrap_model
from .interp.lenses.corpus import read_corpus
from .interp.lenses.evaluate import evaluate_lenses
from .interp.lenses.fit import fit_lenses, merge_lenses
from .interp.lenses.fit_config import FitConfig
from .interp.lenses.gradient import register_objective
from .interp.lenses.hub import push_lenses
from .interp.lenses.lens import Lens, register_lens
from .interp.lenses.lens_set import Lenses, load_lenses
from .interp.readings.generation import generate
from .interp.readings.prompt import PromptSpec
from .interp.readings.reader import read
from .interp.readings.reading import Reading
from .interp.readings.readings import Readings
from .interp.studies.suites.suite import SuiteConfig, SuiteResult
from .interp.studies.suites.suites import evaluate_suite
from .trace.trace import ImageTrace, Trace, load_trace, save_trace
from .viewer.export import show
from .zoo.recipes.recipe import Recipe, all_recipes, find_recipe, register_recipe
from .zoo.recipes.run import TrainedRun, evaluate_run, load_run, train_recipe
from .zoo.training.job import Job, LossOut, to_device_of
from .zoo.training.settings import TrainConfig

__version__: str

__all__ = [
    "DEFAULT_MODEL",
    "Ablate",
    "Atlas",
    "AtlasConfig",
    "CorpusError",
    "Effect",
    "FitConfig",
    "ImageTrace",
    "InjectHead",
    "InjectResidual",
    "InterventionError",
    "Job",
    "LanguageModel",
    "Lens",
    "LensError",
    "Lenses",
    "LossOut",
    "MissingPackageError",
    "ModelError",
    "Patch",
    "PromptSpec",
    "Reading",
    "Readings",
    "Recipe",
    "RecipeError",
    "Replacement",
    "SaccadeError",
    "Scale",
    "StoreError",
    "SuiteConfig",
    "SuiteResult",
    "TaskError",
    "Trace",
    "TrainConfig",
    "TrainedRun",
    "TrainingError",
    "UsageError",
    "__version__",
    "all_recipes",
    "build_atlas",
    "evaluate_lenses",
    "evaluate_run",
    "evaluate_suite",
    "find_recipe",
    "fit_lenses",
    "generate",
    "intervene",
    "load_atlas",
    "load_lenses",
    "load_run",
    "load_trace",
    "mean_z",
    "measure_effects",
    "merge_atlases",
    "merge_lenses",
    "open_model",
    "push_lenses",
    "read",
    "read_corpus",
    "register_lens",
    "register_objective",
    "register_recipe",
    "save_trace",
    "show",
    "to_device_of",
    "train_recipe",
    "wrap_model",
]
