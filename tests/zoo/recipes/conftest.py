"""The tiny recipe, and a run of it; `tests/zoo/training/tiny.py` has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "training"))  # for tiny.py


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

    from saccade.zoo.recipes.registry import register_recipe

    register_recipe(TINY)  # again: a test of `--plugin` may have put its own copy there
    return TINY


@pytest.fixture(scope="package")
def tiny_run(tiny, tmp_path_factory) -> Path:
    """A run that has learnt; not to be changed."""
    from saccade.zoo.recipes.run import train_recipe
    from saccade.zoo.recipes.settings import with_settings

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train_recipe(tiny, folder, settings=with_settings(tiny.settings, ["epochs=12"]))
    return folder


@pytest.fixture(scope="module")
def little_mnist(tmp_path_factory) -> Any:
    """Few digits in MNIST's form: each class is a pattern of its own, with noise."""
    folder = tmp_path_factory.mktemp("data") / "mnist"
    folder.mkdir()
    patterns = torch.rand(10, 28, 28, generator=torch.Generator().manual_seed(0)) > 0.8
    patterns[:, :4] = patterns[:, -4:] = patterns[:, :, :4] = patterns[:, :, -4:] = False
    for prefix, n in (("train", 90), ("t10k", 37)):
        labels = torch.arange(n) % 10
        noise = torch.rand(n, 28, 28, generator=torch.Generator().manual_seed(n)) > 0.5
        images = 255 * (patterns[labels] & noise).to(torch.uint8)
        sizes = b"".join(size.to_bytes(4, "big") for size in (n, 28, 28))
        pixels = images.numpy().tobytes()
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + sizes + pixels)
        names = labels.to(torch.uint8).numpy().tobytes()
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + sizes[:4] + names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saccade.zoo.tasks.mnist.N_VALID", 25)
        patch.setenv("SACCADE_DATA", str(folder.parent))
        yield folder.parent
