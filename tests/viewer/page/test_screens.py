"""Every screen, opened and clicked through, beside the JSON that the command line prints."""

from __future__ import annotations

import json
import re

import pytest

HEADS = {"lens", "gain", "effect", "token", "direct", "entropy"}


def dotted(text: str) -> str:
    from saccade.interp.readings.reading_table import dotted as as_the_command_line

    return as_the_command_line(text)


def texts(page, selector: str) -> list[str]:
    return page.locator(selector).all_text_contents()


def rows_of(map_json) -> dict[str, float]:
    return {
        f"{row['layer']}.{head}": value
        for row in map_json["rows"]
        for head, value in enumerate(row["values"])
    }


def names_of(reading) -> list[str]:
    """The names on the map of heads, attention layers and MLPs."""
    parts = [*reading["heads"], *reading["others"]]
    return [
        f"{p['layer']}.{p['kind'] if p['head'] is None else p['head']}"
        for p in parts
        if p["kind"] != "residual"
    ]


def values_on(page) -> dict[str, float]:
    """Head -> the value in the label of its cell."""
    labels = page.eval_on_selector_all(
        "main .heat-map [role=gridcell]",
        "cells => cells.map(cell => [cell.dataset.head, cell.getAttribute('aria-label')])",
    )
    figure = re.compile(r": <?([-\u2212+]?[\d.]+)(%?)")
    found = {}
    for head, label in labels:
        number, percent = figure.search(label).groups()
        found[head] = float(number.replace("\u2212", "-")) / (100 if percent else 1)
    return found


def test_the_prompt_screen_shows_what_the_command_line_prints(new_page, viewed, text):
    page = new_page(viewed.link(text=text))
    reading = viewed.print_route("reading", text=text)
    predictions = viewed.print_route("predictions", text=text)
    assert texts(page, "main .tokens button > .token") == list(map(dotted, reading["tokens"]))
    assert texts(page, "main .tokens .next") == [
        dotted(each["top"][0]["text"]) for each in predictions["positions"]
    ]
    shown = texts(page, "main .text-and-next .token-list .token")
    assert shown == [dotted(token["text"]) for token in reading["prediction"][:6]]
    assert page.locator("main .heat-map [role=gridcell]").count() == len(names_of(reading))
    ranked = sorted(reading["heads"], key=lambda head: -head["effect"]["kl"])[:14]
    assert texts(page, "main .ranking .name") == [f"{h['layer']}.{h['head']}" for h in ranked]
    assert texts(page, "main .ranking li:first-child .token") == [
        dotted(token["text"]) for token in ranked[0]["effect"]["promotes"][:5]
    ]


def test_the_map_is_of_the_reading_that_the_read_command_prints(
    new_page, viewed, view_config, text, capsys
):
    from saccade.cli.main import main

    given = ["--model", view_config.model, "--lens", view_config.lenses[0]]
    assert main(["read", text, *given, "--all", "--mlp", "--json"]) == 0
    reading = json.loads(capsys.readouterr().out)
    page = new_page(viewed.link(text=text))
    parts = [*reading["heads"], *reading["others"]]
    wanted = dict(zip(names_of(reading), (p["effect"]["kl"] for p in parts), strict=True))
    assert values_on(page) == pytest.approx(wanted, abs=0.00051)


@pytest.mark.parametrize("measure", sorted(HEADS))
def test_the_map_has_the_values_of_the_measure(new_page, viewed, text, measure):
    page = new_page(viewed.link(text=text, measure=measure))
    wanted = rows_of(viewed.print_route("measure", text=text, measure=measure))
    found = values_on(page)
    heads = {name: value for name, value in found.items() if name in wanted}
    assert heads == pytest.approx(wanted, abs=0.011 if measure == "gain" else 0.0051)
    has_layers = len(found) > len(wanted)
    assert has_layers == (measure in ("effect", "token", "direct"))


def test_the_replacement_and_the_mass_on_words_can_be_chosen(
    new_page, viewed, text, wait_until_settled, until
):
    page = new_page(viewed.link(text=text))
    mean = values_on(page)
    page.get_by_label("replaced by", exact=True).select_option("zero")
    until(page, "() => location.hash.includes('ablate=zero')")
    wait_until_settled(page)
    wanted = rows_of(viewed.print_route("measure", text=text, measure="effect", ablate="zero"))
    zero = values_on(page)
    assert {name: zero[name] for name in wanted} == pytest.approx(wanted, abs=0.00051)
    assert zero != mean
    page.get_by_label("measure", exact=True).select_option("mass")
    page.get_by_label("words", exact=True).fill("Lily, Tim")
    page.get_by_label("words", exact=True).press("Enter")
    until(page, "() => location.hash.includes('words=Lily')")
    wait_until_settled(page)
    answer = viewed.print_route("measure", text=text, measure="mass", words="Lily, Tim")
    assert values_on(page) == pytest.approx(rows_of(answer), abs=0.00006)


def test_a_click_on_a_predicted_token_shows_who_promotes_it_and_a_second_sets_the_contrast(
    new_page, viewed, text, wait_until_settled, until
):
    page = new_page(viewed.link(text=text))
    plain = values_on(page)
    found = viewed.print_route("reading", text=text)["prediction"]
    first, second = (f"#{found[at]['id']}" for at in (1, 3))
    buttons = page.locator("main .predicted-tokens li > button")

    def shown(**asked: str) -> None:
        wait_until_settled(page)
        parts = viewed.print_route("reading", text=text, **asked)
        every = [*parts["heads"], *parts["others"]]
        wanted = dict(zip(names_of(parts), (p["effect"]["on_token"] for p in every), strict=True))
        assert values_on(page) == pytest.approx(wanted, abs=0.00051)
        top = max(parts["heads"], key=lambda head: abs(head["effect"]["on_token"]))
        name = f"{top['layer']}.{top['head']}"
        assert texts(page, "main .ranking .name")[0] == name

    buttons.nth(1).click()
    until(page, "() => location.hash.includes('measure=token')")
    shown(token=first)
    assert buttons.nth(1).get_attribute("aria-pressed") == "true"
    buttons.nth(3).focus()
    page.keyboard.press("Enter")  # the keyboard alone reaches them
    until(page, "() => location.hash.includes('against=')")
    shown(token=first, against=second)
    assert dotted(found[3]["text"]) in page.inner_text("main .predicted-tokens .note")
    buttons.nth(0).click()
    until(page, "() => !location.hash.includes('token')")
    wait_until_settled(page)
    assert values_on(page) == plain
    assert page.locator("main .predicted-tokens [aria-pressed=true]").count() == 0


def test_another_token_can_be_read(new_page, viewed, text, wait_until_settled, until):
    page = new_page(viewed.link(text=text))
    page.locator("main .tokens button").nth(3).click()
    until(page, "() => location.hash.includes('at=3')")
    wait_until_settled(page)
    reading = viewed.print_route("reading", text=text, position=3)
    assert texts(page, "main .text-and-next .token-list .token") == [
        dotted(token["text"]) for token in reading["prediction"][:6]
    ]


def test_a_click_on_a_head_opens_its_card(new_page, viewed, text, wait_until_settled):
    page = new_page(viewed.link(text=text))
    page.locator("main [data-head='3.5']").first.click()
    page.wait_for_selector("main .lens")
    wait_until_settled(page)
    card = viewed.print_route("head", text=text, layer=3, head=5)
    assert page.locator("h1").inner_text() == "Layer 3, head 5"
    reading = viewed.print_route("reading", text=text)
    (own,) = [h for h in reading["heads"] if (h["layer"], h["head"]) == (3, 5)]
    for kind, name in (("higher", "promotes"), ("lower", "suppresses")):
        shown = texts(page, f"main .does .token-list.{kind} .token")
        assert shown == [dotted(token["text"]) for token in own["effect"][name]]
    assert f"{own['effect']['kl']:.3f} nats" in page.inner_text("main .does .facts")
    for lens in card["lenses"]:
        column = f"main .lens[data-lens='{lens['name']}']"
        for kind, name in (("higher", "adds"), ("lower", "suppresses")):
            shown = texts(page, f"{column} .token-list.{kind} .token")
            assert shown == [dotted(token["text"]) for token in lens[name]]
        assert ("weak" in page.locator(column).get_attribute("class")) == lens["is_weak"]
    weights = [float(each) for each in re.findall(r", ([\d.]+)%", _arcs(page))]
    assert weights == pytest.approx([100 * each for each in card["attention"]], abs=0.051)
    roles = viewed.print_route("roles")["heads"]
    own = next(each for each in roles if (each["layer"], each["head"]) == (3, 5))
    page.wait_for_selector("[data-role=induction]")
    assert f"{own['induction']:.2f}" in page.locator("[data-role=induction]").inner_text()


def _arcs(page) -> str:
    labels = "nodes => nodes.map(node => node.getAttribute('aria-label')).join('; ')"
    return page.eval_on_selector_all("main .arcs [role=button]", labels)


def test_the_whole_matrix_of_a_head_can_be_walked(new_page, viewed, text, until):
    page = new_page(viewed.link(screen="head", text=text, head="3.5"))
    found = viewed.print_route("attention", text=text, layer=3, head=5)
    matrix = page.locator("main .matrix .grid")
    matrix.focus()
    page.keyboard.press("ArrowUp")
    row = len(found["tokens"]) - 2
    said = f"reads {dotted(found['tokens'][0])}: {found['weights'][row][0]:.3f}"
    until(page, "said => announcement.textContent.includes(said)", said)


def test_positions_show_each_layers_token_and_follow_a_pinned_one(
    new_page, viewed, text, wait_until_settled, until
):
    page = new_page(viewed.link(screen="positions", text=text))
    found = viewed.print_route("positions", text=text)
    page.locator("main .grid").focus()
    for key in ("Home", "ArrowUp"):
        page.keyboard.press(key)
    row = len(found["tokens"]) - 2
    token = found["texts"][str(found["ids"][0][row][0])]
    until(page, "said => announcement.textContent.includes(said)", dotted(token))
    page.get_by_label("token to pin", exact=True).fill(" the")
    page.keyboard.press("Enter")
    page.wait_for_selector("main .ranks table")
    wait_until_settled(page)
    at = len(found["tokens"]) - 1
    ranks = viewed.print_route("ranks", text=text, tokens=[" the"], first=at, count=1)
    shown = texts(page, "main .ranks tbody .number")[0]
    assert shown.replace(",", "") == str(ranks["tokens"][0]["final"]["ranks"][0] + 1)


def test_one_head_can_be_followed_through_the_layers(
    new_page, viewed, text, wait_until_settled, until
):
    page = new_page(viewed.link(screen="positions", text=text))
    page.get_by_label("reads", exact=True).select_option("2")
    until(page, "() => location.hash.includes('head=2')")
    wait_until_settled(page)
    found = viewed.print_route("positions", text=text, head=2)
    page.locator("main .grid").focus()
    page.keyboard.press("Home")
    token = found["texts"][str(found["ids"][0][-1][0])]
    until(page, "said => announcement.textContent.includes(said)", dotted(token))


def test_effects_of_heads_at_positions_are_mapped_and_measured_where_chosen(
    new_page, viewed, text, wait_until_settled, until
):
    page = new_page(viewed.link(screen="positions", shows="effects", text=text, cell="3.2@4"))
    found = viewed.print_route("cell", text=text, layer=3, head=2, at=4)
    assert f"{found['kl']:.3f} nats" in page.inner_text("main .exact .facts")
    rows = viewed.print_route("attribution", text=text)["rows"]
    grid = page.locator("main .positions .grid")
    grid.focus()
    for key in ("Home", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    value = abs(next(r for r in rows if r["layer"] == 0)["values"][2][0])
    until(page, "said => announcement.textContent.includes(said)", f"{value:.3f} logits")
    page.keyboard.press("Enter")
    until(page, "() => decodeURIComponent(location.hash).includes('cell=0.0@2')")


def test_the_flow_is_drawn_and_the_threshold_prunes_it(
    new_page, viewed, text, wait_until_settled, until
):
    page = new_page(viewed.link(screen="flow", text=text))

    def shown(threshold: float) -> None:
        found = viewed.print_route("flow", text=text, threshold=threshold)
        names = page.eval_on_selector_all("main [data-node]", "all => all.map(n => n.dataset.node)")
        assert sorted(names) == sorted(node["name"] for node in found["nodes"])
        assert page.locator("main [data-edge]").count() == len(found["edges"])
        assert f"{100 * found['kept']:.0f}%" in page.inner_text("main .flow .note")

    shown(0.12)
    page.get_by_label("threshold", exact=True).press("End")
    until(page, "() => location.hash.includes('threshold=0.5')")
    wait_until_settled(page)
    shown(0.5)
    page.locator("main [data-node]").first.focus()
    page.keyboard.press("Enter")
    until(page, "() => location.hash.includes('screen=head')")


def test_the_model_writes_token_by_token(new_page, viewed, text, wait_until_settled, until):
    page = new_page(viewed.link(screen="generate", text=text))
    found = [viewed.print_route("generate", text=text, index=at) for at in range(4)]
    for _ in range(2):
        page.get_by_role("button", name="next token").click()
    until(page, "() => location.hash.includes('step=2')")
    wait_until_settled(page)
    written = "main .generated button.token"
    assert texts(page, written) == [dotted(each["token"]["text"]) for each in found[:3]]
    best = max(found[2]["heads"], key=lambda head: head["effect"])
    lists = "main .generated-heads .token-list"
    assert texts(page, f"{lists}.higher .token")[0] == f"{best['layer']}.{best['head']}"
    page.get_by_role("button", name="Play").click()
    until(page, "() => document.querySelectorAll('main .generated button.token').length >= 4")
    page.get_by_role("button", name="Pause").click()
    page.locator(written).first.click()  # back to the first
    until(page, "() => !location.hash.includes('step')")
    wait_until_settled(page)
    assert page.locator(written).first.get_attribute("aria-pressed") == "true"


def test_the_model_writes_at_a_temperature_and_from_a_seed(
    new_page, viewed, text, wait_until_settled, until
):
    page = new_page(viewed.link(screen="generate", text=text, step=2))
    written = "main .generated button.token"
    assert page.get_by_label("seed", exact=True).count() == 0  # nothing is drawn

    def shown(**more):
        wait_until_settled(page)
        asked = [viewed.print_route("generate", text=text, index=at, **more) for at in range(3)]
        expected = [dotted(each["token"]["text"]) for each in asked]
        assert texts(page, written) == expected[: len(texts(page, written))]
        return expected

    greedy = shown()
    page.get_by_label("temperature", exact=True).fill("1.5")
    page.get_by_label("temperature", exact=True).press("Tab")
    until(page, "() => location.hash.includes('temperature=1.5')")
    for _ in range(2):
        page.get_by_role("button", name="next token").click()
    until(page, "() => location.hash.includes('step=2')")
    first = shown(temperature=1.5, seed=0)
    page.get_by_label("seed", exact=True).fill("7")
    page.get_by_label("seed", exact=True).press("Tab")
    until(page, "() => location.hash.includes('seed=7')")
    for _ in range(2):
        page.get_by_role("button", name="next token").click()
    until(page, "() => location.hash.includes('step=2')")
    assert len({tuple(greedy), tuple(first), tuple(shown(temperature=1.5, seed=7))}) == 3


def test_compare_marks_what_differs_and_ranks_the_heads(new_page, viewed, text, other):
    page = new_page(viewed.link(screen="compare", text=text, other=other))
    found = viewed.print_route("compare", text=text, other=other)
    assert page.locator("main .differs").count() >= 2
    order = sorted(found["heads"], key=lambda head: -abs(head["difference"]))[:12]
    rows = page.eval_on_selector_all(
        "main tr[data-head]", "rows => rows.map(row => row.dataset.head)"
    )
    assert rows == [f"{head['layer']}.{head['head']}" for head in order]
    assert f"{100 * found['left']['probability']:.1f}%" in page.inner_text("main .two >> nth=1")


def test_act_shows_before_after_and_what_the_lens_predicted(
    new_page, viewed, text, wait_until_settled, until
):
    changes = [{"kind": "ablate", "layer": 4, "head": 1, "by": "zero"}]
    page = new_page(viewed.link(screen="act", text=text, changes=json.dumps(changes)))
    found = viewed.print_route("act", text=text, changes=changes)
    lists = page.locator("main .predicted")
    for number, name in enumerate(("before", "after")):
        shown = lists.nth(number).locator(".token").all_text_contents()
        assert shown == [dotted(token["text"]) for token in found[name]]
    page.get_by_text("The same as a table").click()
    assert texts(page, "main .more tbody th") == [dotted(w["text"]) for w in found["moved"]]
    page.get_by_label("what change 1 does", exact=True).select_option("scale")
    until(page, "() => decodeURIComponent(location.hash).includes('\"scale\"')")
    wait_until_settled(page)
    changed = [{"kind": "scale", "layer": 4, "head": 1, "factor": 2}]
    found = viewed.print_route("act", text=text, changes=changed)
    shown = lists.nth(1).locator(".token").all_text_contents()
    assert shown == [dotted(token["text"]) for token in found["after"]]


def test_an_edit_can_be_kept_undone_and_downloaded(new_page, viewed, text, wait_until_settled):
    changes = [
        {"kind": "inject", "layer": 2, "head": None, "memory": "dog", "strength": 3}
        | {"form": "unembedding"}
    ]
    page = new_page(viewed.link(screen="act", text=text, changes=json.dumps(changes)))
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the edit").click()
    assert download.value.path().read_bytes()[:2] == b"PK"
    page.get_by_role("button", name="Apply on every screen").click()
    page.wait_for_selector("main .applied-edit:not([hidden])")
    wait_until_settled(page)
    edited = viewed.print_route("reading", text=text, changes=changes)
    shown = "main .text-and-next .token-list .token"
    assert texts(page, shown) == [dotted(token["text"]) for token in edited["prediction"][:6]]
    page.get_by_role("button", name="Undo").click()
    wait_until_settled(page)
    plain = viewed.print_route("reading", text=text)
    assert texts(page, shown) == [dotted(token["text"]) for token in plain["prediction"][:6]]


def test_lenses_are_compared_and_mapped(new_page, viewed):
    page = new_page(viewed.link(screen="lenses"))
    found = viewed.print_route("lenses")
    assert texts(page, "main table tbody th") == [lens["name"] for lens in found]
    explained = found[0]["measures"][0]
    assert explained["measure"] == "explained"
    assert f"{100 * explained['mean']:.0f}%" in page.inner_text("main tr[data-lens] >> nth=0")
    assert page.locator("main figure .heat-map").count() == len(found)
    assert str(found[0]["corpus"]) in page.inner_text("main")


def test_a_run_shows_its_result_beside_the_published_number(new_page, viewed, wait_until_settled):
    page = new_page(viewed.link(screen="traces"))
    page.locator("[data-run='adding-gru']").click()
    page.wait_for_selector("main .run-about .panel")
    wait_until_settled(page)
    run = viewed.print_route("runs/adding-gru")
    assert f"{run['value']:g}" in page.inner_text("main .facts")
    assert page.locator("main .chart svg").count() == 2
    assert run["command"] in page.inner_text("main .about")


def test_a_saved_trace_is_drawn_with_its_heads(new_page, viewed):
    page = new_page(viewed.link(screen="traces", trace="heads"))
    found = viewed.print_route("traces/heads")
    assert texts(page, "main .sides button") == found["steps"]
    assert texts(page, "main .thumbnails button") == ["mean of all", *found["views"]]
    page.locator("main .thumbnails button").nth(2).click()
    page.locator("main .sides button").nth(1).click()
    most = max(found["weights"][1][1])
    assert f"{100 * most:.0f}%" in page.inner_text("main .sides .note")
    assert "view=2" in page.url
    assert "step=1" in page.url
