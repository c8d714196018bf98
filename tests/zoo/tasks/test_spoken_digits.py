"""Spoken digits: who says what in the real archive, the splits, and joining against a loop."""

import math
import tarfile

import pytest
import torch

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.speech import log_mel
from saccade.zoo.tasks.spoken_digits import (
    RATE,
    JoinedDigits,
    Joining,
    Recordings,
    at_speeds,
    join,
    read_spoken_digits,
    split_recordings,
)


@pytest.fixture(scope="module")
def recordings(data_with):
    return read_spoken_digits(data_with("fsdd"))


@pytest.fixture
def few():
    """Recordings that can be told apart: the samples of recording r are 100 r, 100 r + 1, ..."""
    lengths = torch.tensor([5, 3, 4, 6, 2])
    samples = [100 * row + torch.arange(n) for row, n in enumerate(lengths.tolist(), start=1)]
    return Recordings(
        torch.cat(samples).short(),
        lengths.cumsum(0) - lengths,
        lengths,
        torch.tensor([3, 1, 4, 1, 5]),
        ("ann", "bob"),
        torch.tensor([0, 0, 0, 1, 1]),
        torch.tensor([0, 1, 2, 0, 1]),
    )


def test_six_speakers_say_ten_digits_fifty_times_each(recordings):
    assert len(recordings) == 3000 and len(recordings.speakers) == 6
    table = torch.zeros(6, 10, 50, dtype=torch.long)
    table.index_put_(
        (recordings.speaker, recordings.digits, recordings.take),
        torch.ones(3000, dtype=torch.long),
        accumulate=True,
    )
    assert (table == 1).all()
    ends = recordings.starts + recordings.lengths
    assert ends[-1] == len(recordings.samples) and (ends[:-1] == recordings.starts[1:]).all()


def test_the_official_test_recordings_are_in_no_other_part(recordings):
    train, valid, test = split_recordings(recordings)
    assert (len(train), len(valid), len(test)) == (2520, 180, 300)
    assert test.take.max() == 4 and train.take.min() == 5 and valid.take.min() == 47


def test_a_speaker_who_is_held_out_is_heard_in_the_test_alone(recordings):
    train, valid, test = split_recordings(recordings, speaker="theo")
    theo = recordings.speakers.index("theo")
    assert (test.speaker == theo).all() and len(test) == 500
    assert not (train.speaker == theo).any() and not (valid.speaker == theo).any()
    with pytest.raises(UsageError, match="there is no speaker 'nobody'") as caught:
        split_recordings(recordings, speaker="nobody")
    assert "theo" in caught.value.hint


def test_what_is_no_recording_is_refused(tmp_path):
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / "0_george_0.wav").write_bytes(b"RIFF")
    with pytest.raises(TaskError, match=r"0_george_0\.wav is no WAV file"):
        read_spoken_digits(tmp_path)
    (folder / "0_george_0.wav").rename(folder / "zero.wav")
    archive = tmp_path / "free-spoken-digit-dataset.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder / "zero.wav", "recordings/zero.wav")
    with pytest.raises(TaskError, match=r"zero\.wav is not named like a recording"):
        read_spoken_digits(tmp_path)
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(TaskError, match="is a broken archive"):
        read_spoken_digits(tmp_path)


def test_digits_are_joined_as_a_loop_would(few):
    chosen = torch.tensor([[0, 2], [4, 3]])
    joining = Joining(pause=0.002, noise=(300.0, 300.0))
    waves = join(few, chosen, joining=joining, generator=generator_of(0, 0))
    assert waves.samples.shape == waves.mask.shape
    for row in range(2):
        expected = torch.zeros(waves.samples.shape[1])
        for number, recording in enumerate(chosen[row].tolist()):
            begin, end = waves.spans[row, number].tolist()
            first = int(few.starts[recording])
            expected[begin:end] = few.samples[first : first + int(few.lengths[recording])] / 32768
        torch.testing.assert_close(waves.samples[row], expected)
        assert waves.mask[row, : waves.spans[row, -1, 1]].all()


def test_noise_is_as_loud_as_it_should_be():
    n = 40_000
    wave = (8000 * torch.sin(torch.arange(n) / 5)).short()
    one = torch.tensor([0])
    long = Recordings(wave, one, one + n, one, ("me",), one, one)
    chosen = torch.tensor([[0, 0], [0, 0]])
    clean, noisy = (
        join(long, chosen, joining=Joining(pause=0.0, noise=(db, db)), generator=generator_of(0, 0))
        for db in (300.0, 20.0)
    )
    noise = noisy.samples - clean.samples
    ratio = clean.samples.square().mean(1) / noise.square().mean(1)
    torch.testing.assert_close(10 * ratio.log10(), torch.full((2,), 20.0), atol=0.2, rtol=0)


def test_a_tone_played_faster_is_higher_and_shorter():
    n = 8000
    wave = (8000 * torch.sin(2 * math.pi * 500 * torch.arange(n) / RATE)).short()
    one = torch.tensor([0])
    found = at_speeds(Recordings(wave, one, one + n, one, ("me",), one, one), [1.0, 1.25])
    assert found.lengths.tolist() == [8000, 6400] and found.speaker.tolist() == [0, 1]
    fast = found.samples[8000:].float()
    peak = torch.fft.rfft(fast).abs().argmax() * RATE / len(fast)
    assert abs(float(peak) - 625) < 2
    with pytest.raises(UsageError, match=r"expected speeds above 0, got 1\.0, 0\.0"):
        at_speeds(found, [1.0, 0.0])


def test_a_batch_depends_on_its_number_alone_and_a_row_on_one_speaker(few):
    ids = torch.arange(4, 14)
    batches = JoinedDigits(few, Joining(), ids=ids, batch=7, n_batches=3, seed=5, epoch=2)
    for one, again in zip(batches[2], batches[2], strict=True):
        torch.testing.assert_close(one, again)
    assert len(list(batches)) == 3
    for step in range(5):
        chosen = batches.choose(generator_of(1, step))
        assert 3 <= chosen.shape[1] <= 7
        assert (few.speaker[chosen] == few.speaker[chosen][:, :1]).all()
    generator = generator_of(5, 2 * 3 + 2)
    chosen = batches.choose(generator)
    assert torch.equal(batches[2].text, ids[few.digits[chosen]])
    waves = join(few, chosen, joining=Joining(), generator=generator)
    torch.testing.assert_close(
        batches[2].frames, log_mel(waves.samples, waves.mask, rate=RATE).values
    )


def test_sequences_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="expected sequences of 1 digit or more, got 5 to 3"):
        Joining(shortest=5, longest=3)
    with pytest.raises(UsageError, match="expected a pause of 0 seconds or more"):
        Joining(pause=-1.0)
