"""A text begins as the tokenizer begins a prompt; which of its tokens are text."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from saccade.interp.heads.model import Encoding, show_tokens, text_ids

BOS, EOS, EXTRA = 1, 2, 3
TOKENS = {"<unk>": 0, "<s>": BOS, "</s>": EOS, "<chat>": EXTRA, "a": 5, "cat": 7, "sat": 11}


def tokenizer_with(template: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer of tokens that adds what a template says."""
    backend = Tokenizer(models.WordLevel(TOKENS, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if template is not None:
        special = [(name, TOKENS[name]) for name in ("<s>", "</s>", "<chat>")]
        backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=special
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<chat>"],
    )


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        (None, ()),
        ("$A", ()),
        ("<s> $A", (BOS,)),
        ("<s> <chat> $A", (BOS, EXTRA)),
        ("$A </s>", ()),
        ("<s> $A </s>", (BOS,)),
    ],
)
def test_the_prefix_is_what_the_tokenizer_puts_in_front_and_nothing_ends_a_prompt(template, prefix):
    tokenizer = tokenizer_with(template)
    encoding = Encoding.of(tokenizer)
    assert encoding.prefix == prefix
    assert text_ids(tokenizer, encoding, "cat sat").tolist() == [[*prefix, 7, 11]]
    whole = tokenizer("cat sat").input_ids
    assert whole[: len(prefix) + 2] == [*prefix, 7, 11]


def test_special_tokens_and_the_first_position_are_no_text():
    encoding = Encoding.of(tokenizer_with("<s> $A"))
    ids = torch.tensor([[BOS, 7, EOS, 11, EXTRA], [7, 11, 5, 0, 5]])
    expected = [[False, True, False, True, False], [False, True, True, False, True]]
    assert encoding.is_text(ids).tolist() == expected


def test_the_whole_prefix_is_no_text_and_one_token_is_left_out_without_any():
    ids = torch.full((2, 5), 7)
    assert Encoding(prefix=(1, 3)).is_text(ids).sum(1).tolist() == [3, 3]
    assert Encoding.of(None).is_text(ids).sum(1).tolist() == [4, 4]


def test_a_prompt_of_the_little_model_is_what_its_tokenizer_makes_of_it(stories):
    text = "Once upon a time there was a cat."
    assert stories.encode(text)[0].tolist() == stories.tokenizer(text).input_ids
    assert stories.encoding.prefix == (stories.tokenizer.bos_token_id,)
    assert stories.prefix == ("<s>",)


def plain_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, ".": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_the_first_and_the_last_token_are_tokens_and_what_is_beside_them_has_a_number():
    tokenizer = plain_tokenizer()
    assert len(tokenizer) == 3
    assert [each.strip() for each in show_tokens(tokenizer, [0, 2])] == ["<unk>", "."]
    assert show_tokens(tokenizer, [-1, 3]) == ["<-1>", "<3>"]


def test_a_full_stop_keeps_its_space():
    tokenizer = plain_tokenizer()
    assert tokenizer.decode([1, 2], clean_up_tokenization_spaces=True) == "a."
    assert show_tokens(tokenizer, [2]) == [" ."]


def test_ids_of_a_tokenizer_with_gaps_are_shown_by_their_token():
    tokenizer = tokenizer_with(None)
    assert len(tokenizer) == 7 < TOKENS["sat"]
    assert [each.strip() for each in show_tokens(tokenizer, [7, 11, 4])] == ["cat", "sat", "<4>"]
