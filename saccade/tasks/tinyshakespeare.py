"""1,115,394 characters of Shakespeare's plays, as collected for char-rnn."""

from pathlib import Path

from saccade.tasks.fetch import find_data
from saccade.tasks.text import TextSplits, split_text
from saccade.tasks.text_files import read_text


def read_tinyshakespeare(
    data: str | Path | None = None, *, valid: float = 0.0, test: float = 0.1
) -> TextSplits:
    """The plays cut into parts, the last one for the test.

    Two cuts are usual: 90/10 (nanoGPT's, the default here; its last tenth is the test) and 90/5/5
    (char-rnn's: ``valid=0.05, test=0.05``). With ``valid=0.05, test=0.1`` the choice is made on
    text that is neither learnt from nor reported, at the price of a little training text.
    """
    text = read_text(find_data("tinyshakespeare", data) / "input.txt")
    return split_text(text, valid=valid, test=test)
