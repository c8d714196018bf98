"""Lenses of the little model, fitted on stories it tells, and stories they have not seen.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "heads"))  # for families.py

WINDOW, FITTED_ON = 61, 120


@pytest.fixture(scope="session")
def story_corpus(stories) -> Any:
    """Makes a corpus of the windows of a text that the little model tells."""
    from dataclasses import replace

    from saccade.interp.lenses.self_text import write_corpus
    from saccade.store.fingerprint import fingerprint_text

    told = write_corpus(stories, n_tokens=WINDOW * 170, window=WINDOW, seed=7)

    def part(which: slice) -> Any:
        windows = told.windows[which]
        fingerprint = fingerprint_text([windows.numpy().tobytes()])
        return replace(told, windows=windows, fingerprint=fingerprint, source="stories")

    return part


@pytest.fixture(scope="session")
def unseen(story_corpus) -> Any:
    """Fifty windows that nothing was fitted on."""
    return story_corpus(slice(FITTED_ON, None))


@pytest.fixture(scope="session")
def story_lenses(stories, story_corpus) -> Any:
    """Lenses in closed form."""
    from saccade.distributed import Processes
    from saccade.interp.lenses.batches import CorpusBatches
    from saccade.interp.lenses.fit import from_statistics, score_quickly
    from saccade.interp.lenses.gather import gather
    from saccade.interp.lenses.lens_set import Provenance

    corpus = story_corpus(slice(0, FITTED_ON))
    made = Provenance(
        prefix=stories.prefix,
        model=stories.name,
        model_fingerprint=stories.fingerprint,
        tokenizer_fingerprint=stories.tokenizer_fingerprint,
        kind="head",
        method="closed-form",
        corpus=corpus.source,
        corpus_fingerprint=corpus.fingerprint,
        n_tokens=corpus.n_tokens,
    )
    batches = CorpusBatches(stories, corpus, rows=13)
    gathered = gather(stories, batches, processes=Processes())
    return score_quickly(from_statistics(stories, gathered, made))


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """Models this small lose more by sharing their work than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
