"""All roles that are known, and `find_roles`, which scores every head for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from saccade.errors import ModelError, TaskError, UsageError, suggest
from saccade.interp.studies.roles.function_vectors import vector_roles
from saccade.interp.studies.roles.knowledge import knowledge_roles
from saccade.interp.studies.roles.names import name_effect_roles, name_roles
from saccade.interp.studies.roles.ov_circuits import successor_roles
from saccade.interp.studies.roles.patterns import (
    SINK_WEIGHT,
    pattern_roles,
    retrieval_roles,
    sink_roles,
)
from saccade.interp.studies.roles.role import Progress, Role, Roles, RoleScore, role_data

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role(
            name="induction",
            test="weight on the tokens after earlier occurrences of the token, on repeated random "
            "tokens: prefix matching (Olsson et al., 2022, arXiv 2209.11895)",
            measure=pattern_roles,
        ),
        Role(
            name="previous",
            test="weight on the token before, on repeated random tokens (Elhage et al., 2021; "
            "Olsson et al., 2022, arXiv 2209.11895)",
            measure=pattern_roles,
        ),
        Role(
            name="duplicate",
            test="weight on earlier occurrences of the token itself, on repeated random tokens "
            "(Wang et al., 2022, arXiv 2211.00593, section 3)",
            measure=pattern_roles,
        ),
        Role(
            name="name-mover",
            test="direct logits of the name that occurs once minus the other, times the weight on "
            "it (Wang et al., 2022, arXiv 2211.00593, section 3.1)",
            measure=name_roles,
        ),
        Role(
            name="copy",
            test="share of names that the head's OV circuit has among its top five (Wang et al., "
            "2022, arXiv 2211.00593, section 3.1)",
            measure=name_roles,
        ),
        Role(
            name="name-mover-effect",
            test="exact effect on logit(IO) - logit(S), times the weight on IO (Wang et al., 2022, "
            "arXiv 2211.00593, section 3.1)",
            measure=name_effect_roles,
            data="ioi",
        ),
        Role(
            name="name-suppressor",
            test="the same with the opposite sign: negative name movers (Wang et al., 2022, arXiv "
            "2211.00593, section 3.4)",
            measure=name_effect_roles,
            data="ioi",
        ),
        Role(
            name="sink",
            test="weight on the first token of texts of 64 tokens (Xiao et al., 2023, arXiv "
            "2309.17453; Gu et al., 2024, arXiv 2410.10781)",
            measure=sink_roles,
            threshold=SINK_WEIGHT,
        ),
        Role(
            name="successor",
            test="share of ordinal tokens whose successor the OV circuit behind the first MLP "
            "ranks first (Gould et al., 2023, arXiv 2312.09230, section 2)",
            measure=successor_roles,
        ),
        Role(
            name="retrieval",
            test="share of a fact's tokens in a long text that are copied while the largest weight "
            "is on them (Wu et al., 2024, arXiv 2404.15574, section 2)",
            measure=retrieval_roles,
            threshold=0.1,
        ),
        Role(
            name="function-vector",
            test="average indirect effect on the answer's probability in prompts with shuffled "
            "examples (Todd et al., 2024, arXiv 2310.15213, section 2.3)",
            measure=vector_roles,
            data="function-vectors",
            needs_data=True,
        ),
        Role(
            name="knowledge",
            test="exact effect on a subject's attribute, times the weight on the subject (Geva et "
            "al., 2023, arXiv 2304.14767; Hernandez et al., 2024, arXiv 2308.09124)",
            measure=knowledge_roles,
            data="relations",
            needs_data=True,
        ),
    )
}
QUICK = ("induction", "previous", "duplicate", "name-mover", "copy")
"""Roles of a few forward passes on generated text."""


@torch.no_grad()
def find_roles(
    model: LanguageModel,
    *,
    roles: Sequence[str] | None = None,
    seed: int = 0,
    data: str | Path | None = None,
    leave_out: bool | None = None,
    progress: Progress | None = None,
) -> Roles:
    """Score every head for every role, each by its published test.

    Args:
        roles: names in `ROLES`; by default all.
        data: the folder with data sets; by default that of ``SACCADE_DATA``.
        leave_out: leave out a role that cannot be measured, because its data set is missing or the
            model cannot do what it is about; `Roles.left_out` says why. False refuses it. By
            default named roles are refused, and others left out.

    Raises:
        TaskError: the data set of a role that must not be left out is missing.
        ModelError: such a role cannot be measured on this model.
    """
    asked = tuple(ROLES) if roles is None else checked_roles(roles)
    leave_out = roles is None if leave_out is None else leave_out
    folders = {role: _folder(ROLES[role], data) for role in asked}
    left_out: dict[str, str] = {}
    for name, folder in folders.items():
        if ROLES[name].needs_data and folder is None:
            message = f"the role {name} needs the data set {ROLES[name].data}, which is not there"
            if not leave_out:
                raise TaskError(
                    message,
                    hint="name the folder that holds it with --data or SACCADE_DATA, or choose "
                    "other roles",
                )
            left_out[name] = message
    found: dict[str, RoleScore] = {}
    for name in asked:
        if name in found or name in left_out:
            continue
        try:
            found |= ROLES[name].measure(model, seed, folders[name], progress)
        except (ModelError, TaskError, UsageError) as error:
            if not leave_out:
                raise
            same = [each for each in asked if ROLES[each].measure is ROLES[name].measure]
            left_out |= dict.fromkeys(same, str(error))
    kept = [role for role in asked if role in found]
    return Roles(
        model=model.name,
        seed=seed,
        found={role: found[role] for role in kept},
        tests={role: each.test for role, each in ROLES.items()},
        thresholds={
            role: ROLES[role].threshold or 0.0 for role in kept if ROLES[role].threshold is not None
        },
        left_out=left_out,
    )


def _folder(role: Role, data: str | Path | None) -> Path | None:
    return None if role.data is None else role_data(role.data, data)


def checked_roles(asked: Sequence[str]) -> tuple[str, ...]:
    """The roles of these names, in the order of `ROLES`."""
    if unknown := [name for name in asked if name not in ROLES]:
        hint = suggest(unknown[0], ROLES, f"roles are {', '.join(ROLES)}")
        raise UsageError(f"no role {unknown[0]!r}", hint=hint)
    return tuple(role for role in ROLES if role in asked)
