"""Generation against Hugging Face's own, and its effects against those of whole prompts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "heads"))  # families.py is beside its tests

from families import VOCAB, tiny

from saccade.errors import UsageError
from saccade.interp.effects.effects import measure_effects
from saccade.interp.effects.joined_pass import run_joined
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target
from saccade.interp.heads.model import wrap_model
from saccade.interp.readings import generation
from saccade.interp.readings.generation import generate

TEXT = "Once upon a time, there was a little girl named"
N = 7


def measured(model, ids, token, replacement):
    """The effects on a token of all heads, from the whole prompt."""
    found = measure_effects(model, ids, replacement=replacement, targets=Target(token))
    return [effect.on_token for effect in found.effects[0].parts.values()]


@pytest.fixture(scope="module")
def mean(stories):
    return Replacement.mean(
        stories, stories.encode("One day, Tom saw a big red ball. He was happy.")
    )


@torch.no_grad()
def test_the_text_is_that_of_hugging_faces_own_greedy_generation(stories, mean):
    ids = stories.encode(TEXT)
    own = stories.hf.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=N, do_sample=False
    )
    written = list(generate(stories, TEXT, tokens=N, replacement=mean))
    assert [each.token.id for each in written] == own[0, ids.shape[1] :].tolist()
    assert [each.position for each in written] == [ids.shape[1] + k for k in range(N)]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3", "falcon", "bloom"])
def test_effects_are_those_of_the_whole_prompt_at_each_step(family, monkeypatch):
    model = wrap_model(tiny(family), None, name=family)
    model._shown.update({id_: f"<{id_}>" for id_ in range(VOCAB)})  # no tokenizer
    ids = torch.randint(3, VOCAB, (1, 5), generator=torch.Generator().manual_seed(2))
    reference = torch.randint(3, VOCAB, (3, 11), generator=torch.Generator().manual_seed(3))
    replacement = Replacement.mean(model, reference)
    monkeypatch.setattr(type(model), "encode", lambda *_: ids)
    monkeypatch.setattr(generation, "end_tokens", lambda _: frozenset())
    written = list(generate(model, "any", tokens=N, replacement=replacement))
    assert len(written) == N
    text = ids
    for each in written:
        with torch.no_grad():
            logits = model.hf(input_ids=text).logits[0, -1].float()
        assert each.token.id == int(logits.argmax())
        assert each.token.value == pytest.approx(float(logits.softmax(-1).max()), rel=1e-3)
        expected = measured(model, text, each.token.id, replacement)
        assert [head.effect for head in each.heads] == pytest.approx(expected, abs=1e-4)
        text = torch.cat([text, torch.tensor([[each.token.id]])], 1)


def test_only_the_last_token_is_run_and_the_cache_grows_by_one(stories, mean, monkeypatch):
    seen = []

    def watched(model, ids, *args, cache, **kwargs):
        before = cache.get_seq_length()
        found = run_joined(model, ids, *args, cache=cache, **kwargs)
        lengths = {layer.keys.shape[2] for layer in cache.layers}
        seen.append((before, ids.shape[1], lengths))
        return found

    monkeypatch.setattr("saccade.interp.effects.copies.run_joined", watched)
    list(generate(stories, TEXT, tokens=3, replacement=mean))
    n = stories.encode(TEXT).shape[1]
    assert seen == [(0, n, {n}), (n, 1, {n + 1}), (n + 1, 1, {n + 2})]


@pytest.mark.parametrize("method", ["batch", "whole"])
def test_the_slower_methods_give_the_same(stories, mean, method):
    joined, slower = (
        list(generate(stories, TEXT, tokens=3, replacement=mean, method=each))
        for each in ("joined", method)
    )
    assert [each.token.id for each in joined] == [each.token.id for each in slower]
    for one, other in zip(joined, slower, strict=True):
        expected = [head.effect for head in other.heads]
        assert [head.effect for head in one.heads] == pytest.approx(expected, abs=1e-4)


def test_more_heads_than_one_pass_takes_give_the_same(stories, mean, monkeypatch):
    whole = list(generate(stories, TEXT, tokens=3, replacement=mean))
    monkeypatch.setattr("saccade.interp.effects.copies.MOST_COPIES", 13)
    parts = list(generate(stories, TEXT, tokens=3, replacement=mean))
    for one, other in zip(whole, parts, strict=True):
        assert one.token.id == other.token.id
        expected = [head.effect for head in one.heads]
        assert [head.effect for head in other.heads] == pytest.approx(expected, abs=1e-4)


def test_promoting_heads_have_positive_effects_and_come_largest_first(stories, mean):
    each = next(generate(stories, TEXT, replacement=mean))
    effects = {(head.layer, head.head): head.effect for head in each.heads}
    assert len(effects) == stories.n_heads
    up, down = each.promoted_by(5), each.opposed_by(5)
    assert [head.effect for head in up] == sorted(effects.values(), reverse=True)[:5]
    assert [head.effect for head in down] == sorted(effects.values())[:5]
    assert all(head.effect > 0 for head in up) and all(head.effect < 0 for head in down)
    shown = json.loads(json.dumps(each.to_dict(heads=2)))
    assert len(shown["promoted_by"]) == len(shown["opposed_by"]) == 2
    assert shown["text"] == each.token.text and shown["position"] == each.position


def test_sampling_draws_from_the_prediction_and_a_seed_repeats_it(stories, mean):
    with torch.no_grad():
        logits = stories.hf(input_ids=stories.encode(TEXT)).logits[0, -1]

    def first(seed, **options):
        return next(
            generate(stories, TEXT, tokens=1, seed=seed, replacement=mean, **options)
        ).token.id

    assert first(3, temperature=0.7) == first(3, temperature=0.7)
    drawn = [generation._Choice(0.7, 1.0, seed)(logits) for seed in range(400)]
    p = (logits / 0.7).softmax(-1)
    best = int(p.argmax())
    assert drawn.count(best) / 400 == pytest.approx(float(p[best]), abs=0.1)
    assert len(set(drawn)) > 1
    assert {generation._Choice(0.7, 1e-6, seed)(logits) for seed in range(20)} == {best}


def test_a_nucleus_holds_the_smallest_set_of_tokens_with_the_probability():
    logits = torch.tensor([0.1, 0.5, 0.05, 0.35]).log()
    drawn = {generation._Choice(1.0, 0.6, seed)(logits) for seed in range(100)}
    assert drawn == {1, 3}


def test_it_stops_at_the_end_of_the_text(stories, mean, monkeypatch):
    second = list(generate(stories, TEXT, tokens=2, replacement=mean))[1].token.id
    monkeypatch.setattr(generation, "end_tokens", lambda _: frozenset([second]))
    written = list(generate(stories, TEXT, tokens=N, replacement=mean))
    assert [each.is_end for each in written] == [False, True]
    assert written[-1].token.id == second


def test_the_end_tokens_are_those_of_hugging_faces_generation(stories):
    config = stories.hf.generation_config
    given = config.eos_token_id
    expected = set(given) if isinstance(given, list) else {given} - {None}
    assert generation.end_tokens(stories) >= expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -0.1}, "no temperature -0.1"),
        ({"top_p": 0.0}, "no probability 0.0"),
        ({"top_p": 1.1}, "no probability 1.1"),
        ({"tokens": 100_000}, "cannot write 100000 tokens"),
        ({"tokens": -1}, "cannot write -1 tokens"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_first_token(stories, mean, given, message):
    with pytest.raises(UsageError, match=message) as caught:
        generate(stories, TEXT, replacement=mean, **given)
    assert caught.value.hint
