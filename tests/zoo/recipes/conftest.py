"""The tiny recipe, and a run of it; `tests/zoo/training/tiny.py` has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """Models this small lose more by sharing their work than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def tiny() -> Any:
    """The recipe, known to every command."""
    from tiny import TINY

    from saccade.zoo.recipes.recipe import register_recipe

    register_recipe(TINY)  # again: a test of `--plugin` may have put its own copy there
    return TINY


@pytest.fixture(scope="package")
def tiny_run(tiny, tmp_path_factory) -> Path:
    """A run that has learnt; not to be changed."""
    from saccade.zoo.recipes.run import train_recipe
    from saccade.zoo.training.settings import with_settings

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train_recipe(tiny, folder, settings=with_settings(tiny.settings, ["epochs=12"]))
    return folder


@pytest.fixture
def learns_from() -> Any:
    """Whether a small step against the gradient of a job's loss makes it less on the same batch."""

    def learns(job: Any, batch: Any) -> bool:
        def loss() -> torch.Tensor:
            torch.manual_seed(0)
            return job.loss(job.model, batch).loss

        before = loss()
        before.backward()
        slopes = [each for each in job.model.parameters() if each.grad is not None]
        size = torch.stack([each.grad.square().sum() for each in slopes]).sum()
        with torch.no_grad():
            for each in slopes:  # along a line, this much less
                each.sub_(1e-3 * before / size * each.grad)
            return bool(loss() < before)

    return learns


@pytest.fixture
def judge_translations() -> Any:
    """What sacrebleu itself says of the translations of a run."""
    import sacrebleu

    from saccade.zoo.recipes.run import load_run
    from saccade.zoo.recipes.translation import search_options

    def judge(folder: Path, source: list[str], reference: list[str]) -> dict[str, float]:
        run = load_run(folder)
        said = [each.text for each in run.translate(source, search_options(run.settings))]
        return {
            "bleu": sacrebleu.corpus_bleu(said, [reference]).score,
            "chrf": sacrebleu.corpus_chrf(said, [reference]).score,
        }

    return judge
