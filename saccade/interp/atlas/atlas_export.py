"""An atlas for other programs: tables of all metrics, and the data tree of HeadVis.

HeadVis (Anthropic, 2026) is a page that shows where the heads of a model look. Its data are a
folder: ``config.json``, ``scatter_data.json`` with a row for each head, and ``heads/L{l}H{h}.json``
with sampled sequences, distances and tokens. What saccade measures besides (what heads do and know)
has no place there.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.errors import UsageError
from saccade.interp.atlas.looks import histogram, top_tokens
from saccade.interp.atlas.sequences import KEYS, LEAST_WEIGHT, STRATA, edges_of, sequences_of
from saccade.store.atomic import atomic_file, atomic_folder
from saccade.store.folder import refuse_other_files

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas

SCATTER = {
    "self_attention_score": "self_weight",
    "prev_token_score": "previous",
    "pattern_entropy": "entropy",
    "qk_distance": "distance",
    "qk_distance_variance": "distance_variance",
    "induction_score": "induction",
}
PAGES = ("config.json", "scatter_data.json", "server_config.json")
TOP_TOKENS = 50
PEAK_BINS = 20


def table_rows(atlas: Atlas, labels: list[str]) -> list[dict[str, Any]]:
    """One row a head: its name, its metrics, its label."""
    return [
        {"name": head.name, **atlas.metric_row(at), "label": label}
        for at, (head, label) in enumerate(zip(atlas.heads, labels, strict=True))
    ]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    with atomic_file(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table as Parquet; needs pandas with pyarrow or fastparquet."""
    try:
        import pandas as pd

        with atomic_file(path) as temporary:
            pd.DataFrame(rows).to_parquet(temporary)
    except ImportError as error:
        raise UsageError(
            f"writing Parquet needs pandas and pyarrow: {error}",
            hint="install them (`pip install pandas pyarrow`), or write .csv",
        ) from error


def write_headvis(folder: Path, atlas: Atlas) -> None:
    """Write the data tree of HeadVis; a folder that holds anything else is not replaced."""
    refuse_other_files(folder, {*PAGES, "attributions", "heads"})
    provenance, n = atlas.provenance, atlas.windows.shape[1]
    config = {
        "model_name": provenance.model,
        "n_layers": len({layer for layer, _ in atlas.sites}),
        "n_heads": max(head for _, head in atlas.sites) + 1,
        "pipeline_config": {
            "dataset": ", ".join(provenance.sources),
            "seq_len": n,
            "num_sequences": len(atlas.windows),
            "num_intervals": STRATA,
            "top_k_keys": KEYS,
            "attention_threshold": LEAST_WEIGHT,
            "exclude_position_zero": True,
        },
    }
    scatter = [
        {
            "layer": head.layer,
            "head": head.head,
            **{theirs: getattr(head.look, ours) for theirs, ours in SCATTER.items()},
        }
        for head in atlas.heads
    ]
    with atomic_folder(folder) as temporary:
        for name, content in zip(PAGES, (config, scatter, {}), strict=True):
            _write_json(temporary / name, content)
        _write_json(temporary / "attributions" / "manifest.json", {})
        for at, (layer, head) in enumerate(atlas.sites):
            _write_json(temporary / "heads" / f"L{layer}H{head}.json", _head(atlas, at))


def _head(atlas: Atlas, at: int) -> dict[str, Any]:
    look = atlas.heads[at].look
    tokens = {
        f"top_{kind}_tokens": [
            {"token": text, "token_id": each.token, "score": each.weight, "count": each.occurrences}
            for text, each in zip(atlas.show([each.token for each in top]), top, strict=True)
        ]
        for kind, top in (
            ("query", top_tokens(atlas.sums, "query", at, ids=atlas.distinct, n=TOP_TOKENS)),
            ("key", top_tokens(atlas.sums, "key", at, ids=atlas.distinct, n=TOP_TOKENS)),
        )
    }
    peaks = atlas.peaks[:, at].float()
    return {
        "layer": atlas.sites[at][0],
        "head": atlas.sites[at][1],
        "sequences": _sequences(atlas, at),
        "qk_distance_histogram": histogram(atlas.sums, at),
        **tokens,
        "histogram": peaks.histc(PEAK_BINS, 0, 1).int().tolist(),
        "statistics": {theirs: getattr(look, ours) for theirs, ours in SCATTER.items()},
    }


def _sequences(atlas: Atlas, at: int) -> list[dict[str, Any]]:
    sampled = sequences_of(atlas.extra)
    if sampled is None:
        return []
    n, found = atlas.windows.shape[1], []
    for number, window in enumerate(sampled.window[at].tolist()):
        if window < 0:
            continue
        edges = edges_of(sampled.keys[at, number], sampled.weights[at, number])
        peak = float(atlas.peaks[window, at])
        found.append(
            {
                "tokens": atlas.show(atlas.windows[window].tolist()),
                "attention": {
                    "indices": [edge.query * n + edge.key for edge in edges],
                    "values": [round(edge.weight, 4) for edge in edges],
                },
                "interval": min(int(peak * STRATA), STRATA - 1),
                "max_activation": peak,
            }
        )
    return found


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
