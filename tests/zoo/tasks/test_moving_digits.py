"""Films and their sentences: when a digit is seen, and where it goes, is what is told."""

from itertools import pairwise

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.digit_captions import NAMES
from saccade.zoo.tasks.mnist import SIDE, Digits
from saccade.zoo.tasks.videos import N_FRAMES, SPEED, VOCABULARY, MovingDigits, make_films

N, SIZE, FILMS = 20, 40, 40


@pytest.fixture(scope="module")
def digits():
    """Digits that fill their square, each in a grey of its own."""
    greys = torch.arange(1, N + 1, dtype=torch.uint8) * 10
    return Digits(greys[:, None, None].expand(N, SIDE, SIDE).contiguous(), torch.arange(N) % 10)


@pytest.fixture(scope="module")
def made(digits):
    chosen = torch.arange(3 * FILMS).view(FILMS, 3) % N
    return make_films(digits, chosen, size=SIZE, generator=generator_of(5, 0))


def events(film, digits):
    """Each digit of a film with its frames and its motion, found by looking at the pixels."""
    found = []
    for number, frame in enumerate((film[:, 0] * 255).round().int()):
        if not frame.any():
            found.append(None)
            continue
        (grey,) = frame[frame > 0].unique().tolist()
        rows, columns = frame.nonzero().T
        assert len(rows) == SIDE * SIDE  # the whole digit is in the frame
        place = (int(rows.min()), int(columns.min()))
        if found and found[-1] and found[-1][0] == grey:
            found[-1][1].append((number, place))
        else:
            found.append((grey, [(number, place)]))
    return [each for each in found if each]


def told(seen, digits):
    words, spans = [], []
    for grey, frames in seen:
        steps = {(b[0] - a[0], b[1] - a[1]) for (_, a), (_, b) in pairwise(frames)}
        (step,) = steps  # it never turns
        ways = {(-SPEED, 0): "up", (SPEED, 0): "down", (0, -SPEED): "left", (0, SPEED): "right"}
        words.append(f"{NAMES[digits.labels[grey // 10 - 1]]} moves {ways[step]}")
        spans.append([frames[0][0], frames[-1][0] + 1])
    return " then ".join(words), spans


def test_the_sentence_and_the_spans_are_what_the_pixels_show(made, digits):
    counts = set()
    for row in range(FILMS):
        sentence, spans = told(events(made.frames[row], digits), digits)
        said = VOCABULARY.decode(made.sentences.target_out[row].tolist())
        assert " ".join(said) == sentence
        assert made.spans[row, : len(spans)].tolist() == spans
        counts.add(len(spans))
    assert counts == {1, 2, 3}


def test_a_word_is_about_the_digit_it_names_or_follows(made):
    for row in range(FILMS):
        words = VOCABULARY.decode(made.sentences.target_out[row].tolist())
        of = [at // 4 if at % 4 in (0, 2) else -1 for at in range(len(words))]
        assert made.about[row].tolist() == of + [-1] * (12 - len(of))


def test_batches_depend_on_seed_epoch_and_number_alone(digits):
    epoch = MovingDigits(digits, size=SIZE, batch=16, seed=1, epoch=2)
    assert [tuple(batch.frames.shape[:2]) for batch in epoch] == [(16, N_FRAMES), (4, N_FRAMES)]
    again = MovingDigits(digits, size=SIZE, batch=16, seed=1, epoch=2)[1]
    assert torch.equal(epoch[1].frames, again.frames)
    other = MovingDigits(digits, size=SIZE, batch=16, seed=2, epoch=2)[1]
    assert not torch.equal(other.frames, again.frames)


def test_frames_without_room_to_move_are_refused(digits):
    with pytest.raises(UsageError, match="a side of 36 pixels or more, got 30"):
        MovingDigits(digits, size=30, batch=2, seed=0)
