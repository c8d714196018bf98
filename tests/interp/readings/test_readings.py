"""Many prompts: read as if alone, in the order in which they were given."""

from __future__ import annotations

import copy
import csv
import statistics
import sys

import pytest
import torch
from scipy.stats import ttest_1samp

import saccade
from saccade.errors import MissingPackageError, ModelError, UsageError
from saccade.interp.effects.replacement import Replacement
from saccade.interp.readings import readings as module
from saccade.interp.readings.prompt import PromptSpec, encode_spec, read_specs
from saccade.interp.readings.reader import ReadConfig
from saccade.interp.readings.readings import COLUMNS, NumberedSpec, read_each

PROMPTS = [
    "One day, Tom saw a big red ball. He",
    "Once upon a time",
    "Lily looked for the cat in the park, and then she",
    "Tom saw a",
    "One day, a bird found a cake. The",
]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def mean(stories):
    return Replacement.mean(stories, stories.encode("One day, Tom saw a big red ball. He was sad."))


@pytest.fixture(scope="module")
def alone(stories, mean):
    return [saccade.read(stories, text, replacement=mean) for text in PROMPTS]


@pytest.fixture
def talking(stories, monkeypatch):
    """The little model with a chat template of the test's own."""
    tokenizer = copy.deepcopy(stories.tokenizer)
    tokenizer.chat_template = TEMPLATE
    monkeypatch.setattr(type(stories), "_tokenizer", lambda _: tokenizer)
    return stories


def assert_same(found, expected):
    assert found.text == expected.text and found.tokens == expected.tokens
    assert found.target.id == expected.target.id
    for one, other in zip(found.heads, expected.heads, strict=True):
        assert one.name == other.name
        assert one.effect.kl == pytest.approx(other.effect.kl, rel=1e-2, abs=1e-5)
        assert one.effect.on_token == pytest.approx(other.effect.on_token, abs=1e-4)
        assert one.effect.direct == pytest.approx(other.effect.direct, abs=1e-4)
        here = {source.position: source.weight for source in one.attends[:2]}
        there = {source.position: source.weight for source in other.attends}
        assert all(there[at] == pytest.approx(weight, abs=1e-4) for at, weight in here.items())


@pytest.mark.parametrize("rows", [2048, 97, 1])
def test_prompts_are_read_as_if_alone_in_their_order(stories, mean, alone, rows, monkeypatch):
    monkeypatch.setattr(module, "BATCH_ROWS", rows)
    found = saccade.read(stories, iter(PROMPTS), replacement=mean)
    assert len(found) == len(PROMPTS)
    for one, other in zip(found, alone, strict=True):
        assert_same(one, other)
    assert [each.text for each in found[1:3]] == PROMPTS[1:3]
    assert found[-1].text == PROMPTS[-1]


def test_few_prompts_are_taken_ahead_and_batches_hold_similar_lengths(stories, mean, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 2)
    own, lengths, taken = module.read_batch, [], []

    def watched(model, prompts, config):
        lengths.append([prompt.ids.shape[1] for prompt in prompts])
        return own(model, prompts, config)

    def given():
        for number, text in enumerate(PROMPTS, 1):
            taken.append(number)
            yield NumberedSpec(number, PromptSpec(prompt=text))

    monkeypatch.setattr(module, "read_batch", watched)
    config = ReadConfig(replacement=mean)
    numbers = []
    for number, _ in read_each(stories, given(), defaults=PromptSpec(), config=config):
        numbers.append(number)
        assert len(taken) <= number + 1
    assert numbers == [1, 2, 3, 4, 5]
    assert all(some == sorted(some) for some in lengths)


def test_each_prompt_may_ask_for_its_own_token_and_position(stories, mean):
    specs = [
        {"prompt": PROMPTS[0], "token": " was", "position": 3},
        PromptSpec(prompt=PROMPTS[1], token="Tom", against="Lily"),
        PROMPTS[2],
    ]
    found = saccade.read(stories, [PromptSpec.of(each) for each in specs], replacement=mean)
    assert found[0].position == 3 and found[0].target.text.strip() == "was"
    assert (found[1].target.text.strip(), found[1].against.text.strip()) == ("Tom", "Lily")
    assert found[2].target.id == found[2].prediction[0].id and found[2].against is None
    asked = saccade.read(stories, PROMPTS[0], token=" was", position=3, replacement=mean)
    assert_same(found[0], asked)


# Which heads promote a token over prompts.


def test_promoters_are_means_over_prompts_of_the_effects_on_the_token(stories, mean):
    found = saccade.read(stories, PROMPTS, replacement=mean).promoters(" was")
    single = [saccade.read(stories, text, token=" was", replacement=mean) for text in PROMPTS]
    assert found.n_prompts == 5 and found.token == " was"
    means = [head.mean for head in found.heads]
    assert means == sorted(means, reverse=True) and len(means) == stories.n_heads
    for head in found.heads:
        values = [each.at(head.layer, head.head).effect.on_token for each in single]
        assert head.mean == pytest.approx(statistics.mean(values), abs=1e-4)
        assert head.share_positive == sum(value > 0 for value in values) / 5
        low, high = ttest_1samp(values, 0).confidence_interval(0.95)
        assert (head.low, head.high) == pytest.approx((low, high), abs=1e-3)


def test_promoters_of_each_prompts_own_token_are_those_of_the_readings(stories, mean, alone):
    found = saccade.read(stories, PROMPTS, replacement=mean).promoters()
    assert found.token is None
    for head in found.heads:
        values = [each.at(head.layer, head.head).effect.on_token for each in alone]
        assert head.mean == pytest.approx(statistics.mean(values), abs=1e-4)


def test_one_prompt_has_no_interval(stories, mean):
    found = saccade.read(stories, PROMPTS[:1], replacement=mean).promoters("was")
    assert all(head.low is None and head.high is None for head in found.heads)


def test_readings_without_effects_have_no_promoters(stories, chance_lenses):
    found = saccade.read(stories, PROMPTS[:2], lenses=chance_lenses(), effects=False)
    with pytest.raises(UsageError, match="readings without effects"):
        found.promoters()


# Tables.


def test_the_table_has_a_row_a_head_with_the_readings_numbers(stories, mean, alone, tmp_path):
    found = saccade.read(stories, PROMPTS, replacement=mean)
    frame = found.to_pandas()
    assert list(frame.columns) == list(COLUMNS) and len(frame) == 5 * stories.n_heads
    row = frame[(frame.prompt == 3) & (frame.layer == 1) & (frame["head"] == 2)].iloc[0]
    effect = alone[2].at(1, 2).effect
    assert row.kl == pytest.approx(effect.kl, rel=1e-2, abs=1e-5)
    assert row.on_token == pytest.approx(effect.on_token, abs=1e-4)
    assert row.promotes.split("|")[0] == effect.promotes[0].text
    found.to_csv(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(frame) and list(rows[0]) == list(COLUMNS)
    for line, expected in zip(rows, found.rows(), strict=True):
        assert float(line["kl"]) == pytest.approx(expected["kl"], rel=1e-5, abs=1e-12)
        assert int(line["prompt"]) == expected["prompt"] and int(line["head"]) == expected["head"]


def test_without_pandas_the_message_names_it(stories, mean, monkeypatch):
    found = saccade.read(stories, PROMPTS[:1], replacement=mean)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="'pandas'") as caught:
        found.to_pandas()
    assert caught.value.hint == "pip install pandas"


# Messages.


def test_messages_are_read_through_the_template_whose_runs_count_as_one_source(talking, mean):
    messages = [{"role": "user", "content": "Tom saw a cat."}]
    chat = talking.encode_chat(messages)
    found = saccade.read(talking, messages, replacement=mean)
    assert found.text == "Tom saw a cat." and len(found.tokens) == chat.ids.shape[1]
    assert found.template == chat.is_template.nonzero()[:, 0].tolist()
    with torch.no_grad():
        logits = talking.hf(chat.ids).logits[0, -1]
    assert found.prediction[0].id == int(logits.argmax())
    talking.hf.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            rows = talking.hf(chat.ids, output_attentions=True).attentions
    finally:
        talking.hf.set_attn_implementation("sdpa")
    first_run = int((~chat.is_template).nonzero()[0])
    for head in found.heads:
        weights = rows[head.layer][0, head.head, -1]
        named = {source.text: source for source in head.attends if source.length > 1}
        assert set(named) <= {"<template user>", "<template assistant>"}
        if (source := named.get("<template user>")) is not None:
            assert (source.position, source.length) == (0, first_run)
            assert source.weight == pytest.approx(float(weights[:first_run].sum()), abs=1e-4)
        positions = [source.position for source in head.attends]
        assert (
            not {at for at in positions if at in found.template}
            - {0}
            - {named[name].position for name in named}
        )
    assert any(source.text == "<template user>" for h in found.heads for source in h.attends)


def test_messages_and_texts_may_be_mixed_in_a_list(talking, mean):
    chat = [{"role": "user", "content": "Tom saw a cat."}]
    found = saccade.read(talking, ["Tom saw a", chat], replacement=mean)
    assert [bool(each.template) for each in found] == [False, True]


def test_a_model_without_a_chat_template_is_told_with_the_prompts_number(stories):
    assert not getattr(stories.tokenizer, "chat_template", None)
    chat = [{"role": "user", "content": "Tom"}]
    with pytest.raises(ModelError, match="no chat template") as caught:
        saccade.read(stories, chat)
    assert caught.value.hint
    with pytest.raises(ModelError, match=r"prompt 2: .* no chat template"):
        saccade.read(stories, ["Tom", chat], effects=False)


# What cannot be read.


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "there are no prompts"),
        (["Tom", "  "], "prompt 2: the text is empty"),
        (["Tom", "Tom saw a cat. " * 999], "prompt 2: the text is too long"),
        (["Tom", 3], "prompt 2: expected a prompt, got int"),
        (["Tom", {"prompt": "Tom", "tokn": "a"}], "prompt 2: unknown key 'tokn'"),
        ([{"prompt": "Tom", "position": "1"}], "prompt 1: 'position' of a prompt: expected int"),
        ([{"token": "a"}], 'prompt 1: expected either "prompt" or "messages"'),
        ([{"prompt": "Tom", "against": "a"}], "prompt 1: a contrast needs a token"),
        ([{"prompt": "Tom", "position": 77}], "prompt 1: no position 77"),
        ([{"prompt": "Tom", "token": "cat", "against": " cat"}], "begin with the same token"),
    ],
)
def test_a_broken_prompt_is_told_with_its_number(stories, mean, prompts, message):
    with pytest.raises(UsageError) as caught:
        saccade.read(stories, prompts, replacement=mean)
    assert message in str(caught.value) and caught.value.hint


def test_lines_are_texts_or_json_with_their_numbers():
    lines = ["", '{"prompt": "A", "token": "b"}\n', "  ", '{"messages": [{"role": "user"}]}']
    found = list(read_specs(lines, source="file"))
    assert [number for number, _ in found] == [2, 4]
    assert found[0].spec == PromptSpec(prompt="A", token="b")
    assert found[1].spec.messages == [{"role": "user"}]
    texts = list(read_specs(["A b", "{not JSON here"], source="file"))
    assert [spec.prompt for _, spec in texts] == ["A b", "{not JSON here"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": ', "line 2 of file is not JSON: "),
        ("[1, 2]", "line 2 of file: expected a JSON object, got [1, 2]"),
        ('{"text": "A"}', "line 2 of file: unknown key 'text'"),
    ],
)
def test_a_broken_line_is_told_with_its_number(line, message):
    with pytest.raises(UsageError) as caught:
        list(read_specs(['{"prompt": "A"}', line], source="file"))
    assert message in str(caught.value) and caught.value.hint


def test_a_position_cuts_the_prompt(stories):
    prompt = encode_spec(stories, PromptSpec(prompt=PROMPTS[0], position=2))
    whole = stories.encode(PROMPTS[0])
    assert torch.equal(prompt.ids, whole[:, :3]) and len(prompt.tokens) == whole.shape[1]
