"""How the page is used: by link, by keyboard, narrow or wide, in the dark, by screen reader."""

from __future__ import annotations

import json

import pytest

SCREENS = (
    *("prompt", "head", "positions", "flow", "generate"),
    *("compare", "act", "atlas", "lenses", "traces"),
)
MORE = ("effects", "atlas head")  # screens with two faces
CHANGES = json.dumps([{"kind": "ablate", "layer": 4, "head": 1, "by": "zero"}])


def state_of(screen: str, text: str, other: str) -> dict[str, str]:
    more = {"compare": {"other": other}, "act": {"changes": CHANGES}, "head": {"head": "3.5"}}
    if screen == "effects":
        return {"screen": "positions", "shows": "effects", "text": text, "cell": "3.2@4"}
    if screen == "atlas head":
        return {"screen": "atlas", "head": "3.2", "context": "2"}
    pinned = {"positions": {"pins": " the| and"}, "traces": {"trace": "heads"}}
    return {"screen": screen, "text": text, **more.get(screen, {}), **pinned.get(screen, {})}


@pytest.mark.parametrize("screen", [*SCREENS, *MORE])
def test_a_link_restores_the_view(new_page, viewed, text, other, screen, wait_until_settled):
    link = viewed.link(**state_of(screen, text, other))
    page = new_page(link)
    before = page.inner_text("main")
    assert len(before) > 50
    again = new_page(page.url)
    wait_until_settled(again)
    assert again.inner_text("main") == before


def test_back_goes_to_the_screen_before(new_page, viewed, text, wait_until_settled):
    page = new_page(viewed.link(text=text))
    page.locator("main [data-head='3.5']").first.click()
    page.wait_for_selector("main .lens")
    page.get_by_role("link", name="Lenses").click()
    page.wait_for_selector("main figure")
    page.go_back()
    page.wait_for_selector("main .lens")
    page.go_back()
    page.wait_for_selector("main .ranking")


def test_the_keyboard_alone_reaches_a_head_and_its_tokens(new_page, viewed, text):
    page = new_page(viewed.link(text=text))
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "gridcell":
            break
    first = page.evaluate("document.activeElement.dataset.head")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.dataset.head")
    layer, head = map(int, first.split("."))
    assert second == f"{layer + 1}.{head + 1}"
    page.keyboard.press("Enter")
    page.wait_for_selector("main .lens")
    assert page.locator("main h1").inner_text() == f"Layer {layer + 1}, head {head + 1}"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_every_screen_is_a_link_that_the_keyboard_reaches(new_page, viewed, text):
    page = new_page(viewed.link(text=text))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    names = []
    for _ in SCREENS:
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.dataset.screen"))
    assert tuple(names) == SCREENS


@pytest.mark.parametrize("screen", [*SCREENS, *MORE])
def test_nothing_runs_over_the_edge(new_page, viewed, text, other, screen, wait_until_settled):
    page = new_page(viewed.link(**state_of(screen, text, other)), width=360, height=780)
    root = "document.documentElement"
    for width, height in ((360, 780), (3840, 2160)):
        page.set_viewport_size({"width": width, "height": height})
        wait_until_settled(page)
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") <= 0, width


@pytest.mark.parametrize("screen", [*SCREENS, *MORE])
def test_the_accessibility_check_finds_nothing(
    new_page, viewed, text, other, screen, wait_until_settled
):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = new_page(viewed.link(**state_of(screen, text, other)))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        wait_until_settled(page)
        found = axe.Axe().run(page).response["violations"]
        assert not found, [
            (scheme, each["id"], [node["html"][:160] for node in each["nodes"][:3]])
            for each in found
        ]


def test_the_dark_is_dark_and_can_be_chosen(new_page, viewed, text, until):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = new_page(viewed.link(text=text))
    dark = new_page(viewed.link(text=text), scheme="dark")
    assert light.evaluate(ground) != dark.evaluate(ground)
    light.get_by_role("button", name="Dark").click()
    until(light, f"wanted => {ground} === wanted", dark.evaluate(ground))
    assert "theme=dark" in light.url
    fill = "document.querySelector('.heat-map [role=gridcell]').getAttribute('fill')"
    light.wait_for_selector(".heat-map [role=gridcell]")
    assert light.evaluate(fill) == dark.evaluate(fill)


def test_a_token_of_markup_is_shown_as_it_is(new_page, viewed, wait_until_settled):
    text = "<script>alert(1)</script><img src=x onerror=alert(2)> said the girl"
    page = new_page(viewed.link(text=text))
    shown = "".join(page.locator("main .tokens button > .token").all_text_contents())
    assert "<script>" in shown.replace("·", " ")
    assert page.locator("main script, main img").count() == 0
    for screen in ("head", "positions", "act"):
        page.goto(viewed.link(screen=screen, text=text, changes=CHANGES))
        wait_until_settled(page)
        assert page.locator("main script, main img").count() == 0
    page.goto(viewed.link(screen="traces", trace="heads"))
    wait_until_settled(page)
    assert "<script>alert(1)</script>" in page.inner_text("main .sides")


def test_an_error_is_told_in_the_page_and_the_page_lives_on(new_page, viewed, text):
    page = new_page(viewed.link(text=text, at=99), allowed="400")
    told = page.inner_text("main .problem >> nth=0")
    assert "no position 99" in told
    assert "positions count tokens from 0" in told
    page.goto(viewed.link(text=text))
    page.wait_for_selector("main .heat-map [role=gridcell]")


def test_a_server_that_is_gone_is_told(new_page, viewed, text):
    page = new_page(viewed.link(text=text), allowed="ERR_FAILED")
    page.route("**/api/**", lambda route: route.abort())
    page.locator("main .tokens button").nth(2).click()
    page.wait_for_selector("main .problem")
    assert "is `saccade view` still running?" in page.inner_text("main .problem >> nth=0")


def test_the_page_is_there_before_the_model_and_tells_how_far_it_is(new_page, viewed, until):
    status = viewed.print_route("status")
    opening = {"what": "loading lenses", "done": 1, "total": 4}
    page = new_page(allowed="503")
    page.route(
        "**/api/status",
        lambda route: route.fulfill(json={**status, "state": "opening", "opening": opening}),
    )
    page.goto(viewed.address)
    page.wait_for_selector("#opening progress")
    assert page.inner_text("#opening") == "loading lenses"
    assert page.evaluate("document.querySelector('#opening progress').value") == 1
    page.get_by_label("Text", exact=True).fill("typed before the model is there")
    page.unroute("**/api/status")
    until(page, "() => !document.querySelector('#opening').hasChildNodes()")


def test_typing_goes_on_while_an_answer_is_awaited(new_page, viewed, text):
    page = new_page(viewed.link(text=text))
    waiting = []  # playwright takes no builtin for a handler
    page.route("**/api/reading", lambda route: waiting.extend([route]))
    box = page.get_by_label("Text", exact=True)
    box.fill("Once upon")
    page.keyboard.press("Enter")
    page.wait_for_selector("main [aria-busy]")
    box.press_sequentially(" a time", delay=5)
    assert box.input_value() == "Once upon a time"
    for route in waiting:
        route.continue_()
    page.unroute("**/api/reading")


def test_an_answer_that_was_overtaken_is_dropped(new_page, viewed, text, wait_until_settled, until):
    page = new_page(viewed.link(text=text))
    kept = []
    page.route("**/api/reading", lambda route: kept.extend([route]))
    box = page.get_by_label("Text", exact=True)
    for tokens in ("Once", "Tom and Lily"):
        box.fill(tokens)
        page.keyboard.press("Enter")
        until(page, "tokens => location.hash.includes(encodeURIComponent(tokens))", tokens)
    page.wait_for_timeout(100)
    for route in reversed(kept):
        route.continue_()
    page.unroute("**/api/reading")
    wait_until_settled(page)
    shown = "".join(page.locator("main .tokens button > .token").all_text_contents())
    assert "Lily" in shown
