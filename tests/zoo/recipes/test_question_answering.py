"""Recipes on stories: small ones are learnt, metrics are what they say, stories can be traced."""

import json

import pytest
import torch

from saccade.errors import UsageError
from saccade.trace.plot import draw_trace
from saccade.trace.trace import load_trace, save_trace
from saccade.zoo.recipes.question_answering import errors_by_task, question_from
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.babi import Stories, read_babi, words_of
from saccade.zoo.tasks.vocabulary import Vocabulary
from saccade.zoo.training.settings import with_settings

SMALL = ["tasks=1,4", "n_facts=20", "schedule=constant"]
CHANGES = {
    "memn2n-babi": [
        *(*SMALL, "d_embed=20", "n_tries=2", "epochs=3", "batch=64", "linear_share=0"),
        *("optimiser=adam", "learning_rate=0.03", "warmup=0"),
    ],
    "memnn-babi": [*SMALL, "d_embed=24", "epochs=5", "learning_rate=0.01"],
    "dmn-babi-10k": [
        *SMALL,
        "size=1k",
        "d_hidden=24",
        "batch=32",
        "epochs=2",
        "learning_rate=0.01",
        "warmup=0",
    ],
}
STORY = "Mary went to the kitchen. John moved to the garden. Where is Mary?"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data_with):
    made, data = {}, data_with("babi")

    def run(name):
        if name not in made:
            recipe, folder = find_recipe(name), tmp_path_factory.mktemp("runs") / name
            settings = with_settings(recipe.settings, CHANGES[name])
            made[name] = folder, train_recipe(recipe, folder, settings=settings, data=data)
        return made[name]

    return run


def test_questions_of_slow_tasks_come_again_in_each_epoch(data_with):
    data = data_with("babi")
    recipe = find_recipe("dmn-babi-10k")
    changes = ["size=1k", "tasks=1,4,15", "slow_tasks=4,15", "n_repeats=3"]
    job = recipe.build(with_settings(recipe.settings, changes), data)
    counts = torch.zeros(16, dtype=torch.long)
    for batch in job.batches(0):
        counts += batch.task.bincount(minlength=16)
    assert counts[1] == 900
    assert counts[4] == counts[15] == 2700
    with pytest.raises(UsageError, match="n_repeats: expected 1 or more, got 0"):
        recipe.build(with_settings(recipe.settings, ["size=1k", "n_repeats=0"]), data)


@pytest.mark.parametrize("name", CHANGES)
def test_a_small_run_learns_and_its_metric_is_the_mean_over_tasks(name, runs, data_with):
    data = data_with("babi")
    folder, metrics = runs(name)
    run = load_run(folder)
    assert metrics["value"] < (72 if name == "dmn-babi-10k" else 35)  # saying one word: 80
    assert set(metrics["test"]) == {"error", "failed", "task 1", "task 4"}
    words = Vocabulary(tuple(run.kept["words"]))
    wrong = {1: 0, 4: 0}
    test = read_babi("1k", data, tasks=(1, 4)).test
    for task in wrong:
        asked = [question for question in test if question.task == task][:40]
        for question in asked:
            batch = Stories.of([question], words, most=20).batch(torch.tensor([0]))
            said = words.words[int(run.model(batch).logits.argmax())]
            wrong[task] += said != question.answer
    stories = Stories.of([q for t in wrong for q in test if q.task == t][:40], words, most=20)
    assert errors_by_task(run.model, stories)[1] == pytest.approx(100 * wrong[1] / 40)
    again = evaluate_run(run, data)["test"]
    assert again == pytest.approx(metrics["test"])
    assert again["error"] == pytest.approx((again["task 1"] + again["task 4"]) / 2)


@pytest.mark.parametrize(
    ("name", "step"), [("memn2n-babi", "hop"), ("memnn-babi", "fact"), ("dmn-babi-10k", "episode")]
)
def test_a_story_is_traced_fact_by_fact_and_can_be_drawn(name, step, runs, tmp_path):
    folder, _ = runs(name)
    run = load_run(folder)
    (trace,) = run.recipe.trace(run, STORY)
    assert trace.kind == "hops" and trace.is_upright
    assert trace.memory == ("mary went to the kitchen", "john moved to the garden")
    assert trace.steps[0] == f"{step} 1"
    torch.testing.assert_close(trace.weights.sum(-1), torch.ones(len(trace.steps)))
    assert trace.title == f"where is mary? {trace.meta['answer']}"
    draw_trace(trace, tmp_path / "hops.png")
    assert (tmp_path / "hops.png").read_bytes()[:4] == b"\x89PNG"
    assert '"kind":"hops"' in trace.to_html()
    save_trace(tmp_path / "kept", trace)
    assert load_trace(tmp_path / "kept").to_dict() == json.loads(json.dumps(trace.to_dict()))


def test_the_fact_that_names_who_is_asked_for_is_found(runs):
    folder, _ = runs("memnn-babi")
    run = load_run(folder)
    (trace,) = run.recipe.trace(run, STORY)
    assert trace.most(0)[0].label == "mary went to the kitchen"
    assert trace.meta["answer"] == "kitchen"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Mary went to the kitchen.", "ends without a question"),
        ("", "ends without a question"),
        ("Where is Mary?", "no story"),
        ("Mary bought a zeppelin. Where is Mary?", "does not know bought, zeppelin"),
    ],
)
def test_a_story_that_cannot_be_answered_is_refused_in_one_line(text, told):
    known = Vocabulary.build([["mary", "went", "to", "the", "kitchen", "where", "is", "a"]])
    with pytest.raises(UsageError, match=told) as refused:
        question_from(text, known)
    assert refused.value.hint and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["memn2n-babi", "memn2n-babi-10k", "memnn-babi", "dmn-babi-10k"])
def test_every_recipe_has_a_model_of_its_settings(name):
    recipe = find_recipe(name)
    words = Vocabulary.build([words_of(STORY)])
    model = recipe.restore(recipe.settings, {"words": list(words.words)}).eval()
    asked = [
        question_from(STORY.replace("is Mary", f"is {who}"), words) for who in ("Mary", "John")
    ]
    stories = Stories.of(asked, words)
    answered = model(stories.batch(torch.tensor([0, 1])))
    assert answered.logits.shape == (2, len(words)) and answered.weights.shape[2] == 2
    assert not torch.allclose(*answered.logits)
    for row in range(2):
        alone = model(stories.batch(torch.tensor([row])))
        torch.testing.assert_close(answered.logits[row], alone.logits[0], atol=1e-5, rtol=1e-4)
