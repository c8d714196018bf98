"""Readers learn to fill gaps in books that a test writes, and show where they looked."""

import random

import pytest
import torch

from saccade.errors import SaccadeError, UsageError
from saccade.zoo.recipes.reader_books import encode
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.cloze import GAP_WORD, read_book_cloze
from saccade.zoo.training.settings import with_settings

BOOKS = ("austen-emma", "chesterton-thursday", "austen-persuasion", "carroll-alice")
NAMES = [f"{first}{last}" for first in ("Bel", "Dor", "Mir", "Tam") for last in ("a", "e", "o")]
SMALL = [
    *("n_labels=14", "d_embed=16", "d_hidden=16", "n_words=60", "dropout=0.0", "tokens=4000"),
    *("steps=120", "learning_rate=0.02"),
]


def write_book(seed):
    """Somebody holds the lamp, and passes it on now and then; who holds it is asked for."""
    chance = random.Random(seed)
    holder, lines = chance.choice(NAMES), []
    for _ in range(130):
        other = chance.choice([name for name in NAMES if name != holder])
        lines.append(
            chance.choice(
                [
                    f"And so {other} went for a walk.",
                    f"There was {other} at the door.",
                    f"It was {holder} who held the lamp.",
                ]
            )
        )
    return "\n\n".join(lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "gutenberg"
    folder.mkdir()
    for seed, book in enumerate(BOOKS):
        (folder / f"{book}.txt").write_text(write_book(seed), encoding="latin-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SACCADE_DATA", str(folder.parent))
        yield folder.parent


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    made = {}

    def run(reader):
        if reader not in made:
            recipe = find_recipe(f"reader-books-{reader}")
            folder = tmp_path_factory.mktemp("runs") / reader
            is_learnt = reader in ("attentive", "impatient", "deep-lstm")
            changed = [*SMALL, *(["steps=4"] if reader == "deep-lstm" else [])]
            settings = with_settings(recipe.settings, changed if is_learnt else ["n_labels=14"])
            made[reader] = folder, train_recipe(recipe, folder, settings=settings, data=data)
        return made[reader]

    return run


@pytest.mark.parametrize("reader", ["attentive", "impatient"])
def test_a_reader_with_attention_learns_what_counting_cannot(reader, runs):
    _, metrics = runs(reader)
    _, counted = runs("max-frequency")
    assert metrics["value"] > counted["value"] + 8


def test_the_metric_is_per_cent_of_questions_and_each_book_has_its_own(runs, data):
    folder, metrics = runs("attentive")
    test = read_book_cloze(data).test
    run = load_run(folder)
    right = {book: [] for book in BOOKS[2:]}
    for each in test:
        (batch,) = encode(run, [each]).in_order(tokens=9999)
        logits = run.model(batch)[0]
        said = max(each.candidates, key=lambda label: logits[label].item())
        right[each.source].append(said == each.answer)
    for book, found in right.items():
        assert metrics["test"][book] == pytest.approx(100 * sum(found) / len(found))
    every = [one for found in right.values() for one in found]
    assert metrics["value"] == pytest.approx(100 * sum(every) / len(every))
    assert evaluate_run(run, data)["test"] == pytest.approx(metrics["test"])


@pytest.mark.parametrize("reader", ["attentive", "impatient", "deep-lstm", "nearest"])
def test_a_trace_is_the_document_with_its_names(reader, runs, data):
    folder, _ = runs(reader)
    run = load_run(folder)
    (trace,) = run.recipe.trace(run, "3")
    asked = read_book_cloze(data).test[3]
    assert trace.kind == "document" and len(trace.memory) == len(asked.document)
    assert not any(word.startswith("@") for word in trace.memory)
    assert trace.meta["answer"] == asked.names[asked.answer]
    assert sum(trace.meta["candidates"].values()) == pytest.approx(1, abs=0.01)
    steps = len(asked.question) if reader == "impatient" else 1
    assert len(trace.steps) == steps
    if reader != "deep-lstm":  # part of its influence is the question's
        torch.testing.assert_close(trace.weights.sum(-1), torch.ones(steps))


def test_the_reader_looks_at_who_held_the_lamp(runs):
    folder, _ = runs("attentive")
    text = "There was Bela at the door. It was Tamo who held the lamp. And so Dore went for a walk."
    asked = f"{text} It was {GAP_WORD} who held the lamp."
    run = load_run(folder)
    (trace,) = run.recipe.trace(run, asked)
    assert trace.steps[0].startswith("Tamo") and trace.most(0, top=1)[0].label == "Tamo"


def test_a_question_file_is_traced(runs, tmp_path):
    folder, _ = runs("attentive")
    (path := tmp_path / "one.question").write_text(
        "http://x\n\n@entity7 saw @entity2 .\n\n@placeholder walked\n\n@entity2\n\n@entity7:A\n"
        "@entity2:B\n"
    )
    run = load_run(folder)
    (trace,) = run.trace(path)
    assert trace.memory == ("A", "saw", "B", ".") and trace.meta["answer"] == "B"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("99999", UsageError, "expected the number of a test question"),
        ("nothing is asked", UsageError, "has no question"),
        ("missing.question", UsageError, "has no question"),
    ],
)
def test_other_inputs_are_refused(text, error, words, runs):
    folder, _ = runs("attentive")
    run = load_run(folder)
    with pytest.raises(error, match=words) as refused:
        run.recipe.trace(run, text)
    assert refused.value.hint


def test_an_unknown_reader_is_refused():
    with pytest.raises(SaccadeError, match="hasty"):
        with_settings(find_recipe("reader-books-attentive").settings, ["reader=hasty"])


def test_documents_that_are_too_long_are_not_learnt_from_but_judged(data):
    splits = read_book_cloze(data)
    longest = sorted(len(each.document) for each in splits.train)[len(splits.train) // 2]
    changed = [f"longest={longest}"]
    recipe = find_recipe("reader-books-attentive")
    job = recipe.build(with_settings(recipe.settings, changed), data)
    learnt = sum(len(batch.rows) for batch in job.batches_of(0, 0))
    assert learnt == sum(len(each.document) <= longest for each in splits.train)
    assert learnt < len(splits.train)
