"""Good and bad names of models. Nothing here uses the network: the hub is played by errors."""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import shutil
import socket
import time
from pathlib import Path

import pytest
import torch
from families import build, tiny
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging as hf_logging

from saccade.errors import MissingPackageError, ModelError, UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.loading import refuse_other_kinds
from saccade.interp.heads.model import open_model

TOKENS = ["[UNK]", "the", "cat", "sat", "on", "mat", "a"]


def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "tiny-llama"
    tiny("llama").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def hub_says(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def model_info(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(HfApi, "model_info", model_info)


class Response:
    """As much of an HTTP response as the hub's errors look at."""

    request = None
    status_code = 404

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}


def test_a_folder_opens_and_reads_as_the_model_that_was_saved(saved, wrapped, ids):
    model = open_model(saved)
    assert model.name == str(saved)
    assert model.hf.dtype == torch.float32
    torch.testing.assert_close(capture(model, ids).z, capture(wrapped("llama"), ids).z)
    assert model.fingerprint == wrapped("llama").fingerprint


def test_a_folder_may_be_named_by_a_string(saved):
    assert open_model(str(saved)).n_heads == 18


def test_the_dtype_can_be_chosen(saved):
    assert open_model(saved, dtype="bfloat16").hf.dtype == torch.bfloat16


def test_an_unknown_dtype_is_refused_with_the_nearest(saved):
    with pytest.raises(UsageError, match="unknown dtype 'bfloat'") as error:
        open_model(saved, dtype="bfloat")
    assert error.value.hint == "did you mean 'bfloat16'?"


def test_loading_prints_nothing_and_keeps_the_users_settings(saved, capfd):
    hf_logging.set_verbosity(logging.INFO)
    try:
        open_model(saved)
        assert hf_logging.get_verbosity() == logging.INFO
    finally:
        hf_logging.set_verbosity(logging.WARNING)
    assert hf_logging.is_progress_bar_enabled()
    assert capfd.readouterr() == ("", "")


def test_a_device_map_spreads_the_model_with_accelerate(saved, ids, wrapped):
    pytest.importorskip("accelerate")
    model = open_model(saved, device_map="cpu")
    torch.testing.assert_close(capture(model, ids).z, capture(wrapped("llama"), ids).z)


def test_weights_that_accelerate_keeps_elsewhere_are_read_too(ids, wrapped):
    accelerate = pytest.importorskip("accelerate")
    from saccade.interp.heads.model import wrap_model
    from saccade.interp.heads.residual_path import direct_logits

    hf = accelerate.cpu_offload(build(tiny("gemma2").config), execution_device="cpu")
    model, whole = wrap_model(hf, None, name="offloaded"), wrapped("gemma2")
    found, expected = (capture(m, ids, residual=True, attention=[1]) for m in (model, whole))
    torch.testing.assert_close(found.z, expected.z)
    torch.testing.assert_close(
        direct_logits(model, found, 1, ids), direct_logits(whole, expected, 1, ids)
    )
    torch.testing.assert_close(
        model.unembedding.logits(found.final), whole.unembedding.logits(expected.final)
    )
    assert model.fingerprint == whole.fingerprint


def test_a_device_map_without_accelerate_names_the_package(saved, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match="device_map='auto' needs the package accelerate"):
        open_model(saved, device_map="auto")


def test_a_folder_that_is_not_there():
    with pytest.raises(ModelError, match=r"no model folder at \./nowhere"):
        open_model("./nowhere")


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(
        ModelError, match=r"is not a model: the folder has no config\.json"
    ) as error:
        open_model(tmp_path)
    assert "config.json" in error.value.hint


def test_a_file_instead_of_a_folder(folder):
    with pytest.raises(ModelError, match="is a file, not a model folder"):
        open_model(folder / "config.json")


@pytest.mark.parametrize("text", ["{ not json", "{}"], ids=["broken", "empty"])
def test_a_config_that_says_nothing(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match="could not load the config of"):
        open_model(folder)


def test_truncated_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="could not load the weights of") as error:
        open_model(folder)
    assert "damaged or incomplete" in error.value.hint
    assert "\n" not in str(error.value)


def broken(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Reading weights ends in this error."""

    def from_pretrained(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")],
    ids=["of the machine", "of the device"],
)
def test_a_model_too_large_for_the_memory_is_told_with_what_makes_it_smaller(
    saved, monkeypatch, error
):
    broken(monkeypatch, error)
    with pytest.raises(ModelError, match="could not load the weights of") as raised:
        open_model(saved)
    assert "bfloat16" in raised.value.hint and "device_map" in raised.value.hint


def test_an_error_without_tokens_is_told_by_its_class_and_a_long_one_is_cut(saved, monkeypatch):
    broken(monkeypatch, OSError())
    with pytest.raises(ModelError, match=r"OSError: no reason given$") as raised:
        open_model(saved)
    assert "damaged or incomplete" in raised.value.hint
    broken(monkeypatch, OSError("\n \n" + 1000 * "x" + "\nsecond line"))
    with pytest.raises(ModelError, match=f"OSError: {(200 - len('OSError: ')) * 'x'}$"):
        open_model(saved)


def test_weights_missing_from_the_cache_while_offline_are_told_so(saved, monkeypatch):
    broken(monkeypatch, OSError("not here"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError) as raised:
        open_model(saved)
    assert "HF_HUB_OFFLINE is set" in raised.value.hint


def test_missing_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="could not load the weights of"):
        open_model(folder)


def test_a_checkpoint_that_lacks_some_weights(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.v_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 of .*layers\.1\.self_attn\.v_proj\.weight"):
        open_model(folder)


def test_a_missing_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match="could not load the tokenizer of") as error:
        open_model(folder)
    assert "tokenizer.json" in error.value.hint


def test_an_encoder_only_model(tmp_path):
    config = BertConfig(vocab_size=7, hidden_size=12, num_attention_heads=3, num_hidden_layers=1)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"is not a causal language model.*BertForMaskedLM"
    ) as error:
        open_model(tmp_path)
    assert "decoder-only" in error.value.hint


@pytest.mark.parametrize(
    ("architectures", "is_causal"),
    [
        (["LlamaForCausalLM"], True),
        (["LlamaModel"], True),  # a bare base; whether it has an unembedding is seen later
        (["OtherForClassification", "LlamaForCausalLM"], True),
        (None, True),
        (["LlamaForSequenceClassification"], False),
    ],
)
def test_what_a_config_was_built_for_decides(architectures, is_causal):
    config = copy.deepcopy(tiny("llama").config)
    config.architectures = architectures
    if is_causal:
        refuse_other_kinds(config, "some")
        return
    with pytest.raises(ModelError, match="its config says LlamaForSequenceClassification"):
        refuse_other_kinds(config, "some")


@pytest.mark.parametrize("name", ["~/nowhere-at-all", "/nowhere/at/all", ".nowhere", "a/b/c"])
def test_what_looks_like_a_path_is_not_asked_of_the_hub(monkeypatch, name):
    hub_says(monkeypatch, AssertionError("the hub was asked"))
    with pytest.raises(ModelError, match="no model folder at"):
        open_model(name)
    with pytest.raises(ModelError, match="no model folder at nowhere"):
        open_model(Path("nowhere"))


def test_the_dtype_of_the_checkpoint_is_taken_where_it_is_asked_for(saved, tmp_path):
    hf = build(copy.deepcopy(tiny("llama").config)).to(torch.bfloat16)
    hf.save_pretrained(tmp_path / "half")
    tokenizer().save_pretrained(tmp_path / "half")
    assert open_model(tmp_path / "half").hf.dtype == torch.float32
    assert open_model(tmp_path / "half", dtype="auto").hf.dtype == torch.bfloat16
    with pytest.raises(UsageError, match="unknown dtype 'xyz'") as error:
        open_model(saved, dtype="xyz")
    assert error.value.hint == "omit it for float32"


def test_an_encoder_decoder_model(tmp_path):
    config = T5Config(vocab_size=7, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"is an encoder-decoder model \(t5\)"):
        open_model(tmp_path)


def test_a_model_of_another_kind_altogether(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ModelError, match="is not a causal language model: its config says vit"):
        open_model(tmp_path)


def put_in_hub_cache(folder: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a saved model the hub's some/model, downloaded before."""
    cached = hub / "models--some--model"
    shutil.copytree(folder, cached / "snapshots" / "0123abcd")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123abcd")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))


def test_a_model_in_the_hubs_cache_opens_without_asking_the_hub(saved, tmp_path, monkeypatch):
    hub_says(monkeypatch, AssertionError("the hub was asked"))
    put_in_hub_cache(saved, tmp_path / "hub", monkeypatch)
    assert open_model("some/model").name == "some/model"


def test_a_model_of_another_kind_in_the_cache_is_refused_without_asking_the_hub(
    tmp_path, monkeypatch
):
    config = BertConfig(vocab_size=7, hidden_size=12, num_attention_heads=3, num_hidden_layers=1)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    hub_says(monkeypatch, AssertionError("the hub was asked"))
    put_in_hub_cache(tmp_path / "bert", tmp_path / "hub", monkeypatch)
    with pytest.raises(ModelError, match="some/model is not a causal language model"):
        open_model("some/model")


def test_a_download_that_breaks_off_is_told_in_one_line(tmp_path, monkeypatch):
    class BrokenError(Exception):
        """What an HTTP library might raise."""

    def broken(*_: object, **__: object) -> None:
        raise BrokenError("peer closed the connection\nwithout a token")

    monkeypatch.setattr(AutoConfig, "from_pretrained", broken)
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: None)
    with pytest.raises(ModelError) as error:
        open_model("some/model")
    expected = "could not load the config of some/model: BrokenError: peer closed the connection"
    assert str(error.value) == expected


@pytest.mark.usefixtures("empty_hub_cache")
def test_a_name_that_the_hub_does_not_know(monkeypatch):
    hub_says(monkeypatch, RepositoryNotFoundError("404", response=Response()))
    with pytest.raises(ModelError, match="no model named 'gtp2'") as error:
        open_model("gtp2")
    assert "smollm2-135m" in error.value.hint


@pytest.mark.usefixtures("empty_hub_cache")
def test_a_model_with_terms_to_accept(monkeypatch):
    hub_says(monkeypatch, GatedRepoError("403", response=Response()))
    with pytest.raises(ModelError, match="accept the terms of some/model"):
        open_model("some/model")


@pytest.mark.usefixtures("empty_hub_cache")
def test_what_else_the_hub_says_is_told_in_one_line(monkeypatch):
    hub_says(monkeypatch, HfHubHTTPError("503 Server Error\nRequest ID: 1", response=Response()))
    with pytest.raises(ModelError, match=r"hub refused some/model: 503 Server Error$") as error:
        open_model("some/model")
    assert "already in the cache" in error.value.hint


@pytest.mark.usefixtures("empty_hub_cache")
def test_a_hub_name_while_offline_by_choice(monkeypatch):
    hub_says(monkeypatch, OfflineModeIsEnabled("offline"))
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE forbids"):
        open_model("some/model")


@pytest.mark.usefixtures("empty_hub_cache")
def test_a_name_that_cannot_be_one():
    with pytest.raises(ModelError, match="is neither a folder nor a hub name"):
        open_model("no such model!")


@pytest.mark.usefixtures("empty_hub_cache")
@pytest.mark.parametrize("answers", [False, True], ids=["refused", "silent"])
def test_a_hub_that_cannot_be_reached_is_told_within_seconds(monkeypatch, answers):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if answers:
            server.listen()  # takes the call and never says a token
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr("saccade.interp.heads.loading.HUB_TIMEOUT", 0.5)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        start = time.monotonic()
        with pytest.raises(ModelError, match="hub cannot be reached") as error:
            open_model("some/model")
        assert time.monotonic() - start < 10
    assert "check the network" in error.value.hint


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("gpu", "unknown device 'gpu'"),
        ("", "unknown device ''"),
        ("meta", "the device 'meta' holds no numbers"),
        ("cuda:97", "there is no device 'cuda:97' here"),
        ("cpu:x", "unknown device 'cpu:x'"),
    ],
)
def test_a_device_that_no_model_can_run_on(saved, device, words):
    with pytest.raises(UsageError, match=words) as error:
        open_model(saved, device=device)
    assert error.value.hint == "use cpu, or omit it" and "\n" not in str(error.value)


def test_a_device_and_a_device_map_exclude_each_other(saved):
    with pytest.raises(UsageError, match="device 'cpu' and device_map 'auto' exclude each other"):
        open_model(saved, device="cpu", device_map="auto")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_on_the_cpu(saved, dtype):
    model = open_model(saved, device="cpu", dtype=dtype)
    assert (model.device.type, str(model.hf.dtype)) == ("cpu", f"torch.{dtype}")
    assert capture(model, model.encode("the cat")).final.isfinite().all()


def test_a_model_goes_to_its_device(saved, monkeypatch):
    """No second device is here, so the move itself is recorded."""
    from transformers import PreTrainedModel

    moved = []
    real = PreTrainedModel.to
    fake = lambda self, *to, **how: (moved.append(to), real(self, *to, **how))[1]  # noqa: E731
    monkeypatch.setattr(PreTrainedModel, "to", fake)
    open_model(saved, device="cpu:0")
    assert (torch.device("cpu:0"),) in moved


def test_a_device_that_is_too_small_says_so(saved, monkeypatch):
    from transformers import PreTrainedModel

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(PreTrainedModel, "to", full)
    with pytest.raises(ModelError, match="to cpu: OutOfMemoryError: CUDA out of memory") as error:
        open_model(saved, device="cpu")
    assert "dtype" in error.value.hint and "\n" not in str(error.value)
