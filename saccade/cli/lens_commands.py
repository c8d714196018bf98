"""`saccade lens`: fit lenses, evaluate them, list, merge and publish them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli import options
from saccade.errors import UsageError
from saccade.interp.lenses.fit_config import FitConfig

if TYPE_CHECKING:
    from saccade.interp.lenses.evaluation import Evaluation
    from saccade.interp.lenses.lens_set import Lenses


LENS_FIT_EXAMPLES = """
saccade lens fit --corpus books/ --method polish
torchrun --nproc-per-node=2 -m saccade lens fit --corpus wiki.txt --tokens 1000000 --out wiki-lens
"""


@options.with_options_of(FitConfig)
@options.with_model_options
def lens_fit(
    settings: FitConfig,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="A text or JSONL file (.gz too), a folder of them, or a hub dataset; can be "
            "repeated. Default: self, text that the model generates."
        ),
    ] = None,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder. Default: where `saccade read` looks."),
    ] = None,
    as_json: options.Json = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with your own lens or objective.")
    ] = None,
) -> None:
    """Fit a lens for every attention head: a map from its activation to next-token logits.

    One pass over the text serves all layers and heads. An interrupted fit resumes when it is
    started again with the same options. Started by torchrun, the processes share the
    text.
    """
    options.load_plugin(plugin)

    from saccade.interp.lenses.fit import SELF, fit_lenses
    from saccade.interp.lenses.gather import FitInterrupted
    from saccade.interp.lenses.lens_set import default_lens_path

    is_first = int(os.environ.get("RANK", "0")) == 0
    opened = model.open()
    path = out or default_lens_path(opened)
    text = corpus or [SELF]
    try:
        with options.showing_progress(is_quiet=not is_first) as progress:
            lenses = fit_lenses(
                opened,
                text[0] if len(text) == 1 else text,
                settings,
                progress=progress,
                save_to=path,
            )
    except FitInterrupted as saved:
        if is_first:
            typer.echo(str(saved), err=True)
        raise
    if is_first:
        show_fitted(lenses, path, as_json=as_json)


def show_fitted(lenses: Lenses, path: Path, *, as_json: bool) -> None:
    """Print what was fitted, its quality on its own held-out text, and its folder."""
    if as_json:
        found = {
            "path": str(path),
            "provenance": asdict(lenses.provenance),
            "quality": lenses.quality,
        }
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    provenance = lenses.provenance
    typer.echo(
        f"{len(lenses.sites)} {provenance.kind} lenses for {provenance.model}, "
        f"by {provenance.method}, from {provenance.n_tokens:,} tokens of {provenance.corpus}"
    )
    if lenses.quality:
        gains = {
            (layer, head): lenses.quality_of(layer, head)["gain"] for layer, head in lenses.sites
        }
        kl = [lenses.quality_of(layer, head)["kl"] for layer, head in lenses.sites]
        best = sorted(gains, key=lambda site: -gains[site])[:5]
        mean, gain = sum(kl) / len(kl), sum(gains.values()) / len(gains)
        typer.echo(
            f"held-out KL to the model, mean over heads: {mean:.3f} nats "
            f"(baseline lens {mean + gain:.3f}, gain {gain:.3f})"
        )
        named = ", ".join(f"{layer}.{head} ({gains[layer, head]:.2f})" for layer, head in best)
        typer.echo(f"most is heard from heads {named}")
    typer.echo(f"in {path}")


LENS_EVAL_EXAMPLES = """
saccade lens eval --corpus wiki-test.txt --png gain.png
saccade lens eval --lens my-lens --corpus wiki-test.txt --tuned-on wiki-train.txt --json
"""


@options.with_model_options
def lens_eval(
    corpus: Annotated[
        str,
        typer.Option(
            help="Held-out text: a text or JSONL file, a folder of them, a dataset, or self: text "
            "that the model generates, other than the text of the fit."
        ),
    ],
    lens: options.LensName = None,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    positions: Annotated[
        int,
        typer.Option(help="Positions to score at most, evenly spaced over the text.", min=1),
    ] = 1024,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Lenses to compare with: logit, logit-head, tuned, or a folder; can be repeated. "
            "Default: logit and logit-head; none for no comparison."
        ),
    ] = None,
    tuned_on: Annotated[
        str | None, typer.Option(help="Solve tuned lenses on this text, and score them too.")
    ] = None,
    best: Annotated[
        str | None, typer.Option(help="The best known lenses; shows the share of their gain.")
    ] = None,
    window: options.Window = FitConfig.window,
    tokens: options.MostTokens = 262_144,
    show_all: Annotated[bool, typer.Option("--all", help="A row for every head.")] = False,
    as_json: options.Json = False,
    png: Annotated[
        Path | None, typer.Option(help="Write a heat map of the gain, layers x heads.")
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Store the metrics in the manifest of the lenses.")
    ] = False,
    plugin: options.LensPlugin = None,
) -> None:
    """Score every lens on held-out text, next to the baseline, logit and tuned lenses.

    KL is from the model's prediction to the lens's, in nats per token; gain is the KL of the
    baseline lens, which always predicts the mean, less that; top1 and top10 are the shares of
    positions where the model's first token is the lens's first, or among its first ten.
    """
    kinds = _kinds(kind, tuned_on)
    if save and lens is not None and not Path(lens).expanduser().is_dir():
        raise UsageError(
            f"cannot save the metrics with {lens}: it is not a local folder",
            hint="leave out --save, or give a folder of your own",
        )
    options.load_plugin(plugin)

    from saccade.interp.lenses.corpus import read_corpus
    from saccade.interp.lenses.evaluate import evaluate_lenses
    from saccade.interp.lenses.fit import SELF
    from saccade.interp.lenses.lens_set import find_lenses, load_lenses
    from saccade.interp.lenses.residual_lenses import baseline_lenses, default_kinds, tuned_lenses
    from saccade.interp.lenses.self_text import write_corpus

    opened = model.open()
    path = find_lenses(lens, opened)
    lenses = load_lenses(path, opened)
    if corpus == SELF:
        # No more than is scored, because writing takes longer than reading.
        text = write_corpus(
            opened, n_tokens=min(tokens, 4 * positions), seed=lenses.provenance.seed + 1
        )
    else:
        text = read_corpus(corpus, opened, window=window, max_tokens=tokens)
    best_lenses = None if best is None else load_lenses(find_lenses(best, opened), opened)
    others = [
        load_lenses(each, opened) if Path(each).is_dir() else baseline_lenses(opened, each)
        for each in (default_kinds(opened) if kinds is None else kinds)
    ]
    if tuned_on is not None:
        typer.echo(f"solving tuned lenses from {tuned_on} ...", err=True)
        fitted_on = read_corpus(tuned_on, opened, window=window, max_tokens=tokens)
        if fitted_on.fingerprint == text.fingerprint:
            raise UsageError(
                f"{tuned_on} is the text that is scored: it would flatter the tuned lenses",
                hint="give --tuned-on another text",
            )
        others.append(tuned_lenses(opened, fitted_on))
    with options.showing_progress() as progress:
        evaluation = evaluate_lenses(
            lenses,
            text,
            max_positions=positions,
            baselines=others,
            best=best_lenses,
            progress=progress,
        )
    if evaluation.is_fitted_on:
        typer.echo("note: the lenses were fitted on this very text; it is not held out", err=True)
    _write(evaluation, lenses, path if save else None, png)
    _show(evaluation, as_json=as_json, show_all=show_all)


def _kinds(asked: list[str] | None, tuned_on: str | None) -> list[str] | None:
    """The kinds asked for by name; tuned lenses need their own text."""
    if asked is None:
        return None
    if "tuned" in asked and tuned_on is None:
        raise UsageError(
            "tuned lenses have to be solved from a text before they can be scored",
            hint="add --tuned-on TEXT, a text that is not scored, or name a folder of tuned lenses",
        )
    return [each for each in asked if each not in {"none", "tuned"}]


def _write(evaluation: Evaluation, lenses: Lenses, save_to: Path | None, png: Path | None) -> None:
    if png is not None:
        from saccade.interp.lenses.evaluation import save_heat_map

        title = f"Gain of each lens over the baseline lens\n{evaluation.model}"
        rows = evaluation.lenses.by_layer("gain")
        save_heat_map(png, rows, title=title, label="gain, nats a token")
        typer.echo(f"wrote {png}", err=True)
    if save_to is not None:
        from saccade.interp.lenses.lens_set import add_quality

        add_quality(save_to, lenses, evaluation.quality())
        typer.echo(f"saved the metrics in {save_to}", err=True)


def _show(evaluation: Evaluation, *, as_json: bool, show_all: bool) -> None:
    if as_json:
        typer.echo(evaluation.to_json())
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(evaluation.to_table())
    console.print(evaluation.to_head_table() if show_all else evaluation.to_layer_table())


LENS_LIST_EXAMPLES = """
saccade lens list
saccade lens list --json | jq '.[].model'
"""


def lens_list(
    as_json: options.Json = False,
) -> None:
    """List the lenses in the cache, where `saccade read` looks for them."""
    from saccade.errors import SaccadeError
    from saccade.interp.lenses.lens_set import read_provenance
    from saccade.store.atomic import cache_dir

    found = []
    folder = cache_dir() / "lenses"
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith("."):
            continue
        try:
            found.append({"path": str(path), **asdict(read_provenance(path))})
        except SaccadeError as error:
            found.append({"path": str(path), "error": str(error)})
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    if not found:
        typer.echo(f"no lenses in {folder}; `saccade lens fit` makes some", err=True)
    for each in found:
        what = each.get("error") or (
            f"{each['model']}: {each['kind']} lenses by {each['method']}, "
            f"{each['n_tokens']:,} tokens of {each['corpus']}"
        )
        typer.echo(f"{what}\n  {each['path']}")


LENS_MERGE_EXAMPLES = """
saccade lens merge shard-1 shard-2 --out merged
saccade lens merge monday tuesday wednesday --out week --json
"""


@options.with_model_options
def lens_merge(
    folders: Annotated[list[Path], typer.Argument(help="Lenses fitted separately, for one model.")],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    as_json: options.Json = False,
    plugin: options.LensPlugin = None,
) -> None:
    """Merge closed-form lenses that were fitted on different text.

    Their statistics add up, so the result is that of one fit over all of the text.
    """
    options.load_plugin(plugin)

    from saccade.interp.lenses.fit import merge_lenses
    from saccade.interp.lenses.lens_set import load_lenses

    opened = model.open()
    merged = merge_lenses([load_lenses(folder, opened) for folder in folders])
    merged.save(out)
    show_fitted(merged, out, as_json=as_json)


LENS_PUSH_EXAMPLES = """
saccade lens push my-lens me/smollm2-lenses
saccade lens push my-lens me/smollm2-lenses --private --json
"""


def lens_push(
    folder: Annotated[Path, typer.Argument(help="A folder written by `saccade lens fit`.")],
    name: Annotated[str, typer.Argument(help="Name on the hub: user/name.")],
    private: Annotated[bool, typer.Option("--private", help="Only you can see them.")] = False,
    as_json: options.Json = False,
) -> None:
    """Publish lenses on the Hugging Face hub, for `saccade read --lens user/name`.

    You need to be logged in: `hf auth login`.
    """
    from saccade.interp.lenses.hub import push_lenses

    address = push_lenses(folder, name, private=private)
    typer.echo(json.dumps({"address": address}) if as_json else address)
