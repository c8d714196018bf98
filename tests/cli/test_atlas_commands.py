"""`saccade atlas show`, `find` and `export`, on a small atlas of the little model."""

from __future__ import annotations

import csv
import json

import pytest


@pytest.fixture(scope="module")
def folder(stories, story, tmp_path_factory):
    from saccade.interp.atlas.atlas_config import AtlasConfig
    from saccade.interp.atlas.build import build_atlas

    root = tmp_path_factory.mktemp("atlas")
    text = story(root / "story.txt", sentences=200)
    config = AtlasConfig(tokens=600, window=31, every=10, roles="none")
    build_atlas(stories, text, config, save_to=root / "atlas")
    return root / "atlas"


@pytest.fixture(scope="module")
def atlas(folder):
    import saccade

    return saccade.load_atlas(folder)


@pytest.fixture
def promoted(atlas):
    """A token that the first head promotes at the first position."""
    return atlas.tokens[int(atlas.records.promoted[0, 0, 0])]


def test_find_prints_what_python_finds(saccade, folder, atlas, promoted):
    code, out, _ = saccade("atlas", "find", "--token", promoted, "--atlas", folder, "--json")
    assert code == 0
    found = atlas.find(token=promoted)
    assert [row["name"] for row in json.loads(out)] == [each.name for each in found]
    code, out, _ = saccade(
        *("atlas", "find", "--like", "3.2", "--where", "layer>=3"),
        *("--atlas", folder, "--heads", 4),
    )
    similar = atlas.find(like=(3, 2), where=["layer>=3"])
    lines = out.splitlines()
    assert lines[0] == f"{len(similar)} heads, ranked by correlation of effects with 3.2"
    assert [line.split()[0] for line in lines[1:]] == [each.name for each in similar[:4]]


@pytest.mark.parametrize(
    ("asked", "words", "hint"),
    [
        (["--token", "zzyzx"], "no head of this atlas promotes the token 'zzyzx'", "nearest that"),
        (["--like", "9.9"], "this atlas has no head 9.9", "0.0 to 4.7"),
        (["--where", "kll>1"], "no metric 'kll'", "did you mean 'kl'"),
        (["--role", "induction"], "this atlas holds no roles", "--roles"),
    ],
)
def test_what_is_not_in_the_atlas_is_said_in_one_line(
    saccade, told_in_a_line, folder, asked, words, hint
):
    code, _, err = saccade("atlas", "find", *asked, "--atlas", folder)
    assert code == 2
    assert words in told_in_a_line(err)
    assert hint in err


def test_one_head_is_shown_with_its_strongest_contexts(saccade, folder, atlas):
    code, out, _ = saccade("atlas", "show", "3.2", "--atlas", folder)
    head = atlas.heads[atlas.index(3, 2)]
    assert code == 0
    assert f"mean effect {head.kl:.4f} nats" in out and "strongest contexts" in out
    code, out, _ = saccade("atlas", "show", "--by", "matters", "--atlas", folder, "--heads", 3)
    best = sorted(atlas.heads, key=lambda each: -each.matters)[0]
    assert code == 0 and out.splitlines()[2].split()[0] == best.name


def test_every_form_of_export_is_written(saccade, folder, atlas, tmp_path):
    def export(to, out, *more):
        code, printed, err = saccade(
            *("atlas", "export", "--to", to, "--out", tmp_path / out),
            *("--atlas", folder, "--json", *more),
        )
        assert code == 0, err
        return json.loads(printed)

    assert export("csv", "heads.csv")["files"] == 1
    with (tmp_path / "heads.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(atlas.sites)
    told = export("parquet", "heads.parquet")
    assert told["bytes"] == (tmp_path / "heads.parquet").stat().st_size
    assert export("headvis", "headvis")["files"] == len(atlas.sites) + 4
    told = export("site", "pages")
    assert told["files"] == len(atlas.sites) + 3
    files = [file for file in (tmp_path / "pages").rglob("*") if file.is_file()]
    assert told["bytes"] == sum(file.stat().st_size for file in files)
    assert export("page", "head.html", "--head", "3.2")["files"] == 1
    page = (tmp_path / "head.html").read_text(encoding="utf-8")
    assert "head 3.2</title>" in page


def test_an_export_that_fails_leaves_the_earlier_one(
    saccade, told_in_a_line, folder, tmp_path, monkeypatch
):
    from saccade.errors import SaccadeError
    from saccade.interp.atlas.head_page import AtlasPages

    asked = ["atlas", "export", "--to", "site", "--out", tmp_path / "pages", "--atlas", folder]
    assert saccade(*asked)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.html")}
    plain = AtlasPages.page

    def fails_late(pages, layer, head):
        if (layer, head) == (4, 7):
            raise SaccadeError("the disk is full", hint="empty it")
        return plain(pages, layer, head)

    monkeypatch.setattr(AtlasPages, "page", fails_late)
    code, _, err = saccade(*asked)
    assert code == 1 and "the disk is full" in told_in_a_line(err)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.html")} == before


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--to", "page", "--out", "x.html"], "which head's page?"),
        (["--to", "csv", "--head", "3.2", "--out", "x.csv"], "--to csv writes all heads, not 3.2"),
        (["--to", "page", "--head", "3", "--out", "x.html"], "'3' is a layer, not a head"),
        (["--to", "page", "--head", "5.0", "--out", "x.html"], "this atlas has no head 5.0"),
        (["--to", "pages", "--out", "x"], "'pages'"),
    ],
)
def test_a_wrong_export_is_refused_in_one_line(
    saccade, told_in_a_line, folder, tmp_path, monkeypatch, asked, words
):
    monkeypatch.chdir(tmp_path)
    code, _, err = saccade("atlas", "export", *asked, "--atlas", folder)
    assert code == 2
    assert words in told_in_a_line(err)
    assert not list(tmp_path.glob("x*"))


@pytest.mark.parametrize("to", ["site", "headvis"])
def test_a_folder_with_files_of_others_is_not_replaced(
    saccade, told_in_a_line, folder, tmp_path, to
):
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    code, _, err = saccade("atlas", "export", "--to", to, "--out", tmp_path, "--atlas", folder)
    assert code == 1
    assert "thesis.txt" in told_in_a_line(err)
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_the_python_of_the_guide_runs_as_it_stands(folder, promoted, monkeypatch, capsys):
    import re
    from pathlib import Path

    guide = Path(__file__).parents[2] / "docs" / "uses" / "atlas.md"
    (source,) = re.findall(r"```python\n(.*?)```", guide.read_text("utf-8"), re.DOTALL)
    assert 'load_atlas("atlas")' in source and '" She"' in source
    monkeypatch.chdir(folder.parent)
    # The little model of the tests may never promote the token of the guide.
    exec(compile(source.replace('" She"', repr(promoted)), str(guide), "exec"), {})
    assert 1 <= len(capsys.readouterr().out.splitlines()) <= 3
