"""Models that are damaged: each is refused in a line that says what is wrong, within seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, build, tiny
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from saccade.errors import ModelError, UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.changes import InjectResidual
from saccade.interp.heads.intervene import intervene
from saccade.interp.heads.model import open_model, wrap_model

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def folder(story_folder: Path, tmp_path: Path) -> Path:
    """A copy of a real model that may be spoilt."""
    return Path(shutil.copytree(story_folder, tmp_path / "model"))


def with_config(folder: Path, **changed: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    return folder


def with_weights(folder: Path, change: Any) -> Path:
    file = folder / "model.safetensors"
    save_file({k: change(k, v) for k, v in load_file(file).items()}, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("number", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("path", "at"),
    [
        ("model.layers.0.mlp.gate_proj.weight", (3, 2)),
        ("model.layers.4.self_attn.v_proj.weight", (0, 0)),
        ("model.norm.weight", (5,)),
        ("model.embed_tokens.weight", (511, 63)),  # a row that the trial does not use
    ],
)
def test_a_weight_that_is_not_finite_is_named(folder, path, at, number):
    def spoil(name: str, weight: torch.Tensor) -> torch.Tensor:
        if name == path:
            weight[at] = number
        return weight

    with pytest.raises(ModelError, match=rf"not finite: 1 of \d+ numbers in {path} are NaN or inf"):
        open_model(with_weights(folder, spoil))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_first_weight_that_is_not_finite_is_named_in_every_family(family):
    hf = build(tiny(family).config)
    names = [name for name, _ in hf.named_parameters()]
    for name in (names[-1], names[len(names) // 2]):
        hf.get_parameter(name).data.view(-1)[-1] = NAN
        with pytest.raises(ModelError, match=rf"numbers in {name} are NaN"):
            wrap_model(hf, None, name=family)


def test_weights_whose_sum_overflows_are_finite(wrapped):
    """The quick test is a sum; the number of each is what counts."""
    from saccade.interp.heads.checks import check_weights

    hf = build(tiny("llama").config)
    embedding = hf.get_parameter("model.embed_tokens.weight")
    embedding.data[:4] = 3e38
    assert not embedding.sum().isfinite()
    check_weights(hf)


@pytest.mark.parametrize(
    ("spoil", "tokens"),
    [
        (lambda _, w: w.round().long(), "is stored as I64, not as floating-point numbers"),
        (lambda _, w: (9 * w).to(torch.int8), "is stored as I8, not as floating-point numbers"),
        (lambda _, w: w > 0, "is stored as BOOL, not as floating-point numbers"),
        (lambda _, w: w * 0, "the input embedding of this llama model is all zero"),
        (lambda _, w: w * 1e36, "overflows in float32: its output on a short text is all zero"),
    ],
    ids=["int64", "int8", "bool", "zero", "huge"],
)
def test_weights_that_are_no_weights_are_refused(folder, spoil, tokens):
    with pytest.raises(ModelError, match=tokens):
        open_model(with_weights(folder, spoil))


def test_an_overflow_is_called_one_and_a_wider_type_helps(folder):
    large = with_weights(folder, lambda _, weight: weight * (1 if weight.dim() < 2 else 300))
    with pytest.raises(ModelError, match=r"overflows in float16.* is not finite") as error:
        open_model(large, dtype="float16")
    assert "dtype='float32'" in error.value.hint
    assert open_model(large).n_layers == 5


@pytest.mark.parametrize("n_layers", [0, -1, 10**6, 10**23])
def test_a_number_of_layers_that_no_checkpoint_of_this_size_has_is_refused_at_once(
    folder, n_layers
):
    with pytest.raises(
        ModelError, match=f"expected 1 to 47 layers, found num_.*_layers {n_layers}"
    ):
        open_model(with_config(folder, num_hidden_layers=n_layers))


def test_a_model_is_not_read_without_its_last_layers(folder):
    with pytest.raises(ModelError, match=r"no place for 18 weights, .* model\.layers\.3\."):
        open_model(with_config(folder, num_hidden_layers=3))


@pytest.mark.parametrize(
    ("changed", "tokens"),
    [
        ({"intermediate_size": 100}, "its weights have other sizes than its config says"),
        ({"vocab_size": 600}, "its weights have other sizes than its config says"),
        ({"use_cache": "x"}, "Field 'use_cache' expected bool, got str"),
    ],
)
def test_a_config_that_does_not_fit_its_weights_is_told_in_a_line(folder, changed, tokens):
    with pytest.raises(ModelError, match=tokens) as error:
        open_model(with_config(folder, **changed))
    assert "\n" not in str(error.value)


def test_a_broken_pattern_of_taps_is_refused(folder):
    for pattern in ("[", "(?P<", "*"):
        with pytest.raises(UsageError, match="`taps` is not a regular expression"):
            open_model(folder, taps=pattern)


def test_a_tokenizer_larger_than_the_embedding_is_refused(folder):
    file = folder / "tokenizer.json"
    said = json.loads(file.read_text())
    said["model"]["vocab"]["zebra"] = 512
    said["model"]["vocab"]["yak"] = 600
    file.write_text(json.dumps(said))
    with pytest.raises(ModelError, match=r"expected ids below 512, .*, found 2 up to 600"):
        open_model(folder)


def test_an_added_token_beyond_the_embedding_is_refused_only_where_a_text_holds_it(folder):
    """Gemma 3 has such a token, for images."""
    file = str(folder / "tokenizer.json")
    larger = Tokenizer.from_file(file)
    larger.add_special_tokens([AddedToken("<image>", special=True)])
    larger.save(file)
    model = open_model(folder)
    assert model.encode("Once upon a time").max() < 512
    with pytest.raises(
        UsageError, match=r"contains '<image>', which .* cannot read: its id is 512"
    ):
        model.encode("Once upon <image> a time")


def test_text_that_is_not_unicode_is_refused(stories):
    with pytest.raises(UsageError, match="a lone surrogate at 5"):
        stories.encode("Once \ud800 upon")


def test_states_that_overflow_are_told_not_shown(stories):
    ids = stories.encode("Once upon a time")
    push = torch.full((stories.d_model,), 1e38)
    with (
        pytest.raises(ModelError, match="overflows on this text"),
        intervene(stories, InjectResidual(2, push, 1e30)),
    ):
        capture(stories, ids)


def test_padding_may_hold_anything(stories):
    """What is not a token has no state that counts."""
    ids = stories.encode("Once upon a time").expand(2, -1)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, -2:] = False

    def spoil(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        output[1, -2:] = NAN
        return output

    with stories.final_norm.module.register_forward_hook(spoil):
        capture(stories, ids, mask=mask)
        with pytest.raises(ModelError, match="overflows on this text"):
            capture(stories, ids)


def test_a_name_longer_than_any_folder_is_refused():
    with pytest.raises(ModelError, match=r"no model at 'a+': File name too long"):
        open_model("a" * 5000)
