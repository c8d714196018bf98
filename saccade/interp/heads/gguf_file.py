"""A model in one GGUF file: config, tokenizer and weights, through transformers' own reader."""

from __future__ import annotations

import importlib.util
import mmap
import struct
from pathlib import Path
from typing import Any

import transformers
from tokenizers import processors
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from saccade.errors import MissingPackageError, ModelError

MAGIC = b"GGUF"
# transformers reads the file with gguf and fills the model with accelerate's help.
PACKAGES = ("gguf", "accelerate")
ADD_BOS, BOS = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id"


def check_gguf(path: Path, *, what: str) -> None:
    """Raise an error if a package that reads a GGUF file is missing.

    Args:
        what: the beginning of the message: what comes as a GGUF file.
    """
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f"{what} a GGUF file ({path.name}), and the package {package}, which is needed to "
                "read it, is not installed",
                hint=f"pip install {package}",
            )


def loading_options(path: Path) -> dict[str, Any]:
    """What `from_pretrained` of a model needs besides the folder, for dense weights.

    With the package ``kernels``, newer versions of transformers leave the weights in GGUF's blocks
    unless asked not to; lenses and gradients need matrices.
    """
    config = getattr(transformers, "GgufConfig", None)  # since transformers 5.20
    dense = {} if config is None else {"quantization_config": config(dequantize=True)}
    return {"gguf_file": path.name, **dense}


def as_dense(hf: PreTrainedModel) -> PreTrainedModel:
    """The model, without the note in its config that it was quantised: its weights are dense."""
    config: Any = hf.config
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    return hf


def with_bos_of(path: Path, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, with BOS before a text exactly if the metadata of the file say so.

    transformers does not carry over ``tokenizer.ggml.add_bos_token``: Gemma's tokenizer would put
    no BOS, and the perplexity of Gemma-3-270M on WikiText-2 is three times as high without it.
    """
    found = read_scalars(path)
    wanted, bos = found.get(ADD_BOS), found.get(BOS)
    if wanted is None or bos is None:
        return tokenizer
    with_special = [int(each) for each in tokenizer("a").input_ids]
    has_bos = with_special[:1] == [bos]
    if has_bos == wanted:
        return tokenizer
    token = str(tokenizer.convert_ids_to_tokens(int(bos)))
    backend: Any = getattr(tokenizer, "backend_tokenizer")  # noqa: B009  (fast tokenizers only)
    first = f"{token} " if wanted else ""
    # Only BOS: tokens after a text are never used (`saccade.interp.heads.model.text_ids`).
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first}$A",
        pair=f"{first}$A {first}$B",
        special_tokens=[(token, int(bos))] if wanted else [],
    )
    return tokenizer


# Types of values in the metadata: fixed sizes, 8 a string, 9 an array (the format's specification).
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


def read_scalars(path: Path) -> dict[str, Any]:
    """The numbers, booleans and texts of a GGUF file's metadata; arrays are skipped.

    The reader of the package gguf makes numpy arrays of every entry of the vocabulary: for Gemma's
    262,144 tokens that takes eight seconds.

    Raises:
        ModelError: the file is damaged, or no GGUF file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != MAGIC:
                raise ModelError(
                    f"{path} is not a GGUF file: it starts with {data[:4]!r}, not with {MAGIC!r}",
                    hint="give a GGUF file, or a folder with config.json, weights and tokenizer",
                )
            return _scalars(data)
    except (struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        raise ModelError(
            f"the metadata of {path} are damaged: {type(error).__name__}",
            hint="the file is incomplete: fetch it again",
        ) from error


def _scalars(data: mmap.mmap) -> dict[str, Any]:
    (n_entries,) = struct.unpack_from("<Q", data, 16)  # after magic, version, number of tensors
    found: dict[str, Any] = {}
    at = 24
    for _ in range(n_entries):
        key, at = _text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        at += 4
        if kind == _ARRAY:
            at = _behind_array(data, at)
        elif kind == _STRING:
            found[key], at = _text(data, at)
        else:
            (found[key],) = struct.unpack_from("<" + _FORMATS[kind], data, at)
            at += struct.calcsize(_FORMATS[kind])
    return found


def _text(data: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    return data[at + 8 : end].decode("utf-8"), end


def _behind_array(data: mmap.mmap, at: int) -> int:
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind != _STRING:
        return at + count * struct.calcsize(_FORMATS[kind])
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, at)
        at += 8 + length
    return at
