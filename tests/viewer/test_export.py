"""The one renderer, by what it writes: whole files with all numbers, and nothing from elsewhere.

What the files show is tested in a browser (`page/test_reading_file.py`, `page/test_trace_file.py`).
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image

EVIL = " <script>alert('&')</script>\"\n"
VOID = {"meta", "input", "br", "link", "img"}


class Elements(HTMLParser):
    """Checks that every element is closed in order, and keeps what it meets."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes what is not open"

    def all(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.found if name == tag]


def data_of(page: str) -> dict:
    (found,) = re.findall(r'id="saccade-data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def answers_of(page: str) -> dict:
    return {each["route"]: each["answer"] for each in data_of(page)["answers"]}


@pytest.fixture
def reading(make_reading):
    return make_reading(EVIL)


@pytest.fixture
def heads():
    from saccade import Trace

    torch.manual_seed(0)
    return Trace(
        kind="attention",
        steps=("</script>", "<b>x", "\u2028"),
        memory=("&amp;", '"', "'", "<!--", "a"),
        weights=torch.randn(7, 3, 5).softmax(-1),
        views=tuple(f"0.{head}" for head in range(7)),
        title="<i>title",
    )


def picture_trace(*colours: int):
    from saccade import ImageTrace

    torch.manual_seed(0)
    image = torch.rand(5, 7, *colours)
    image.view(-1)[:3] = torch.tensor(
        [-0.5, 1.5, float("nan")]
    )  # a model's own canvas may run over
    return ImageTrace(
        kind="overlay",
        image=image,
        steps=("a", "$dog", "</script>"),
        outlines=torch.zeros(3, 0, 4, 2),
        pictures={"seen": torch.rand(3, 2, 11)},
        heat=torch.rand(3, 2, 5),
        title="a <dog>",
    )


def pages(reading, heads) -> list[str]:
    return [reading.to_html(), heads.to_html(), picture_trace().to_html()]


def test_every_file_is_whole(reading, heads):
    for page in pages(reading, heads):
        assert page.startswith("<!doctype html>")
        elements = Elements(page)
        assert not elements.open
        for tag in ("html", "head", "body", "title", "main"):
            assert len(elements.all(tag)) == 1, tag
        ids = [attrs["id"] for _, attrs in elements.found if "id" in attrs]
        assert len(ids) == len(set(ids))


def test_a_label_that_is_a_script_is_data(reading, heads):
    for page in pages(reading, heads):
        # The data, the import map and what starts the page; nothing that a label brought with it.
        assert len(Elements(page).all("script")) == page.count("</script>") == 3
        assert "alert('&')</script>" not in page
        assert not Elements(page).all("b") and not Elements(page).all("i")
    assert answers_of(reading.to_html())["reading"]["tokens"] == ["a", EVIL]
    assert answers_of(heads.to_html())["trace"][0]["steps"] == ["</script>", "<b>x", "\u2028"]


def test_a_file_names_no_other_file_and_no_other_host(reading, heads):
    for page in pages(reading, heads):
        elements = Elements(page)
        links = [
            value
            for _, attrs in elements.found
            for name, value in attrs.items()
            if name in ("src", "href", "action", "data")
        ]
        assert all(link.startswith(("#", "data:")) for link in links), links
        assert not {"img", "iframe", "object", "base", "form"} & {tag for tag, _ in elements.found}
        assert not any(name.startswith("on") for _, attrs in elements.found for name in attrs)
        (policy,) = [
            attrs["content"]
            for attrs in elements.all("meta")
            if attrs.get("http-equiv") == "Content-Security-Policy"
        ]
        assert policy.startswith("default-src 'none'") and "http" not in policy


def test_a_reading_is_in_its_file_as_its_json_has_it(reading):
    page = reading.to_html()
    found = json.loads(reading.to_json())
    assert answers_of(page)["reading"] == {**found, "lens": "lens"}
    assert data_of(page)["state"] == {"screen": "head", "text": reading.text}
    title = html.unescape(re.search("<title>(.*?)</title>", page, re.DOTALL)[1])
    assert title == f"{reading.model}: {reading.text}"


def test_a_reading_of_an_earlier_token_is_asked_for_there(make_reading):
    data = data_of(make_reading("b", position=0).to_html())
    assert data["state"]["at"] == "0"
    (question,) = [each["question"] for each in data["answers"] if each["route"] == "reading"]
    assert question == {"text": "ab", "position": 0}


def test_half_a_character_and_no_number_do_not_break_a_file(make_reading):
    reading = make_reading("\ud83d", kl_from_baseline=float("nan"))
    page = reading.to_html()
    page.encode("utf-8")
    assert answers_of(page)["reading"]["heads"][0]["lens"]["kl_from_baseline"] is None


def test_the_file_of_a_trace_holds_every_weight(heads):
    (found,) = answers_of(heads.to_html())["trace"]
    weights = torch.tensor(found.pop("weights"))
    torch.testing.assert_close(weights, heads.weights, atol=5e-5, rtol=0)
    wanted = heads.to_dict()
    del wanted["weights"]
    assert found == wanted


def test_several_traces_are_in_one_file_in_order(heads):
    from saccade import Trace, show

    one = Trace(kind="self-attention", steps=("a",), memory=("b",), weights=torch.ones(1, 1))
    page = show([one, heads]).html
    assert [each["kind"] for each in answers_of(page)["trace"]] == ["self-attention", "attention"]
    assert "<title>&lt;i&gt;title</title>" in page  # of the first that has one
    assert "<title>trace</title>" in one.to_html()


def pixels(picture: dict) -> torch.Tensor:
    name, _, packed = picture["png"].partition(";base64,")
    assert name == "data:image/png"
    with Image.open(io.BytesIO(base64.b64decode(packed))) as image:
        image.load()  # which checks the sums of its parts
        assert image.mode == ("L" if picture["is_grey"] else "RGB")
        assert image.size == (picture["width"], picture["height"])
        colours = () if picture["is_grey"] else (3,)
        found = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return found.view(image.height, image.width, *colours)


@pytest.mark.parametrize("colours", [(), (3,)])
def test_pictures_are_png_files_with_the_very_pixels(colours):
    trace = picture_trace(*colours)
    (found,) = answers_of(trace.to_html())["trace"]
    wanted = (255 * trace.image.nan_to_num(0).clamp(0, 1)).round().to(torch.uint8)
    assert torch.equal(pixels(found["image"]), wanted)
    for packed, seen in zip(found["pictures"]["seen"], trace.pictures["seen"], strict=True):
        assert torch.equal(pixels(packed), (255 * seen).round().to(torch.uint8))
    torch.testing.assert_close(torch.tensor(found["heat"]), trace.heat, atol=5e-5, rtol=0)


def test_a_photograph_costs_no_more_than_its_pixels_as_text_would():
    from saccade import ImageTrace

    photo = torch.rand(112, 112, 3, generator=torch.Generator().manual_seed(0))
    bare = {"kind": "gaze", "steps": ("a",), "outlines": torch.zeros(1, 0, 4, 2)}
    small = ImageTrace(image=torch.zeros(1, 1), **bare).to_html()
    page = ImageTrace(image=photo, **bare).to_html()
    assert len(small) < 400_000  # the page itself, with the modules of all its screens
    assert len(page) - len(small) < 1.5 * photo.numel()  # noise, which no PNG makes smaller


def test_in_a_notebook_the_file_is_in_a_frame_that_reaches_nothing(reading, heads):
    for shown in (reading, heads, picture_trace()):
        elements = Elements(shown._repr_html_())
        assert not elements.open and {tag for tag, _ in elements.found} == {"style", "iframe"}
        (frame,) = elements.all("iframe")
        assert frame["srcdoc"] == shown.to_html()
        assert set(frame["sandbox"].split()) == {"allow-scripts", "allow-downloads", "allow-popups"}


def test_what_is_shown_can_be_saved_and_has_the_height_that_was_wanted(heads, tmp_path):
    from saccade import show

    shown = show(heads, height=321)
    (frame,) = Elements(shown._repr_html_()).all("iframe")
    assert frame["height"] == "321"
    shown.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == shown.html == heads.to_html()


@pytest.mark.parametrize("what", [5, "text", b"text", [], [5], [{"steps": []}], object()])
def test_what_cannot_be_shown_is_refused(what):
    import saccade

    with pytest.raises(saccade.UsageError, match=f"cannot show {type(what).__name__}"):
        saccade.show(what)


def test_a_part_of_a_reading_and_two_readings_are_refused(reading, heads):
    import saccade

    for what in (reading.heads[0], [reading, reading], [heads, reading], [reading, heads]):
        with pytest.raises(saccade.UsageError, match="cannot show"):
            saccade.show(what)


def test_reading_and_tracing_need_no_server(monkeypatch, heads):
    """`read --html` works where the packages of `saccade view` are not installed."""
    import subprocess
    import sys

    code = (
        "import sys, torch; sys.modules['fastapi'] = sys.modules['uvicorn'] = None\n"
        "import saccade\n"
        "trace = saccade.Trace(kind='a', steps=('a',), memory=('b',), weights=torch.ones(1, 1))\n"
        "print(len(saccade.show(trace)._repr_html_()) > 1000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
