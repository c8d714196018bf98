"""The suite roles: planted heads, effects by ablation, paths of small changes, broken templates."""

from __future__ import annotations

import json

import pytest
import torch
from torch.testing import assert_close

from saccade.errors import ModelError, TaskError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate, intervene
from saccade.interp.studies.roles.names import NAMES, PLACES, THINGS, NameWords
from saccade.interp.studies.suites.name_circuit import (
    exact_paths,
    name_prompts,
    name_run,
    paths_at_first_order,
    unrelated_means,
)
from saccade.interp.studies.suites.role_suite import RoleSuite
from saccade.interp.studies.suites.stable_heads import HeldOut
from saccade.interp.studies.suites.suites import SuiteConfig, evaluate_suite

TEMPLATES = (
    "{name_A} and {name_B} went to the {place} . {name_C} gave a {object} to",
    "Then {name_A} and {name_B} saw a {object} . {name_C} gave it to",
    "When {name_A} and {name_B} left the {place} {name_C} gave an {object} to",
    "After {name_A} and {name_B} met {name_C} gave a {object} to",
    "Later {name_A} and {name_B} had fun . {name_C} gave a {object} to",
)
SHAPES = [
    each.replace("name_A", "a").replace("name_B", "b").replace("name_C", "s").replace("an {", "a {")
    for each in TEMPLATES
]
WORDS = NameWords([each.replace("object", "thing") for each in SHAPES], NAMES, PLACES, THINGS)


@pytest.fixture(scope="module")
def reader_of_words():
    """A random model for which every word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    from saccade.interp.heads.model import wrap_model

    words = {word for each in TEMPLATES for word in each.split() if "{" not in word}
    words |= {*NAMES, *PLACES, *THINGS, "[unknown]"}
    vocabulary = {word: n for n, word in enumerate(sorted(words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[unknown]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[unknown]")
    torch.manual_seed(3)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=len(vocabulary),
        hidden_size=25,
        intermediate_size=29,
        num_hidden_layers=3,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=6,
    )
    model = AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.data.mul_(6.0)  # attention that looks somewhere
    return wrap_model(model, tokenizer, name="reader of words")


@pytest.fixture(scope="module")
def prompts(reader_of_words):
    return name_prompts(reader_of_words, WORDS, seed=0)


@pytest.fixture(scope="module")
def means(reader_of_words):
    return unrelated_means(reader_of_words, WORDS, seed=0)


def test_heads_that_are_there_are_found_on_both_halves_and_hold_on_the_other():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(11, 30, generator=generator)
    scores[:, [4, 17]] += 5.0
    layer = torch.arange(30) // 5 * 1.0
    found = HeldOut.of(scores, 2, seed=1)
    assert set(found.heads[0]) == set(found.heads[1]) == {4, 17} and found.overlap == 1.0
    own, control = found.measured(scores, layer)
    for item in range(11):
        assert float(own[item]) == pytest.approx(float(scores[item, [4, 17]].mean()), abs=1e-5)
        beside = [scores[item, [0, 1, 2, 3]].mean(), scores[item, [15, 16, 18, 19]].mean()]
        assert float(control[item]) == pytest.approx(float(sum(beside)) / 2, abs=1e-5)


def test_the_best_of_many_random_heads_do_not_hold_on_the_other_half():
    scores = torch.randn(400, 300, generator=torch.Generator().manual_seed(0))
    found = HeldOut.of(scores, 3, seed=0)
    own, _ = found.measured(scores, torch.zeros(300))
    first = found.halves[0]
    assert float(scores[first][:, found.heads[0]].mean()) > 0.1  # where they were found
    assert abs(float(own.mean())) < 0.1
    assert not set(found.halves[0].tolist()) & set(found.halves[1].tolist())


def test_prompts_have_every_template_and_both_orders(reader_of_words, prompts):
    assert {prompt.template for prompt in prompts} == set(range(5))
    first = 0
    for prompt in prompts:
        ids = prompt.ids.tolist()
        assert ids.count(prompt.target.token) == 1 and ids[prompt.io] == prompt.target.token
        assert ids.count(prompt.target.against) == 2 and ids[prompt.s2] == prompt.target.against
        assert prompt.target.against not in ids[prompt.s2 + 1 :]
        first += prompt.io < ids.index(prompt.target.against)
    assert first == len(prompts) / 2
    assert all("[unknown]" not in reader_of_words.tokens(prompt.ids) for prompt in prompts)


def test_effects_are_those_of_ablating_heads_one_by_one(reader_of_words, prompts, means):
    model = reader_of_words
    run = name_run(model, prompts[:7], means)
    for row, prompt in enumerate(prompts[:7]):
        plain = model.hf(prompt.ids[None], output_attentions=True)
        score = prompt.target.score(plain.logits[0, -1])
        assert float(run.difference[row]) == pytest.approx(float(score), abs=1e-4)
        for site in (0, 4, 7, 13):
            layer, head = divmod(site, 5)
            value = means[layer][prompt.template, head]
            change = Ablate(layer, head, "mean", value, positions=[len(prompt.ids) - 1])
            with intervene(model, [change]):
                without = prompt.target.score(model.hf(prompt.ids[None]).logits[0, -1])
            assert float(run.total[row, site]) == pytest.approx(float(score - without), abs=1e-3)
        weights = capture(model, prompt.ids[None], attention=[0, 1, 2]).attention
        assert_close(run.io[row, 5:10], weights[1][0, :, -1, prompt.io], atol=1e-5, rtol=1e-4)
        assert_close(run.s2[row, 10:], weights[2][0, :, -1, prompt.s2], atol=1e-5, rtol=1e-4)


def test_direct_effects_of_heads_are_their_part_of_the_logits(reader_of_words, prompts, means):
    """By the slice of the projection, at the scale that the final norm has in the plain run."""
    model = reader_of_words
    prompt = prompts[0]
    run = name_run(model, [prompt], means)
    at = model.layers[1]
    plain = capture(model, prompt.ids[None], residual=True)
    away = plain.z[1][0, -1] - means[1][prompt.template]
    weight = at.projection.weight.view(25, 5, 6)
    norm = model.hf.model.norm
    end = plain.final_residual[0, -1]
    scale = (end.pow(2).mean() + norm.variance_epsilon).rsqrt()
    for head in range(5):
        state = (weight[:, head] @ away[head]) * scale * norm.weight
        expected = float(prompt.target.score(model.hf.lm_head(state)))
        assert float(run.direct[0, 5 + head]) == pytest.approx(expected, abs=1e-3)


def test_paths_at_first_order_are_those_of_small_changes(reader_of_words, prompts):
    model = reader_of_words
    prompt = prompts[3]._replace(template=0)
    z = capture(model, prompt.ids[None]).z
    generator = torch.Generator().manual_seed(0)
    near = {
        layer: (each[0, -1] + 1e-2 * torch.randn(each[0, -1].shape, generator=generator))[None]
        for layer, each in z.items()
    }
    through = [(2, 1), (1, 3)]
    first = paths_at_first_order(model, [prompt], near, through)[0]
    sites = [(layer, head) for layer in range(2) for head in range(5)]
    exact = exact_paths(model, prompt, near, sites, through)
    assert float(exact.abs().max()) > 0
    assert float(torch.corrcoef(torch.stack([first[:10], exact]))[0, 1]) > 0.98
    assert first[10:].abs().max() == 0 and first[5:10].abs().max() > 0


@pytest.fixture
def folder(tmp_path):
    """A folder of data sets: templates as MIB has them, and two tasks."""
    judging = tmp_path / "judging"
    (judging / "ioi").mkdir(parents=True)
    (judging / "function-vectors").mkdir()
    parts = {"templates": TEMPLATES, "names": NAMES, "places": PLACES, "objects": THINGS}
    for part, words in parts.items():
        (judging / "ioi" / f"mib_{part}.json").write_text(json.dumps(words))
    pairs = [{"input": a, "output": b} for a, b in zip(NAMES, PLACES * 3, strict=False)]
    for name in ("where", "there"):
        (judging / "function-vectors" / f"{name}.json").write_text(json.dumps(pairs))
    return tmp_path


def test_the_suite_measures_every_role_that_the_model_has(reader_of_words, folder):
    found = evaluate_suite(reader_of_words, "roles", SuiteConfig(seed=1), data=folder)
    assert {row.data for row in found.rows} == {"ioi", "repeated tokens"}
    assert "does none of the tasks" in found.left_out["function-vectors"]
    value = found.value("ioi", "name movers", "direct effect")
    assert value > found.value("ioi", "negative name movers", "direct effect")
    by_metric = {(row.method, row.metric): row for row in found.rows}
    row = by_metric["name movers", "direct effect"]
    assert row.n == 5 and row.excess == pytest.approx(row.value - row.control, abs=1e-5)
    assert ("S-inhibition heads", "path effect") in by_metric
    assert 0 <= by_metric["name movers", "copy score"].value <= 1
    again = evaluate_suite(reader_of_words, "roles", SuiteConfig(seed=1), data=folder)
    assert found.to_json() == again.to_json()


def test_the_data_are_read_with_their_tasks(folder):
    suite = RoleSuite()
    items = suite.read(suite.find(folder))
    assert [len(each) for each in items.values()] == [5, 2]
    assert items["function-vectors"][0]["pairs"][0] == (NAMES[0], PLACES[0])


def test_too_few_templates_are_refused(reader_of_words, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"template": each}) for each in TEMPLATES[:2]))
    with pytest.raises(ModelError, match="2 of 2 templates are left, of which 4 are needed"):
        evaluate_suite(reader_of_words, path)


def test_a_model_that_splits_names_is_refused(stories, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"template": each}) for each in TEMPLATES))
    with pytest.raises(ModelError, match="splits names into pieces"):
        evaluate_suite(stories, path)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"template": "{name_A} met {name_B}"}, r"item 2: template has no \{name_C\}"),
        ({"template": f"{TEMPLATES[0]} {{who}}"}, "item 2: template has an unknown field, 'who'"),
        ({"template": 5}, "item 2: template is no text: '5'"),
        ({"template": TEMPLATES[0], "names": "x"}, "item 2: names is no list of words: 'x'"),
    ],
)
def test_a_broken_template_is_named_by_its_number(reader_of_words, tmp_path, item, message):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, ({"template": TEMPLATES[0]}, item))))
    with pytest.raises(TaskError, match=message):
        evaluate_suite(reader_of_words, path)
