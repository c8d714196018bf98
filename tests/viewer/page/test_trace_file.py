"""The file of traces (`trace --html`, a notebook's cell) in a real browser, without a server."""

from __future__ import annotations

import re

import pytest
import torch

STEPS = ("</script><script>alert(1)</script>", "<b>x", "\u2028")
MEMORY = ("&amp;", '"', "<!--", "a", "<img src=x onerror=alert(2)>")


@pytest.fixture
def heads():
    from saccade import Trace

    torch.manual_seed(0)
    return Trace(
        kind="cross-attention",
        steps=STEPS,
        memory=MEMORY,
        weights=torch.randn(7, 3, 5).mul(2).softmax(-1),
        views=tuple(f"0.{head}" for head in range(7)),
        title="<i>title",
    )


def image_trace(image=None, *, kind="overlay", steps=("a", "dog"), **known):
    from saccade import ImageTrace

    usual = {
        "image": torch.rand(6, 8) if image is None else image,
        "outlines": torch.zeros(len(steps), 0, 4, 2),
    }
    return ImageTrace(kind=kind, steps=steps, **{**usual, **known})


def texts(page, selector: str) -> list[str]:
    return page.locator(selector).all_text_contents()


def test_labels_are_only_labels(open_file, heads):
    page = open_file(heads.to_html())
    assert texts(page, "main .sides button") == [*STEPS[:2], "\\u2028"]
    assert texts(page, "main .sides .running > span") == list(MEMORY)
    assert page.locator("main .panel :is(script, b:not(.token), i, img)").count() == 0
    assert page.title() == "<i>title"
    assert page.locator("#screens a").count() == 0  # there is one screen, and no way to others


def most_read(weights: torch.Tensor) -> str:
    """What is said of a step, by the numbers: its three largest, if they are more than nothing."""
    largest = [(w, at) for w, at in zip(*map(list, weights.topk(3)), strict=True) if w > 0.005]
    return "  ".join(f"{MEMORY[int(at)]} {100 * float(w):.0f}%" for w, at in largest)


def test_each_head_and_their_mean_are_told_as_the_weights_are(open_file, heads):
    page = open_file(heads.to_html())
    assert texts(page, "main .thumbnails button") == ["mean of all", *heads.views]
    for view in (0, 4):
        page.locator("main .thumbnails button").nth(view).click()
        weights = heads.weights.mean(0) if view == 0 else heads.weights[view - 1]
        for step in range(3):
            page.locator("main .sides button").nth(step).click()
            said = page.locator("main .sides .note").text_content()
            assert said.partition(" reads ")[2].strip() == most_read(weights[step])


def test_the_matrix_is_walked_by_keyboard(open_file, heads, until):
    page = open_file(heads.to_html())
    page.locator("main .thumbnails button").nth(2).click()
    page.locator("main .matrix .grid").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    wanted = f'<b>x reads ": {float(heads.weights[1, 1, 1]):.3f}'
    until(page, "wanted => announcement.textContent === wanted", wanted)


def test_several_traces_stand_below_each_other_and_keep_their_own_choice(open_file, heads):
    from saccade import Trace, show

    one = Trace(kind="self-attention", steps=("a", "b"), memory=("c",), weights=torch.ones(2, 1))
    page = open_file(show([heads, one]).html)
    assert texts(page, "main .panel > h2") == ["Cross-attention: <i>title", "Self-attention"]
    panels = page.locator("main .panel")
    panels.nth(0).locator(".thumbnails button").nth(3).click()
    panels.nth(1).locator(".sides button").nth(1).click()
    assert texts(page, "main .thumbnails [aria-pressed=true]") == ["0.2"]
    assert texts(page, "main .sides [aria-pressed=true]") == [STEPS[0], "b"]


def test_hops_are_a_table_with_headings_of_both_sides(open_file):
    from saccade import Trace

    hops = Trace(
        kind="hops",
        steps=("hop 1", "hop 2"),
        memory=("mary went to the kitchen", "john moved to the garden", "john took the $milk"),
        weights=torch.tensor([[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]),
        title="where is mary? kitchen",
    )
    page = open_file(hops.to_html())
    assert texts(page, "main .hops thead th[scope=col]") == ["fact", *hops.steps]
    assert texts(page, "main .hops tbody th[scope=row]") == list(hops.memory)
    assert texts(page, "main .hops td") == ["10%", "80%", "20%", "10%", "70%", "10%"]


def shades(page) -> list[int]:
    style = "words => words.map(each => getComputedStyle(each).backgroundColor)"
    found = page.locator("main .document .running > span").evaluate_all(style)
    return [sum(map(int, re.findall(r"\d+", shade)[:3])) for shade in found]


def test_a_document_is_its_words_shaded_by_all_steps_and_by_each(open_file):
    from saccade import Trace

    memory = ("Anne", "said", ",", "</p>", "$5", "gone", "!")
    weights = torch.tensor([[0.0, 0.7, 0.3, 0, 0, 0, 0], [0.9, 0.0, 0.1, 0, 0, 0, 0]])
    trace = Trace(kind="document", steps=("who", "?"), memory=memory, weights=weights)
    page = open_file(trace.to_html())
    assert texts(page, "main .document .running > span") == list(memory)
    assert texts(page, "main .sides button") == ["all", "who", "?"]
    darkest = []
    for step in range(3):
        page.locator("main .sides button").nth(step).click()
        darkest.append(shades(page).index(min(shades(page))))
    assert darkest == [weights.mean(0).argmax(), weights[0].argmax(), weights[1].argmax()]
    assert page.locator("main canvas").count() == 0  # a matrix as wide as a document shows nothing


def seen(page) -> list[float]:
    """How much of each cell of the image is seen at the step in sight."""
    shade = "cells => cells.map(each => Number(each.getAttribute('opacity') ?? 1))"
    return page.locator("main .gaze rect").evaluate_all(shade)


def test_each_word_lights_what_it_read(open_file):
    heat = torch.tensor([[[0.5, 0.25], [0.25, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    page = open_file(image_trace(heat=heat).to_html())
    words = page.locator("main .film button.token")
    assert words.all_text_contents() == ["a", "dog"]
    assert seen(page) == pytest.approx([0.0, 0.36, 0.36, 0.72])
    words.nth(1).hover()
    assert seen(page) == pytest.approx([0.72, 0.72, 0.72, 0.0])
    assert "Step 2 of 2 dog" in page.inner_text("main .gaze-caption")
    words.nth(0).focus()  # by keyboard, too
    assert texts(page, "main .film [aria-pressed=true]") == ["a"]


# What the browser makes of the picture that is shown: the colour of each of its pixels.
PIXELS = """async picture => {
  const image = new Image();
  image.src = picture.getAttribute("href");
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").drawImage(image, 0, 0);
  return [...canvas.getContext("2d").getImageData(0, 0, image.width, image.height).data];
}"""


@pytest.mark.parametrize("colours", [(), (3,)])
def test_the_image_has_the_very_pixels(open_file, colours):
    image = torch.rand(5, 7, *colours, generator=torch.Generator().manual_seed(0))
    page = open_file(image_trace(image, heat=torch.rand(2, 2, 3)).to_html())
    picture = page.locator("main .gaze image")
    found = torch.tensor(picture.evaluate(PIXELS)).view(5, 7, 4)[..., :3]
    wanted = image if colours else image[..., None].expand(-1, -1, 3)
    assert torch.equal(found, (255 * wanted).round().long())
    # Ink is dark on paper where attention is laid over it; a photograph stays as it is.
    style = "each => getComputedStyle(each).filter"
    assert picture.evaluate(style) == ("none" if colours else "invert(1)")


def test_a_gaze_moves_over_its_image_and_has_its_glimpses_beside_it(open_file, until):
    from saccade.trace.trace import window_outlines

    centres = torch.tensor([[0.0, 0.0], [0.5, -0.5], [-0.5, 0.25]])
    trace = image_trace(
        kind="gaze",
        steps=("3 12%", "7 60%", "7 98%"),
        outlines=window_outlines(centres[:, None], torch.full((3, 1, 2), 0.25)),
        pictures={"seen": torch.rand(3, 2, 2)},
        title="seven",
    )
    page = open_file(trace.to_html())
    assert texts(page, "main .panel > h2") == ["Gaze: seven"]
    assert page.locator("main .film-row button img").count() == 3
    page.get_by_role("button", name="seen, step 3").click()
    assert "Step 3 of 3 7 98%" in page.inner_text("main .gaze-caption")
    box = "svg => [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height]"
    width, height = page.locator("main .gaze svg").evaluate(box)
    path, window = page.eval_on_selector_all(
        "main .gaze path", "paths => paths.map(path => path.getAttribute('d'))"
    )
    scaled = (centres + 1) / 2 * torch.tensor([width, height])
    numbers = [float(each) for each in re.findall(r"-?[\d.]+", path)]
    assert numbers == pytest.approx(scaled.flatten().tolist())
    corners = torch.tensor([float(each) for each in re.findall(r"-?[\d.]+", window)]).view(4, 2)
    torch.testing.assert_close(corners.mean(0), scaled[2])
    page.get_by_role("button", name="Play").click()
    until(page, "() => document.querySelector('.gaze-caption').textContent.includes('Step 2')")


def test_a_canvas_is_shown_as_it_was_at_each_step(open_file):
    pictures = {"canvas": torch.stack([torch.zeros(3, 5), torch.ones(3, 5)])}
    page = open_file(image_trace(kind="canvas", pictures=pictures).to_html())
    picture = page.locator("main .gaze image")
    assert set(picture.evaluate(PIXELS)) == {0, 255}  # black, and not clear
    page.get_by_role("button", name="next step").click()
    assert set(picture.evaluate(PIXELS)) == {255}


def test_a_film_strip_is_as_wide_as_there_is_room(open_file):
    page = open_file(image_trace(torch.rand(10, 160), heat=torch.rand(2, 1, 16)).to_html())
    box = page.locator("main .gaze svg").bounding_box()
    assert box["width"] > 900 and box["width"] / box["height"] == pytest.approx(16, rel=0.02)


def of_every_kind(heads) -> list:
    from saccade import Trace

    cells = tuple(map(str, range(90)))
    return [
        heads,
        Trace(kind="lattice", steps=("-", "a"), memory=cells, weights=torch.rand(2, 90)),
        Trace(kind="tape", steps=("-", "a"), memory=cells, weights=torch.rand(2, 90)),
        image_trace(heat=torch.rand(2, 2, 3), title="an overlay"),
        image_trace(torch.rand(10, 160), kind="film", heat=torch.rand(2, 1, 16)),
    ]


def test_nothing_runs_over_the_edge_and_the_accessibility_check_finds_nothing(
    open_file, heads, wait_until_settled
):
    from saccade import show

    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_file(show(of_every_kind(heads)).html, width=360, height=740)
    assert page.locator("main .panel").count() == 5
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") <= 0
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        wait_until_settled(page)
        found = axe.Axe().run(page).response["violations"]
        assert not found, [(scheme, each["id"]) for each in found]


def test_a_trace_shows_itself_in_a_notebook(open_notebook, heads):
    page = open_notebook(heads, image_trace(heat=torch.rand(2, 2, 3)))
    matrix, image = (page.frame_locator(f"iframe >> nth={at}") for at in range(2))
    matrix.locator("main .sides button", has_text="<b>x").click()
    matrix.locator("main .sides .note", has_text="<b>x reads").wait_for()
    image.locator("main .film button", has_text="dog").click()
    image.locator("main .gaze-caption", has_text="Step 2 of 2 dog").wait_for()
