"""The file of a reading (`read --html`, a notebook's cell) in a real browser, without a server."""

from __future__ import annotations

import re

import pytest

EVIL = " <script>alert('&')</script>\"\n"
CELLS = "main .heat-map [role=gridcell]"
LARGEST = "2.4"  # of the reading that `make_reading` makes


def texts(page, selector: str) -> list[str]:
    return page.locator(selector).all_text_contents()


def test_a_token_that_is_a_script_is_text(open_file, make_reading):
    page = open_file(make_reading(EVIL).to_html())
    assert texts(page, "main .tokens button > .token")[1] == "·<script>alert('&')</script>\"\\n"
    assert "</style>" in texts(page, "main .token-list.lower .token")
    assert page.locator("main script, main style").count() == 0
    assert page.title().startswith("<b>model</b>: a <script>")
    assert "read by <b>model</b>" in page.inner_text("main .card .note")


def test_the_head_with_the_largest_effect_is_shown_first_and_a_click_shows_another(
    open_file, make_reading, until
):
    reading = make_reading()
    page = open_file(reading.to_html())
    assert page.inner_text("main h1") == "Layer 2, head 4"
    names = [f"{head.layer}.{head.head}" for head in reading.heads]
    assert page.locator(CELLS).count() == len(names)
    for head in reading.heads:
        page.locator(f"{CELLS}[data-head='{head.layer}.{head.head}']").click()
        wanted = f"Layer {head.layer}, head {head.head}"
        until(page, "wanted => document.querySelector('h1').textContent === wanted", wanted)
        assert f"{head.effect.kl:.3f} nats" in page.inner_text("main .card .facts")


def test_a_card_has_every_list_of_its_head(open_file, make_head, make_reading):
    page = open_file(make_reading(heads=[make_head(0, 0, token=" x")]).to_html())
    own = "main .lens[data-lens=lens]"
    assert texts(page, "main .does .token-list.higher .token") == ["·Rome"]
    assert texts(page, "main .does .token-list.lower .token") == ["<b>"]
    assert texts(page, f"{own} .token-list.higher .token") == ["·Paris"]
    assert texts(page, f"{own} .token-list.lower .token") == ["</style>"]
    assert texts(page, f"{own} .token-list:not(.higher, .lower) .token") == ["·x", "·Paris"]
    assert texts(page, "main .lens[data-lens=unembedding] .token-list.higher .token") == ["]]>"]
    assert texts(page, "main .attention .token-list .token") == ["·x at 0", "b at 1"]
    assert texts(page, "main .attention .token-list .number") == ["90%", "7%"]
    assert page.locator("main .attention svg path").count() == 2


def test_the_keyboard_alone_moves_over_the_map_and_chooses(open_file, make_reading, until):
    page = open_file(make_reading().to_html())
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "gridcell":
            break
    assert page.evaluate("document.activeElement.dataset.head") == LARGEST
    for key, name in (("ArrowUp", "2.3"), ("ArrowLeft", "1.3"), ("ArrowDown", "1.4")):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.head") == name
    until(page, "() => announcement.textContent.startsWith('Layer 1, head 4: 1.400 nats')")
    page.keyboard.press("Enter")
    until(page, "() => document.querySelector('h1').textContent === 'Layer 1, head 4'")


def test_a_weak_lens_looks_weak(open_file, make_reading, until):
    page = open_file(make_reading().to_html())  # the lenses of layer 0 gain nothing
    assert page.locator("main .heat-map rect.weak").count() == 0  # effects need no lens
    page.get_by_label("measure", exact=True).select_option("lens")
    until(page, "() => document.querySelectorAll('main .heat-map rect.weak').length === 5")
    assert page.locator("main .lens.weak").count() == 0
    page.locator(f"{CELLS}[data-head='0.2']").click()
    page.wait_for_selector("main .lens.weak .badge")
    assert page.inner_text("main .lens.weak .badge") == "weak lens"


def brightness(colour: str) -> int:
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3])


def fills(page) -> list[str]:
    return page.eval_on_selector_all(CELLS, "cells => cells.map(each => each.getAttribute('fill'))")


def test_darkness_is_the_root_of_the_share_of_the_largest_effect(
    open_file, make_head, make_reading
):
    heads = [make_head(0, n, kl=kl) for n, kl in enumerate((4.0, 1.0, 0.25, 0.0))]
    page = open_file(make_reading(heads=heads).to_html())
    # The ramp has five colours at equal distances; a quarter of the most lies halfway.
    stops = page.evaluate(
        "[4, 2, 1, 0].map(at => getComputedStyle(document.documentElement)"
        ".getPropertyValue(`--ramp-${at}`).trim())"
    )
    wanted = [[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops]
    found = [[int(part) for part in re.findall(r"\d+", fill)] for fill in fills(page)]
    for got, stop in zip(found, wanted, strict=True):
        assert got == pytest.approx(stop, abs=2)
    assert "4.00" in page.inner_text("main .legend")


def test_in_the_dark_the_largest_effect_is_brightest(open_file, make_reading):
    reading = make_reading()
    light, dark = (open_file(reading.to_html(), scheme=scheme) for scheme in ("light", "dark"))
    ground = "getComputedStyle(document.body).backgroundColor"
    assert brightness(light.evaluate(ground)) > 700 and brightness(dark.evaluate(ground)) < 120
    names = "cells => cells.map(each => each.dataset.head)"
    at = light.eval_on_selector_all(CELLS, names).index(LARGEST)
    assert fills(light)[at] == min(fills(light), key=brightness)
    assert fills(dark)[at] == max(fills(dark), key=brightness)


def test_a_reading_in_which_no_head_does_anything_is_drawn(open_file, make_head, make_reading):
    from saccade.interp.lenses.top_tokens import TokenValue
    from saccade.interp.readings.reading import Source

    none = {
        name: (TokenValue(1, "x", 0.0), TokenValue(2, "y", 0.0))
        for name in ("predicts", "adds", "suppresses", "promotes", "unembedded")
    }
    silent = [
        make_head(0, n, kl=0.0, kl_from_baseline=0.0, **none, attends=(Source(0, "z", 0.0),))
        for n in range(2)
    ]
    page = open_file(make_reading(heads=silent).to_html())
    assert len(set(fills(page))) == 1
    widths = "bars => bars.map(each => each.style.width)"
    bars = page.locator("main .lens .bar").evaluate_all(widths)
    assert bars == ["0%"] * 8  # one list of the unembedding and three of its lens


def test_a_bar_is_as_long_as_its_share_of_the_longest_whatever_the_sign(
    open_file, make_head, make_reading
):
    from saccade.interp.lenses.top_tokens import TokenValue

    tokens = tuple(TokenValue(n, "w", value) for n, value in enumerate((-0.8, -0.4, 0.2)))
    head = make_head(0, 0, suppresses=tokens, predicts=(), unembedded=())
    page = open_file(make_reading(heads=[head]).to_html())
    widths = "bars => bars.map(each => each.style.width)"
    assert page.locator("main .lens .token-list.lower .bar").evaluate_all(widths) == [
        "100%",
        "50%",
        "25%",
    ]
    assert texts(page, "main .lens .token-list.lower .number") == [
        "\u22120.80",
        "\u22120.40",
        "+0.20",
    ]
    assert "lens predicts" not in texts(page, "main .lens h4")  # a list of nothing has no heading


def test_layers_with_fewer_heads_leave_their_places_empty(open_file, make_head, make_reading):
    places = [(0, 0), (0, 1), (0, 2), (4, 0), (5, 1)]
    page = open_file(make_reading(heads=[make_head(*place) for place in places]).to_html())
    found = page.eval_on_selector_all(
        CELLS,
        "cells => cells.map(({dataset, x, y}) => [dataset.head, x.baseVal.value, y.baseVal.value])",
    )
    columns = sorted({x for _, x, _ in found})
    rows = sorted({y for _, _, y in found})
    assert {name: (columns.index(x), rows.index(y)) for name, x, y in found} == {
        "0.0": (0, 0),
        "0.1": (0, 1),
        "0.2": (0, 2),
        "4.0": (1, 0),
        "5.1": (2, 1),
    }
    assert texts(page, "main .heat-map text") == ["0", "4", "5", "0", "1", "2"]


def test_a_reading_of_the_residual_stream_speaks_of_layers(open_file, make_head, make_reading):
    streams = [
        make_head(n, None, kl_from_baseline=kl, effect=None, attends=())
        for n, kl in enumerate((0.1, 0.2))
    ]
    page = open_file(make_reading(heads=(), others=streams).to_html())
    assert page.inner_text("main h1") == "Residual stream after layer 1"
    assert texts(page, "main .heat-map text") == ["0", "1"]  # over the columns, none before rows
    assert page.locator("main .attention").inner_text() == ""
    assert texts(page, "main .ranking .name") == ["1", "0"]


def test_the_token_that_is_read_is_marked_and_no_other(open_file, make_reading):
    for position, wanted in ((1, "b"), (0, "a")):
        page = open_file(make_reading(position=position).to_html())
        assert texts(page, "main .tokens [aria-pressed=true] .token") == [wanted]
        assert f"(token {position})" in page.inner_text("main .card .note")


def test_long_lists_are_cut(open_file, make_head, make_reading):
    from saccade.interp.lenses.top_tokens import TokenValue

    tokens = tuple(TokenValue(n, f" w{n}", 0.5) for n in range(9))
    heads = [make_head(0, n, promotes=tokens, kl=20.0 - n) for n in range(17)]
    page = open_file(make_reading(heads=heads, predicted=9).to_html())
    assert texts(page, "main .text-and-next .token-list .token") == [f"{n}b" for n in range(6)]
    assert texts(page, "main .ranking .name") == [f"0.{n}" for n in range(14)]
    assert texts(page, "main .ranking li:first-child .top-tokens .token") == [
        f"·w{n}" for n in range(5)
    ]
    labels = "cells => cells.map(each => each.getAttribute('aria-label'))"
    for label in page.eval_on_selector_all(CELLS, labels):
        assert label.endswith("nats; promotes: ·w0, ·w1, ·w2")


def test_a_card_tells_the_effect_and_how_good_its_lens_is(open_file, make_head, make_reading):
    scored = make_head(0, 0, quality={"kl": 1.5, "gain": 1.5, "ablation": 0.25})
    page = open_file(make_reading(heads=[scored]).to_html())
    own = "main .lens[data-lens=lens] .lens-quality"
    shown = page.inner_text(f"{own} >> nth=0")
    assert "removes 50% of the KL" in shown and "fidelity +0.25" in shown
    here = page.inner_text(f"{own} >> nth=1")
    assert "KL 1.00 nats" in here and "agrees with the effect +0.13" in here
    facts = page.inner_text("main .card .does .facts")
    assert re.search(r"effect on 0b[^\n]*\n\u22120.800 logits", facts)
    assert re.search(r"direct[^\n]*\n\u22120.500 logits", facts)
    assert re.search(r"through later layers[^\n]*\n\u22120.300 logits", facts)
    plain = make_head(0, 0, quality={}, direct=None, lens_agreement=None)
    page = open_file(make_reading(heads=[plain]).to_html())
    assert page.inner_text(f"{own} >> nth=0") == "not scored"
    facts = page.inner_text("main .card .does .facts")
    assert "direct" not in facts and "later" not in facts


def test_a_reading_without_lenses_shows_effects_alone(open_file, make_head, make_reading):
    heads = [make_head(0, n, lens=None, lens_agreement=None, unembedded=()) for n in range(3)]
    page = open_file(make_reading(heads=heads).to_html())
    assert "0.500 nats" in page.inner_text("main .card .does")
    assert "No lens is fitted" in page.inner_text("main .card .knows")
    offered = page.locator("main select[aria-label=measure] option").evaluate_all(
        "options => options.map(each => each.value)"
    )
    assert offered == ["effect", "token", "direct"]


def test_layers_and_feed_forward_parts_stand_below_the_heads(open_file, make_head, make_reading):
    heads = [make_head(at, n) for at in range(2) for n in range(3)]
    others = [
        make_head(at, None, kind=kind, kl=7.0 + at, lens=None, attends=())
        for at in range(2)
        for kind in ("attention", "feed-forward")
    ]
    page = open_file(make_reading(heads=heads, others=others).to_html())
    assert texts(page, "main .heat-map text") == ["0", "1", "0", "1", "2", "attn", "MLP"]
    page.locator(f"{CELLS}[data-head='1.feed-forward']").click()
    page.locator("h1", has_text="MLP of layer 1").wait_for()
    assert "8.000 nats" in page.inner_text("main .card .does")
    assert page.locator("main .knows").count() == 0
    # The colours are those of heads: the larger effect of a layer is cut at their end.
    assert "0.500" in page.inner_text("main .legend")


def test_only_what_the_file_can_answer_is_offered(open_file, make_reading):
    page = open_file(make_reading().to_html())
    assert texts(page, "#screens a") == ["Prompt", "Head"]
    assert "Ablate this head" not in page.inner_text("main")
    page.get_by_role("link", name="Prompt").click()
    page.wait_for_selector("main .prompt")
    assert page.locator("main textarea").get_attribute("readonly") is not None
    offered = page.locator("main select[aria-label=measure] option").evaluate_all(
        "options => options.map(each => each.value)"
    )
    assert offered == ["effect", "token", "direct", "lens", "agreement", "gain"]
    page.locator("main .ranking button").first.click()
    page.wait_for_selector("main .lens")


def test_nothing_runs_over_the_edge_and_the_accessibility_check_finds_nothing(
    open_file, make_reading, wait_until_settled
):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_file(make_reading(EVIL).to_html(), width=360, height=740)
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") <= 0
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        wait_until_settled(page)
        found = axe.Axe().run(page).response["violations"]
        assert not found, [(scheme, each["id"]) for each in found]


def test_two_readings_in_a_notebook_do_not_disturb_each_other(open_notebook, make_reading):
    reading = make_reading()
    page = open_notebook(reading, reading)
    first, second = (page.frame_locator("iframe >> nth=0"), page.frame_locator("iframe >> nth=1"))
    first.locator("main [data-head='0.3']").first.click()
    first.locator("h1", has_text="Layer 0, head 3").wait_for()
    assert second.locator("h1").inner_text() == "Layer 2, head 4"
    assert page.evaluate("document.body.style.cssText + document.title") == "notebook"


@pytest.mark.parametrize(
    ("body", "is_dark"),
    [
        ('<body data-jp-theme-light="false">', True),
        ('<body data-jp-theme-light="true">', False),
        ('<body class="vscode-dark">', True),
        ("<body>", False),
    ],
)
def test_a_reading_is_as_dark_as_its_notebook(open_notebook, make_reading, body, is_dark):
    # Not `light` or `dark`, which would overrule what the notebook says.
    page = open_notebook(make_reading(), body=body, scheme="null")
    page.frame_locator("iframe").locator("main .lens").first.wait_for()
    ground = page.frames[1].evaluate("getComputedStyle(document.body).backgroundColor")
    assert (brightness(ground) < 120) == is_dark
