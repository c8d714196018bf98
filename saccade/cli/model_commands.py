"""`saccade model` and `saccade demo`: a description of a model, and a first reading."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli import options

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


MODEL_EXAMPLES = """
saccade model gpt2 --check
saccade model --json
"""
CHECKS = (
    "the heads' outputs sum to what the attention writes",
    "each head follows its own value rows and no others",
    "final state and unembedding give the model's own logits",
)


@partial(options.with_model_options, name=options.ModelArgument)
def show_model(
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    taps: Annotated[
        str | None,
        typer.Option(help="A regular expression for the attention's output projections."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Also read all heads once, and compare an effect with a whole run of the model.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Open a model, find its heads, check them, and print its sizes and its fingerprint.

    --check gives a verdict on whether saccade reads this model, with times and memory.
    """
    begin = time.perf_counter()
    opened = model.open(taps=taps)
    seconds = time.perf_counter() - begin
    facts = _facts(opened, are_taps_given=taps is not None)
    if check:
        from saccade.interp.readings.model_check import check_model

        facts["check"] = {"open_seconds": seconds, **asdict(check_model(opened))}
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else _lines(facts))


def _facts(model: LanguageModel, *, are_taps_given: bool) -> dict[str, Any]:
    passed = [check for check in CHECKS if not (are_taps_given and check == CHECKS[1])]
    return {
        "model": model.name,
        "type": model.hf.config.model_type,
        "fingerprint": model.fingerprint,
        "tokenizer_fingerprint": model.tokenizer_fingerprint,
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "d_model": model.d_model,
        "d_vocab": model.d_vocab,
        "max_positions": model.max_positions,
        "dtype": str(model.hf.dtype).removeprefix("torch."),
        "n_parameters": sum(parameter.numel() for parameter in model.hf.parameters()),
        "layers": [
            {"layer": at.index, "heads": at.n_heads, "d_head": at.d_head, "path": at.path}
            for at in model.layers
        ],
        "checks_passed": passed,
    }


def _lines(facts: dict[str, Any]) -> str:
    heads, sizes = ({at[key] for at in facts["layers"]} for key in ("heads", "d_head"))
    rows = {
        "model": f"{facts['model']} ({facts['type']}, {facts['n_parameters']:,} parameters, "
        f"{facts['dtype']})",
        "heads": f"{facts['n_heads']} in {facts['n_layers']} layers, {_span(heads)} a layer, "
        f"of {_span(sizes)} features",
        "found at": facts["layers"][0]["path"],
        "sizes": f"d_model {facts['d_model']}, d_vocab {facts['d_vocab']}, "
        f"context {facts['max_positions'] or 'without limit'}",
        "fingerprint": f"{facts['fingerprint']}, tokenizer {facts['tokenizer_fingerprint']}",
    }
    lines = [f"{name:<12} {value}" for name, value in rows.items()]
    lines += [f"{'passed':<12} {check}" for check in facts["checks_passed"]]
    if "check" in facts:
        checked = _check_rows(facts["check"], facts["n_heads"])
        lines += [f"{name:<12} {value}" for name, value in checked.items()]
    return "\n".join(lines)


def _check_rows(found: dict[str, Any], n_heads: int) -> dict[str, str]:
    peak = found["peak_bytes"]
    ratio = found["read_seconds"] / max(found["forward_seconds"], 1e-9)
    return {
        "opened": f"in {found['open_seconds']:.1f} s, with these checks",
        "read": f"{n_heads} heads after {found['n_tokens']} tokens in {found['read_seconds']:.2f} s"
        f", {ratio:.1f} forward passes (method {found['method']})",
        "effect": f"of head {found['head']}: {found['effect']:.4f} nats, "
        f"{found['whole_run_effect']:.4f} in a whole run of the model",
        "memory": f"weights {found['weight_bytes'] / 1e6:.0f} MB"
        + (f", peak of the process {peak / 1e6:.0f} MB" if peak else ""),
        "verdict": "saccade reads this model",
    }


def _span(values: set[int]) -> str:
    return str(min(values)) if len(values) == 1 else f"{min(values)} to {max(values)}"


DEMO_EXAMPLES = """
saccade demo
saccade demo --prompt "My favourite dish is pasta with" --tokens 65536
"""

PROMPT = "The Eiffel Tower is located in the city of"
DEMO_HEADS = 6
NEXT = """
What now?{first}
  saccade read "your own sentence"                  the same for another text
  saccade read "..." --token Paris --against London who promotes one token against another
  saccade read "your own sentence" --html page.html all heads, as a page to click through
  saccade lens fit --corpus FILE                    better lenses: text of the kind you want to read
                                                    (a file or a folder; about three minutes, and
                                                    with --method polish about fifteen)
  saccade view                                      all of it, on a local page
"""


@options.with_model_options
def demo(
    prompt: Annotated[str, typer.Option(help="The prompt.")] = PROMPT,
    tokens: Annotated[
        int, typer.Option(help="Tokens that the model generates for the fit.")
    ] = 32768,
    again: Annotated[bool, typer.Option("--again", help="Fit even if lenses are there.")] = False,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
) -> None:
    """Read a prompt: what each head does; then fit lenses, and also show what each head knows.

    Effects need no lenses: the first reading comes as soon as the model is open. The lenses are
    fitted on text that the model generates.
    """
    named = "the default model (the first time it is unpacked: half a minute)"
    typer.echo(f"opening {model.model or named} ...", err=True)

    from rich.console import Console

    from saccade.interp.lenses.fit import fit_lenses
    from saccade.interp.lenses.fit_config import FitConfig
    from saccade.interp.lenses.lens_set import default_lens_path, load_lenses
    from saccade.interp.readings.reader import read
    from saccade.interp.readings.reading_table import reading_table

    opened = model.open()
    opened.encode(prompt)  # one that cannot be read is refused before anything is computed
    console = Console(highlight=False)
    path = default_lens_path(opened)
    if again or not path.is_dir():
        typer.echo(f"measuring the effects of {opened.n_heads} heads ...", err=True)
        reading = read(opened, prompt)
        console.print(reading_table(reading, reading.ranked()[:DEMO_HEADS]))
        typer.echo(
            f"\nfitting {opened.n_heads} lenses on {tokens:,} tokens that {opened.name} writes "
            "itself, so no data is needed ...",
            err=True,
        )
        with options.showing_progress() as progress:
            lenses = fit_lenses(
                opened, config=FitConfig(tokens=tokens), progress=progress, save_to=path
            )
        typer.echo("\nthe same heads, with what their lenses predict:\n", err=True)
    else:
        typer.echo(f"using the lenses in {path} (--again fits new ones)", err=True)
        lenses = load_lenses(path, opened)
    reading = read(opened, prompt, lenses=lenses)
    console.print(reading_table(reading, reading.ranked()[:DEMO_HEADS]))
    typer.echo(NEXT.format(first=_first()))


def _first() -> str:
    """How to get at the commands, where `make` has put them out of the shell's sight."""
    if shutil.which("saccade"):
        return ""
    scripts = Path(sys.executable).parent
    return f"\n  source {os.path.relpath(scripts / 'activate')}"
