"""`saccade model`: open a model and say what of it can be read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options import TrustRemoteCode

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

EXAMPLES = """
saccade model
saccade model gpt2 --json
"""
CHECKS = (
    "the heads' outputs sum to what the attention writes",
    "each head follows its own value rows and no others",
    "final state and unembedding give the model's own logits",
)


def run(
    name: Annotated[
        str | None, typer.Argument(help="A hub name or a folder; the small default without it.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 or auto; float32 without it.")
    ] = None,
    device_map: Annotated[
        str | None, typer.Option(help="How accelerate spreads a large model, such as auto.")
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(help="A regular expression for the attention's output projections."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Open a model, find its heads, check them, and print its sizes and its fingerprint."""
    from saccade.interp.heads.model import open_model

    opened = open_model(
        name, dtype=dtype, device_map=device_map, taps=taps, trust_remote_code=trust_remote_code
    )
    facts = _facts(opened, are_taps_given=taps is not None)
    typer.echo(json.dumps(facts) if as_json else _lines(facts))


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
    return "\n".join([*lines, *(f"{'passed':<12} {check}" for check in facts["checks_passed"])])


def _span(values: set[int]) -> str:
    return str(min(values)) if len(values) == 1 else f"{min(values)} to {max(values)}"
