"""`saccade lens eval`: figures on stdout, everything else on stderr, mistakes in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from saccade.cli.main import main
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.lens_set import Lenses, Provenance, load_lenses

STORY = "Once upon a time there was a little girl named Lily. She loved to play in the park. "
WINDOW = 31


@pytest.fixture(scope="module")
def folder(stories, tmp_path_factory) -> Path:
    generator = torch.Generator().manual_seed(0)
    by_layer = {at.index: HeadLens.start(stories, at.index) for at in stories.layers}
    for lens in by_layer.values():
        lens.weight.data.copy_(0.02 * torch.randn(lens.weight.shape, generator=generator))
        lens.token_bias.data[:, stories.encode(STORY)[0]] = 1.0  # so that there is some gain
        lens.requires_grad_(False)
    provenance = Provenance(
        prefix=stories.prefix,
        model=stories.name,
        model_fingerprint=stories.fingerprint,
        tokenizer_fingerprint=stories.tokenizer_fingerprint,
        kind="head",
        method="closed-form",
        corpus="other text",
        corpus_fingerprint="0" * 16,
        n_tokens=1000,
    )
    baseline = torch.zeros(stories.d_vocab).log_softmax(-1)
    lenses = Lenses(model=stories, by_layer=by_layer, baseline=baseline, provenance=provenance)
    lenses.save(path := tmp_path_factory.mktemp("eval") / "lens")
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("eval") / "story.txt"
    path.write_text(STORY * 5, encoding="utf-8")
    return path


@pytest.fixture
def evaluate(stories, folder, text, capsys):
    """Runs the command on the little model, and gives its exit code and what it printed."""

    def run(*options: str) -> tuple[int, str, str]:
        given = ["--model", stories.name, "--lens", str(folder), "--corpus", str(text)]
        sizes = ["--window", str(WINDOW), "--positions", "41"]
        code = main(["lens", "eval", *given, *sizes, *options])
        return code, *capsys.readouterr()

    return run


def test_json_goes_to_stdout_and_nothing_else_does(stories, evaluate):
    code, out, _ = evaluate("--json")
    found = json.loads(out)
    assert code == 0
    assert found["n_positions"] == 41
    assert len(found["lenses"]["heads"]) == stories.n_heads
    assert {each["kind"] for each in found["baselines"]} == {"logit", "logit-head"}


def test_the_table_has_the_means_and_the_layers_or_every_head(evaluate):
    code, out, _ = evaluate()
    assert code == 0
    for token in ("head x ", "baseline", "the model itself", "best head"):
        assert token in out
    _, every, _ = evaluate("--all", "--kind", "none")
    assert "lenses by head" in every
    assert "logit-head" not in every


def test_tuned_lenses_and_the_share_of_the_best_are_shown_on_request(evaluate, folder, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Tom had a red ball. He gave it to his mom. " * 9, encoding="utf-8")
    code, out, _ = evaluate("--json", "--tuned-on", str(other), "--best", str(folder))
    found = json.loads(out)
    assert code == 0
    assert [each["kind"] for each in found["baselines"]] == ["logit-head", "logit", "tuned"]
    assert found["lenses"]["mean"]["share"] == pytest.approx(1.0)


def test_tuned_lenses_of_the_scored_text_itself_are_refused(evaluate, text):
    code, _, err = evaluate("--tuned-on", str(text))
    assert code == 2
    assert "is the text that is scored" in err


def test_the_heat_map_is_written(evaluate, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, err = evaluate("--png", str(tmp_path / "gain.png"))
    assert code == 0
    assert (tmp_path / "gain.png").read_bytes().startswith(b"\x89PNG")
    assert "wrote" in err


def test_saved_figures_are_found_again_beside_the_same_lenses(stories, evaluate, folder):
    before = load_lenses(folder, stories)
    code, out, _ = evaluate("--json", "--save")
    after = load_lenses(folder, stories)
    row = json.loads(out)["lenses"]["heads"][-1]
    assert code == 0
    assert after.quality_of(row["layer"], row["head"])["gain"] == row["gain"]
    for layer, lens in before.by_layer.items():
        for name, value in lens.state_dict().items():
            assert torch.equal(after.by_layer[layer].state_dict()[name], value)


@pytest.mark.parametrize(
    ("options", "code", "tokens"),
    [
        (["--corpus", "nowhere.txt"], 1, "no such file: nowhere.txt"),
        (["--kind", "logits"], 2, "no lens kind 'logits'"),
        (["--kind", "tuned"], 2, "--tuned-on"),
        (["--lens", "./nowhere"], 1, "no lenses at ./nowhere"),
        (["--best", "./nowhere"], 1, "no lenses at ./nowhere"),
        (["--lens", "me/lens", "--save"], 2, "cannot save the metrics with me/lens"),
        (["--positions", "0"], 2, "positions"),
        (["--window", "99999"], 2, "longer than the model's context"),
    ],
)
def test_mistakes_are_told_in_a_line_with_a_hint(evaluate, options, code, tokens):
    found, out, err = evaluate(*options)
    assert (found, out) == (code, "")
    assert tokens in err
    assert err.startswith("error: ") and "\nhint: " in err and "Traceback" not in err


def test_help_is_there_without_torch():
    asked = [sys.executable, "-X", "importtime", "-m", "saccade", "lens", "eval", "--help"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert "Examples:" in found.stdout and "--corpus" in found.stdout
    assert "| torch\n" not in found.stderr


def test_without_any_text_the_model_writes_what_is_scored(evaluate):
    code, out, err = evaluate("--corpus", "self", "--kind", "none", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["corpus"] == "self"
    assert found["n_positions"] == 41
