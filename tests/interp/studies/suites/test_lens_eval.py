"""The suite lens-eval: ranks by loops, readouts by the Hugging Face model, broken items."""

from __future__ import annotations

import json

import pytest
import torch
from torch.testing import assert_close

from saccade.errors import ModelError, TaskError
from saccade.interp.heads.intervene import Ablate, intervene
from saccade.interp.lenses.jacobian_lens import residual_jacobians
from saccade.interp.studies.suites import readouts
from saccade.interp.studies.suites.lens_eval import (
    Asked,
    LensEval,
    Words,
    asked_of,
    passes,
    surfaces,
)
from saccade.interp.studies.suites.readouts import Readouts
from saccade.interp.studies.suites.suites import SuiteConfig, evaluate_suite

ITEMS = [
    {"prompt": "Once upon a time, there was a little girl named ", "target": "Lily"},
    {"prompt": "One day, Tom went to the park. Tom saw a big dog. The dog"},
    {"prompt": "One day, Lily went to the garden. She liked the "},
]
WORDS = [["girl", "Lily"], ["dog", "Constantinople", "cat"], ["garden"]]


@pytest.fixture(scope="module")
def items():
    pairs = zip(ITEMS, WORDS, strict=True)
    return [{**item, "intermediates": words} for item, words in pairs]


@pytest.fixture(scope="module")
def reader(stories, tmp_path_factory):
    """All readouts of the little model, from a little text, in a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readouts, "TEXT_TOKENS", 1920)
        patch.setenv("SACCADE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Readouts.of(stories)


def test_pass_and_control_are_those_of_a_loop():
    generator = torch.Generator().manual_seed(0)
    n, units, length, vocabulary = 5, 3, 4, 19
    top = torch.stack(
        [torch.randperm(vocabulary, generator=generator)[:length] for _ in range(n * units)]
    ).view(n, units, length)
    words = [[(1,), (2, 3)], [(4,)], [(2,), (5, 6), (7,)], [(8, 9)], [(10,)]]
    asked = [Asked(torch.tensor([0]), each, None) for each in words]
    for k in (1, 3):
        found = passes(Words.of(asked), top, k, vocabulary)
        for i, mine in enumerate(words):
            own, control = 0.0, 0.0
            for word in mine:
                others = []
                for j in range(n):
                    hit = any(t in top[j, u, :k].tolist() for t in word for u in range(units))
                    own += hit * (i == j) / len(mine)
                    if not any(set(word) & set(other) for other in words[j]):
                        others.append(hit)
                control += sum(others) / len(others) / len(mine)
            assert float(found.own[i]) == pytest.approx(own)
            assert float(found.control[i]) == pytest.approx(control)


def test_lists_that_do_not_depend_on_the_item_have_no_excess():
    top = torch.arange(7).view(1, 1, 7).expand(5, 3, 7)
    asked = [Asked(torch.tensor([0]), [(2 * at,)], None) for at in range(5)]
    found = passes(Words.of(asked), top, 5, 11)
    assert_close(found.own, found.control)
    assert found.own.tolist() == [1, 1, 1, 0, 0]


def test_the_position_is_the_token_before_the_target(stories, items):
    first = asked_of(stories, items[0])
    assert stories.tokens(first.ids)[-1].strip() == "named"  # not the space behind it
    assert first.target == stories.encode("a Lily")[0, -1] or first.target is not None
    second = asked_of(stories, items[1])
    assert torch.equal(second.ids, stories.encode(items[1]["prompt"])[0]) and second.target is None


def test_a_word_is_its_one_token_forms(stories):
    (spaced,) = (each for each in surfaces(stories, "girl") if stories.tokens([each]) == [" girl"])
    assert spaced in surfaces(stories, "girl")
    assert surfaces(stories, "Constantinople") == ()


def test_layers_are_read_out_as_by_the_hugging_face_model(reader, stories, items):
    ids = [asked_of(stories, item).ids for item in items]
    found = reader.predict(ids)
    hf = stories.hf
    for row, each in enumerate(ids):
        run = hf(each[None], output_hidden_states=True)
        for layer, stream in enumerate(run.hidden_states[1:-1]):
            logits = hf.lm_head(hf.model.norm(stream[0, -1]))
            expected = logits.topk(10).indices.tolist()
            assert found.top[readouts.LOGIT][row, layer].tolist() == expected
        assert (
            found.top[readouts.LOGIT][row, -1].tolist()
            == run.logits[0, -1].topk(10).indices.tolist()
        )
        assert int(found.first[row]) == int(run.logits[0, -1].argmax())


def test_heads_are_read_out_by_their_slice_of_the_projection(reader, stories, items):
    ids = asked_of(stories, items[1]).ids
    found = reader.predict([ids]).top[readouts.HEAD_DIRECT][0]
    at = stories.layers[2]
    seen: list[torch.Tensor] = []
    with at.projection.register_forward_pre_hook(lambda _, args: seen.append(args[0][0, -1])):
        stories.hf(ids[None])
    for head in range(at.n_heads):
        part = slice(head * at.d_head, (head + 1) * at.d_head)
        wrote = at.projection.weight[:, part] @ seen[0][part]
        logits = stories.hf.lm_head(wrote * stories.hf.model.norm.weight)
        expected = logits.topk(10).indices.tolist()
        assert found[2 * at.n_heads + head].tolist() == expected


def test_effects_are_those_of_ablating_one_head_after_another(reader, stories, items):
    ids = asked_of(stories, items[1]).ids
    found = reader.predict([ids]).top[readouts.HEAD_EFFECT][0]
    plain = stories.hf(ids[None]).logits[0, -1].log_softmax(-1)
    for number in (0, 11, 30):
        layer, head = divmod(number, 8)
        value = reader.replacement.heads[layer][head]
        change = Ablate(layer, head, "mean", value, positions=[len(ids) - 1])
        with intervene(stories, [change]):
            without = stories.hf(ids[None]).logits[0, -1].log_softmax(-1)
        assert found[number, 0] == (plain - without).argmax()
        assert set(found[number].tolist()) == set((plain - without).topk(10).indices.tolist())


def test_the_lenses_of_a_text_come_back_from_the_cache(reader, stories, monkeypatch):
    assert set(reader.left_out) == {readouts.HEAD_LENS}
    monkeypatch.setattr(readouts, "TEXT_TOKENS", 1920)
    folder = readouts.cache_dir() / "text-lenses"
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(readouts, "write_corpus", None)  # nothing is computed again
    again = readouts.TextLenses.of(stories)
    for layer, each in reader.text.jacobian.items():
        assert torch.equal(each, again.jacobian[layer])
        assert torch.equal(
            reader.text.tuned[layer].translator.weight, again.tuned[layer].translator.weight
        )
        assert torch.equal(reader.text.heads[layer].inner.weight, again.heads[layer].inner.weight)


def test_fitted_lenses_are_read_with_the_baseline_and_over_it(
    reader, stories, items, chance_lenses
):
    from dataclasses import replace

    lenses = chance_lenses(seed=1)
    ids = asked_of(stories, items[2]).ids
    found = replace(reader, lenses=lenses).predict([ids]).top
    seen: list[torch.Tensor] = []
    at = stories.layers[1]
    with at.projection.register_forward_pre_hook(lambda _, args: seen.append(args[0][0, -1])):
        stories.hf(ids[None])
    z = seen[0].view(1, at.n_heads, at.d_head)
    logits = lenses.by_layer[1](z)[0, 3]
    row = at.n_heads + 3
    assert found[readouts.HEAD_LENS][0, row].tolist() == logits.topk(10).indices.tolist()
    over = (logits - lenses.baseline).topk(10).indices.tolist()
    assert found[readouts.HEAD_GAIN][0, row].tolist() == over


def test_the_residual_jacobian_is_the_mean_of_exact_ones():
    """Without attention a state depends on its own position alone: a backward pass a feature."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from saccade.interp.heads.model import wrap_model

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=53,
        hidden_size=12,
        intermediate_size=31,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=6,
    )
    model = wrap_model(AutoModelForCausalLM.from_config(config), None, name="tiny")
    for at in model.layers:
        torch.nn.init.zeros_(at.projection.weight)
    for block in model.hf.model.layers:
        for each in block.mlp.parameters():
            each.data.mul_(20.0)
    ids = torch.randint(53, (600, 37))
    found = residual_jacobians(model, ids)
    assert_close(found[2], torch.eye(12))  # the last layer's stream is the end itself
    stream = torch.empty(0)

    def begin(_, __, output):
        nonlocal stream
        stream = (output[0] if isinstance(output, tuple) else output).detach().requires_grad_()
        return stream if not isinstance(output, tuple) else (stream, *output[1:])

    end: list[torch.Tensor] = []
    with (
        torch.enable_grad(),
        model.hf.model.layers[0].register_forward_hook(begin),
        model.hf.model.norm.register_forward_pre_hook(lambda _, args: end.append(args[0])),
    ):
        model.hf.model(ids)
    rows = []
    for feature in range(12):
        (slope,) = torch.autograd.grad(end[0][..., feature].sum(), stream, retain_graph=True)
        rows.append(slope[:, 16:].mean((0, 1)))
    exact = torch.stack(rows)
    assert (exact - torch.eye(12)).norm() > 1
    assert (found[0] - exact).norm() < 0.2 * (exact - torch.eye(12)).norm()


@pytest.fixture
def file(tmp_path, items):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"items": items}))
    return path


@pytest.fixture
def little_text(monkeypatch, tmp_path):
    monkeypatch.setattr(readouts, "TEXT_TOKENS", 960)
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("little_text")
def test_a_file_of_ones_own_gives_a_table_with_controls(stories, file):
    found = evaluate_suite(stories, file)
    assert found.suite == "lens-eval" and {row.data for row in found.rows} == {"mine"}
    methods = {row.method for row in found.rows}
    assert {readouts.LOGIT, readouts.JACOBIAN, readouts.HEAD_EFFECT, readouts.RANDOM} <= methods
    for row in found.rows:
        assert 0 <= row.low <= row.value <= row.high <= 1 and row.n == 3
        if row.method != readouts.RANDOM:
            assert row.excess == pytest.approx(row.value - row.control)
    assert found.to_json() == evaluate_suite(stories, file).to_json()


def test_words_that_the_tokenizer_splits_leave_no_item(stories, tmp_path):
    path = tmp_path / "split.jsonl"
    path.write_text(json.dumps({"prompt": "One day", "intermediates": ["Constantinople"]}))
    with pytest.raises(ModelError, match="no item is left: 1 of 1 have intermediates") as error:
        evaluate_suite(stories, path)
    assert "tokenizer" in error.value.hint


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"prompt": "a", "intermediates": "b"}, "item 2: intermediates is no list of words: 'b'"),
        ({"prompt": 3, "intermediates": ["b"]}, "item 2: prompt is no text: '3'"),
        ({"prompt": "a", "intermediates": ["b"], "target": 1}, "item 2: target is no text: '1'"),
        ({"prompt": "a", "intermediates": []}, "item 2 has no intermediates"),
    ],
)
def test_a_broken_item_is_named_by_its_number(stories, tmp_path, item, message):
    path = tmp_path / "mine.jsonl"
    good = {"prompt": "a", "intermediates": ["b"]}
    path.write_text("\n".join(map(json.dumps, (good, item))))
    with pytest.raises(TaskError, match=message):
        evaluate_suite(stories, path, SuiteConfig())


def test_missing_data_are_named_with_their_source(tmp_path, monkeypatch):
    monkeypatch.delenv("SACCADE_DATA", raising=False)
    with pytest.raises(TaskError, match="needs the data set lens-eval") as error:
        LensEval().find(tmp_path)
    assert "Anthropic" in error.value.hint
