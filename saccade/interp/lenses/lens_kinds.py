"""Which kinds of lens there are: those of this package, and those that a plugin registers."""

from __future__ import annotations

from collections.abc import Mapping

from saccade.errors import UsageError, suggest
from saccade.interp.lenses.head_lens import DenseHeadLens, HeadLens
from saccade.interp.lenses.jacobian_lens import JacobianLens
from saccade.interp.lenses.lens import Lens, registered_kinds
from saccade.interp.lenses.residual_lenses import HeadLogitLens, LogitLens, TunedLens

# The one list of the package's own kinds; each says in its class how it is fitted.
OWN = (HeadLens, DenseHeadLens, JacobianLens, LogitLens, HeadLogitLens, TunedLens)


def _known() -> Mapping[str, type[Lens]]:
    return {**{kind.kind: kind for kind in OWN}, **registered_kinds()}


def lens_kinds() -> tuple[str, ...]:
    """The names of the kinds that are known.

    >>> lens_kinds()
    ('dense', 'head', 'jacobian', 'logit', 'logit-head', 'tuned')
    """
    return tuple(sorted(_known()))


def lens_kind(name: str) -> type[Lens]:
    """The kind of lens that has this name."""
    if name not in _known():
        raise UsageError(
            f"no lens kind {name!r}: known are {', '.join(lens_kinds())}",
            hint=suggest(
                name, _known(), "a file with a kind of your own is named with `--plugin FILE.py`"
            ),
        )
    return _known()[name]


def kinds_fitted_by(method: str) -> tuple[str, ...]:
    """The names of the kinds that can be fitted by a method.

    >>> kinds_fitted_by("polish")
    ('head', 'tuned')
    """
    return tuple(name for name in lens_kinds() if method in lens_kind(name).methods())


def fitted_kinds() -> tuple[str, ...]:
    """The names of the kinds that can be fitted at all; the others have nothing to learn.

    >>> fitted_kinds()
    ('dense', 'head', 'jacobian', 'tuned')
    """
    return tuple(name for name in lens_kinds() if lens_kind(name).methods())
