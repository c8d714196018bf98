"""Recipes of spoken digits: small ones are learnt, traced, and refuse what they cannot hear."""

import io
import math
import tarfile
import wave

import pytest
import torch

from saccade.errors import TaskError, UsageError
from saccade.zoo.recipes.recipe import InputFile, TranslateOptions, find_recipe
from saccade.zoo.recipes.run import load_run, train_recipe
from saccade.zoo.recipes.speech_recognition import DIGITS, digit_ids, read_sound
from saccade.zoo.training.settings import with_settings

SMALL = [
    "d_hidden=24",
    "batch=16",
    "n_valid=20",
    "n_test=40",
    "dropout=0",
    "speeds=1",
    "loudest=40",
]
SHORT = ["shortest=1", "longest=2", "pause=0.02", "warmup=5", "learning_rate=0.01", "log_steps=20"]


def sound(digit, speaker, take, n=700):
    """A digit is a chord of two tones, which a speaker sings a little higher or lower."""
    at = torch.arange(n + 10 * take) / 8000 * (1 + 0.02 * speaker)
    chord = sum(torch.sin(2 * math.pi * f * at) for f in (300 + 130 * digit, 3200 - 210 * digit))
    return (5000 * chord).short()


def wave_bytes(samples, rate=8000):
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.numpy().tobytes())
    return held.getvalue()


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with tarfile.open(folder / "free-spoken-digit-dataset.tar.gz", "w:gz") as packed:
        for number, speaker in enumerate(("ann", "bob")):
            for digit in range(10):
                for take in (0, 1, 5, 6, 7, 47):
                    data = wave_bytes(sound(digit, number, take))
                    entry = tarfile.TarInfo(f"recordings/{digit}_{speaker}_{take}.wav")
                    entry.size = len(data)
                    packed.addfile(entry, io.BytesIO(data))
    patch = pytest.MonkeyPatch()
    patch.setenv("SACCADE_DATA", str(folder))
    yield folder
    patch.undo()


@pytest.fixture(scope="module", params=["ctc-digits", "las-digits-location"])
def run(request, few, tmp_path_factory):
    recipe = find_recipe(request.param)
    words = [*SMALL, *SHORT, "schedule=constant"]
    # In both, four frames are one step.
    if request.param == "ctc-digits":
        words += ["n_layers=1", "strides=4", "steps=100", "validate_steps=100"]
    else:
        words += ["n_layers=2", "steps=80", "validate_steps=80"]
    folder = tmp_path_factory.mktemp("runs") / request.param
    metrics = train_recipe(recipe, folder, settings=with_settings(recipe.settings, words))
    return load_run(folder), metrics


def test_a_small_one_learns_to_hear(run):
    opened, metrics = run
    assert set(metrics["test"]) == {"error", "sequences", *opened.recipe.other_metrics}
    assert metrics["value"] < 25  # of ten digits; guessing is wrong nine times of ten


def test_a_trace_shows_where_each_digit_is_heard(run):
    opened, _ = run
    traces = opened.recipe.trace(opened, "bob 37")
    if opened.recipe.name == "ctc-digits":
        lattice, outputs = traces
        assert (lattice.kind, outputs.kind) == ("lattice", "outputs")
        assert lattice.steps[::2] == ("·",) * (len(lattice.title) + 1)
        assert "".join(lattice.steps[1::2]) == lattice.title
        torch.testing.assert_close(lattice.weights.sum(0), torch.ones(len(lattice.memory)))
        assert outputs.steps[0] == "·" and outputs.weights.max() <= 1
    else:
        (attention,) = traces
        assert attention.kind == "attention" and "".join(attention.steps).startswith(
            attention.title
        )
    assert traces[0].memory[1] == "0.04"  # four frames of 10 ms are one step


def test_a_trace_reads_the_data_it_is_told_of(run, few, tmp_path, monkeypatch):
    opened, _ = run
    wanted = opened.recipe.trace(opened, "bob 37")
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    found = opened.recipe.trace(opened, "bob 37", data=few)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(found, wanted, strict=True))


def test_a_wave_file_is_written_down(run, tmp_path):
    opened, _ = run
    path = tmp_path / "seven.wav"
    path.write_bytes(wave_bytes(torch.cat([sound(7, 0, 0), torch.zeros(100).short()])))
    for size in (1, 3):
        (found,) = opened.recipe.translate(
            opened, [InputFile.read(path)], TranslateOptions(beam=size)
        )
        assert set(found.text) <= set("0123456789") and found.log_prob <= 1e-6


def test_what_cannot_be_heard_is_refused_in_one_line(run, tmp_path):
    opened, _ = run
    with pytest.raises(UsageError, match="expected a WAV file or digits"):
        opened.recipe.trace(opened, "no such file.wav")
    with pytest.raises(UsageError, match="no test recording is by 'theo'") as caught:
        opened.recipe.trace(opened, "theo 12")
    assert "ann, bob" in caught.value.hint
    with pytest.raises(UsageError, match="expected a WAV file or digits"):
        opened.recipe.trace(opened, "1²")  # a digit to Python, and no number
    (tmp_path / "fast.wav").write_bytes(wave_bytes(sound(1, 0, 0), rate=44100))
    with pytest.raises(TaskError, match="at 44100 Hz"):
        opened.trace(tmp_path / "fast.wav")
    (tmp_path / "broken.wav").write_bytes(b"RIFF....")
    with pytest.raises(TaskError, match=r"broken\.wav is no WAV file"):
        opened.trace(tmp_path / "broken.wav")


def test_a_digit_that_nobody_says_is_refused_in_one_line(tmp_path, monkeypatch):
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    for digit, take in ((0, 0), (0, 5), (2, 5)):
        (recordings / f"{digit}_george_{take}.wav").write_bytes(wave_bytes(sound(digit, 0, take)))
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="no test recording by 'george' says 2"):
        read_sound(find_recipe("ctc-digits").settings, "002")


@pytest.mark.parametrize("name", ["ctc-digits-speaker", "las-digits-monotonic"])
def test_the_other_recipes_can_be_built(name, few, learns_from):
    recipe = find_recipe(name)
    words = ["n_valid=4", "batch=3"] + (["speaker=bob"] if "speaker" in name else [])
    job = recipe.build(with_settings(recipe.settings, words), few)
    batch = next(iter(job.batches_of(0, 0)))
    assert learns_from(job, batch) and len(batch.text) == 3


def test_digits_have_ids_of_their_own():
    assert [DIGITS.decode([each]) for each in digit_ids().tolist()] == list("0123456789")
