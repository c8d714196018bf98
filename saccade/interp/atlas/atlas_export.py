"""An atlas for other programs: tables of all metrics, and the data tree of HeadVis.

HeadVis (Anthropic, 2026) is a page that shows where the heads of a model look. Its data are a
folder: ``config.json``, ``scatter_data.json`` with a row for each head, and ``heads/L{l}H{h}.json``
with sampled sequences, distances and tokens. Neuronpedia fills it in the same form, under the names
that are used here.

Where we differ: distances, tokens and distances' histogram are those of the whole text, not of the
sampled sequences, and leave the first position out. Its page draws any axis, table and statistic
that the configuration names, so what heads *do* is there as well: their effects and the tokens
that they promote and suppress.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade import __version__
from saccade.errors import MissingPackageError, UsageError
from saccade.interp.atlas import sequences
from saccade.interp.atlas.head_page import AtlasPages
from saccade.interp.atlas.looks import UNIT
from saccade.interp.atlas.token_shares import TokenShares, token_shares, tokens_of_head
from saccade.store.atomic import atomic_file, atomic_folder
from saccade.store.folder import refuse_other_files

if TYPE_CHECKING:
    import torch

    from saccade.interp.atlas.atlas import Atlas

# Their name, our name, what it is.
METRICS = (
    ("self_attention_score", "self_weight", "Mean attention from each position to itself."),
    ("prev_token_score", "previous", "Mean attention to the position before."),
    ("pattern_entropy", "entropy", "Mean entropy of the attention of a position, in nats."),
    (
        "qk_distance",
        "distance",
        "Mean distance to the attended positions, without the first one, weighted by attention.",
    ),
    ("qk_distance_variance", "distance_variance", "Variance of the same."),
    (
        "induction_score",
        "induction",
        "Mean attention to the positions after earlier occurrences of the token.",
    ),
    ("mean_effect", "kl", "Mean KL of the prediction with the head from that without it, in nats."),
    ("matters", "matters", "Share of positions where that KL is above 0.01 nats."),
)
FILES = ("config.json", "scatter_data.json", "server_config.json")
TOP_TOKENS = 50
PEAK_BINS = 50
DIGITS = 4  # full precision would double the size of the files


def table_rows(atlas: Atlas, labels: list[str]) -> list[dict[str, Any]]:
    """One row a head: its name, its metrics, its label."""
    return [
        {"name": head.name, **atlas.metric_row(at), "label": label}
        for at, (head, label) in enumerate(zip(atlas.heads, labels, strict=True))
    ]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows))
    writer.writeheader()
    writer.writerows(rows)
    with atomic_file(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table as Parquet.

    Raises:
        MissingPackageError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError(
            "writing Parquet needs the package 'pyarrow'",
            hint="pip install 'saccade[parquet]', or write --to csv",
        ) from error
    # A role may be missing in the first rows: the columns are those of all rows.
    table = pa.table({name: [row.get(name) for row in rows] for name in _columns(rows)})
    with atomic_file(path) as temporary:
        parquet.write_table(table, temporary)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def write_headvis(folder: Path, atlas: Atlas) -> None:
    """Write the data tree of HeadVis.

    Raises:
        UsageError: the atlas has no sampled sequences.
        StoreError: the folder holds something else.
    """
    refuse_other_files(folder, {*FILES, "attributions", "heads"})
    sampled = sequences.sequences_of(atlas.extra)
    if sampled is None:
        raise UsageError(
            "this atlas has no sampled sequences, which HeadVis shows",
            hint="merge without --without-sequences, or build it again",
        )
    shares = {f"{kind}_tokens": token_shares(atlas, kind) for kind in ("promoted", "suppressed")}
    tops = {name: each.top(TOP_TOKENS) for name, each in shares.items()}
    interval = sequences.intervals(atlas)
    scatter = [
        {
            "layer": layer,
            "head": head,
            **{theirs: _rounded(row[ours]) for theirs, ours, _ in METRICS},
        }
        for (layer, head), row in zip(
            atlas.sites, map(atlas.metric_row, range(len(atlas.sites))), strict=True
        )
    ]
    with atomic_folder(folder) as temporary:
        for name, content in zip(FILES, (_config(atlas), scatter, {}), strict=True):
            _write_json(temporary / name, content)
        _write_json(temporary / "attributions" / "manifest.json", {})
        for at, (layer, head) in enumerate(atlas.sites):
            page = _head(atlas, at, sampled, interval[:, at])
            for name, each in shares.items():
                page[name] = _shared(atlas, each, tops[name], at)
            _write_json(temporary / "heads" / f"L{layer}H{head}.json", page)


def _config(atlas: Atlas) -> dict[str, Any]:
    provenance, pages = atlas.provenance, AtlasPages(atlas)
    tables = {
        "top_query_tokens": "Top query tokens",
        "top_key_tokens": "Top key tokens",
        "promoted_tokens": "Promoted tokens (share of the head's effect)",
        "suppressed_tokens": "Suppressed tokens (share of the head's effect)",
    }
    n_layers = 1 + max(layer for layer, _ in atlas.sites)
    n_heads = 1 + max(head for _, head in atlas.sites)
    dataset = ", ".join(pages.sources)
    return {
        "model_name": pages.model,
        "dataset_name": dataset,
        "heads": [list(site) for site in atlas.sites],
        "n_layers": n_layers,
        "n_heads": n_heads,
        "n_intervals": sequences.INTERVALS,
        "metrics": [theirs for theirs, _, _ in METRICS],
        "metric_descriptions": {theirs: about for theirs, _, about in METRICS},
        "head_data_pattern": "L{layer}H{head}.json",
        "has_umap": False,
        "umap_heads": [],
        "custom_plots": [
            {"key": "qk_distance_histogram", "label": "Q-K distance"},
            {"key": "histogram", "label": "Largest attention weight of a sequence"},
        ],
        "custom_tables": [{"key": key, "label": label} for key, label in tables.items()],
        "statistics_display": {
            key: {"label": label, "format": "default"}
            for key, label in (
                ("n_samples", "Samples"),
                ("mean_max_activation", "Mean largest attention weight"),
                ("mean_effect", "Mean effect, in nats"),
            )
        },
        "pipeline_config": {
            "saccade": __version__,
            "model_name": pages.model,
            "model_fingerprint": provenance.model_fingerprint,
            "dataset_name": dataset,
            "n_sequences": len(atlas.windows),
            "actual_sequences_processed": len(atlas.windows),
            "seq_len": atlas.windows.shape[1],
            "dtype": "float32",
            "attn_implementation": "saccade",
            "n_intervals": sequences.INTERVALS,
            "samples_per_interval": sequences.OF_EACH,
            "samples_per_top_interval": sequences.STRONGEST,
            "sparse_topk_per_row": sequences.KEYS,
            "sparse_threshold": sequences.LEAST_WEIGHT,
            "induction_attention_threshold": 0.0,
            "sample_seed": provenance.config.seed,
            "num_hidden_layers": n_layers,
            "num_attention_heads": n_heads,
        },
    }


def _head(
    atlas: Atlas, at: int, sampled: sequences.Sequences, interval: torch.Tensor
) -> dict[str, Any]:
    shown = [
        _sequence(atlas, at, sampled, number, int(interval[window]))
        for number, window in enumerate(sampled.window[at].tolist())
        if window >= 0
    ]
    peaks = atlas.peaks[:, at].float()
    edges = [each / PEAK_BINS for each in range(PEAK_BINS + 1)]
    return {
        "sequences": shown,
        "qk_distance_histogram": _distances(atlas, at),
        "top_query_tokens": _attended(atlas, "query", at),
        "top_key_tokens": _attended(atlas, "key", at),
        "histogram": {
            "bin_edges": edges,
            "bin_values": peaks.histc(PEAK_BINS, 0, 1).int().tolist(),
        },
        "statistics": {
            "n_samples": len(shown),
            "mean_max_activation": _rounded(float(peaks.mean())),
            "mean_effect": _rounded(atlas.heads[at].kl),
        },
    }


def _sequence(
    atlas: Atlas, at: int, sampled: sequences.Sequences, number: int, interval: int
) -> dict[str, Any]:
    window, n = int(sampled.window[at, number]), atlas.windows.shape[1]
    edges = sequences.edges_of(sampled.keys[at, number], sampled.weights[at, number])
    return {
        "sequence_id": window,
        "interval": interval,
        "tokens": atlas.show(atlas.windows[window].tolist()),
        "attention_indices": [edge.query * n + edge.key for edge in edges],
        "attention_values": [_rounded(edge.weight) for edge in edges],
        "seq_len": n,
        "max_activation": _rounded(float(atlas.peaks[window, at])),
    }


def _distances(atlas: Atlas, at: int) -> dict[str, Any]:
    """The share of the head's attention in each range of distances: 0, 1, 2-3, 4-7 and so on."""
    row = atlas.sums["distance"][at].double()
    share = row / row.sum().clamp_min(1)
    edges = [0, 1]
    while edges[-1] < len(share):
        edges.append(2 * edges[-1])
    values = [_rounded(float(share[low:high].sum())) for low, high in pairwise(edges)]
    return {"bin_edges": edges, "bin_values": values}


def _attended(atlas: Atlas, kind: str, at: int) -> list[dict[str, Any]]:
    """The tokens that get, or give, most of the head's attention over the whole text."""
    weights = (atlas.sums[f"{kind}_token"][at].double() / UNIT).tolist()
    total: dict[str, float] = {}
    for text, weight in zip(atlas.show(atlas.distinct), weights, strict=True):
        total[text] = total.get(text, 0.0) + weight
    return _weighted(total)


def _shared(atlas: Atlas, shares: TokenShares, tops: torch.Tensor, at: int) -> list[dict[str, Any]]:
    total: dict[str, float] = {}
    for each in tokens_of_head(atlas, shares, tops, at):
        total[each.text] = total.get(each.text, 0.0) + each.share
    return _weighted(total)


def _weighted(total: Mapping[str, float]) -> list[dict[str, Any]]:
    ranked = sorted(total.items(), key=lambda each: -each[1])[:TOP_TOKENS]
    return [{"token": text, "weight": _rounded(weight)} for text, weight in ranked if weight > 0]


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, DIGITS)


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False)
    # A token may be half of a character, which UTF-8 cannot encode.
    path.write_text(text, encoding="utf-8", errors="replace")
