"""A model in one GGUF file opens like a folder: same weights, and BOS as its metadata say.

The files are written here with the package gguf, from a tiny Gemma whose logits are known.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from saccade.errors import MissingPackageError, ModelError
from saccade.interp.heads.gguf_file import read_scalars
from saccade.interp.heads.model import open_model

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
LETTERS = ["\u2581", *"abcdehnorst"]
TOKENS = [*SPECIAL, *LETTERS, "th", "the", "\u2581the", "\u2581a", "ca", "cat", "\u2581cat"]
BOS = TOKENS.index("<bos>")
LAYERS = 2


@pytest.fixture(scope="module")
def gemma() -> Gemma3ForCausalLM:
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=len(TOKENS),
        hidden_size=48,
        intermediate_size=53,
        num_hidden_layers=LAYERS,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=10,
        max_position_embeddings=61,
        sliding_window=7,
        layer_types=["sliding_attention"] * LAYERS,
        bos_token_id=BOS,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = Gemma3ForCausalLM(config).float().eval()
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, std=0.1 if name.endswith("norm.weight") else 0.3)
    return model


def write(path: Path, model: Gemma3ForCausalLM, *, add_bos: bool | None) -> Path:
    """The model as llama.cpp's converter writes it; Gemma's norms are stored plus one."""
    config: Any = model.config
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(config.sliding_window)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(i) for i in range(len(TOKENS))])
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    writer.add_add_space_prefix(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, LAYERS)
    for name, weight in model.named_parameters():
        stored = weight + 1 if name.endswith("norm.weight") else weight
        known = names.get_name(name, try_suffixes=(".weight",))
        assert known is not None, name
        writer.add_tensor(known, stored.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def file(gemma, tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", gemma, add_bos=True)


@pytest.fixture(scope="module")
def opened(file):
    return open_model(file)


def test_its_logits_are_those_of_the_model_that_was_written(opened, gemma):
    ids = torch.randint(4, len(TOKENS), (2, 13), generator=torch.Generator().manual_seed(1))
    expected, found = gemma(input_ids=ids).logits, opened.hf(input_ids=ids).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_its_weights_are_dense_and_its_config_names_no_quantisation(opened):
    assert {each.dtype for each in opened.hf.parameters()} == {torch.float32}
    assert getattr(opened.hf.config, "quantization_config", None) is None
    assert (opened.n_layers, opened.n_heads, opened.name.endswith("tiny.gguf")) == (2, 6, True)


def test_bos_stands_before_a_text_as_the_metadata_say(opened):
    assert opened.prefix == ("<bos>",)
    assert opened.encode("the cat").tolist() == [[BOS, *map(TOKENS.index, ("the", "\u2581cat"))]]


@pytest.mark.parametrize("add_bos", [False, None], ids=["no bos", "silent"])
def test_without_it_in_the_metadata_no_bos_is_added(gemma, tmp_path, add_bos):
    model = open_model(write(tmp_path / "tiny.gguf", gemma, add_bos=add_bos))
    assert model.prefix == ()
    assert model.encode("the cat").tolist() == [[*map(TOKENS.index, ("the", "\u2581cat"))]]


def test_a_tokenizer_that_adds_bos_against_the_metadata_is_corrected(file, opened, tmp_path, gemma):
    from saccade.interp.heads.gguf_file import with_bos_of

    silent = write(tmp_path / "tiny.gguf", gemma, add_bos=False)
    tokenizer = open_model(file).tokenizer
    assert tokenizer("the").input_ids[0] == BOS
    assert BOS not in with_bos_of(silent, tokenizer)("the").input_ids


def test_a_dtype_is_that_of_the_weights(file):
    assert open_model(file, dtype="bfloat16").hf.dtype == torch.bfloat16


def test_metadata_are_those_that_the_gguf_package_reads(file):
    found = read_scalars(file)
    for key, field in gguf.GGUFReader(file).fields.items():
        if not key.startswith("GGUF.") and field.types[0] != gguf.GGUFValueType.ARRAY:
            assert found.pop(key) == field.contents(), key
    assert not found


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_missing_package_is_named(file, monkeypatch, package):
    real = importlib.util.find_spec
    fake = lambda name, *more: None if name == package else real(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", fake)
    with pytest.raises(MissingPackageError, match=f"the package {package}, which is") as error:
        open_model(file)
    assert error.value.hint == f"pip install {package}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"PK" + data[2:], "is not a GGUF file: it starts with b'PKUF'"),
        (lambda data: data[:100], "the metadata of .* are damaged"),
        (lambda data: data[:0], "the metadata of .* are damaged"),
        (lambda data: data[:-700], "could not load the .* of .*bad.gguf"),
    ],
    ids=["other", "cut in the metadata", "empty", "cut in the weights"],
)
def test_a_damaged_file_is_refused_in_a_line(file, tmp_path, change, words):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(change(file.read_bytes()))
    with pytest.raises(ModelError, match=words) as error:
        open_model(bad)
    assert error.value.hint and "\n" not in str(error.value)


def test_a_gguf_file_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="no model"):
        open_model(tmp_path / "none.gguf")
