"""Heads of indirect object identification (IOI), measured on every prompt of given templates.

Wang et al., 2022 (https://arxiv.org/abs/2211.00593). IO is the name that occurs once, S the one
that occurs twice, END the last token; the score is the logit of IO minus that of S.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.paths import PathGradients, path_effects
from saccade.interp.effects.positions import HeadAt
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target, behind_a_space, effects_on_targets
from saccade.interp.heads.capture import capture, head_outputs
from saccade.interp.studies.roles.function_vectors import padded
from saccade.interp.studies.roles.names import NameWords, short_names
from saccade.interp.studies.roles.ov_circuits import copied_names
from saccade.interp.studies.roles.role import head_changes
from saccade.interp.studies.suites.suite import Progress

if TYPE_CHECKING:
    from saccade.interp.effects.joined_pass import CopyRun
    from saccade.interp.heads.model import LanguageModel

FILLS = 2  # prompts of each template and order
UNRELATED = 8  # prompts with three different names, for the means of each template
TRIES = 12  # for a prompt whose names are one token each in their places
BATCH = 6

Site = tuple[int, int]
Means = Mapping[int, Float[Tensor, "template head d_head"]]


class NamePrompt(NamedTuple):
    """A prompt whose next token is the name that occurs once."""

    template: int
    ids: Int[Tensor, " pos"]
    target: Target
    """IO against S."""
    io: int
    """The position of IO."""
    s2: int
    """The position of the second S."""


def name_prompts(model: LanguageModel, words: NameWords, *, seed: int) -> list[NamePrompt]:
    """Prompts of every template, in both orders of the names.

    A name at the start of a text may be another token than behind a space, or several: such draws
    are replaced by others, and a template for which none is found has no prompts.
    """
    chance = random.Random(seed)
    names = short_names(model, words)
    found = []
    for number, shape in enumerate(words.shapes):
        for turn in range(2 * FILLS):
            for _ in range(TRIES):
                io, s = chance.sample(names, 2)
                a, b = (io, s) if turn % 2 else (s, io)
                text = words.fill(chance, shape=shape, a=a, b=b, s=s)
                ids = model.encode(text)[0].cpu()
                at_io, at_s = (_places(model, ids, name) for name in (io, s))
                if len(at_io) == 1 and len(at_s) == 2:
                    target = Target(*(behind_a_space(model, name)[0] for name in (io, s)))
                    found.append(NamePrompt(number, ids, target, at_io[0], at_s[-1]))
                    break
    return found


def _places(model: LanguageModel, ids: Int[Tensor, " pos"], name: str) -> list[int]:
    """Where a name is one token: behind a space, or at the start of the text."""
    start = len(model.encoding.prefix)
    alone = model.encode(name)[0].tolist()[start:]
    places = (ids == behind_a_space(model, name)[0]).nonzero()[:, 0].tolist()
    if len(alone) == 1 and len(ids) > start and int(ids[start]) == alone[0]:
        places = sorted({start, *places})
    return places


@torch.no_grad()
def unrelated_means(model: LanguageModel, words: NameWords, *, seed: int) -> Means:
    """Mean activations at END of prompts with three different names, by template: their p_ABC."""
    chance = random.Random(f"unrelated {seed}")  # other draws than those of the prompts
    names = short_names(model, words)
    texts = []
    for shape in words.shapes:
        for _ in range(UNRELATED):
            a, b, s = chance.sample(names, 3)
            texts.append(model.encode(words.fill(chance, shape=shape, a=a, b=b, s=s))[0].cpu())
    rows: dict[int, list[Tensor]] = {at.index: [] for at in model.layers}
    for start in range(0, len(texts), 4 * BATCH):
        ids, lengths = padded(texts[start : start + 4 * BATCH])
        run = capture(model, ids.to(model.device), positions=torch.tensor(lengths)[:, None] - 1)
        for layer, z in run.z.items():
            rows[layer].append(z[:, 0].float())
    return {
        layer: torch.cat(each).view(len(words.shapes), UNRELATED, *each[0].shape[1:]).mean(1)
        for layer, each in rows.items()
    }


@dataclass(frozen=True, kw_only=True)
class NameRun:
    """What the model and every head do at END of each prompt; a site is a head."""

    template: Int[Tensor, " prompt"]
    difference: Float[Tensor, " prompt"]
    """The logit of IO minus that of S."""
    total: Float[Tensor, "prompt site"]
    """How far the difference falls when the head becomes its mean over unrelated prompts."""
    direct: Float[Tensor, "prompt site"]
    """The part of it on the direct path to the logits, norms at their scale in the plain run."""
    io: Float[Tensor, "prompt site"]
    """The attention from END to IO."""
    s2: Float[Tensor, "prompt site"]
    """The attention from END to the second S."""


@torch.no_grad()
def name_run(
    model: LanguageModel,
    prompts: Sequence[NamePrompt],
    means: Means,
    progress: Progress | None = None,
) -> NameRun:
    """Run every prompt with a changed copy of END for each head."""
    refuse_indirect(model)
    rows: list[tuple[Tensor, ...]] = []
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        ids, lengths = padded([prompt.ids for prompt in some])
        template = torch.tensor([prompt.template for prompt in some])
        mine = {layer: each[template.to(each.device)] for layer, each in means.items()}
        changes = head_changes(model, mine)
        run = run_copies(model, ids.to(model.device), changes, lengths=lengths, attention=True)
        targets = [prompt.target for prompt in some]
        pairs = torch.tensor([[each.token, each.against or 0] for each in targets])
        logits = model.unembedding.logits(run.captured.final[:, 0]).float().cpu()
        io, s = logits.gather(1, pairs).unbind(1)
        at = torch.arange(len(some))
        looked = [
            torch.cat(
                [
                    weights.cpu()[at, :, 0, torch.tensor(place)].float()
                    for weights in run.captured.attention.values()
                ],
                1,
            )
            for place in ([prompt.io for prompt in some], [prompt.s2 for prompt in some])
        ]
        total = effects_on_targets(model, run, targets).cpu()
        direct = _direct(model, run, mine, targets)
        rows.append((template, io - s, total, direct, *looked))
        if progress is not None:
            progress("effects on names", start + len(some), len(prompts))
    template, difference, total, direct, io, s2 = map(torch.cat, zip(*rows, strict=True))
    return NameRun(
        template=template, difference=difference, total=total, direct=direct, io=io, s2=s2
    )


def refuse_indirect(model: LanguageModel) -> None:
    """Refuse a model whose heads do not add to the stream that is unembedded."""
    if not all(at.reaches_stream for at in model.layers):
        raise ModelError(
            f"the heads of {model.name} have no direct path to the tokens",
            hint="take a model whose blocks add to the residual stream",
        )


def _direct(
    model: LanguageModel,
    run: CopyRun,
    means: Mapping[int, Float[Tensor, "batch head d_head"]],
    targets: Sequence[Target],
) -> Float[Tensor, "batch site"]:
    """What each head adds to the score along the direct path, above its mean."""
    along = torch.stack([target.direction(model.unembedding) for target in targets])
    whole = run.captured.final_residual
    assert whole is not None, "copies are run with the residual stream"
    found = []
    for at in model.layers:
        z = run.captured.z[at.index][:, 0]  # [batch, head, d_head]
        added = head_outputs(at, z - means[at.index].to(z))
        if at.post_norm is not None:
            added = at.post_norm.frozen(added, at.projection(z.flatten(-2))[:, None])
        states = model.final_norm.frozen((added * at.multiplier).to(whole), whole)
        found.append(torch.einsum("bhd,bd->bh", states.to(along), along))
    return torch.cat(found, 1).cpu()


@torch.no_grad()
def copy_rates(
    model: LanguageModel, prompts: Sequence[NamePrompt], *, suppressed: bool = False
) -> Float[Tensor, "prompt site"]:
    """Whether IO is among the five tokens that a head that reads it promotes, or suppresses, most.

    Wang et al., sections 3.1 and 3.4: the copy score, and the negative one.
    """
    found = []
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        ids, _ = padded([prompt.ids for prompt in some])
        places = torch.tensor([prompt.io for prompt in some], device=model.device)
        rows = copied_names(model, ids.to(model.device), places, suppressed=suppressed)
        found.append(torch.cat(list(rows.values()), 1))
    return torch.cat(found)


def paths_at_first_order(
    model: LanguageModel,
    prompts: Sequence[NamePrompt],
    means: Means,
    through: Sequence[Site],
    progress: Progress | None = None,
) -> Float[Tensor, "prompt site"]:
    """What every head at END gives to the score through some heads' activations at END.

    At first order (`saccade.interp.effects.paths.PathGradients`), to choose heads by.
    """
    rows = []
    for number, prompt in enumerate(prompts):
        end = len(prompt.ids) - 1
        replacement = _of_template(means, prompt.template)
        ids = prompt.ids[None].to(model.device)
        paths = PathGradients.record(model, ids, prompt.target, replacement=replacement)
        total = {at.index: torch.zeros(at.n_heads) for at in model.layers}
        for layer, head in through:
            for earlier, values in paths.through(layer, head, end).items():
                total[earlier] += values[end].float().cpu()
        rows.append(torch.cat(list(total.values())))
        if progress is not None:
            progress("paths to name movers", number + 1, len(prompts))
    return torch.stack(rows)


@torch.no_grad()
def exact_paths(
    model: LanguageModel,
    prompt: NamePrompt,
    means: Means,
    heads: Sequence[Site],
    through: Sequence[Site],
) -> Float[Tensor, " site"]:
    """What heads at END do to the score through each of some heads at END, measured, summed."""
    end = (len(prompt.ids) - 1,)
    replacement = _of_template(means, prompt.template)
    total = torch.zeros(len(heads))
    for layer, head in through:
        before = [HeadAt(*site, end) for site in heads if site[0] < layer]
        if not before:
            continue
        found = path_effects(
            model,
            prompt.ids[None].to(model.device),
            before,
            HeadAt(layer, head, end),
            replacement=replacement,
            target=prompt.target,
        )
        for at, site in enumerate(heads):
            if site[0] < layer:
                total[at] += found[HeadAt(*site, end)].on_token
    return total


def _of_template(means: Means, template: int) -> Replacement:
    return Replacement("prompt", {layer: each[template] for layer, each in means.items()})
