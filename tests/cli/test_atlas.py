"""`saccade atlas`: what it answers, and what it says where it cannot."""

import errno
import json
import shutil

import pytest

FEW = ["--window", "16", "--tokens", "256", "--head", "1", "--roles", "none"]


@pytest.fixture(scope="module")
def made(stories, story, tmp_path_factory):
    """Two atlases of one layer, and their texts."""
    from saccade.cli.main import main

    folder = tmp_path_factory.mktemp("atlases")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SACCADE_CACHE", str(folder / "cache"))
        for name, seed in (("red", 1), ("blue", 2)):
            text = story(folder / f"{name}.txt", sentences=60, seed=seed)
            words = ["--model", stories.name, "--corpus", text, "--out", folder / name]
            assert main(["atlas", "build", *map(str, words), *FEW]) == 0
    return folder


def test_heads_of_an_atlas_are_shown_and_found(saccade, made):
    code, out, _ = saccade("atlas", "show", "--atlas", made / "red", "--by", "matters", "--json")
    rows = json.loads(out)["heads"]
    assert code == 0 and {row["name"] for row in rows} == {f"1.{head}" for head in range(8)}
    assert [row["matters"] for row in rows] == sorted((r["matters"] for r in rows), reverse=True)
    code, out, _ = saccade("atlas", "show", rows[0]["name"], "--atlas", made / "red")
    assert code == 0 and f"head {rows[0]['name']}" in out and "strongest contexts" in out
    bound = rows[2]["kl"]
    code, out, _ = saccade(
        "atlas", "find", "--where", f"kl>={bound}", "--atlas", made / "red", "--json"
    )
    found = {row["name"] for row in json.loads(out)}
    assert code == 0 and found == {row["name"] for row in rows if row["kl"] >= bound}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "1.8"], "this atlas has no head 1.8: its 8 heads are 1.0 to 1.7"),
        (["find", "--like", "2.1"], "this atlas has no head 2.1"),
        (["find", "--where", "kl>nan"], "expected a metric and a bound, such as kl>0.01"),
        (["find", "--where", "kl>-inf"], "expected a metric and a bound, such as kl>0.01"),
        (["find", "--role", "induction"], "this atlas holds no roles"),
        (["find", "--matters-in", "red"], "comparing texts needs two sources"),
    ],
)
def test_what_an_atlas_does_not_hold_is_said(saccade, told_in_a_line, made, words, message):
    code, out, err = saccade("atlas", *words, "--atlas", made / "red")
    assert code in (1, 2) and not out
    assert message in told_in_a_line(err)


def test_a_token_that_no_head_promotes_is_answered_with_the_nearest_that_some_head_does(
    saccade, told_in_a_line, made
):
    from saccade.interp.atlas.atlas import load_atlas

    atlas = load_atlas(made / "red")
    promoted = atlas.records.promoted[atlas.records.promoted_by > 0].tolist()
    known = {each.strip() for each in atlas.show(promoted)}
    word = max((each for each in known if each.isalpha()), key=len)
    code, _, err = saccade("atlas", "find", "--token", f"{word}zq", "--atlas", made / "red")
    assert code in (1, 2)
    assert f"no head of this atlas promotes the token '{word}zq'" in told_in_a_line(err)
    start = "hint: nearest that some head promotes: "
    (hint,) = (line for line in err.splitlines() if line.startswith(start))
    near = [each.strip(" ',") for each in hint.removeprefix(start).split(", ")]
    assert near[0] == word and set(near) <= known
    code, out, _ = saccade("atlas", "find", "--token", word, "--atlas", made / "red")
    assert code == 0 and "share of effect on" in out


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("One day.", [], "is shorter than one window: 3 tokens found, 15 needed"),
        ("", [], "no text"),
        (None, ["--tokens", "9"], "9 tokens are less than one window of 16"),
        (None, ["--head", "1.8"], "no head 8 in layer 1"),
        (None, ["--head", "5"], "no layer 5"),
    ],
)
def test_a_build_that_cannot_be_is_refused_before_it_begins(
    saccade, told_in_a_line, stories, made, tmp_path, text, settings, message
):
    corpus = made / "red.txt"
    if text is not None:
        (corpus := tmp_path / "short.txt").write_text(text, encoding="utf-8")
    words = ["--model", stories.name, "--corpus", corpus, "--out", tmp_path / "atlas"]
    code, out, err = saccade("atlas", "build", *words, *FEW, *settings)
    assert code in (1, 2) and not out and not (tmp_path / "atlas").exists()
    assert message in told_in_a_line(err)


def test_an_atlas_of_another_model_is_not_merged(saccade, told_in_a_line, stories, made, tmp_path):
    from safetensors.torch import load_file, save_file

    other = shutil.copytree(stories.name, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name] * 1.5}, other / "model.safetensors")
    parts = [made / "red", made / "blue"]
    words = ["--model", other, "--out", tmp_path / "both"]
    code, _, err = saccade("atlas", "merge", *parts, *words)
    assert code in (1, 2) and "this is the atlas of" in told_in_a_line(err)
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("lost", ["records.safetensors", "sums.safetensors", "manifest.json"])
def test_an_atlas_without_one_of_its_files_says_which(
    saccade, told_in_a_line, made, tmp_path, lost
):
    part = shutil.copytree(made / "red", tmp_path / "part")
    (part / lost).unlink()
    code, out, err = saccade("atlas", "show", "--atlas", part)
    assert code in (1, 2) and not out and lost in told_in_a_line(err)


def test_without_an_atlas_it_is_said_that_a_build_resumes(saccade, told_in_a_line):
    code, _, err = saccade("atlas", "show")
    assert code in (1, 2) and "there is no atlas in" in told_in_a_line(err)
    assert "saccade atlas build" in err and "resumes" in err


def test_on_a_full_disk_what_was_finished_stays(
    saccade, told_in_a_line, stories, made, tmp_path, monkeypatch
):
    from saccade.interp.atlas import build, sequences
    from saccade.store import folder

    out = shutil.copytree(made / "blue", tmp_path / "atlas")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    words = ["--model", stories.name, "--corpus", made / "red.txt", "--out", out, *FEW]
    plain = folder.write_tensors

    def full(path, tensors):
        if "atlas" in str(path.parent) and path.name == "text.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(path, tensors)

    with monkeypatch.context() as patched:
        patched.setattr(folder, "write_tensors", full)
        code, _, err = saccade("atlas", "build", *words)
    assert code == 1 and "no space left on device" in told_in_a_line(err)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before

    def again(*_, **__):
        raise AssertionError("it was measured already")

    # With room again nothing is measured a second time.
    monkeypatch.setattr(build.Scan, "add", again)
    monkeypatch.setattr(build, "with_composition", again)
    monkeypatch.setattr(sequences, "_add", again)
    code, printed, _ = saccade("atlas", "build", *words)
    assert code == 0 and "8 heads of" in printed
    for path in (made / "red").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name


def test_an_export_replaces_a_tree_of_its_own_and_nothing_else(
    saccade, told_in_a_line, made, tmp_path
):
    words = ["atlas", "export", "--to", "headvis", "--atlas", made / "red", "--out"]
    for _ in range(2):
        assert saccade(*words, tmp_path / "tree")[0] == 0
    config = json.loads((tmp_path / "tree" / "config.json").read_text())
    assert config["n_layers"] == 2  # counted from 0, though only layer 1 is in this atlas
    (tmp_path / "tree" / "thesis.txt").write_text("mine")
    code, _, err = saccade(*words, tmp_path / "tree")
    assert code == 1 and "thesis.txt" in told_in_a_line(err)
    assert (tmp_path / "tree" / "thesis.txt").read_text() == "mine"


def test_roles_that_a_model_cannot_have_are_left_out_and_the_others_scored(
    saccade, stories, made, tmp_path
):
    words = ["--model", stories.name, "--corpus", made / "red.txt", "--out", tmp_path / "atlas"]
    settings = [*FEW[:-1], "quick"]
    code, _, err = saccade("atlas", "build", *words, *settings)
    assert code == 0
    for role in ("name-mover", "copy"):
        assert f"note: without role {role}: {stories.name} splits names into pieces" in err
    code, out, _ = saccade("atlas", "show", "1.3", "--atlas", tmp_path / "atlas", "--json")
    assert code == 0 and set(json.loads(out)["roles"]) == {"induction", "previous", "duplicate"}
    code, out, _ = saccade(
        "atlas", "find", "--role", "previous", "--atlas", tmp_path / "atlas", "--json"
    )
    assert code == 0 and len(json.loads(out)) == 8
