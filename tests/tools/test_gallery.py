"""`tools/gallery.py`: one page, with a picture for each input that a recipe wants to show."""

import json
import shutil
from dataclasses import replace

import pytest

from gallery import write_gallery
from saccade.zoo.recipes import recipe as registry
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import train_recipe
from saccade.zoo.training.settings import with_settings


@pytest.fixture(scope="module")
def drawing_run(tmp_path_factory, little_mnist):
    recipe, folder = find_recipe("draw-mnist"), tmp_path_factory.mktemp("runs") / "draw"
    words = ["n_steps=2", "d_hidden=8", "d_latent=2", "batch=13", "epochs=1", "warmup=0"]
    train_recipe(recipe, folder, settings=with_settings(recipe.settings, words))
    return folder


def test_a_page_links_every_picture_that_was_drawn(tool, drawing_run, tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "docs" / "gallery.md"
    code, out, _ = tool("gallery", drawing_run, "--out", page, "--json")
    wrote = json.loads(out)["wrote"]
    text = page.read_text(encoding="utf-8")
    assert (
        code == 0
        and wrote[0] == str(page)
        and "## draw-mnist" in text
        and "published: 80.97" in text
    )
    pictures = sorted(page.with_suffix("").iterdir())
    assert sorted(map(str, pictures)) == sorted(wrote[1:])
    assert {path.suffix for path in pictures} == {".png", ".gif"}
    for path in pictures:
        assert f"(gallery/{path.name})" in text
        assert path.read_bytes()[:3] in (b"\x89PN", b"GIF")


def test_what_a_page_has_of_other_recipes_stays_and_a_run_of_the_same_takes_its_place(
    drawing_run, tmp_path
):
    pytest.importorskip("matplotlib")
    page = tmp_path / "gallery.md"
    write_gallery(page, [drawing_run])
    alone = page.read_text(encoding="utf-8")
    other = "## a-other\n\nIt was here before.\n\n![x](gallery/x.png)\n"
    heading, _, section = alone.partition("## draw-mnist")
    page.write_text(f"{heading}{other}\n## draw-mnist\n\nAn old figure.\n", encoding="utf-8")
    write_gallery(page, [drawing_run])
    assert page.read_text(encoding="utf-8") == f"{heading}{other}\n## draw-mnist{section}"


def test_without_folders_it_shows_all_runs_that_have_pictures(
    tool, drawing_run, tiny_run, tmp_path, monkeypatch
):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    code, _, err = tool("gallery")
    assert code == 2 and "no run in runs/ is done and has pictures" in err
    shutil.copytree(drawing_run, "runs/draw")
    shutil.copytree(tiny_run, "runs/tiny")
    code, out, _ = tool("gallery", "--json")
    wrote = json.loads(out)["wrote"]
    assert (
        code == 0
        and wrote[0] == "docs/gallery.md"
        and all("draw-mnist" in path for path in wrote[1:])
    )


def test_a_run_without_pictures_is_refused(
    tool, tiny, tiny_run, tmp_path, monkeypatch, told_in_a_line
):
    monkeypatch.setitem(registry._REGISTERED, tiny.name, replace(tiny, gallery=()))
    code, _, err = tool("gallery", tiny_run, "--out", tmp_path / "page.md")
    assert code == 2
    assert f"a run of {tiny.name}, which has no pictures for a gallery" in told_in_a_line(err)
