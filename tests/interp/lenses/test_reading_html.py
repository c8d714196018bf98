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


def head(layer, number, *, gain=0.3, says=1.0, **changed):
    from saccade.interp.lenses.reading import HeadReading, Source, Word

    usual = {
        "contributes": -0.5,
        "quality": {"kl": 3.0 - gain, "gain": gain},
        "predicts": (Word(1, EVIL, 0.4), Word(2, " Paris", 0.2)),
        "adds": (Word(2, " Paris", 0.3),),
        "suppresses": (Word(3, "</style>", -0.1),),
        "unembedded": (Word(4, "]]>", 1.0),),
        "attends": (Source(0, EVIL, 0.9),),
    }
    return HeadReading(layer=layer, head=number, says=says, **{**usual, **changed})


def reading_of(heads, *, n_predicted=1):
    from saccade.interp.lenses.reading import Reading, Word

    return Reading(
        model="<b>model</b>",
        text=f"a{EVIL}",
        tokens=["a", EVIL],
        position=1,
        prediction=tuple(Word(n, f"{n}{EVIL}", 0.5 / 2**n) for n in range(n_predicted)),
        heads=tuple(heads),
    )


@pytest.fixture(scope="module")
def reading():
    return reading_of(
        head(layer, number, gain=0.3 * layer, says=layer + number / 10)
        for layer in range(3)
        for number in range(5)
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


def cells_of(page):
    """The darkness of each head's cell."""
    cells = [attrs for attrs in page.all("label") if attrs.get("class", "").startswith("cell")]
    return [int(attrs["style"].removeprefix("--v:")) for attrs in cells]


def test_darkness_is_the_root_of_the_share_of_what_is_said_most():
    said = [4.0, 1.0, 0.25, 0.0, -0.5]
    page = Page(reading_of(head(0, n, says=says) for n, says in enumerate(said)).to_html())
    assert cells_of(page) == [100, 50, 25, 0, 0]
    assert "4.00 nats (root scale)" in page.texts


def test_a_reading_in_which_no_head_says_anything_is_whole():
    from saccade.interp.lenses.reading import Source, Word

    none = {
        name: (Word(1, "x", 0.0), Word(2, "y", 0.0))
        for name in ("predicts", "adds", "suppresses", "unembedded")
    }
    silent = [head(0, n, says=0.0, **none, attends=(Source(0, "z", 0.0),)) for n in range(2)]
    page = Page(reading_of(silent).to_html())
    assert not page.open
    assert cells_of(page) == [0, 0]
    bars = [attrs["style"] for attrs in page.all("li") if "style" in attrs]
    assert bars == ["--v:0"] * 2 * (4 * 2 + 1)
    assert "1.00 nats (root scale)" in page.texts  # an empty ramp needs an end, too


def test_a_bar_is_as_long_as_its_share_of_the_longest_whatever_the_sign():
    from saccade.interp.lenses.reading import Word

    words = tuple(Word(n, "w", value) for n, value in enumerate((-0.8, -0.4, 0.2)))
    nothing = {"predicts": (), "adds": (), "unembedded": (), "attends": ()}
    page = Page(reading_of([head(0, 0, suppresses=words, **nothing)]).to_html())
    bars = [attrs["style"] for attrs in page.all("li") if "style" in attrs]
    assert bars == ["--v:100", "--v:50", "--v:25"]
    shown = [title for title in ("adds (nats)", "predicts", "attends to") if title in page.texts]
    assert shown == []  # a list of nothing has no heading
    assert "suppresses (nats)" in page.texts


def test_layers_with_fewer_heads_leave_their_places_empty():
    html = reading_of([head(0, 0), head(0, 1), head(0, 2), head(4, 0), head(5, 1)]).to_html()
    page = Page(html)
    assert re.findall(r'<span class="row">(.*?)</span>', html) == ["0", "1", "2"]
    assert [attrs["value"] for attrs in page.all("input")] == ["0.0", "4.0", "0.1", "5.1", "0.2"]
    (grid,) = page.all("div", **{"class": "grid"})
    assert grid["style"] == "--columns:3"
    assert len(page.all("span", **{"class": "fifth"})) == 2  # over layers 0 and 5


def test_a_reading_of_the_residual_stream_speaks_of_layers():
    html = reading_of([head(0, None, says=0.1), head(1, None, says=0.2)]).to_html()
    page = Page(html)
    assert re.findall(r'<span class="row">(.*?)</span>', html) == [""]
    assert "How much each layer says here" in page.texts
    assert "residual stream after layer 1" in page.texts
    assert [attrs["value"] for attrs in page.all("input")] == ["0.0", "1.0"]
    heads = Page(reading_of([head(0, 0)]).to_html())
    assert "How much each head (rows) of each layer (columns) says here" in heads.texts


def test_the_token_that_is_read_is_marked_and_no_other(page):
    (mark,) = page.all("mark")
    assert mark["title"] == "read after this token, 1"
    assert [attrs["title"] for attrs in page.all("span", **{"class": "t"})] == ["token 0"]


def test_long_lists_are_cut():
    from saccade.interp.lenses.reading import Word

    words = tuple(Word(n, f" w{n}", 0.5) for n in range(9))
    html = reading_of([head(0, n, adds=words) for n in range(17)], n_predicted=9).to_html()
    page = Page(html)
    assert html.count("5·&lt;script") == 1 and html.count("6·&lt;script") == 0
    ranks = [attrs for attrs in page.all("label") if "for" in attrs]
    assert len(ranks) == 12
    assert page.texts.count("·w0 ·w1 ·w2 ·w3") == 12
    assert all(a["title"].endswith(": ·w0 ·w1 ·w2") for a in page.all("label") if "title" in a)
    title = re.search("<title>(.*?)</title>", reading_of([head(0, 0)]).to_html(), re.DOTALL)[1]
    assert title.startswith("&lt;b&gt;model&lt;/b&gt;: a")


def test_a_card_says_how_good_its_lens_is():
    scored = {"quality": {"kl": 1.5, "gain": 1.5}}
    said = "".join(Page(reading_of([head(0, 0, **scored)]).to_html()).texts)
    assert "its lens removes 50% of the constant lens's KL" in said
    assert "adds -0.50 to the predicted word's logit" in said
    plain = head(0, 0, quality={}, contributes=None)
    said = "".join(Page(reading_of([plain]).to_html()).texts)
    assert "lens not scored" in said and "removes" not in said
    assert "to the predicted word's logit" not in said
