"""Messages as the model was trained to read them: through its tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from saccade.errors import ModelError, UsageError

# A text, or dicts with "role" and "content"; they often come from JSON, so each one is checked.
Messages = str | Sequence[Any]
# Stand for the contents of messages, to find the template's own text; from the private-use area.
_OPEN, _CLOSE = "\ue000", "\ue001"


class EncodedChat(NamedTuple):
    """The token ids of messages, and which of them the template added."""

    ids: Int[Tensor, "1 pos"]
    is_template: Bool[Tensor, " pos"]
    """True = a token of the template: none of its characters is of a message's content."""
    injected: tuple[str, ...]
    """Special tokens that stand in a message's content, in order: empty for ordinary messages."""


def has_chat_template(tokenizer: PreTrainedTokenizerBase | None) -> bool:
    """Whether a tokenizer knows how its model reads messages."""
    return bool(getattr(tokenizer, "chat_template", None))


def encode_messages(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, *, name: str
) -> EncodedChat:
    """Messages through the chat template, with the opening of the model's answer behind them.

    The ids are those of ``tokenizer.apply_chat_template(messages, add_generation_prompt=True)``:
    the template writes one text, and the tokenizer encodes it whole. It does so without a
    distinction between the template's special tokens and the same characters in a message: a
    content with ``<|im_end|>`` ends the message, for the model too. Such tokens are read as they
    are, because a study of injections needs them, and are returned in ``injected``.

    The template's own text is found by a second rendering with placeholders for the contents. A
    content that a template changes (other than by stripping it) counts as template.

    Args:
        messages: one message of the user, or messages as dicts with "role" and "content".
        name: the model's, for errors.

    Raises:
        ModelError: the tokenizer has no chat template.
        UsageError: the messages are none, or the template refuses them.
    """
    if not has_chat_template(tokenizer):
        raise ModelError(
            f"{name} has no chat template",
            hint="give the prompt as plain text, or open a model that is trained on conversations",
        )
    asked = _checked(messages)
    text = _rendered(tokenizer, asked, name)
    spans = _content_spans(tokenizer, asked, text, name)
    if not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer of {name} does not tell where its tokens stand in a text",
            hint="use a model with a fast tokenizer (tokenizer.json)",
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = [int(each) for each in encoded["input_ids"]]
    special = set(tokenizer.all_special_ids) | {
        id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    offsets = encoded["offset_mapping"]
    in_content = [any(a < end and start < b for start, end in spans) for a, b in offsets]
    injected = [
        id_ for id_, inside in zip(ids, in_content, strict=True) if inside and id_ in special
    ]
    return EncodedChat(
        torch.tensor([ids], dtype=torch.long),
        ~torch.tensor(in_content, dtype=torch.bool),
        tuple(str(each) for each in tokenizer.convert_ids_to_tokens(injected)),
    )


def _checked(messages: Messages) -> list[dict[str, str]]:
    hint = 'give a text, or messages such as [{"role": "user", "content": "Hello"}]'
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not messages:
        raise UsageError("there are no messages", hint=hint)
    for number, message in enumerate(messages, 1):
        for key in ("role", "content"):
            value = message.get(key) if isinstance(message, Mapping) else None
            if not isinstance(value, str) or not value.strip():
                raise UsageError(
                    f"message {number} has no {key}: expected a text, got {value!r}", hint=hint
                )
        try:
            message["content"].encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"message {number} is not valid Unicode: it has a lone surrogate at {error.start}",
                hint="give text in UTF-8",
            ) from error
    return [{key: message[key] for key in ("role", "content")} for message in messages]


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], name: str) -> str:
    from jinja2 import TemplateError

    try:
        text: Any = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
    except (TemplateError, ValueError, TypeError) as error:  # templates check roles and their order
        first = (str(error) or type(error).__name__).partition("\n")[0]
        raise UsageError(
            f"the chat template of {name} refuses the messages: {first}",
            hint="most templates take user and assistant in turns, some a system message first",
        ) from error
    return str(text)


def _content_spans(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], text: str, name: str
) -> list[tuple[int, int]]:
    """Where the contents stand in the rendered text, from the first character to behind the last.

    The text between the placeholders of a second rendering says where to look, so that a message
    "user" is not found in the template's own "user".
    """
    marks = [f"{_OPEN}{number}{_CLOSE}" for number in range(len(messages))]
    marked = [{**message, "content": mark} for message, mark in zip(messages, marks, strict=True)]
    model_text = _rendered(tokenizer, marked, name)
    spans: list[tuple[int, int]] = []
    at = 0
    for message, mark in zip(messages, marks, strict=True):
        before, found, model_text = model_text.partition(mark)
        if not found:  # a template may drop a message, such as an earlier system message
            model_text = before
            continue
        start = at + len(before) if text.startswith(before, at) else at
        content = message["content"]
        for each in (content, content.strip()):
            if (begin := text.find(each, start)) >= 0:
                at = begin + len(each)
                spans.append((begin, at))
                break
    return spans
