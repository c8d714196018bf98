"""Films in words: what counts as a hit, small runs of all four systems, and their traces."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.models.video_describer import VideoDescriber
from saccade.zoo.recipes import video_captions
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.mnist import Digits
from saccade.zoo.tasks.videos import N_FRAMES, MovingDigits
from saccade.zoo.training.settings import with_settings

SMALL = ["d_frame=5", "d_embed=4", "d_hidden=7", "batch=30", "epochs=1", "warmup=1"]


@pytest.fixture(scope="module")
def batch():
    torch.manual_seed(0)
    images = torch.randint(0, 256, (20, 28, 28), dtype=torch.uint8)
    return MovingDigits(Digits(images, torch.arange(20) % 10), size=40, batch=20, seed=1)[0]


def judged(monkeypatch, batch, frame_of, *, spoil=None):
    """The metrics of the right sentences, looked for in the frame that ``frame_of`` names."""
    found = []
    for row, said in enumerate(batch.sentences.target_out.tolist()):
        ids = said[: said.index(2)]
        weights = torch.zeros(len(ids) + 1, N_FRAMES)
        for at in range(len(ids) + 1):
            weights[at, frame_of(row, at)] = 1.0
        found.append(Hypothesis(ids, 0.0, 0.0, weights))
    if spoil is not None:
        found[spoil].ids[2] = 4  # a name where the way should be
    monkeypatch.setattr(video_captions, "greedy", lambda *_, **__: found)
    model = VideoDescriber(n_words=20, size=None, d_frame=2)
    return video_captions.film_metrics(model, [batch], is_looking=True)


def test_right_words_with_a_look_at_their_frames_are_hits(batch, monkeypatch):
    last = judged(monkeypatch, batch, lambda row, at: int(batch.spans[row, min(2, at // 4), 1]) - 1)
    assert last == dict.fromkeys(("exact", "names", "ways", "on_name", "on_way"), 100.0)


def test_a_look_after_a_digit_has_gone_is_no_hit_and_neither_is_a_wrong_word(batch, monkeypatch):
    gone = judged(
        monkeypatch,
        batch,
        lambda row, at: min(N_FRAMES - 1, int(batch.spans[row, min(2, at // 4), 1])),
        spoil=3,
    )
    assert gone["names"] == 100.0 and gone["exact"] == pytest.approx(95.0)
    assert 80 < gone["ways"] < 100
    # Only a digit that stays to the last frame is still there.
    assert gone["on_name"] < 40


@pytest.mark.parametrize(
    "name",
    ["video-digits", "video-digits-attention", "video-digits-motion", "video-digits-plain"],
)
def test_every_system_trains_is_evaluated_and_traced(little_mnist, tmp_path, name):
    recipe = find_recipe(name)
    settings = with_settings(recipe.settings, SMALL)
    trained = train_recipe(recipe, tmp_path / name, settings=settings, data=little_mnist)
    metrics = trained["test"]
    assert ("on_name" in metrics) == (settings.looking == "soft")
    run = load_run(tmp_path / name)
    assert evaluate_run(run, little_mnist)["test"] == pytest.approx(metrics)
    film, matrix = recipe.trace(run, "3")
    assert film.heat.shape == (len(film.steps), 1, N_FRAMES)
    assert film.image.shape == (40, 40 * N_FRAMES)
    assert matrix.steps == film.steps and matrix.memory[0] == "frame 1"
    torch.testing.assert_close(matrix.weights, film.heat[:, 0])
    with pytest.raises(UsageError, match="the number of a test video, 0 to 36, got '99'"):
        recipe.trace(run, "99")
