"""`saccade lens fidelity` and `saccade lens transfer`: are lenses true, and elsewhere?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saccade.cli import options
from saccade.errors import UsageError
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.studies.fidelity.config import FidelityConfig

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.corpus import Corpus
    from saccade.interp.lenses.gather import Progress
    from saccade.interp.lenses.lens_set import Lenses
    from saccade.interp.studies.fidelity.comparison import Kinds
    from saccade.interp.studies.fidelity.report import Fidelity
    from saccade.interp.studies.transfer import Moved, Shared, Transfer


LENS_FIDELITY_EXAMPLES = """
saccade lens fidelity --layer 12 --corpus wiki-test.txt --png fidelity.png
saccade lens fidelity --layer 12 --heads 0,3 --compare jacobian-lens --json
"""


@options.with_options_of(FidelityConfig)
@options.with_model_options
def lens_fidelity(
    settings: FidelityConfig,
    layer: Annotated[list[int], typer.Option(help="The layer; can be repeated.")],
    heads: Annotated[
        str | None, typer.Option(help="Heads of the layer, as 0,3,5. Default: all.")
    ] = None,
    corpus: Annotated[
        str,
        typer.Option(
            help="Text that the lenses were not fitted on: a text or JSONL file, a folder of them, "
            "a dataset, or self: text that the model generates."
        ),
    ] = "self",
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    lens: options.LensName = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="A folder of other lenses for the same test; can be repeated. One table compares "
            "them with these and with the raw unembedding."
        ),
    ] = None,
    as_json: options.Json = False,
    png: Annotated[
        Path | None, typer.Option(help="Write a heat map of a metric, layers x heads.")
    ] = None,
    draw: Annotated[
        Literal["ablation", "alignment", "spearman"],
        typer.Option(help="The metric of the heat map."),
    ] = "ablation",
    save: Annotated[
        bool,
        typer.Option(
            "--save/--no-save",
            help="Store the metrics in the manifest of the lenses, for `saccade read`.",
        ),
    ] = True,
    plugin: options.LensPlugin = None,
) -> None:
    """Intervene on the heads of a layer, and compare their effect with their lenses.

    ablation: the head is replaced by its mean; the correlation, over tokens and positions, of the
    change that its lens predicts with the change of the model's logits. alignment: the head is
    patched from another text; the mean of that correlation within each position. Beside the lens:
    the raw unembedding, and attribution by the gradient, at the text and on the path to the mean
    (--gradients). causal basis: the directions of the head with the largest influence on the
    lens; the rank correlation of their influence on lens and model, that of the variance along
    them, and what is left of the lens's when the variance is partialled out; then the same for
    random directions. 1 is perfect, 0 is chance. effect is the KL of the prediction without the
    head, in nats.
    """
    chosen = _numbers(heads)
    options.load_plugin(plugin)

    from saccade.interp.lenses.lens_set import find_lenses, load_lenses
    from saccade.interp.studies.fidelity.measure import measure_fidelity

    opened = model.open()
    for each in layer:
        for head in chosen or ():
            opened.check_head(each, head)
        opened.layer(each)
    path = find_lenses(lens, opened)
    lenses = load_lenses(path, opened)
    others = {
        Path(each).name: load_lenses(find_lenses(each, opened), opened) for each in compare or ()
    }
    text = _text(corpus, opened, lenses, settings)
    layers = list(dict.fromkeys(layer))
    with options.showing_progress() as progress:
        if others:
            kinds = _compare(lenses, others, text, layers, settings, progress)
            _show(kinds, as_json=as_json)
            return
        fidelity = measure_fidelity(
            lenses, text, layers=layers, heads=chosen, config=settings, progress=progress
        )
    if fidelity.is_fitted_on:
        typer.echo("note: the lenses were fitted on this very text; it is not held out", err=True)
    _write(fidelity, lenses, path if save and _is_folder(lens) else None, png, draw)
    _show(fidelity, as_json=as_json)


def _numbers(heads: str | None) -> list[int] | None:
    if heads is None:
        return None
    parts = [part.strip() for part in heads.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"--heads takes numbers with commas between them, got {heads!r}",
            hint="for example --heads 0,3,5",
        )
    return [int(part) for part in parts]


def _is_folder(lens: str | None) -> bool:
    """What comes from the hub is not ours to write to."""
    return lens is None or Path(lens).expanduser().is_dir()


def _text(corpus: str, model: LanguageModel, lenses: Lenses, settings: FidelityConfig) -> Corpus:
    from saccade.interp.lenses.corpus import read_corpus
    from saccade.interp.lenses.fit import SELF
    from saccade.interp.lenses.self_text import write_corpus

    limit = model.max_positions
    if limit is not None and settings.window > limit:
        raise UsageError(
            f"a window of {settings.window} tokens is longer than the model's context of {limit}",
            hint=f"use a window of at most {limit}",
        )
    if corpus == SELF:
        n_tokens = settings.windows * settings.window
        seed = lenses.provenance.seed + 1  # another text than what lenses are fitted on
        return write_corpus(model, n_tokens=n_tokens, window=settings.window, seed=seed)
    # Sixteen times what is needed, so that the windows are of many places in the text.
    n_tokens = 16 * settings.windows * settings.window
    return read_corpus(corpus, model, window=settings.window, max_tokens=n_tokens)


def _compare(
    lenses: Lenses,
    others: dict[str, Lenses],
    text: Corpus,
    layers: list[int],
    settings: FidelityConfig,
    progress: Progress,
) -> Kinds:
    from saccade.interp.lenses.residual_lenses import baseline_lenses, has_direct_path
    from saccade.interp.studies.fidelity.comparison import compare_kinds

    every = {lenses.provenance.method: lenses, **others}
    if has_direct_path(lenses.model):
        every = {"unembedding": baseline_lenses(lenses.model, "logit-head"), **every}
    return compare_kinds(every, text, layers=layers, config=settings, progress=progress)


def _write(
    fidelity: Fidelity, lenses: Lenses, save_to: Path | None, png: Path | None, measure: str
) -> None:
    if png is not None:
        from saccade.interp.lenses.evaluation import save_heat_map

        title = f"Fidelity of each lens: {measure}\n{fidelity.model}"
        save_heat_map(png, fidelity.by_layer(measure), title=title, label="correlation")
        typer.echo(f"wrote {png}", err=True)
    if save_to is not None:
        from saccade.interp.lenses.lens_set import add_quality

        add_quality(save_to, lenses, fidelity.quality())
        typer.echo(f"saved the metrics in {save_to}", err=True)


def _show(found: Fidelity | Kinds, *, as_json: bool) -> None:
    if as_json:
        typer.echo(found.to_json())
        return
    from rich.console import Console

    Console(highlight=False).print(found.to_tables())


LENS_TRANSFER_EXAMPLES = """
saccade lens transfer --corpus wiki-test.txt --png transfer.png
saccade lens transfer --corpus wiki-test.txt --to my-fine-tuned-model --json
"""


@options.with_model_options
def lens_transfer(
    corpus: Annotated[
        str, typer.Option(help="Held-out text: a text or JSONL file, a folder of them, a dataset.")
    ],
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    lens: options.LensName = None,
    to: Annotated[
        str | None,
        typer.Option(help="Another version of the model to use the lenses on: a name or a folder."),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Solve lenses that neighbouring layers share.")
    ] = False,
    layer: Annotated[
        list[int] | None, typer.Option(help="Only these layers; can be repeated.")
    ] = None,
    window: options.Window = FitConfig.window,
    tokens: options.MostTokens = FitConfig.tokens,
    as_json: options.Json = False,
    png: Annotated[
        Path | None, typer.Option(help="Write a heat map of the extra KL, layers x layers.")
    ] = None,
    plugin: options.LensPlugin = None,
) -> None:
    """Use the lenses of each layer on every other layer, and show the extra KL.

    With --to, use them on another version of the model; with --shared, solve one lens for the
    heads of several neighbouring layers.
    """
    options.load_plugin(plugin)

    from saccade.interp.lenses.corpus import read_corpus
    from saccade.interp.lenses.lens_set import load_lenses
    from saccade.interp.studies.transfer import share_lenses, transfer_matrix, transfer_to

    opened = model.open()
    for each in layer or ():
        opened.layer(each)
    lenses = load_lenses(lens, opened)
    text = read_corpus(corpus, opened, window=window, max_tokens=tokens)
    with options.showing_progress() as progress:
        if to is not None:
            found = transfer_to(lenses, replace(model, model=to).open(), text, progress=progress)
        elif shared:
            found = share_lenses(lenses, text, progress=progress)
        else:
            found = transfer_matrix(lenses, text, layers=layer, progress=progress)
            if png is not None:
                _draw(found, opened.name, png)
    _show_lens_transfer(found, as_json=as_json)


def _draw(found: Transfer, name: str, png: Path) -> None:
    from saccade.interp.lenses.evaluation import Axes, save_heat_map

    save_heat_map(
        png,
        found.by_layer(),
        title=f"Lenses of one layer on the heads of another\n{name}",
        label=f"extra KL, nats a token; from {found.gain:.2f} on no better than a baseline lens",
        axes=Axes(across="heads of layer", up="lenses of layer"),
        most=2 * found.gain,
    )
    typer.echo(f"wrote {png}", err=True)


def _show_lens_transfer(found: Transfer | Moved | Shared, *, as_json: bool) -> None:
    if as_json:
        import json

        typer.echo(json.dumps(found.to_dict()))
        return
    from rich.console import Console

    Console(highlight=False).print(found.to_table())
