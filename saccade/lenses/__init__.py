"""A lens, how it is fitted, scored and stored; a reading made with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.lenses.collection import Lenses, load_lenses
    from saccade.lenses.corpus import Corpus, read_corpus
    from saccade.lenses.evaluate import evaluate_lenses
    from saccade.lenses.fit import fit_lenses
    from saccade.lenses.fit_config import FitConfig
    from saccade.lenses.head_lens import DenseHeadLens, HeadLens
    from saccade.lenses.hub import push_lenses
    from saccade.lenses.jacobian_lens import JacobianLens
    from saccade.lenses.lens import Lens, lens_kinds, register_lens
    from saccade.lenses.logit_lens import HeadLogitLens, LogitLens
    from saccade.lenses.merge import merge_lenses
    from saccade.lenses.objectives import Target, objectives, register_objective
    from saccade.lenses.reading import Reading
    from saccade.lenses.tuned_lens import TunedLens

# Name -> module: loaded when first used, so that the command line can show its help at once.
_HOMES = {
    "Corpus": "corpus",
    "DenseHeadLens": "head_lens",
    "FitConfig": "fit_config",
    "HeadLens": "head_lens",
    "HeadLogitLens": "logit_lens",
    "JacobianLens": "jacobian_lens",
    "Lens": "lens",
    "Lenses": "collection",
    "LogitLens": "logit_lens",
    "Reading": "reading",
    "Target": "objectives",
    "TunedLens": "tuned_lens",
    "evaluate_lenses": "evaluate",
    "fit_lenses": "fit",
    "lens_kinds": "lens",
    "load_lenses": "collection",
    "merge_lenses": "merge",
    "objectives": "objectives",
    "push_lenses": "hub",
    "read_corpus": "corpus",
    "register_lens": "lens",
    "register_objective": "objectives",
}
__all__ = [
    "Corpus",
    "DenseHeadLens",
    "FitConfig",
    "HeadLens",
    "HeadLogitLens",
    "JacobianLens",
    "Lens",
    "Lenses",
    "LogitLens",
    "Reading",
    "Target",
    "TunedLens",
    "evaluate_lenses",
    "fit_lenses",
    "lens_kinds",
    "load_lenses",
    "merge_lenses",
    "objectives",
    "push_lenses",
    "read_corpus",
    "register_lens",
    "register_objective",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"saccade.lenses.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
