"""Text of the kind that the little model has learnt, and lenses fitted on it.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "heads"))  # for families.py

WINDOW = 61


@contextmanager
def one_thread() -> Iterator[None]:
    """Models this small lose more by sharing their work than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    with one_thread():
        yield


@pytest.fixture(scope="session")
def told(stories) -> torch.Tensor:
    """The ids of stories that the little model tells, in windows of 61."""
    from saccade.interp.lenses.self_text import sample_batches

    asked = {"n_tokens": WINDOW * 211, "window": WINDOW, "batch": 211, "seed": 5}
    with one_thread():  # this comes before the fixture of the module
        return torch.cat([batch.ids for batch in sample_batches(stories, **asked)])


@pytest.fixture(scope="session")
def story_file(stories, told, tmp_path_factory) -> Path:
    """The same stories as a text file."""
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    text = "\n".join(stories.tokenizer.batch_decode(told, skip_special_tokens=True))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def corpus_of() -> Any:
    """Makes a corpus of windows."""
    from saccade.interp.lenses.corpus import Corpus
    from saccade.store.fingerprint import fingerprint_text

    def make(windows: torch.Tensor, source: str = "stories") -> Any:
        fingerprint = fingerprint_text([windows.numpy().tobytes()])
        return Corpus(source, fingerprint, windows, n_bytes=windows.numel())

    return make


@pytest.fixture(scope="session")
def corpus(told, corpus_of):
    """The first 150 of those windows, to fit on."""
    return corpus_of(told[:150])


@pytest.fixture(scope="session")
def gathered(stories, corpus):
    """The sums over that text, and its held-out positions."""
    from saccade.distributed import Processes
    from saccade.interp.lenses.batches import CorpusBatches
    from saccade.interp.lenses.gather import gather

    with one_thread():
        return gather(stories, CorpusBatches(stories, corpus, rows=13), processes=Processes())


@pytest.fixture(scope="session")
def held_out(stories, gathered):
    from saccade.interp.lenses.closed_form import baseline_lens
    from saccade.interp.lenses.held_out import HeldOut

    return HeldOut.of(stories, gathered.sample, baseline_lens(gathered.statistics))


@pytest.fixture(scope="session")
def judged(stories, told, gathered):
    """Windows that nothing was fitted or chosen on, ready to judge lenses with."""
    from saccade.interp.heads.capture import capture
    from saccade.interp.lenses.closed_form import baseline_lens
    from saccade.interp.lenses.held_out import HeldOut, Sample

    captured = capture(stories, told[150:])
    every = torch.arange(0, captured.final.shape[:2].numel(), 3)
    sample = Sample.take(captured.z, captured.final, every)
    return HeldOut.of(stories, sample, baseline_lens(gathered.statistics))


@pytest.fixture(scope="session")
def tiny_llama():
    """A random model whose sizes all differ: 6 heads of 10, 48 wide, 101 tokens."""
    from families import tiny

    from saccade.interp.heads.model import wrap_model

    return wrap_model(tiny("llama"), None, name="tiny llama")
