"""What comes out of a file is checked before anything is computed from it."""

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated

import pytest
from annotated_types import Ge, Gt

from saccade.errors import StoreError
from saccade.store.schema import Seed, conform, parse_json


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Fields of the kinds that manifests have."""

    name: str
    n_tokens: Annotated[int, Ge(1)]
    threshold: Annotated[float, Gt(0)] = 0.5
    layers: tuple[int, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)


GOOD = {"name": "a", "n_tokens": 7, "threshold": 2, "layers": [3, 5], "settings": {"k": "v"}}


def test_what_was_written_comes_back_as_it_was():
    toy = Toy(name="a", n_tokens=7, threshold=2.0, layers=(3, 5), settings={"k": "v"})
    assert conform(Toy, parse_json(json.dumps(asdict(toy)), where="x"), where="x") == toy
    assert conform(Toy, GOOD, where="x") == toy


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"n_tokens": "7"}, "n_tokens: expected a valid integer, found '7'"),
        ({"n_tokens": True}, "n_tokens: expected a valid integer, found True"),
        ({"n_tokens": 7.5}, "n_tokens: expected a valid integer"),
        ({"n_tokens": 0}, "n_tokens: expected greater than or equal to 1, found 0"),
        ({"threshold": -100}, "threshold: expected greater than 0, found -100"),
        ({"threshold": None}, "threshold: expected a valid number, found None"),
        ({"layers": [3, "5"]}, "layers.1: expected a valid integer, found '5'"),
        ({"settings": []}, "settings: expected"),
        ({"name": 5}, "name: expected a valid string, found 5"),
        ({"treshold": 1.0}, "treshold: unknown field"),
    ],
)
def test_a_value_of_another_type_or_range_is_refused_by_the_name_of_its_field(change, told):
    with pytest.raises(StoreError) as caught:
        conform(Toy, {**GOOD, **change}, where="toy.json")
    assert str(caught.value).startswith("toy.json is damaged: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_problems_are_told_at_once():
    with pytest.raises(StoreError, match=r"name: expected a value, found none; n_tokens: expected"):
        conform(Toy, {"n_tokens": "many"}, where="toy.json")


@pytest.mark.parametrize("value", [[], 3, "text", None])
def test_what_is_no_object_at_all_is_refused(value):
    with pytest.raises(StoreError, match="is damaged"):
        conform(Toy, value, where="toy.json")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": NaN}', "expected finite numbers, found NaN"),
        ('{"a": [-Infinity]}', "expected finite numbers, found -Infinity"),
        ('{"a": 1e999}', "expected finite numbers, found 1e999"),
        ('{"a": ', "expected JSON"),
        (b"\xff\xfe\xff", "expected JSON"),
        ('{"a": ' + "9" * 5000 + "}", "expected JSON"),
        ("[" * 100_000, "expected a few levels of nesting"),
        ('{"a":' * 100_000, "expected a few levels of nesting"),
    ],
)
def test_what_is_no_json_of_finite_numbers_is_refused_in_one_line(text, told):
    with pytest.raises(StoreError) as caught:
        parse_json(text, where="toy.json")
    assert str(caught.value).startswith("toy.json is damaged: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_seed_is_what_torch_takes():
    @dataclass
    class Drawn:
        seed: Seed

    assert conform(Drawn, {"seed": 2**63 - 1}, where="x").seed == 2**63 - 1
    for seed in (2**63, -1):
        with pytest.raises(StoreError, match="seed"):
            conform(Drawn, {"seed": seed}, where="x")


def test_of_an_error_of_several_lines_the_first_is_told(monkeypatch):
    def fail(*_, **__):
        raise ValueError("bad digits\nsecond line")

    monkeypatch.setattr(json, "loads", fail)
    with pytest.raises(StoreError, match=r"^x is damaged: expected JSON, found bad digits$"):
        parse_json("{}", where="x")
