"""The recipe of handwritten words: a small one is learnt, traced, and refuses empty strokes."""

import json

import numpy as np
import pytest
import torch

from saccade.errors import TaskError, UsageError
from saccade.zoo.decoding.ctc_search import prefix_beam
from saccade.zoo.recipes.handwriting import spelling_model
from saccade.zoo.recipes.recipe import InputFile, TranslateOptions, find_recipe
from saccade.zoo.recipes.run import load_run, train_recipe
from saccade.zoo.tasks.tokenizers import CharacterTokenizer
from saccade.zoo.tasks.vocabulary import BOS, EOS
from saccade.zoo.training.settings import with_settings

WORDS = ("lo", "ol", "vol", "lov", "ovo", "loo", "vov", "oll")
WRITERS = [f"x/{name}1.dat" for name in ("anna", "bo", "cy", "dora", "ed", "flo", "gus", "hal")]
SHAPES = {
    "l": [(0.2, 3.0), (0.0, 0.0), (0.6, 0.0)],
    "o": [(0.5 - 0.5 * np.cos(t), 0.5 + 0.5 * np.sin(t)) for t in np.linspace(0, 6.28, 9)],
    "v": [(0.0, 1.0), (0.5, 0.0), (1.0, 1.0)],
}


def write(label, seed):
    """Each letter a stroke, in a hand of its own."""
    draw = np.random.default_rng(seed)
    size = 100 * draw.uniform(0.7, 1.4)
    strokes = []
    for place, letter in enumerate(label):
        corner = np.array([1.3 * place, 0.0]) + draw.normal(0, 0.04, 2)
        points = np.array(SHAPES[letter]) + corner
        strokes.append((size * points).round(1).tolist())
    return strokes


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines = [
        {"writer": writer, "label": label, "strokes": write(label, 31 * row + place)}
        for row, writer in enumerate(WRITERS)
        for place, label in enumerate(WORDS * 3)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "words.jsonl").write_text(text, encoding="utf-8")
    patch = pytest.MonkeyPatch()
    patch.setenv("SACCADE_DATA", str(folder))
    parts = {"anna": 1, "bo": 2}
    patch.setattr("saccade.zoo.tasks.pen_words.part_of", lambda person: parts.get(person, 0))
    yield folder
    patch.undo()


@pytest.fixture(scope="module")
def run(few, tmp_path_factory):
    recipe = find_recipe("ctc-words")
    words = [
        "d_hidden=24",
        "n_layers=1",
        "batch=16",
        "epochs=12",
        "dropout=0",
        "learning_rate=0.01",
    ]
    settings = with_settings(recipe.settings, [*words, "warmup=5", "order=3", "beam=4"])
    folder = tmp_path_factory.mktemp("runs") / "ctc-words"
    metrics = train_recipe(recipe, folder, settings=settings)
    return load_run(folder), metrics


def test_a_small_one_learns_to_read_a_new_hand(run):
    _, metrics = run
    assert set(metrics["test"]) == {"error", "words", "error_by_path", "words_by_path"}
    assert metrics["value"] < 30


def test_a_trace_shows_where_each_letter_is(run):
    opened, _ = run
    lattice, outputs = opened.recipe.trace(opened, "3")
    assert (lattice.kind, outputs.kind) == ("lattice", "outputs")
    torch.testing.assert_close(lattice.weights.sum(0), torch.ones(len(lattice.memory)))


def test_a_trace_reads_the_data_it_is_told_of(run, few, tmp_path, monkeypatch):
    opened, _ = run
    wanted = opened.recipe.trace(opened, "3")
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    found = opened.recipe.trace(opened, "3", data=few)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(found, wanted, strict=True))


def test_strokes_of_the_users_own_are_written_down(run, tmp_path):
    opened, _ = run
    path = tmp_path / "word.json"
    path.write_text(json.dumps(write("lov", 5)))
    for size in (1, 4):
        (found,) = opened.recipe.translate(
            opened, [InputFile.read(path)], TranslateOptions(beam=size)
        )
        assert set(found.text) <= set("lov")


def test_what_cannot_be_read_is_refused_in_one_line(run, tmp_path):
    opened, _ = run
    with pytest.raises(UsageError, match="expected the number of a test word, 0 to 23, got 99"):
        opened.recipe.trace(opened, "99")
    with pytest.raises(UsageError, match="expected the number of a test word or a JSON file"):
        opened.recipe.trace(opened, "nothing.json")
    (tmp_path / "word.json").write_text("[[[1, 2]], []]")
    with pytest.raises(TaskError, match=r"stroke 2 of .* is empty"):
        opened.trace(tmp_path / "word.json")
    with pytest.raises(UsageError, match="expected the number of a test word or a JSON file"):
        opened.trace(str(tmp_path / "word.json"))  # a plain text is no path


def test_the_language_model_prefers_words_it_has_counted():
    tokenizer = CharacterTokenizer.build(WORDS)
    model = spelling_model({"lo": 20, "vol": 10}, tokenizer, order=3)
    begun = model.step(torch.tensor([BOS]), None, model.begin(1))
    assert begun.log_probs.argmax() == tokenizer.encode("l")[0]
    read = model.step(torch.tensor(tokenizer.encode("l")), None, begun.state)
    after = model.step(torch.tensor(tokenizer.encode("o")), None, read.state)
    assert after.log_probs.argmax() == EOS
    # Frames that leave open whether it is an l or a v: the word decides.
    logits = torch.zeros(1, 5, len(tokenizer))
    for frame, letters in enumerate(("", "lv", "", "o", "")):
        logits[0, frame, tokenizer.encode(letters) if letters else [0]] = 9.0
    log_probs, mask = logits.log_softmax(-1), torch.ones(1, 5, dtype=torch.bool)
    (found,) = prefix_beam(log_probs, mask, size=8, language_model=model)
    assert tokenizer.decode(found[0].ids) == "lo"
