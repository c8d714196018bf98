"""The two-hop questions are sound, and their metrics equal those of plain runs."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.interp.effects.replacement import reference_text
from saccade.interp.effects.target import behind_a_space
from saccade.interp.heads.intervene import intervene
from saccade.interp.studies.edit.injection import memory_tokens, point_to_heads
from saccade.interp.studies.edit.injection_search import MOST_COST, POINTED, UnrelatedText
from saccade.interp.studies.edit.two_hop import (
    HopMetrics,
    HopTrial,
    Setting,
    another_of_each,
    chances_of,
    halves,
    known_two_hops,
    measure_two_hops,
    two_hops,
)


def test_there_are_hundreds_of_questions_and_no_two_are_alike():
    questions = two_hops()
    assert len(questions) >= 400
    assert len({q.question for q in questions}) == len(questions)
    for q in questions:
        # Neither answer is given away in the question.
        assert q.bridge not in q.question and q.answer not in q.question
        assert q.bridge in q.second and q.bridge not in q.first


def test_no_bridge_is_in_both_halves():
    first, second = halves(two_hops())
    assert len(first) + len(second) == len(two_hops())
    assert not {q.bridge for q in first} & {q.bridge for q in second}
    assert min(len(first), len(second)) > 150


def test_known_questions_are_those_whose_hops_are_the_likeliest_next_tokens(stories):
    questions = two_hops()[:12]
    known = known_two_hops(stories, questions)

    def right(prompt, token):
        with torch.no_grad():
            likeliest = stories.hf(input_ids=stories.encode(prompt)).logits[0, -1].argmax()
        return int(likeliest) == behind_a_space(stories, token)[0]

    expected = [q for q in questions if right(q.first, q.bridge) and right(q.second, q.answer)]
    assert known == expected


def test_chances_are_those_of_one_question_at_a_time(stories):
    questions = two_hops()[::150]
    for q, chance in zip(questions, chances_of(stories, questions), strict=True):
        assert chance == pytest.approx(float(chance_by_hand(stories, q)), rel=2e-3)


def chance_by_hand(model, q, changes=()):
    ids, answer = model.encode(q.question), behind_a_space(model, q.answer)[0]
    with torch.no_grad(), intervene(model, changes) if changes else nullcontext():
        return model.hf(input_ids=ids).logits[0, -1].softmax(-1)[answer]


@pytest.mark.parametrize("where", ["end", "phrase"])
@pytest.mark.parametrize(
    ("form", "layer"),
    [("unembedding", 1), ("unembedding", None), ("lens", None), ("text", 1), ("text", None)],
)
def test_injected_probabilities_are_those_of_one_question_at_a_time(
    story_lenses, form, where, layer
):
    model, questions = story_lenses.model, two_hops()[:5]
    trial = HopTrial(model, questions, layers=[1, 3], lenses=story_lenses)
    setting = Setting(form, where, layer, 0.7)
    after = trial.injected(setting)
    swapped = trial.injected(setting, memory_of=[4, 3, 2, 1, 0])
    for row, q in enumerate(questions):
        assert_close(trial.before[row], chance_by_hand(model, q), atol=1e-6, rtol=2e-3)
        changes = trial.changes(setting, row)
        assert len(changes) == (POINTED if layer is None else 1)
        assert_close(after[row], chance_by_hand(model, q, changes), atol=1e-6, rtol=2e-3)
        changes = trial.changes(setting, row, memory_of=4 - row)
        assert_close(swapped[row], chance_by_hand(model, q, changes), atol=1e-6, rtol=2e-3)


def test_heads_are_those_whose_lenses_most_predict_the_memory_at_its_position(story_lenses):
    model, questions = story_lenses.model, two_hops()[:3]
    trial = HopTrial(model, questions, layers=[], lenses=story_lenses)
    for row, q in enumerate(questions):
        tokens, back = memory_tokens(model, q.bridge), q.back(model)
        pointed = point_to_heads(story_lenses, q.question, tokens, position=back)[:POINTED]
        changes = trial.changes(Setting("lens", "phrase", None, 1.0), row)
        assert {(c.layer, c.head) for c in changes} == {(p.layer, p.head) for p in pointed}


def test_the_phrase_ends_where_its_last_token_is(stories):
    q = two_hops()[0]
    ids = stories.encode(q.question)[0]
    read = stories.tokenizer.decode(ids[: len(ids) + q.back(stories) + 1], skip_special_tokens=True)
    assert read.strip().endswith(q.phrase)


def test_each_half_is_evaluated_with_the_setting_chosen_on_the_other(story_lenses):
    model = story_lenses.model
    unrelated = UnrelatedText(model, reference_text(model, rows=2, window=24))
    few = list(two_hops()[::90])
    report = measure_two_hops(model, few, unrelated=unrelated, layers=[1], lenses=story_lenses)
    low = [q for q in few if chance_by_hand(model, q) < 0.1]
    first = {*halves(low)[0]}
    for row, q in enumerate(low):
        setting = report.settings[1 if q in first else 0]
        assert report.crossed.after[row] == report.tried[setting].after[row]
    assert len(report.tried) == 6 + 3 * 2
    assert not torch.equal(report.control.after, report.crossed.after)
    assert json.loads(json.dumps(report.to_dict()))["unrelated_perplexity"] == [*report.costs]


def test_a_search_for_each_question_takes_the_best_cheap_setting(story_lenses):
    model = story_lenses.model
    unrelated = UnrelatedText(model, reference_text(model, rows=2, window=24))
    few = list(two_hops()[::120])
    report = measure_two_hops(model, few, unrelated=unrelated, layers=[1, 3])
    trial_costs = report.known_costs
    for row, found in enumerate(report.searched.after):
        cheap = [s for s in report.tried if trial_costs.get(s, 1.0) <= MOST_COST]
        assert found == max(report.tried[s].after[row] for s in cheap)
        better = [s for s in report.tried if report.tried[s].after[row] > found]
        assert all(trial_costs[s] > MOST_COST for s in better)


def test_the_memory_of_another_question_has_another_bridge_and_another_answer():
    questions = two_hops()[:50]
    for q, other in zip(questions, another_of_each(questions), strict=True):
        assert questions[other].bridge != q.bridge and questions[other].answer != q.answer


def test_ratios_are_over_the_questions_that_were_below_a_tenth():
    metrics = HopMetrics(torch.tensor([0.01, 0.05, 0.5]), torch.tensor([0.04, 0.05, 0.1]))
    found = metrics.to_dict()
    assert (found["questions"], found["below_a_tenth"]) == (3, 2)
    assert found["mean_ratio"] == pytest.approx(2.5)
    assert found["geometric_mean_ratio"] == pytest.approx(2.0)
    assert found["share_raised"] == 0.5


def test_no_questions_are_refused(stories):
    with pytest.raises(UsageError, match="there are no questions"):
        HopTrial(stories, [], layers=[1])
