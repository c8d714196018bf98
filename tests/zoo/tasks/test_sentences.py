"""Running text is cut where a sentence ends, and nowhere else."""

import pytest

from saccade.zoo.tasks.text import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("She came. He left.", ["She came.", "He left."]),
        ("Mr. Elton met Mrs. Weston. They spoke.", ["Mr. Elton met Mrs. Weston.", "They spoke."]),
        ("It was G. K. Chesterton. Yes.", ["It was G. K. Chesterton.", "Yes."]),
        ('"Why?" asked Ann. "So."', ['"Why?" asked Ann.', '"So."']),
        ("'What!' cried Bob! 'No.' Then he ran", ["'What!' cried Bob!", "'No.'", "Then he ran"]),
        ("It cost 3.50 in all. Good", ["It cost 3.50 in all.", "Good"]),
        ("CHAPTER II\n\nA dog\nbarked.\n\n\nA cat slept.", ["A dog barked.", "A cat slept."]),
        ("VOLUME I", []),
        ("", []),
    ],
)
def test_sentences_end_where_they_should(text, sentences):
    assert split_sentences(text) == sentences


def test_no_letter_of_a_paragraph_is_lost():
    text = "Dr. Grant said: 'Go!' And (he paused.) The end... Or not? \"Yes.\" J. B. knew."
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
