"""`saccade lens fidelity` and `saccade lens transfer`, on the little model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

QUICK = ["--windows", "5", "--window", "17", "--basis-windows", "2", "--directions", "4"]


@pytest.fixture(scope="module")
def folder(stories, tmp_path_factory):
    """Lenses solved from a few stories that the model tells."""
    from saccade.distributed import Processes
    from saccade.interp.lenses.batches import SelfBatches
    from saccade.interp.lenses.fit import fit_on
    from saccade.interp.lenses.fit_config import FitConfig

    path = tmp_path_factory.mktemp("fidelity")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SACCADE_CACHE", str(path / "cache"))
        batches = SelfBatches(stories, n_rows=24, rows=24, window=48, seed=0)
        fit_on(stories, batches, FitConfig(), processes=Processes(), save_to=path / "lens")
        jacobian = FitConfig(kind="jacobian")
        fit_on(stories, batches, jacobian, processes=Processes(), save_to=path / "jacobian")
    return path


@pytest.fixture
def fidelity(saccade, stories, folder):
    def run(*options):
        given = ["--model", stories.name, "--lens", folder / "lens", "--layer", "3"]
        return saccade("lens", "fidelity", *given, *QUICK, *options)

    return run


@pytest.fixture
def text(story, tmp_path):
    return story(tmp_path / "story.txt", sentences=99)


def test_metrics_are_printed_and_saved_with_the_lenses(fidelity, stories, folder, text):
    from saccade.interp.lenses.lens_set import load_lenses

    code, out, err = fidelity("--corpus", text, "--json", "--heads", "1,6")
    assert code == 0, err
    found = json.loads(out)
    assert [each["head"] for each in found["heads"]] == [1, 6]
    assert "saved the metrics in" in err and "touching heads: " in err
    kept = load_lenses(folder / "lens", stories).quality_of(3, 6)
    assert kept["ablation"] == found["heads"][1]["ablation"]["value"]
    assert {"kl", "gain"} <= kept.keys()


def test_readings_then_show_them(fidelity, saccade, stories, folder, text):
    fidelity("--corpus", text, "--directions", "0")
    given = ["--model", stories.name, "--lens", folder / "lens", "--layer", "3"]
    code, out, _ = saccade("read", "Once upon a time", *given, "--heads", "99")
    assert code == 0
    assert out.count("  fidelity ") == 8  # of every head
    _, out, _ = saccade("read", "Once upon a time", *given, "--json", "--heads", "1")
    assert {"ablation", "alignment"} <= json.loads(out)["heads"][0]["lens"]["quality"].keys()


def test_the_table_and_the_heat_map(fidelity, text, tmp_path):
    pytest.importorskip("matplotlib")
    code, out, err = fidelity("--corpus", text, "--png", tmp_path / "map.png", "--no-save")
    assert code == 0, err
    assert "causal basis" in out and "±" in out and "mean" in out
    assert "variance alone" in out and "lens given variance" in out and "gradient" in out
    assert "…" not in out  # nothing is cut off
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "kept" not in err


def test_without_any_text_the_model_writes_it(fidelity):
    code, out, err = fidelity("--heads", "0", "--directions", "0", "--json", "--no-save")
    assert code == 0, err
    assert json.loads(out)["corpus"] == "self"


def test_other_lenses_are_put_beside_in_one_table(fidelity, folder, text):
    code, out, err = fidelity("--corpus", text, "--compare", folder / "jacobian", "--json")
    assert code == 0, err
    kinds = json.loads(out)["kinds"]
    assert [each["name"] for each in kinds] == [
        *("unembedding", "closed-form", "jacobian"),
        *("gradient at the text", "gradient half-way", "variance alone"),
    ]


def test_layers_are_shown_apart_and_nothing_is_cut_off(fidelity, folder, text, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    options = ["--corpus", text, "--compare", folder / "jacobian", "--layer", "1"]
    code, out, err = fidelity(*options, "--gradients", "2")
    assert code == 0, err
    assert "ablation by layer" in out and "gradient at 2" in out and "…" not in out
    tables = [line for line in out.splitlines() if line[:1] in "┏┃┡│└"]
    assert max(map(len, tables)) <= 80


@pytest.mark.parametrize(
    ("options", "code", "tokens"),
    [
        (["--layer", "99"], 2, "no layer 99"),
        (["--heads", "0,99"], 2, "no head 99 in layer 3"),
        (["--heads", "one"], 2, "--heads takes numbers"),
        (["--corpus", "nowhere.txt"], 1, "no such file: nowhere.txt"),
        (["--lens", "./nowhere"], 1, "no lenses at ./nowhere"),
        (["--compare", "./nowhere"], 1, "no lenses at ./nowhere"),
        (["--windows", "1"], 2, "cannot measure on 1 windows"),
        (["--window", "99999"], 2, "longer than the model's context"),
        (["--draw", "gain"], 2, "draw"),
        (["--gradients", "-1"], 2, "gradients"),
    ],
)
def test_mistakes_are_told_in_a_line_with_a_hint(fidelity, told_in_a_line, options, code, tokens):
    found, out, err = fidelity(*options)
    assert (found, out) == (code, "")
    assert tokens in told_in_a_line(err)


@pytest.mark.parametrize("command", ["fidelity", "transfer"])
def test_help_is_there_without_torch(command):
    asked = [sys.executable, "-X", "importtime", "-m", "saccade", "lens", command, "--help"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert "Examples:" in found.stdout and "--corpus" in found.stdout
    assert "| torch\n" not in found.stderr


def test_transfer_between_layers_with_its_map(saccade, stories, folder, text, tmp_path):
    pytest.importorskip("matplotlib")
    given = ["--model", stories.name, "--lens", folder / "lens", "--corpus", text, "--window", "31"]
    options = ["--json", "--png", tmp_path / "map.png", "--layer", "1", "--layer", "3"]
    code, out, err = saccade("lens", "transfer", *given, *options)
    assert code == 0, err
    found = json.loads(out)
    assert found["layers"] == [1, 3]
    assert found["extra_kl"][0][0] == found["extra_kl"][1][1] == 0.0
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_transfer_to_a_changed_model_and_sharing(saccade, stories, folder, text):
    given = ["--model", stories.name, "--lens", folder / "lens", "--corpus", text, "--window", "31"]
    code, out, err = saccade("lens", "transfer", *given, "--to", stories.name, "--json")
    assert code == 0, err
    assert json.loads(out)["extra"] == 0.0
    code, out, err = saccade("lens", "transfer", *given, "--shared")
    assert code == 0, err
    assert "all layers" in out and "ridge" in out
