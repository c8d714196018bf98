"""`saccade edit`: change a model while it runs, and save the edit as a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from saccade.cli.options import DEFAULT_OPTIONS, Json, LensName, ModelOptions, with_model_options
from saccade.cli.places import read_head, read_place, read_positions, read_scaled
from saccade.errors import UsageError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.studies.edit.asked_edit import AskedChange
    from saccade.interp.studies.edit.edit_file import Edit
    from saccade.interp.studies.edit.injection_search import FoundEdit, SearchSpace, UnrelatedText


# The report of `saccade edit`: predictions without the edit and with it.

TOP = 5  # tokens shown per prediction


def facts_of(
    model: LanguageModel, edit: Edit, prompt: str, *, token: int | None, say: int
) -> dict[str, Any]:
    """The model's predictions after a prompt and its continuations, before and after.

    Args:
        token: whose probability is reported; default: the likeliest token before the edit.
    """
    from saccade.interp.studies.edit.edit_file import describe
    from saccade.interp.studies.prompts import go_on

    plain = _chances(model, prompt)
    continuation = go_on(model, prompt, say)
    with edit.applied(model):
        edited = _chances(model, prompt)
        continuation_edited = go_on(model, prompt, say)
    token = int(plain.argmax()) if token is None else token
    facts: dict[str, Any] = {
        "model": model.name,
        "prompt": prompt,
        "about": edit.about,
        "changes": [describe(each) for each in edit.changes],
        "token": model.tokens([token])[0],
        "before": float(plain[token]),
        "after": float(edited[token]),
        "predicts": _top(model, plain),
        "predicts_edited": _top(model, edited),
    }
    return facts | (
        {"continuation": continuation, "continuation_edited": continuation_edited} if say else {}
    )


def lines_of(facts: dict[str, Any]) -> str:
    """The report as text."""
    from saccade.interp.readings.reading_table import dotted

    done = ", ".join(facts["changes"])
    times = facts["after"] / max(facts["before"], 1e-30)
    effect = (
        f"{dotted(facts['token'])}: {100 * facts['before']:.2f}% -> {100 * facts['after']:.2f}% "
        f"({times:.1f} times)"
    )
    if "unrelated_perplexity" in facts:
        effect += f"; perplexity of unrelated text {100 * facts['unrelated_perplexity']:+.2f}%"
    lines = [done if facts["about"] == done else f"{facts['about']}: {done}", effect]
    for name, key in (("predicts", "predicts"), ("with the edit", "predicts_edited")):
        shown = "  ".join(f"{dotted(token)} {100 * p:.0f}%" for token, p in facts[key])
        lines.append(f"{name:<14} {shown}")
    for name, key in (("continuation", "continuation"), ("with the edit", "continuation_edited")):
        if key in facts:
            lines.append(f"{name:<14} {' '.join(facts[key].split())}")
    return "\n".join(lines)


def _chances(model: LanguageModel, prompt: str) -> Float[Tensor, " d_vocab"]:
    from saccade.interp.heads.capture import capture

    final = capture(model, model.encode(prompt), layers=[]).final[0, -1]
    return model.unembedding.logits(final).float().softmax(-1)


def _top(model: LanguageModel, chances: Float[Tensor, " d_vocab"]) -> list[tuple[str, float]]:
    best = chances.topk(TOP)
    tokens = model.tokens(best.indices.tolist())
    return list(zip(tokens, best.values.tolist(), strict=True))


EDIT_EXAMPLES = """
saccade edit "The capital of the country of Big Ben is" --memory England --token London --out edit
saccade edit "The Eiffel Tower is located in the city of" --ablate 23.4 --ablate 29.1 --say 12
"""


@with_model_options
def edit(
    prompt: Annotated[str, typer.Argument(help="The prompt.")],
    memory: Annotated[str | None, typer.Option(help="Token or text to inject.")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Token to promote; of a word of several tokens, the first. Default: the memory's."
        ),
    ] = None,
    form: Annotated[
        Literal["unembedding", "lens", "text"],
        typer.Option(
            help="How the memory becomes a vector: its tokens through the unembedding, its tokens "
            "through the inverse of a lens, or the activations after reading it as a text."
        ),
    ] = "unembedding",
    into: Annotated[
        str | None,
        typer.Option(
            help="Inject into this head (9.8) or after this layer (9). Default: the heads whose "
            "lenses most predict the memory."
        ),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(help="Relative to the norm of the activation there. Default: searched for."),
    ] = None,
    ablate: Annotated[
        list[str] | None, typer.Option(help="Ablate this head (9.8); can be repeated.")
    ] = None,
    by: Annotated[
        Literal["zero", "mean", "resample"],
        typer.Option(
            help="Replace an ablated head by zero, by its mean over a text, or by its activations "
            "at random positions of that text."
        ),
    ] = "zero",
    scale: Annotated[
        list[str] | None, typer.Option(help="Scale this head (9.8=0.5); can be repeated.")
    ] = None,
    patch: Annotated[
        list[str] | None,
        typer.Option(
            help="Replace this head (9.8) by its activation in another prompt; can be repeated."
        ),
    ] = None,
    other: Annotated[str | None, typer.Option("--from", help="The prompt to patch from.")] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="Positions: all (and what is generated), last, numbers (3,-1), or words of the "
            "prompt, for their last token. Default: last for a memory, all for other changes."
        ),
    ] = None,
    load: Annotated[Path | None, typer.Option(help="Apply a saved edit instead.")] = None,
    say: Annotated[
        int, typer.Option(help="Generate this many tokens, with the edit and without.", min=0)
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the edit to this folder.")] = None,
    corpus: Annotated[
        str | None,
        typer.Option(help="Unrelated text. Default: text that the model generates."),
    ] = None,
    lens: LensName = None,
    model: ModelOptions = DEFAULT_OPTIONS,
    as_json: Json = False,
) -> None:
    """Inject a memory into a model while it runs, or ablate, scale and patch its heads.

    A memory is injected into the heads whose lenses already predict it most. The strength is
    searched for: the one that raises the token most while the perplexity of unrelated text rises
    by at most 1 %. The weights are not modified: an edit is a small folder, applied by --load and
    by `saccade read --edit`.
    """
    heads = [*(ablate or []), *(scale or []), *(patch or [])]
    _check(prompt, memory=memory, load=load, heads=heads, only_memory=[into, strength])
    if load is not None and at is not None:
        raise UsageError("a loaded edit has its own positions", hint="leave out --at")
    place = None if into is None else read_place(into)
    ablated, patched = ([read_head(each) for each in some or []] for some in (ablate, patch))
    scaled = [read_scaled(each) for each in scale or []]

    from saccade.interp.studies.edit.asked_edit import AskedChange
    from saccade.interp.studies.edit.edit_file import load_edit
    from saccade.interp.studies.edit.injection_search import SearchSpace
    from saccade.interp.studies.prompts import check_room

    space = SearchSpace(
        form=form,
        places=None if place is None else [place],
        strengths=None if strength is None else [strength],
    )
    if bool(patched) != (other is not None):
        raise UsageError(
            "a patch needs a head and the prompt it is taken from",
            hint="give both --patch and --from",
        )
    opened = model.open()
    check_room(opened, prompt, say)
    if place is not None:
        layer, head = place
        opened.check_head(layer, head or 0)
    default_at = "all" if heads else "last"
    positions = read_positions(at if at is not None else default_at, prompt, opened)
    target = _target(opened, token, prompt)
    costs: dict[str, float] = {}
    if load is not None:
        edit = load_edit(load, opened)
    elif memory is not None:
        space = replace(space, positions=positions)
        found = _search(opened, prompt, memory, token=target, space=space, lens=lens, corpus=corpus)
        edit, target = found.edit, found.token
        costs = {"unrelated_perplexity": found.cost, "tried": found.n_tried}
    else:
        where = None if positions is None else tuple(positions)
        asked = [
            *(AskedChange(kind="ablate", layer=at, head=head, by=by) for at, head in ablated),
            *(
                AskedChange(kind="scale", layer=at, head=head, factor=factor)
                for (at, head), factor in scaled
            ),
            *(AskedChange(kind="patch", layer=at, head=head, source=other) for at, head in patched),
        ]
        asked = [replace(each, positions=where) for each in asked]
        edit, cost = _edit_of(opened, prompt, asked, corpus)
        costs = {"unrelated_perplexity": cost}
    facts = facts_of(opened, edit, prompt, token=target, say=say) | costs
    if out is not None:
        edit.save(out)
        typer.echo(f"wrote {out}", err=True)
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else lines_of(facts))


def _check(
    prompt: str,
    *,
    memory: str | None,
    load: Path | None,
    heads: list[str],
    only_memory: list[str | float | None],
) -> None:
    for text in (prompt, *([] if memory is None else [memory])):
        if not text.strip():
            raise UsageError(f"the text is empty: {text!r}", hint="give at least one token")
    if sum([memory is not None, load is not None, bool(heads)]) != 1:
        raise UsageError(
            "expected one kind of edit: a memory, changes to heads, or a saved edit",
            hint="give one of --memory, --load, and --ablate, --scale or --patch",
        )
    if memory is None and any(each is not None for each in only_memory):
        raise UsageError(
            "--into and --strength apply to a memory only", hint="give --memory, or leave them out"
        )


def _target(model: LanguageModel, token: str | None, prompt: str) -> int | None:
    from saccade.interp.effects.target import first_token, several_tokens

    if token is None:
        return None
    if note := several_tokens(model, token):
        typer.echo(note, err=True)
    return first_token(model, token, prompt)


def _search(
    model: LanguageModel,
    prompt: str,
    memory: str,
    *,
    token: int | None,
    space: SearchSpace,
    lens: str | None,
    corpus: str | None,
) -> FoundEdit:
    from saccade.interp.lenses.lens_set import load_lenses
    from saccade.interp.studies.edit.injection_search import MOST_COST, search_edit

    needs_lenses = space.places is None or space.form == "lens"
    lenses = load_lenses(lens, model) if needs_lenses else None
    if token is None:  # the last word of a text is what the text leads to
        word = memory.rsplit(maxsplit=1)[-1] if space.form == "text" else memory
        token = _target(model, word, prompt)
    assert token is not None, "a memory has tokens"
    unrelated = _unrelated(model, corpus, space.positions)
    found = search_edit(
        model, prompt, memory, token=token, unrelated=unrelated, space=space, lenses=lenses
    )
    if found.cost > MOST_COST:
        typer.echo(
            f"note: every trial raised the perplexity of unrelated text by more than "
            f"{MOST_COST:.0%}; this is the cheapest",
            err=True,
        )
    return found


def _edit_of(
    model: LanguageModel, prompt: str, asked: Sequence[AskedChange], corpus: str | None
) -> tuple[Edit, float]:
    from saccade.interp.studies.edit.asked_edit import Elsewhere, make_change
    from saccade.interp.studies.edit.edit_file import edit_of

    @cache
    def unrelated() -> UnrelatedText:  # slow to generate, so misuse is refused before
        return _unrelated(model, corpus, asked[0].positions)

    elsewhere = Elsewhere(model, lambda: unrelated().ids)
    changes = [make_change(model, each, prompt=prompt, elsewhere=elsewhere) for each in asked]
    return edit_of(model, changes, prompt=prompt), unrelated().cost(changes)


def _unrelated(
    model: LanguageModel, corpus: str | None, positions: Sequence[int] | None
) -> UnrelatedText:
    from saccade.interp.effects.replacement import reference_text
    from saccade.interp.studies.edit.injection_search import UnrelatedText

    reach = -min(positions or [-1])
    window = max(48, 2 * reach)  # the cost is measured on the second half
    return UnrelatedText(model, reference_text(model, corpus, window=window))
