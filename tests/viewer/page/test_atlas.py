"""The Atlas screen in a real browser, and the pages that need no server."""

from __future__ import annotations

import json
import re

import pytest

HEAD = "3.2"


def texts(page, selector):
    return page.locator(selector).all_text_contents()


def dotted(text):
    return text.replace(" ", "·").replace("\n", "\\n")


def names_in_list(page):
    return [text.strip() for text in texts(page, "main .atlas-list .name")]


@pytest.fixture(scope="module")
def atlas(atlas_folder):
    from saccade.interp.atlas.atlas import load_atlas

    return load_atlas(atlas_folder)


def test_all_heads_are_listed_and_the_axes_are_free(new_page, viewed, until):
    page = new_page(viewed.link(screen="atlas"))
    overview = viewed.print_route("atlas")["atlas"]
    ranked = sorted(overview["heads"], key=lambda head: -head["kl"])
    assert names_in_list(page) == [head["name"] for head in ranked]
    assert texts(page, "main .atlas-list .words")[0] == ranked[0]["label"]
    for label, key, metric in (
        ("across", "x", "entropy"),
        ("up", "y", "matters"),
        ("coloured by", "colour", "agreement"),
    ):
        page.get_by_label(label, exact=True).select_option(metric)
        until(page, "wanted => location.hash.includes(wanted)", f"{key}={metric}")
    plot = page.get_by_role("application")
    plot.focus()
    page.keyboard.press("Home")
    first = overview["heads"][0]
    said = f"head {first['name']}: entropy {first['entropy']:.2f}, matters {first['matters']:.1%}"
    until(page, "said => announcement.textContent.startsWith(said)", said)


def test_the_keyboard_walks_the_scatter_and_opens_a_head(new_page, viewed, until):
    page = new_page(viewed.link(screen="atlas", x="layer", y="head"))
    page.get_by_role("application").focus()

    def at(key, name):
        page.keyboard.press(key)
        until(page, "said => announcement.textContent.startsWith(said)", f"head {name}:")

    at("Home", "0.0")
    at("ArrowRight", "1.0")
    at("ArrowUp", "1.1")
    at("j", "1.2")
    at("k", "1.1")
    at("End", "4.7")
    at("ArrowLeft", "3.7")
    assert page.locator("main .is-pointed").get_attribute("data-head") == "3.7"
    page.keyboard.press("Enter")
    page.wait_for_selector("main .atlas-head")
    assert page.locator("main h1").inner_text() == "Layer 3, head 7"
    page.go_back()
    page.wait_for_selector("main .atlas-list")


def test_the_keyboard_walks_the_list_and_opens_a_head(new_page, viewed):
    page = new_page(viewed.link(screen="atlas"))
    names = names_in_list(page)
    page.locator("main .atlas-list a").first.focus()
    for key, at in (("j", 1), ("ArrowDown", 2), ("k", 1), ("ArrowUp", 0), ("k", 0)):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.head") == names[at]
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("main .atlas-head")
    layer, head = names[1].split(".")
    assert page.locator("main h1").inner_text() == f"Layer {layer}, head {head}"


def test_the_finder_finds_what_the_service_finds(new_page, viewed, until, wait_until_settled):
    page = new_page(viewed.link(screen="atlas"))
    token = viewed.print_route(f"atlas/{HEAD}")["does"]["promotes"][0]["text"]

    def asked(**query):
        link = json.dumps(query, separators=(",", ":"))[1:-1]
        until(page, "text => decodeURIComponent(location.hash).includes(text)", link)
        wait_until_settled(page)
        found = viewed.print_route("find", **query)
        assert names_in_list(page) == [row["name"] for row in found]
        noted = page.inner_text("main .found-heads .note")
        assert noted == f"{len(found)} head{'s' * (len(found) != 1)}, by {found[0]['what']}"
        page.get_by_role("button", name="All", exact=True).click()
        until(page, "() => !location.hash.includes('find')")
        wait_until_settled(page)

    def fill(label, value):
        page.get_by_label(label, exact=True).fill(value)
        page.keyboard.press("Enter")

    fill("token", token)
    asked(token=token)
    page.get_by_label("promotes or suppresses", exact=True).select_option("suppressed")
    fill("token", token)
    asked(suppressed=token)
    fill("range of metrics", "layer>2, head<=3")
    asked(where=["layer>2", "head<=3"])
    fill("like the head", HEAD)
    asked(like=HEAD)
    page.get_by_label("role", exact=True).select_option("induction")
    asked(role="induction")


def test_heads_that_matter_in_one_text_and_not_in_another_are_asked_for(
    new_page, viewed, until, wait_until_settled
):
    page = new_page(viewed.link(screen="atlas"))
    page.get_by_label("matters in", exact=True).select_option("red.txt")
    until(page, "() => location.hash.includes('matters_in')")
    page.get_by_label("than in", exact=True).select_option("blue.txt")
    until(page, "() => location.hash.includes('not_in')")
    wait_until_settled(page)
    found = viewed.print_route("find", matters_in="red.txt", not_in="blue.txt")
    assert names_in_list(page) == [row["name"] for row in found]


def test_a_token_that_no_head_promotes_names_the_nearest(new_page, viewed, wait_until_settled):
    page = new_page(
        viewed.link(screen="atlas", find=json.dumps({"token": "zzzzyx"})), allowed="status of 400"
    )
    said = page.inner_text("main .problem")
    assert "no head of this atlas promotes the token 'zzzzyx'" in said
    assert "nearest that some head promotes: '" in said


def test_the_page_of_a_head_shows_its_figures(new_page, viewed):
    page = new_page(viewed.link(screen="atlas", head=HEAD))
    found = viewed.print_route(f"atlas/{HEAD}")
    assert texts(page, "main .label-facts b") == [
        fact["phrase"] for fact in found["label"]["facts"]
    ]
    for kind, name in (("higher", "promotes"), ("lower", "suppresses")):
        lists = page.locator(f"main .does > .two .token-list.{kind}")
        shown = lists.locator(".token").all_text_contents()
        assert [each.split(" average")[0] for each in shown] == [
            dotted(token["text"]) for token in found["does"][name]
        ]
    assert texts(page, "main .knows .token-list .token")[0].startswith(
        dotted(found["knows"]["predicts"][0]["text"])
    )
    assert f"{100 * found['metrics']['matters']:.1f}%" in page.inner_text("main .does .facts")
    assert f"{found['metrics']['entropy']:.2f}" in page.inner_text("main .looks .facts")
    shown = dict(zip(texts(page, "main .roles th"), texts(page, "main .roles td"), strict=True))
    assert {name: float(value) for name, value in shown.items()} == pytest.approx(found["roles"])
    pairs = found["composition"]["reads"]
    table = page.get_by_role("region", name="reads from earlier heads")
    assert table.locator("tbody a").all_text_contents() == [pair["head"] for pair in pairs]
    sequences = page.get_by_role("group", name=re.compile("^Sequences"))
    groups = sequences.locator("select option").all_text_contents()
    assert groups[0] == "strongest windows" and len(groups) == 5


def test_contexts_are_stepped_through_and_stand_in_the_link(new_page, viewed, until):
    page = new_page(viewed.link(screen="atlas", head=HEAD))
    found = viewed.print_route(f"atlas/{HEAD}")["does"]
    contexts = [*found["strongest"], *(c for s in found["strata"] for c in s["contexts"])]
    stepper = page.get_by_role("group", name=re.compile("^Contexts"))

    def at(number):
        context = contexts[number]
        wanted = f"{context['source']}, window {context['window']}, position {context['position']}."
        assert wanted in stepper.inner_text()
        marked = stepper.locator(".context-text .token").all_text_contents()
        assert marked == [dotted(token) for token in context["tokens"]]

    at(0)
    stepper.get_by_role("button", name="Next").click()
    at(1)
    stepper.focus()
    for key, number in (("ArrowRight", 2), ("j", 3), ("k", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        at(number)
    until(page, "() => location.hash.includes('context=1')")
    last = len(contexts) - 1
    page = new_page(viewed.link(screen="atlas", head=HEAD, context=last))
    stepper = page.get_by_role("group", name=re.compile("^Contexts"))
    at(last)


def test_a_context_opens_in_the_prompt_screen_with_the_same_tokens_and_the_same_effect(
    new_page, viewed, atlas, until, wait_until_settled
):
    found = viewed.print_route(f"atlas/{HEAD}")["does"]
    contexts = [*found["strongest"], *(c for s in found["strata"] for c in s["contexts"])]
    same = [number for number, context in enumerate(contexts) if context["prompt"] is not None]
    assert len(same) > len(contexts) / 2
    for number in (same[0], same[-1]):
        context = contexts[number]
        page = new_page(viewed.link(screen="atlas", head=HEAD, context=number))
        page.get_by_role("button", name="Open in the Prompt screen").click()
        until(page, "() => !location.hash.includes('screen=atlas')")
        page.wait_for_selector("main .heat-map")
        wait_until_settled(page)
        ids = atlas.windows[context["window"], : context["position"] + 1].tolist()
        labels = page.eval_on_selector_all(
            "main .tokens button", "all => all.map(each => each.getAttribute('aria-label'))"
        )
        assert [label.split("; next")[0] for label in labels] == [
            f"token {at}, {dotted(text)}" for at, text in enumerate(atlas.show(ids))
        ]
        label = page.locator(f"main .heat-map [data-head='{HEAD}']").get_attribute("aria-label")
        effect = float(re.search(r"([\d.]+) nats", label)[1])
        assert effect == pytest.approx(context["kl"], abs=6e-4)  # three digits are shown


def test_a_context_that_has_other_tokens_when_it_is_typed_says_so(new_page, viewed, page_answer):
    found = viewed.print_route(f"atlas/{HEAD}")
    found["does"]["strongest"][0]["prompt"] = None
    page = page_answer(f"atlas/{HEAD}", found, viewed.link(screen="atlas", head=HEAD))
    stepper = page.get_by_role("group", name=re.compile("^Contexts"))
    assert "this text has other tokens" in stepper.inner_text()
    stepper.get_by_role("button", name="Next").click()
    assert "this text has other tokens" not in stepper.inner_text()


@pytest.fixture
def page_answer(new_page, wait_until_settled):
    """A page to which the server seems to give another answer."""

    def make(route, answer, link):
        page = new_page()
        page.route(f"**/api/{route}", lambda asked: asked.fulfill(json=answer))
        page.goto(link)
        wait_until_settled(page)
        return page

    return make


def test_a_thousand_heads_stay_smooth(viewed, page_answer):
    answer = viewed.print_route("atlas")
    heads = answer["atlas"]["heads"]
    answer["atlas"]["heads"] = [
        {**heads[at % len(heads)], "name": f"{at // 32}.{at % 32}", "layer": at // 32}
        | {"head": at % 32, "kl": 10 ** (-at / 300), "distance": (at * 37 % 101) / 3}
        for at in range(1024)
    ]
    page = page_answer("atlas", answer, viewed.link(screen="atlas"))
    page.get_by_role("button", name="Show all 1024").click()
    assert page.locator("main .atlas-list li").count() == 1024
    frames = page.evaluate(
        """async () => {
          const plot = document.querySelector(".scatter"), box = plot.getBoundingClientRect();
          const frame = () => new Promise(requestAnimationFrame), found = [];
          for (let at = 0; at < 60; at += 1) {
            const begin = performance.now();
            plot.dispatchEvent(new PointerEvent("pointermove", {
              clientX: box.left + 70 + (at * 53) % (box.width - 90),
              clientY: box.top + 20 + (at * 31) % (box.height - 70),
            }));
            await frame(); // the points are drawn in it
            found.push(performance.now() - begin);
          }
          return found.sort((a, b) => a - b);
        }"""
    )
    # Smooth is 17 ms; a laden machine gets more. What redraws per head and row would take seconds.
    assert frames[30] < 120, frames


@pytest.fixture(scope="module")
def site(atlas, tmp_path_factory):
    """A folder of pages."""
    from saccade.viewer.atlas_site import write_site

    folder = tmp_path_factory.mktemp("site") / "pages"
    write_site(folder, atlas)
    return folder


def test_the_site_opens_from_the_disk_without_a_server(
    open_path, viewed, site, until, wait_until_settled
):
    page = open_path(site / "index.html")
    overview = viewed.print_route("atlas")["atlas"]
    assert names_in_list(page) == [
        head["name"] for head in sorted(overview["heads"], key=lambda head: -head["kl"])
    ]
    page.locator(f"main .atlas-list [data-head='{HEAD}']").click()
    page.wait_for_selector("main .atlas-head")
    assert page.url.endswith(f"/heads/{HEAD}.html")
    found = viewed.print_route(f"atlas/{HEAD}")
    shown = texts(page, "main .does > .two .token-list.higher .token")
    assert [each.split(" average")[0] for each in shown] == [
        dotted(token["text"]) for token in found["does"]["promotes"]
    ]
    assert page.get_by_role("button", name="Open in the Prompt screen").count() == 0
    contexts = page.get_by_role("group", name=re.compile("^Contexts"))
    contexts.get_by_role("button", name="Next").click()
    assert "2 of 12" in contexts.inner_text()
    page.get_by_role("link", name="3.3 →").click()
    page.wait_for_selector("main .atlas-head")
    assert page.locator("main h1").inner_text() == "Layer 3, head 3"
    page.get_by_role("link", name="All heads").click()
    page.wait_for_selector("main .atlas-list")
    page.get_by_role("application").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_selector("main .atlas-head")
    assert page.url.endswith("/heads/0.0.html")


def test_the_site_finds_heads_without_a_server(open_path, viewed, site, until, wait_until_settled):
    page = open_path(site / "index.html")
    token = viewed.print_route(f"atlas/{HEAD}")["does"]["promotes"][0]["text"]
    found = {row["name"]: row["value"] for row in viewed.print_route("find", token=token)}
    page.get_by_label("token", exact=True).fill(token)
    page.get_by_label("range of metrics", exact=True).fill("layer>=2")
    page.keyboard.press("Enter")
    shown = "[...document.querySelectorAll('.atlas-list .name')].map(each => each.textContent)"
    until(page, f"() => {shown}.length && {shown}.every(name => name >= '2')")
    names = names_in_list(page)
    assert HEAD in names and set(names) <= {name for name in found if int(name[0]) >= 2}
    # The index holds the first tokens of each head: who is listed, is ranked as by the service.
    assert names == sorted(names, key=lambda name: -found[name])
    assert page.get_by_label("like the head", exact=True).count() == 0


def test_one_head_as_one_file_needs_nothing_else(open_path, viewed, atlas, tmp_path):
    from saccade.viewer.atlas_site import write_head_file

    write_head_file(tmp_path / "head.html", atlas, 3, 2)
    page = open_path(tmp_path / "head.html")
    assert page.locator("main h1").inner_text() == "Layer 3, head 2"
    found = viewed.print_route(f"atlas/{HEAD}")
    assert f"{100 * found['metrics']['matters']:.1f}%" in page.inner_text("main .does .facts")
    assert page.get_by_role("link", name="All heads").count() == 0
    pair = found["composition"]["reads"][0]["head"]  # the page of another head is not in this file
    table = page.get_by_role("region", name="reads from earlier heads")
    assert pair in table.inner_text() and table.get_by_role("link").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_site_is_narrow_and_dark_and_accessible(open_path, site, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for file in ("index.html", f"heads/{HEAD}.html"):
        # The check itself asks for the style sheet, which the page does not allow.
        page = open_path(site / file, width=360, height=780, scheme=scheme, allowed="page.css")
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") <= 0
        found = axe.Axe().run(page).response["violations"]
        assert not found, [(each["id"], each["nodes"][0]["html"][:160]) for each in found]
