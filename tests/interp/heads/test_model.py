"""What a LanguageModel says about itself, and how it reads and shows tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from families import POSITIONS, VOCAB, build, tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from saccade.errors import UsageError
from saccade.interp.heads.capture import capture, trial_ids
from saccade.interp.heads.model import LanguageModel, wrap_model


@pytest.fixture(scope="module")
def with_tokens() -> LanguageModel:
    """A tiny Llama with a byte-level tokenizer: ids 0 to 255 are bytes, then a few words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:90]
    pieces = [*alphabet, "Ġt", "Ġth", "Ġthe"]
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e")]
    pieces += [p for p in ("Ġ", "t", "h", "e", "Ã") if p not in pieces]
    inner = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner)
    return wrap_model(build(tiny("llama").config), fast, name="tiny")


def test_sizes(llama):
    assert (llama.n_layers, llama.n_heads, llama.d_model) == (3, 18, 48)
    assert (llama.d_vocab, llama.max_positions) == (VOCAB, POSITIONS)
    assert llama.device == torch.device("cpu")


def test_a_model_without_a_limit_has_none(wrapped):
    assert wrapped("bloom").max_positions is None


def test_a_layer_that_does_not_exist(llama):
    with pytest.raises(UsageError, match="no layer 3: llama has heads in layers 0-2"):
        llama.layer(3)


def test_layers_without_heads_are_left_out_of_the_valid_ones(llama):
    gap = dataclasses.replace(llama, layers=(llama.layers[0], llama.layers[2]))
    assert gap.layer(2).index == 2
    with pytest.raises(UsageError, match="no layer 1: llama has heads in layers 0, 2"):
        gap.layer(1)


@pytest.mark.parametrize("head", [-1, 6])
def test_a_head_that_does_not_exist(llama, head):
    llama.check_head(1, 5)
    with pytest.raises(UsageError, match=f"no head {head} in layer 1: llama has heads 0-5 there"):
        llama.check_head(1, head)


def test_the_model_is_frozen(llama):
    with pytest.raises(dataclasses.FrozenInstanceError):
        llama.name = "other"


def test_fingerprints_tell_weights_apart(llama, wrapped):
    assert llama.fingerprint != wrapped("mistral").fingerprint
    assert len(llama.fingerprint) == 16


def test_encode_gives_what_the_tokenizer_gives(with_tokens):
    ids = with_tokens.encode(" the the")
    assert ids.tolist() == [with_tokens.tokenizer(" the the").input_ids]
    assert capture(with_tokens, ids).final.shape[:2] == ids.shape


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_text_is_refused(with_tokens, text):
    with pytest.raises(UsageError, match="the text is empty"):
        with_tokens.encode(text)


def test_a_text_longer_than_the_context_is_refused_with_both_numbers(with_tokens, capfd):
    with pytest.raises(UsageError, match=f"it has 80 tokens, and tiny reads at most {POSITIONS}"):
        with_tokens.encode(" the" * 80)
    assert capfd.readouterr() == ("", "")


def test_tokens_keep_their_leading_space(with_tokens):
    assert "".join(with_tokens.tokens(with_tokens.encode(" the the")[0])) == " the the"
    assert with_tokens.tokens(with_tokens.encode(" the")[0]) == [" the"]


def test_bytes_that_are_no_text_are_shown_as_the_tokenizers_piece(with_tokens):
    half = with_tokens.tokenizer.convert_tokens_to_ids("Ã")  # the first of two bytes of "é"
    assert with_tokens.tokens([half]) == ["Ã"]


def test_rows_of_the_matrix_that_are_no_tokens_are_shown_by_number(with_tokens):
    assert with_tokens.tokens([VOCAB + 5]) == [f"<{VOCAB + 5}>"]


def test_a_model_without_a_tokenizer_says_so(llama):
    with pytest.raises(UsageError, match="llama was opened without a tokenizer"):
        llama.encode("the")


def test_the_trained_model_predicts_and_its_tokens_join_to_the_text(stories):
    text = "Once upon a time, there was a little girl named"
    ids = stories.encode(text)
    logits = stories.unembedding.logits(capture(stories, ids).final)
    with torch.inference_mode():
        torch.testing.assert_close(logits, stories.hf(ids).logits, atol=1e-4, rtol=1e-4)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    assert loss < 2.5  # a model that has learnt nothing has log(512) = 6.2
    assert "".join(stories.tokens(ids[0])).endswith(text)


@pytest.mark.parametrize("first", [None, 0, -1, 1e30, "many"], ids=str)
def test_a_context_length_that_is_no_number_of_tokens_is_not_the_limit(wrapped, monkeypatch, first):
    bloom = wrapped("bloom")
    monkeypatch.setattr(bloom.hf.config, "max_position_embeddings", first, raising=False)
    assert bloom.max_positions is None
    monkeypatch.setattr(bloom.hf.config, "n_positions", 1, raising=False)
    assert bloom.max_positions == 1


def test_the_probe_is_the_entropy_of_what_the_model_says_at_each_position(model):
    ids = trial_ids(model.hf)
    with torch.inference_mode():
        said = torch.distributions.Categorical(logits=model.hf(input_ids=ids[:1]).logits[0])
    assert model.probe == pytest.approx(said.entropy().tolist(), abs=1e-4)


@pytest.mark.parametrize("n_tokens", [7, 8, 11, 101])
def test_the_trial_is_of_tokens_that_there_are_and_spares_the_first(monkeypatch, n_tokens):
    embedding = torch.nn.Embedding(n_tokens, 3)
    monkeypatch.setattr(tiny("llama"), "get_input_embeddings", lambda: embedding)
    first, second = trial_ids(tiny("llama")).tolist()
    assert first[:-1] == second[:-1] and len({*first, *second}) == 6
    assert min(first + second) > 0 and max(first + second) < n_tokens
