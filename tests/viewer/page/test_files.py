"""What can be taken away: a file that works offline, pictures, JSON; and the page in a notebook."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor

import pytest


def saved(page, name: str):
    """The files that a choice of the menu gives."""
    page.locator("summary", has_text="Save").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=name, exact=True).click()
    return download.value


def test_the_saved_file_works_offline_and_says_the_same(new_page, viewed, text, tmp_path, until):
    page = new_page(viewed.link(screen="head", text=text, head="3.5"))
    page.wait_for_selector("[data-role=induction]")
    file = tmp_path / "saved.html"
    saved(page, "As one HTML file").save_as(file)
    offline = new_page()
    offline.context.set_offline(True)
    offline.goto(file.as_uri())
    offline.wait_for_selector("main .lens")
    tokens = "main .lens .token-list .token"
    assert offline.locator(tokens).all_text_contents() == page.locator(tokens).all_text_contents()
    offline.wait_for_selector("main .arcs svg")
    offline.locator("main .heat-map [data-head='2.1']").click()
    until(offline, "() => document.querySelector('h1').textContent.includes('Layer 2')")


def test_the_json_is_what_the_screen_was_drawn_from(new_page, viewed, text, tmp_path):
    page = new_page(viewed.link(text=text))
    found = json.loads(saved(page, "JSON").path().read_text(encoding="utf-8"))
    reading = next(each for each in found["answers"] if each["route"] == "reading")
    assert reading["answer"] == viewed.print_route("reading", **reading["question"])


@pytest.mark.parametrize("screen", ["prompt", "positions", "act"])
def test_pictures_come_as_svg_and_png(new_page, viewed, text, screen):
    changes = json.dumps([{"kind": "ablate", "layer": 4, "head": 1, "by": "zero"}])
    state = {"screen": screen, "text": text, **({"changes": changes} if screen == "act" else {})}
    page = new_page(viewed.link(**state))
    drawn = ET.fromstring(saved(page, "SVG").path().read_text(encoding="utf-8"))
    assert drawn.tag.endswith("svg")
    names = {each.tag.rpartition("}")[2] for each in drawn.iter()}
    assert {"rect", "text"} <= names
    assert "script" not in names
    page = new_page(page.url)
    assert saved(page, "PNG").path().read_bytes().startswith(b"\x89PNG")


def test_the_link_can_be_copied(new_page, viewed, text, until):
    page = new_page(viewed.link(text=text))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("summary", has_text="Save").click()
    page.get_by_role("button", name="Copy link").click()
    until(page, "() => document.querySelector('.menu output').textContent !== ''")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_a_reading_is_drawn_in_a_notebook(open_notebook, view_config, text):
    import saccade
    from saccade.interp.readings.reading_table import dotted

    def read():
        from saccade.interp.readings.reader import read as read_text

        model = saccade.open_model(view_config.model)
        lenses = saccade.load_lenses(view_config.lenses[0], model)
        return read_text(model, text, lenses=lenses, unembedding=True)

    with ThreadPoolExecutor(1) as apart:
        reading = apart.submit(read).result()
    frame = open_notebook(saccade.show(reading)).frame_locator("iframe")
    frame.locator("main .heat-map [data-head='3.5']").click()
    frame.locator("main .lens").first.wait_for()
    head = reading.at(3, 5)
    shown = frame.locator(
        "main .lens[data-lens=lens] .token-list.higher .token"
    ).all_text_contents()
    assert shown == [dotted(token.text) for token in head.lens.adds]
