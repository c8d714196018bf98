"""BLEU by sentence length, read from the figures of runs that were evaluated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.errors import RecipeError
from saccade.zoo.metrics.sequence_metrics import LengthBucket
from saccade.zoo.tasks.multi30k import read_multi30k
from saccade.zoo.training.run_folder import RunFolder

NAME = re.compile(r"bleu_of_(\d+)_to_(\d+)_words")


def length_curves(
    folders: Sequence[Path], data: Path | None = None
) -> dict[str, list[LengthBucket]]:
    """The curve of each run, by its folder's name: what `save_bleu_by_length` draws.

    Bahdanau et al., 2015, figure 2 (https://arxiv.org/abs/1409.0473): without attention, BLEU falls
    as sentences grow. Nothing is translated again; the data tell how many sentences of which length
    there are.
    """
    curves = {}
    for folder in folders:
        run = RunFolder(folder)
        settings = run.manifest.get("settings", {})
        if not {"source", "target"} <= set(settings):
            raise RecipeError(
                f"{folder} is a run of {run.manifest.get('recipe')}, which is no translator",
                hint="`saccade recipes` lists some",
            )
        test = read_multi30k(data, source=settings["source"], target=settings["target"]).test
        lengths = [len(text.split()) for text in test.source]
        curves[folder.name] = _buckets(folder, run.figures, lengths)
    return curves


def _buckets(
    folder: Path, figures: Mapping[str, Any], lengths: Sequence[int]
) -> list[LengthBucket]:
    buckets = []
    for name, score in figures.get("test", {}).items():
        if score is not None and (match := NAME.fullmatch(name)):
            shortest, longest = map(int, match.groups())
            held = [n for n in lengths if shortest <= n <= longest]
            mean = sum(held) / max(1, len(held))
            buckets.append(LengthBucket(shortest, longest, mean, len(held), score))
    if not buckets:
        raise RecipeError(
            f"{folder} has no BLEU by sentence length yet", hint=f"saccade eval {folder}"
        )
    return sorted(buckets)
