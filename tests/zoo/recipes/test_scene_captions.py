"""Captions of scenes: what counts as a hit, small runs of every kind, and their traces."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.recipes import scene_captions
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.digit_captions import MOST, N_WORDS, CaptionScenes
from saccade.zoo.tasks.mnist import Digits
from saccade.zoo.training.settings import with_settings

SMALL = ["channels=3,4,4,5,6", "d_embed=5", "d_hidden=7", "batch=30", "epochs=2", "warmup=1"]


@pytest.fixture(scope="module")
def scenes():
    torch.manual_seed(0)
    images = torch.randint(0, 256, (12, 28, 28), dtype=torch.uint8)
    return CaptionScenes(Digits(images, torch.arange(12) % 10), size=88, batch=12, seed=1)


class Told(scene_captions.ShowAttendTell):
    """A captioner of which it is known what it will say and where it looks."""

    def __init__(self, found):
        torch.nn.Module.__init__(self)
        self.found = found


def hypotheses(batch, *, cell_of):
    """The right sentences, with all weight on the cell that ``cell_of`` names for each word."""
    found = []
    for row, said in enumerate(batch.sentences.target_out.tolist()):
        ids = said[: said.index(2)]
        weights = torch.zeros(len(ids) + 1, 121)
        for at in range(len(ids) + 1):
            weights[at, cell_of(row, at)] = 1.0
        found.append(Hypothesis(ids, 0.0, 0.0, weights))
    return found


def judged(monkeypatch, batch, found):
    monkeypatch.setattr(scene_captions, "greedy", lambda model, *_, **__: model.found)
    return scene_captions.caption_metrics(Told(found), [batch])


def cell_at(x, y):
    return int((y + 1) / 2 * 11) * 11 + int((x + 1) / 2 * 11)


def test_right_words_with_a_look_at_their_digit_are_hits(scenes, monkeypatch):
    batch = scenes[0]

    def its_own(row, at):
        window = batch.windows[row, max(0, int(batch.about[row, at]))]
        return cell_at(*window[:2].tolist())

    metrics = judged(monkeypatch, batch, hypotheses(batch, cell_of=its_own))
    assert metrics == {"exact": 100.0, "on_digit": 100.0, "on_height": 100.0}


def test_a_look_elsewhere_is_no_hit_and_neither_is_a_wrong_word(scenes, monkeypatch):
    batch = scenes[0]
    n_digits = int((batch.about.view(-1, MOST, N_WORDS)[:, :, 0] >= 0).sum())

    def its_own_but_for_heights(row, at):
        if at % N_WORDS:
            return 0 if batch.images[row, 0, :8, :8].sum() == 0 else 120
        return cell_at(*batch.windows[row, at // N_WORDS, :2].tolist())

    found = hypotheses(batch, cell_of=its_own_but_for_heights)
    found[3].ids[0] = 4 if found[3].ids[0] != 4 else 5  # another digit's name
    metrics = judged(monkeypatch, batch, found)
    assert metrics["exact"] == pytest.approx(100 * 11 / 12)
    assert metrics["on_digit"] == pytest.approx(100 * (n_digits - 1) / n_digits)
    assert metrics["on_height"] < 40


def test_a_sentence_that_ends_early_or_never_is_put_in_its_row():
    weights = torch.ones(2, 5)
    found = [Hypothesis([7], 0.0, 0.0, weights), Hypothesis([4, 5, 6, 7], 0.0, 0.0, None)]
    said, whole = scene_captions.side_by_side(found[:1] * 2, longest=3)
    assert said.tolist() == [[7, 2, 0]] * 2
    assert whole.sum((1, 2)).tolist() == [10.0, 10.0]
    assert scene_captions.side_by_side(found[1:], longest=3).said.tolist() == [[4, 5, 6]]


@pytest.mark.parametrize("name", ["soft", "hard", "tell"])
def test_every_kind_trains_is_evaluated_and_traced(little_mnist, tmp_path, name):
    recipe = find_recipe(f"caption-scenes-{name}")
    settings = with_settings(recipe.settings, SMALL)
    folder = tmp_path / name
    trained = train_recipe(recipe, folder, settings=settings, data=little_mnist)
    run = load_run(folder)
    metrics = evaluate_run(run, little_mnist)
    assert metrics["test"] == pytest.approx(trained["test"])
    assert (
        ("on_digit" in metrics["test"]) == ("on_digit" in recipe.other_metrics) == (name != "tell")
    )
    (trace,) = recipe.trace(run, "3")
    assert trace.kind == ("influence" if name == "tell" else "overlay")
    assert trace.heat.shape[1:] == (11, 11) and len(trace.steps) == len(trace.heat)
    sums = trace.heat.sum((1, 2))
    assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)
    with pytest.raises(UsageError, match="the number of a test scene, 0 to 36, got 'x'"):
        recipe.trace(run, "x")


def test_cells_are_as_square_as_they_can_be():
    assert scene_captions.grid_of(121, height=88, width=88) == (11, 11)
    assert scene_captions.grid_of(16, height=10, width=160) == (1, 16)
