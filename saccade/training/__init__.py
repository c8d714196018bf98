"""The one training loop: resume, progress, clipping, schedules, several processes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.training.config import TrainConfig
    from saccade.training.curriculum import Curriculum
    from saccade.training.job import Carried, Job, LossOut
    from saccade.training.loop import Trained, train
    from saccade.training.run_folder import RunFolder

# Name -> module: loaded when first used, so that the command line can show its help at once.
_HOMES = {
    "Carried": "job",
    "Curriculum": "curriculum",
    "Job": "job",
    "LossOut": "job",
    "RunFolder": "run_folder",
    "TrainConfig": "config",
    "Trained": "loop",
    "train": "loop",
}
__all__ = [
    "Carried",
    "Curriculum",
    "Job",
    "LossOut",
    "RunFolder",
    "TrainConfig",
    "Trained",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"saccade.training.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
