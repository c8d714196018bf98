import copy
import json
import re

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from saccade.store.fingerprint import (
    _sample,
    fingerprint_model,
    fingerprint_text,
    fingerprint_tokenizer,
)

SIXTEEN_HEX = re.compile(r"[0-9a-f]{16}")


def llama(seed: int = 0, *, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=131,
        hidden_size=22,
        intermediate_size=37,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=12,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def tokenizer_of(words: list[str]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?", pad_token="?")


def test_a_reloaded_model_has_the_same_fingerprint(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    reloaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert SIXTEEN_HEX.fullmatch(fingerprint_model(model))
    assert fingerprint_model(reloaded) == fingerprint_model(model)


def test_a_bfloat16_load_agrees_with_a_float32_load(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    rounded = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    assert fingerprint_model(rounded) == fingerprint_model(model)


def test_another_seed_is_another_model():
    assert fingerprint_model(llama(seed=0)) != fingerprint_model(llama(seed=1))


def test_one_training_step_makes_another_model():
    model = llama()
    tuned = copy.deepcopy(model)
    optimiser = torch.optim.SGD(tuned.parameters(), lr=1e-2)
    ids = torch.randint(0, 131, (2, 7))
    tuned(input_ids=ids, labels=ids).loss.backward()
    optimiser.step()
    assert fingerprint_model(tuned) != fingerprint_model(model)


def test_a_change_of_one_matrix_alone_is_seen():
    model = llama()
    before = fingerprint_model(model)
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight.mul_(1.1)
    assert fingerprint_model(model) != before


def test_whether_weights_are_tied_does_not_matter_for_how_they_are_held():
    model = llama()
    before = fingerprint_model(model)
    # What accelerate's offloading does: the tied weight becomes a parameter of its own.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    assert fingerprint_model(model) == before


def test_a_model_type_counts():
    model = llama()
    before = fingerprint_model(model)
    model.config.model_type = "mistral"
    assert fingerprint_model(model) != before


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rms_norm_eps": 1e-3},
        {"hidden_act": "gelu"},
        {"sliding_window": 5},
    ],
)
def test_what_the_config_says_of_the_computation_counts(change):
    model, other = llama(), llama()
    for name, value in change.items():
        setattr(other.config, name, value)
    assert fingerprint_model(other) != fingerprint_model(model)


@pytest.mark.parametrize(
    "change",
    [
        {"_name_or_path": "/elsewhere"},
        {"transformers_version": "9.9"},
        {"dtype": "bfloat16"},
        {"use_cache": False},
        {"attention_bias": False},  # as the default has it
    ],
)
def test_where_a_model_comes_from_and_how_it_is_loaded_does_not_count(change):
    model, other = llama(), llama()
    for name, value in change.items():
        setattr(other.config, name, value)
    assert fingerprint_model(other) == fingerprint_model(model)


def test_an_offloaded_model_has_the_fingerprint_it_has_on_one_device(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model = llama(tied=False)
    before = fingerprint_model(model)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert any(parameter.is_meta for parameter in model.parameters())
    assert fingerprint_model(model) == before


def test_a_sample_visits_every_column_and_row_of_a_square_of_powers_of_two():
    square = torch.arange(256 * 256, dtype=torch.float32).reshape(256, 256)
    assert len(_sample(square)) <= 2 * 1024
    for changed in (
        square.clone().index_fill_(1, torch.tensor([77]), -1.0),
        square.clone().index_fill_(0, torch.tensor([77]), -1.0),
    ):
        assert _sample(changed) != _sample(square)


def test_a_sample_is_of_values_not_of_their_layout():
    matrix = torch.randn(37, 41)
    assert _sample(matrix.T.contiguous().T) == _sample(matrix)
    assert _sample(torch.tensor(3.0)) == _sample(torch.tensor([3.0]))
    assert _sample(torch.empty(0, 3)) == b""


def test_a_reloaded_tokenizer_has_the_same_fingerprint(tmp_path):
    tokenizer = tokenizer_of(["?", "the", "cat"])
    tokenizer.save_pretrained(tmp_path)
    assert SIXTEEN_HEX.fullmatch(fingerprint_tokenizer(tokenizer))
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    assert fingerprint_tokenizer(reloaded) == fingerprint_tokenizer(tokenizer)


def test_a_reloaded_tokenizer_of_a_trained_model_has_the_same_fingerprint(story_folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(story_folder)
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    assert fingerprint_tokenizer(reloaded) == fingerprint_tokenizer(tokenizer)


def test_using_a_tokenizer_does_not_change_its_fingerprint():
    tokenizer = tokenizer_of(["?", "the", "cat"])
    before = fingerprint_tokenizer(tokenizer)
    tokenizer(["the cat", "the"], padding=True, truncation=True, max_length=1)
    assert json.loads(tokenizer.backend_tokenizer.to_str())["truncation"] is not None
    assert fingerprint_tokenizer(tokenizer) == before


def test_tokenizers_that_split_or_number_differently_differ():
    plain = tokenizer_of(["?", "the", "cat"])
    ruled = tokenizer_of(["?", "the", "cat"])
    ruled.backend_tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("a")
    marked = tokenizer_of(["?", "the", "cat"])
    marked.add_special_tokens({"eos_token": "cat"})
    others = [tokenizer_of(["?", "cat", "the"]), ruled, marked]
    prints = {fingerprint_tokenizer(tokenizer) for tokenizer in [plain, *others]}
    assert len(prints) == 4


def test_texts_are_told_apart_whatever_their_chunks():
    assert fingerprint_text([b"ab", b"", b"c"]) == fingerprint_text(iter([b"abc"]))
    assert fingerprint_text([b"abc"]) != fingerprint_text([b"abd"])
    assert fingerprint_text([]) == "e3b0c44298fc1c14"  # the sha256 of nothing


def test_parameters_count_by_name_and_shape_and_in_no_order():
    def fingerprint(**values):
        model = torch.nn.Module()
        for name, value in values.items():
            model.register_parameter(name, torch.nn.Parameter(value))
        return fingerprint_model(model)

    a, b = torch.arange(6.0).view(2, 3), torch.arange(6.0, 11.0)
    expected = fingerprint(a=a, b=b)
    assert fingerprint(b=b, a=a) == expected
    assert fingerprint(a=a.view(3, 2), b=b) != expected
    assert fingerprint(a=a, c=b) != expected
    # The same values in a row, cut in another place.
    assert fingerprint(a=torch.arange(5.0), b=torch.arange(5.0, 11.0)) != expected


def test_a_single_number_counts():
    assert [len(_sample(each)) for each in (torch.ones(1), torch.tensor(2.0))] == [2, 2]
