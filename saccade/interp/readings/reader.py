"""Read prompts: run them once, measure effects and ask lenses, and put it into readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.errors import ModelError, UsageError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.effects import HEADS, Effects, Kind, LensLogits, Part, measure_effects
from saccade.interp.effects.joined_pass import CopyRun
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import Captured
from saccade.interp.heads.residual_path import direct_states
from saccade.interp.lenses.lens import activation_at
from saccade.interp.lenses.top_tokens import TokenValue, largest, lens_prediction, token_rows
from saccade.interp.readings.prompt import Prompt, PromptSpec, encode_spec, is_chat
from saccade.interp.readings.reading import HeadReading, LensReading, Reading, Source

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses
    from saccade.interp.readings.readings import Readings
    from saccade.interp.readings.text_run import TextRun

SOURCES = 5  # attended positions kept for each head; the others mostly have very small weights


# More parameters than the house style has: each is one choice of what is read.
@overload
def read(  # pyright: ignore[reportOverlappingOverload]  # a text is an iterable of texts, too
    model: LanguageModel,
    text: str | Sequence[Mapping[str, str]],
    *,
    lenses: Lenses | None = ...,
    effects: bool = ...,
    position: int = ...,
    token: str | None = ...,
    against: str | None = ...,
    replacement: Replacement | None = ...,
    kinds: Sequence[Kind] = ...,
    top: int = ...,
    unembedding: bool = ...,
) -> Reading: ...
@overload
def read(
    model: LanguageModel,
    text: Iterable[str | PromptSpec | Sequence[Mapping[str, str]]],
    *,
    lenses: Lenses | None = ...,
    effects: bool = ...,
    position: int = ...,
    token: str | None = ...,
    against: str | None = ...,
    replacement: Replacement | None = ...,
    kinds: Sequence[Kind] = ...,
    top: int = ...,
    unembedding: bool = ...,
) -> Readings: ...
def read(  # noqa: PLR0913
    model: LanguageModel,
    text: Any,
    *,
    lenses: Lenses | None = None,
    effects: bool = True,
    position: int = -1,
    token: str | None = None,
    against: str | None = None,
    replacement: Replacement | None = None,
    kinds: Sequence[Kind] = HEADS,
    top: int = 10,
    unembedding: bool = False,
) -> Reading | Readings:
    """Read every head at one position of a text, in one pass of the model.

    A list of messages (dicts with "role" and "content") goes through the model's chat template. A
    list of prompts, or an iterator, is read in batches and gives `Readings`; each prompt is a text,
    a list of messages or a `PromptSpec`.

    Args:
        text: the text, messages, or prompts.
        lenses: also show what these lenses predict, and how far they agree with the effects.
        effects: measure the effects; without them only lenses are read.
        position: the token after which to read; negative positions count from the end.
        token: the next token that effects are measured on, as a user writes it; by default the
            likeliest one.
        against: a token whose logit is subtracted from it; by default the mean of all tokens.
        replacement: what replaces an ablated part; by default its mean over text of the model's
            own (`Replacement.usual`).
        kinds: "head", "attention" for whole attention layers, "feed-forward".
        top: tokens per ranking.
        unembedding: also show the raw unembedding of each head (figure 1 of Attention Lens,
            https://arxiv.org/abs/2310.16270), every norm on the path frozen at its scale.

    Raises:
        UsageError: the text is empty or too long, or the position does not exist.
    """
    top = checked_top(top, model)
    defaults = PromptSpec(token=token, against=against, position=position)
    if not isinstance(text, str) and not is_chat(text):
        from saccade.interp.readings.readings import read_many

        values = _replacement(model, replacement, effects=effects)
        return read_many(
            model,
            text,
            defaults=defaults,
            config=ReadConfig(
                lenses=lenses, replacement=values, kinds=kinds, top=top, unembedding=unembedding
            ),
        )
    prompt = encode_spec(model, PromptSpec.of(text).or_else(defaults))
    values = _replacement(model, replacement, effects=effects)
    config = ReadConfig(
        lenses=lenses, replacement=values, kinds=kinds, top=top, unembedding=unembedding
    )
    return read_batch(model, [prompt], config)[0]


def _replacement(
    model: LanguageModel, given: Replacement | None, *, effects: bool
) -> Replacement | None:
    return Replacement.usual(model) if effects and given is None else given


@dataclass(frozen=True, kw_only=True)
class ReadConfig:
    """What is read of each prompt: the arguments of `read` that are the same for all."""

    lenses: Lenses | None = None
    replacement: Replacement | None = None
    """None to read lenses only."""
    kinds: Sequence[Kind] = HEADS
    top: int = 10
    unembedding: bool = False


@torch.no_grad()
def read_batch(
    model: LanguageModel, prompts: Sequence[Prompt], config: ReadConfig
) -> list[Reading]:
    """Read prompts as one batch."""
    measured = measure(
        model,
        prompts,
        lenses=config.lenses,
        replacement=config.replacement,
        targets=[prompt.target for prompt in prompts],
        kinds=config.kinds,
        top=config.top,
    )
    return [
        reading_of(
            model,
            prompt,
            measured,
            row,
            lenses=config.lenses,
            top=config.top,
            unembedding=config.unembedding,
        )
        for row, prompt in enumerate(prompts)
    ]


class Measured(NamedTuple):
    """The run of a batch of prompts, with or without effects."""

    run: CopyRun
    effects: tuple[Effects, ...] | None


def measure(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    lenses: Lenses | None,
    replacement: Replacement | None,
    targets: Target | Sequence[Target | None] | None,
    kinds: Sequence[Kind],
    top: int,
) -> Measured:
    """Run prompts as one batch; without a replacement only the plain run."""
    lengths = [prompt.ids.shape[1] for prompt in prompts]
    ids = pad_sequence([prompt.ids[0] for prompt in prompts], batch_first=True)

    def run(*, attention: bool) -> Measured:
        if replacement is None:
            plain = run_copies(model, ids, [], lengths=lengths, attention=attention)
            return Measured(plain, None)
        found = measure_effects(
            model,
            ids,
            replacement=replacement,
            lengths=lengths,
            kinds=kinds,
            targets=targets,
            top=top,
            attention=attention,
            lens_logits=None if lenses is None else lens_logits_of(lenses),
        )
        return Measured(found.run, found.effects)

    try:
        return run(attention=True)
    except ModelError:  # a kernel that does not return its weights: the heads can still be read
        return run(attention=False)


def lens_logits_of(lenses: Lenses) -> LensLogits:
    """The logits of the lenses of heads, by layer."""

    def logits(layer: int, activation: Tensor) -> Tensor | None:
        lens = lenses.by_layer.get(layer)
        return lens(activation).float() if lens is not None and lens.site == "head" else None

    return logits


def reading_of(
    model: LanguageModel,
    prompt: Prompt,
    measured: Measured,
    row: int,
    *,
    lenses: Lenses | None = None,
    top: int = 10,
    unembedding: bool = False,
) -> Reading:
    """The reading of one prompt of a batch."""
    captured = _of_row(measured.run.captured, row, prompt.ids.shape[1])
    effects = None if measured.effects is None else measured.effects[row]
    p = model.unembedding.logits(captured.final[:, 0]).float().softmax(-1)
    found = {} if lenses is None else _lens_readings(lenses, captured, top)
    raw = _unembedded(model, captured, top) if unembedding else {}
    looks = _attended(captured, prompt)
    heads = [
        HeadReading(
            layer=at.index,
            head=head,
            effect=None if effects is None else effects.parts[Part(at.index, head, "head")],
            lens=found.get((at.index, head)),
            unembedded=raw.get((at.index, head), ()),
            attends=looks.get((at.index, head), ()),
        )
        for at in model.layers
        for head in range(at.n_heads)
        if effects is not None or (at.index, head) in found
    ]
    return Reading(
        model=model.name,
        text=prompt.text,
        tokens=prompt.tokens,
        position=prompt.ids.shape[1] - 1,
        template=[at for at, name in enumerate(prompt.template) if name is not None],
        prediction=tuple(token_rows(largest(p, top), model.tokens)[0]),
        target=None if effects is None else _token(model, effects.target.token, p[0]),
        against=None if effects is None else _token(model, effects.target.against, p[0]),
        replaced_by=None if effects is None else effects.by,
        heads=tuple(heads),
        others=(*_whole_parts(effects), *_streams(found)),
    )


def read_run(
    lenses: Lenses,
    run: TextRun,
    *,
    position: int = -1,
    top: int = 10,
    unembedding: bool = False,
) -> Reading:
    """What lenses predict, from a stored run: several lenses and positions need only one run."""
    at = run.position(position)
    captured = run.captured
    assert captured.final_residual is not None, "a stored run holds the residual stream"
    here = Captured(
        {layer: z[:, at : at + 1] for layer, z in captured.z.items()},
        captured.final[:, at : at + 1],
        {layer: stream[:, at : at + 1] for layer, stream in captured.residual.items()},
        captured.final_residual[:, at : at + 1],
        {layer: w[None, :, None, : at + 1] for layer, w in run.attention_at(at).items()},
    )
    prompt = Prompt(run.text, run.ids[:, : at + 1], run.tokens)
    measured = Measured(CopyRun(here, here.final[:, :0], {}, "whole"), None)
    top = checked_top(top, run.model)
    return reading_of(
        run.model, prompt, measured, 0, lenses=lenses, top=top, unembedding=unembedding
    )


def checked_top(top: int, model: LanguageModel) -> int:
    """A number of tokens to show, at most the vocabulary."""
    if top < 1:
        raise UsageError(f"cannot show {top} tokens of a head", hint="ask for 1 or more")
    return min(top, model.d_vocab)


def _of_row(captured: Captured, row: int, n_tokens: int) -> Captured:
    """One prompt of a batch, its attention without the padding."""
    at = slice(row, row + 1)
    end = captured.final_residual
    return Captured(
        {layer: z[at] for layer, z in captured.z.items()},
        captured.final[at],
        {layer: stream[at] for layer, stream in captured.residual.items()},
        None if end is None else end[at],
        {layer: weights[at, ..., :n_tokens] for layer, weights in captured.attention.items()},
    )


def _token(model: LanguageModel, token: int | None, p: Tensor) -> TokenValue | None:
    if token is None:
        return None
    return TokenValue(token, model.tokens([token])[0], float(p[token]))


LensReadings: TypeAlias = dict[tuple[int, int | None], LensReading]


def _lens_readings(lenses: Lenses, captured: Captured, top: int) -> LensReadings:
    """By layer and head, or layer and None for the residual stream."""
    model = lenses.model
    activation = {
        layer: activation_at(model, captured, layer, lens.site, positions=[0])
        for layer, lens in lenses.by_layer.items()
    }
    predicted = lens_prediction(lenses.logits(activation)[0], lenses.baseline, top=top)
    is_stream = {layer: lens.site == "residual" for layer, lens in lenses.by_layer.items()}
    columns = zip(
        lenses.sites,
        predicted.kl_from_baseline.tolist(),
        token_rows(predicted.predicts, model.tokens),
        # If fewer than `top` tokens are above (or below) the baseline, the ranking continues with
        # tokens of the other sign, which are not added (or not suppressed).
        token_rows(predicted.adds, model.tokens, sign=1),
        token_rows(predicted.suppresses, model.tokens, sign=-1),
        strict=True,
    )
    return {
        (layer, None if is_stream[layer] else head): LensReading(
            kl_from_baseline=kl,
            quality=lenses.quality_of(layer, head),
            predicts=predicts,
            adds=adds,
            suppresses=suppresses,
        )
        for (layer, head), kl, predicts, adds, suppresses in columns
    }


def _unembedded(
    model: LanguageModel, captured: Captured, top: int
) -> dict[tuple[int, int], Sequence[TokenValue]]:
    """The tokens of what each head adds directly to the final state, where it does."""
    found = {}
    for at in model.layers:
        if at.reaches_stream:
            states = direct_states(model, captured, at.index, positions=[0])[0, 0]
            rows = token_rows(largest(model.unembedding.linear(states).float(), top), model.tokens)
            found.update({(at.index, head): row for head, row in enumerate(rows)})
    return found


def _attended(captured: Captured, prompt: Prompt) -> dict[tuple[int, int], tuple[Source, ...]]:
    """The positions that heads attend to most; a run of template tokens counts as one."""
    sources = _sources(prompt)
    starts = torch.tensor([source.position for source in sources])
    found = {}
    for layer, weights in captured.attention.items():
        row = weights[0, :, 0].float().cpu()  # [head, pos]
        if len(sources) < row.shape[-1]:
            end = torch.cat([row.cumsum(-1), row.new_zeros(len(row), 1)], -1)  # 0 at position -1
            ends = torch.cat([starts[1:], torch.tensor([row.shape[-1]])]) - 1
            row = end[:, ends] - end[:, starts - 1]
        best = row.topk(min(SOURCES, row.shape[-1]), dim=-1)
        for head, (keys, shares) in enumerate(
            zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ):
            found[layer, head] = tuple(
                replace(sources[key], weight=share) for key, share in zip(keys, shares, strict=True)
            )
    return found


def _sources(prompt: Prompt) -> list[Source]:
    """The positions of a prompt, a run of template tokens as one."""
    n_tokens = prompt.ids.shape[1]
    names = prompt.template[:n_tokens] or (None,) * n_tokens
    found: list[Source] = []
    for at, name in enumerate(names):
        if name is not None and at and names[at - 1] is not None:
            found[-1] = replace(found[-1], length=found[-1].length + 1)
        else:
            found.append(Source(at, name or prompt.tokens[at], 0.0))
    return found


def _whole_parts(effects: Effects | None) -> list[HeadReading]:
    if effects is None:
        return []
    return [
        HeadReading(layer=part.layer, head=None, kind=part.kind, effect=effect, lens=None)
        for part, effect in effects.parts.items()
        if part.kind != "head"
    ]


def _streams(found: LensReadings) -> list[HeadReading]:
    return [
        HeadReading(layer=layer, head=None, kind="residual", effect=None, lens=lens)
        for (layer, head), lens in found.items()
        if head is None
    ]
