"""Handwritten words: comparable whatever the device, split by person, refused where damaged."""

import gzip
import itertools
import json

import numpy as np
import pytest
import torch

from saccade.errors import TaskError
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.pen_words import (
    STEP,
    PenBatches,
    parse_strokes,
    part_of,
    pen_frames,
    pen_words,
    person_of,
    read_pen_words,
    resample,
    warp,
)
from saccade.zoo.tasks.tokenizers import CharacterTokenizer


def word(seed=0, sizes=(9, 1, 6)):
    draw = np.random.default_rng(seed)
    return [np.cumsum(draw.normal(size=(n, 2)), axis=0) + 50 * k for k, n in enumerate(sizes)]


def by_loop(strokes):
    """Resampling stroke by stroke, as the text of `resample` says it."""
    ink, weighed = 0.0, []
    for stroke in strokes:
        for a, b in itertools.pairwise(stroke):
            length = np.hypot(*(b - a))
            ink += length
            weighed.append((length, a[1], b[1]))
    middle = sum(length * (low + high) / 2 for length, low, high in weighed) / ink
    square = sum(
        length * ((low - middle) ** 2 + (low - middle) * (high - middle) + (high - middle) ** 2) / 3
        for length, low, high in weighed
    )
    spread = np.sqrt(square / ink)
    points, last = [], []
    for stroke in strokes:
        scaled = (stroke - [strokes[0][0, 0], middle]) / spread
        along = np.concatenate([[0], np.hypot(*np.diff(scaled, axis=0).T).cumsum()])
        n = max(1, round(along[-1] / STEP)) + 1 if len(stroke) > 1 else 1
        at = np.linspace(0, along[-1], n)
        points.append(np.stack([np.interp(at, along, scaled[:, axis]) for axis in (0, 1)], 1))
        last += [False] * (n - 1) + [True]
    return np.concatenate(points), last


def test_points_lie_where_a_loop_over_strokes_puts_them():
    words = [word(0), word(1, (4,)), word(2, (3, 7))]
    found = resample(words)
    for number, strokes in enumerate(words):
        first, end = found.starts[number : number + 2].tolist()
        points, last = by_loop(strokes)
        assert end - first == len(points)
        np.testing.assert_allclose(found.points[first:end].numpy(), points, atol=1e-4)
        assert found.is_last[first:end].tolist() == last


def test_units_place_and_rate_of_the_device_change_nothing():
    strokes = word(3, (12, 8))
    often = [
        np.stack(
            [
                np.interp(np.arange(0, len(s) - 0.95, 0.1), np.arange(len(s)), s[:, k])
                for k in (0, 1)
            ],
            1,
        )
        for s in strokes
    ]  # ten points for one, on the same ink
    plain, other = resample([strokes]), resample([[17.0 * s + 1000 for s in often]])
    assert torch.equal(plain.is_last, other.is_last)
    torch.testing.assert_close(plain.points, other.points, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("strokes", [[[[5, 5]]], [[[0, 0], [9, 0]]], [[[1, 1], [1, 1]], [[1, 1]]]])
def test_dots_and_dashes_have_a_scale_too(strokes):
    found = resample([[np.array(each, dtype=float) for each in strokes]])
    assert found.points.isfinite().all() and len(found.points) >= 1


def test_frames_say_where_the_pen_goes_next():
    points = torch.tensor([[[0.0, 0.0], [STEP, 0.0], [STEP, 5 * STEP], [9.0, 9.0]]])
    is_last = torch.tensor([[False, True, True, False]])
    mask = torch.tensor([[True, True, True, False]])
    frames = pen_frames(points, is_last, mask).values[0]
    torch.testing.assert_close(frames[0], torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(frames[1], torch.tensor([0.0, 0.0, 0.0, 0.5, 1.0, 0.0]))
    torch.testing.assert_close(frames[2], torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 5 * STEP]))
    assert (frames[3] == 0).all()


def test_every_word_comes_once_an_epoch_and_as_it_is_without_warping():
    labels = [f"{'ab' * n}c" for n in range(1, 12)]
    words = pen_words(labels, [word(n, (3 * n + 4, 5)) for n in range(11)])
    tokenizer = CharacterTokenizer.build(labels)
    plain = PenBatches(words, tokenizer, batch=4)
    for number, batch in enumerate(plain):
        for row, place in enumerate(plain.rows(number).tolist()):
            alone = PenBatches(words.one(place), tokenizer, batch=1)[0]
            n = alone.frames.shape[1]
            torch.testing.assert_close(batch.frames[row, :n], alone.frames[0])
            assert int(batch.frame_mask[row].sum()) == n
            assert tokenizer.decode(batch.text[row].tolist()) == labels[place]
    for epoch in (0, 1):
        warped = PenBatches(words, tokenizer, batch=4, warp=1.0, seed=3, epoch=epoch)
        seen = [row for number in range(len(warped)) for row in warped.rows(number).tolist()]
        assert sorted(seen) == list(range(11))
        torch.testing.assert_close(warped[1].frames, warped[1].frames)


def test_warping_is_a_straight_map_of_the_plane():
    points = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]).repeat(3, 1, 1)
    moved = warp(points, amount=1.0, generator=generator_of(0, 0))
    # The corners of a square become those of a parallelogram, each row's own.
    torch.testing.assert_close(moved[:, 3] - moved[:, 2], moved[:, 1] - moved[:, 0])
    assert not torch.allclose(moved[0], moved[1])


def test_files_of_one_person_are_in_one_part():
    assert person_of("sta/sta0/hpb0-cb.dat") == person_of("sta/sta1/hpb1-cb.dat") == "cb"
    assert person_of("nic/anton/anton05.dat") == person_of("nic/anton/anton02.dat")
    assert person_of("pri/pri1/159.0.dat") == person_of("pri/pri1/000.0.dat")
    assert {part_of(name) for name in map(str, range(200))} == {0, 1, 2}


def test_real_words_are_read_and_no_person_is_in_two_parts(data_with, tmp_path):
    packed = data_with("unipen-words") / "unipen-words" / "words.jsonl.gz"
    with gzip.open(packed, "rt", encoding="utf-8") as file:
        lines = list(itertools.islice(file, 400))
    (tmp_path / "words.jsonl").write_text("".join(lines), encoding="utf-8")
    splits = read_pen_words(tmp_path)
    assert sum(map(len, splits)) == 400 and all(len(part) for part in splits)
    for part, words in enumerate(splits):
        wanted = [
            each for each in map(json.loads, lines) if part_of(person_of(each["writer"])) == part
        ]
        assert [each["label"] for each in wanted] == list(words.labels)
        assert words.is_last.sum() == sum(len(each["strokes"]) for each in wanted)
        assert words.points[:, 1].std() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"writer": "a", "label": "b", "strokes": []}', "word 1 of .* has no strokes"),
        (
            '{"writer": "a", "label": "b", "strokes": [[[1, 2]], []]}',
            "stroke 2 of word 1 .* is empty",
        ),
        ('{"writer": "a", "label": "b", "strokes": [[[1, 2, 3]]]}', "does not hold points"),
        ('{"writer": "a", "label": "b", "strokes": [[["x", 2]]]}', "does not hold points"),
        ('{"label": "b", "strokes": [[[1, 2]]]}', "word 1 of .* is damaged: 'writer'"),
        ('{"writer": ', "word 1 of .* is damaged"),
    ],
)
def test_a_damaged_word_is_named(tmp_path, line, said):
    (tmp_path / "words.jsonl").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(TaskError, match=said):
        read_pen_words(tmp_path)


def test_strokes_of_the_users_own_are_read_in_either_form():
    for held in ([[[1, 2], [3, 4]]], {"strokes": [[[1, 2], [3, 4]]]}):
        found = parse_strokes(json.dumps(held).encode(), "word.json")
        assert [stroke.tolist() for stroke in found] == [[[1.0, 2.0], [3.0, 4.0]]]
    with pytest.raises(TaskError, match=r"stroke 1 of word\.json is empty"):
        parse_strokes(b"[[]]", "word.json")
    for broken in (b"hello", b"\xff\xfe", b"[" * 100_000):
        with pytest.raises(TaskError, match="is no JSON"):
            parse_strokes(broken, "word.json")
