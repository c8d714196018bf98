"""Options made from a dataclass: each field is described once, and its default lives there."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from annotated_types import Ge, Le

from saccade.cli.options import field_help, strict, with_options_of
from saccade.interp.lenses.fit_config import FitConfig


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What can be set."""

    shape: Literal["round", "square"] = "round"
    """Which shape,
    in one token."""
    n_sides: int = 7
    """How many sides."""
    weight: float = 0.5
    """In pounds."""
    holes: tuple[int, ...] = ()
    """Where there are holes."""
    n_coats: Annotated[int, Ge(0), Le(9)] = 3
    """How many coats of paint."""


@pytest.fixture
def run(capsys):
    seen = []

    @with_options_of(Sizes)
    def command(
        settings: Sizes,
        name: Annotated[str, typer.Argument(help="What to call it.")],
        loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False,
        colour: Annotated[str | None, typer.Option(help="Of the thing.")] = None,
        label: Annotated[str, typer.Option(help="What stands on it.")] = "",
        out: Annotated[Path | None, typer.Option(help="Where it goes.")] = None,
    ) -> None:
        """Make a thing."""
        seen.append((name, loud, settings))

    app = typer.Typer()
    app.command()(strict(command))

    def call(*arguments):
        seen.clear()
        app(list(arguments), standalone_mode=False)
        return seen[0] if seen else capsys.readouterr().out

    return call


def test_without_options_the_defaults_are_the_dataclasss(run):
    assert run("thing") == ("thing", False, Sizes())


def test_every_field_is_an_option_beside_the_commands_own(run):
    options = ["--shape", "square", "--n-sides", "5", "--weight", "1.5", "--holes", "2"]
    found = run("thing", *options, "--holes", "3", "--loud")
    assert found == ("thing", True, Sizes(shape="square", n_sides=5, weight=1.5, holes=(2, 3)))


def test_the_help_is_the_string_under_the_field(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shown = run("--help")
    for tokens in (
        "Make a thing.",
        "Which shape, in one token.",
        "In pounds.",
        "Shout.",
        "[default: 7]",
    ):
        assert tokens in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("--shape", "flat"),
        ("--n-sides", "x"),
        ("--sides", "3"),
        ("--weight", "nan"),
        ("--weight", "inf"),
        ("--weight=-inf",),
        ("--weight", "1e999"),
        ("--n-sides", str(2**63)),
        ("--holes", "1", "--holes", str(-(2**64))),
        ("--n-coats", "10"),
        ("--n-coats=-1",),
        ("--out", ""),
        ("--colour", ""),
    ],
)
def test_what_does_not_fit_is_refused(run, arguments):
    with pytest.raises(typer.BadParameter.__bases__[0]):
        run("thing", *arguments)


def test_the_ends_of_ranges_are_taken(run):
    given = [
        "--n-coats",
        "9",
        "--n-sides",
        str(2**63 - 1),
        "--weight",
        "1e308",
        "--out",
        ".",
        "--label",
        "",
    ]
    _, _, found = run("thing", *given)
    assert (found.n_coats, found.n_sides, found.weight) == (9, 2**63 - 1, 1e308)


def test_every_setting_of_a_fit_is_described():
    told = field_help(FitConfig)
    assert set(told) == {field.name for field in fields(FitConfig)}
    assert all(text.endswith(".") and "\n" not in text for text in told.values())
