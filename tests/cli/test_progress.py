"""Progress goes to stderr: a bar on a terminal, a line now and then elsewhere."""

import pytest

from saccade.cli import options
from saccade.cli.options import showing_progress


@pytest.fixture
def clock(monkeypatch):
    """Time that goes on when it is told to."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(options, "time", made)
    return made


def test_where_there_is_no_terminal_a_line_comes_now_and_then(clock, capsys):
    with showing_progress() as show:
        for done in range(1, 11):
            clock.now += 4
            show("reading", done, 10)
    out, err = capsys.readouterr()
    assert out == ""
    # Ten batches at four seconds each: a line after eight, one after twenty-four, and the last.
    assert err.splitlines() == [
        "reading: 2/10, 32 s left",
        "reading: 6/10, 16 s left",
        "reading: 10/10",
    ]


def test_a_fit_that_goes_on_counts_its_time_from_where_it_was(clock, capsys):
    with showing_progress() as show:
        show("reading", 90, 100)
        clock.now += 20
        show("reading", 95, 100)
    assert capsys.readouterr().err == "reading: 95/100, 20 s left\n"


def test_each_stage_has_its_own_time(clock, capsys):
    with showing_progress() as show:
        show("reading", 1, 1)
        clock.now += 50
        show("polishing", 1, 4)
        clock.now += 20
        show("polishing", 2, 4)
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["reading: 1/1", "polishing: 1/4", "polishing: 2/4, 40 s left"]


def test_a_quiet_process_says_nothing(capsys):
    with showing_progress(is_quiet=True) as show:
        show("reading", 1, 1)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar_for_each_stage(monkeypatch, capsys):
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with showing_progress() as show:
        show("reading", 3, 7)
        show("polishing", 7, 7)
    out, err = capsys.readouterr()
    assert out == ""
    assert all(words in err for words in ("reading", "3/7", "polishing", "7/7", "left"))
