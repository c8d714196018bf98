"""The page is parsed back: it must be whole, safe and self-contained."""

import re
from html.parser import HTMLParser

import pytest

EVIL = " <script>alert('&')</script>\"\n"
VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """Checks that every element is closed in order, and keeps what it meets."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.texts, self.scripts = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes what is not open"

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        (self.scripts if inside in ("script", "style") else self.texts).append(data)

    def all(self, tag, **wanted):
        return [
            attrs
            for name, attrs in self.elements
            if name == tag and all(attrs.get(key) == value for key, value in wanted.items())
        ]


def head(layer, number, *, gain=0.3, says=1.0):
    from saccade.lenses.head_reading import HeadReading, Source, Word

    return HeadReading(
        layer=layer,
        head=number,
        says=says,
        contributes=-0.5,
        quality={"kl": 3.0 - gain, "gain": gain},
        predicts=(Word(1, EVIL, 0.4), Word(2, " Paris", 0.2)),
        adds=(Word(2, " Paris", 0.3),),
        suppresses=(Word(3, "</style>", -0.1),),
        unembedded=(Word(4, "]]>", 1.0),),
        attends=(Source(0, EVIL, 0.9),),
    )


@pytest.fixture(scope="module")
def reading():
    from saccade.lenses.head_reading import Word
    from saccade.lenses.reading import Reading

    return Reading(
        model="<b>model</b>",
        text=f"a{EVIL}",
        tokens=["a", EVIL],
        position=1,
        prediction=(Word(1, EVIL, 0.5),),
        heads=tuple(
            head(layer, number, gain=0.3 * layer, says=layer + number / 10)
            for layer in range(3)
            for number in range(5)
        ),
    )


@pytest.fixture(scope="module")
def page(reading):
    return Page(reading.to_html())


def test_the_page_is_whole(page, reading):
    assert reading.to_html().startswith("<!doctype html>")
    assert not page.open
    assert len(page.all("html")) == len(page.all("body")) == len(page.all("title")) == 1
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_a_token_that_is_a_script_is_text(page, reading):
    assert len(page.all("script")) == 1
    assert "alert" not in "".join(page.scripts)
    assert any("<script>alert('&')</script>" in text for text in page.texts)
    assert "</style>" in page.texts and not page.all("b", **{"class": "model"})
    assert "<b>model</b>" not in reading.to_html()


def test_nothing_comes_from_elsewhere(page, reading):
    for tag, attrs in page.elements:
        assert not {"src", "href", "onclick", "onload"} & attrs.keys(), tag
        assert tag not in {"link", "img", "iframe"}
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttp", reading.to_html())


def test_every_head_has_a_cell_a_card_and_a_rule_that_shows_it(page):
    cells = {attrs["value"] for attrs in page.all("input", type="radio")}
    cards = {attrs["data-head"] for attrs in page.all("article")}
    assert cells == cards == {f"{layer}.{number}" for layer in range(3) for number in range(5)}
    rules = "".join(page.scripts)
    assert all(f':has([value="{key}"]:checked) [data-head="{key}"]' in rules for key in cells)


def test_the_head_that_says_most_is_chosen_first_and_each_can_be_reached_by_keyboard(page):
    chosen = [attrs["value"] for attrs in page.all("input") if "checked" in attrs]
    assert chosen == ["2.4"]
    assert len({attrs["name"] for attrs in page.all("input")}) == 1  # one group: arrow keys move
    assert all(attrs["aria-label"].startswith("layer ") for attrs in page.all("input"))
    ids = {attrs["id"] for attrs in page.all("input")}
    assert page.all("label", **{"for": "reading-2.4"})
    assert {attrs["for"] for attrs in page.all("label") if "for" in attrs} <= ids


def test_a_weak_lens_looks_weak(page):
    weak = [attrs["data-head"] for attrs in page.all("article", **{"class": "card weak"})]
    assert weak == [f"0.{number}" for number in range(5)]
    assert len(page.all("label", **{"class": "cell weak"})) == 5


def test_colour_grows_with_what_is_said(page):
    by_key = dict(
        zip(
            (attrs["value"] for attrs in page.all("input")),
            (int(a["style"].removeprefix("--v:")) for a in page.all("label") if "style" in a),
            strict=True,
        )
    )
    assert by_key["2.4"] == 100 and by_key["0.0"] == 0
    assert by_key["0.0"] < by_key["1.0"] < by_key["2.0"]


def test_in_a_notebook_two_readings_do_not_disturb_each_other(reading):
    first, second = Page(reading._repr_html_()), Page(reading._repr_html_())
    assert not first.open and not first.all("html")
    names = [{attrs["name"] for attrs in each.all("input")} for each in (first, second)]
    assert not names[0] & names[1]
