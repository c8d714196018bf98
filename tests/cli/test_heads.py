"""`saccade heads rank`, `saccade heads roles` and `saccade edit`, on the little model."""

from __future__ import annotations

import json

import pytest

PROMPT = "Once upon a time, there was a little girl named"


@pytest.fixture(scope="module")
def lens(stories, tmp_path_factory, story):
    """Lenses of the little model, as the command fits them."""
    from saccade.cli.main import main

    folder = tmp_path_factory.mktemp("lens")
    text = story(folder / "story.txt", sentences=500)
    sizes = ["--tokens", "4000", "--window", "61", "--method", "closed-form"]
    given = ["--model", stories.name, "--corpus", str(text), "--out", str(folder / "lens")]
    assert main(["lens", "fit", *given, *sizes]) == 0
    return folder / "lens"


def test_rank_shows_the_heads_with_the_largest_effects(saccade, stories):
    code, out, _ = saccade("heads", "rank", PROMPT, "--token", "Lily", "--model", stories.name)
    assert code == 0
    assert "·L" in out and "direct" in out and "effect" in out and "correlation" in out


def test_rank_in_json_has_every_head_with_its_repair(saccade, stories, tmp_path):
    given = ["--token", "Lily", "--against", "Tom", "--ablate", "zero", "--self-repair", "--json"]
    png = tmp_path / "rank.png"
    code, out, _ = saccade("heads", "rank", PROMPT, *given, "--png", png, "--model", stories.name)
    found = json.loads(out)
    assert code == 0 and len(found["heads"]) == stories.n_heads
    for head in found["heads"]:
        mended = head["repair"]
        parts = mended["heads"] + mended["feed_forward"] + mended["norm"]
        assert mended["total"] == pytest.approx(mended["direct"] - parts, abs=1e-4)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_word_of_several_tokens_gets_a_note(saccade, stories):
    given = ["--token", "Constantinople", "--ablate", "zero", "--json", "--model", stories.name]
    code, out, err = saccade("heads", "rank", PROMPT, *given)
    assert code == 0 and "tokens;" in err and "stands for it" in err
    assert json.loads(out)["token"] in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heads", "rank", " ", "--token", "x"], "the text is empty"),
        (["heads", "rank", PROMPT, "--token", " "], "the text is empty"),
        (["heads", "rank", PROMPT, "--token", "Lily", "--against", "Lily"], "begin with the same"),
        (["heads", "rank", PROMPT, "--token", "Lily", "--from", " "], "the text is empty"),
        (["heads", "roles", "--role", "mover"], "no role 'mover'"),
        (["edit", " ", "--memory", "dog"], "the text is empty"),
        (["edit", PROMPT, "--memory", ""], "expected a text, got an empty one"),
        (["edit", PROMPT], "a memory, changes to heads, or a saved edit"),
        (["edit", PROMPT, "--memory", "dog", "--load", "x"], "changes to heads, or a saved edit"),
        (["edit", PROMPT, "--memory", "dog", "--ablate", "1.0"], "changes to heads, or"),
        (["edit", PROMPT, "--memory", "dog", "--into", "1", "--strength", 0], "a strength must be"),
        (["edit", PROMPT, "--memory", "dog", "--into", "x"], "'x' is no place of a model"),
        (["edit", PROMPT, "--memory", "dog", "--into", "9.1"], "no layer 9"),
        (["edit", PROMPT, "--ablate", "1.0", "--strength", 2], "apply to a memory only"),
        (["edit", PROMPT, "--ablate", "1"], "'1' is a layer, not a head"),
        (["edit", PROMPT, "--ablate", "1.99"], "no head 99 in layer 1"),
        (["edit", PROMPT, "--scale", "1.0=x"], "names no head with a factor"),
        (["edit", PROMPT, "--scale", "1.0=1"], "a factor of 1 changes nothing"),
        (["edit", PROMPT, "--patch", "1.0"], "a patch needs a head and the prompt"),
        (["edit", PROMPT, "--patch", "1.0", "--from", "Once"], "the other prompt has"),
        (["edit", PROMPT, "--ablate", "1.0", "--at", "99"], "there is no position 99"),
        (["edit", PROMPT, "--ablate", "1.0", "--at", "zebra"], "'zebra' is not in the text"),
        (["edit", PROMPT, "--load", "nothing-here"], "no such folder"),
        (["edit", PROMPT, "--load", "nothing-here", "--at", "last"], "has its own positions"),
    ],
)
def test_misuse_is_refused_in_one_line(saccade, stories, told_in_a_line, arguments, message):
    code, out, err = saccade(*arguments, "--model", stories.name)
    assert code == 2 and out == ""
    assert message in told_in_a_line(err)


def test_roles_are_shown_and_drawn(saccade, stories, tmp_path):
    asked = ["--role", "induction", "--role", "previous", "--model", stories.name]
    code, out, _ = saccade("heads", "roles", *asked, "--png", tmp_path / "roles.png")
    assert code == 0 and "induction" in out and "previous" in out
    assert (tmp_path / "roles.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = saccade("heads", "roles", *asked, "--json")
    assert code == 0 and len(json.loads(out)["heads"]) == stories.n_heads


def test_an_edit_is_made_saved_and_applied(saccade, stories, lens, tmp_path):
    given = ["--model", stories.name, "--lens", lens]
    kept = tmp_path / "edit"
    code, out, err = saccade(
        "edit", PROMPT, "--memory", "Tom", "--out", kept, "--say", 5, "--json", *given
    )
    made = json.loads(out)
    assert code == 0 and f"wrote {kept}" in err
    assert made["after"] > made["before"] and made["continuation"] != ""
    code, out, _ = saccade("edit", PROMPT, "--load", kept, "--json", *given)
    loaded = json.loads(out)
    assert code == 0 and loaded["predicts_edited"] == made["predicts_edited"]
    code, out, _ = saccade("read", PROMPT, "--edit", kept, "--json", *given)
    read = json.loads(out)
    assert read["prediction"][0]["text"] == made["predicts_edited"][0][0]
    assert read["prediction"][0]["value"] == pytest.approx(made["predicts_edited"][0][1], rel=1e-3)


def test_an_edit_at_a_named_place_with_a_named_strength(saccade, stories):
    given = ["--model", stories.name, "--into", 2, "--strength", 1.5]
    for form in ("unembedding", "text"):
        code, out, _ = saccade("edit", PROMPT, "--memory", "a cat", "--form", form, *given)
        assert code == 0 and "inject into layer 2 with strength 1.5" in out
        assert "with the edit" in out and "perplexity of unrelated text" in out


def test_heads_are_ablated_scaled_and_patched_saved_and_applied_again(saccade, stories, tmp_path):
    given, kept = ["--model", stories.name, "--json", "--say", 4], tmp_path / "edit"
    asked = ["--ablate", "0.1", "--ablate", "2.3", "--by", "mean", "--scale", "3.0=-2"]
    asked += ["--patch", "4.2", "--from", "Tom and Sue", "--at=-2,-1"]
    code, out, err = saccade("edit", PROMPT, *asked, "--token", "zebras", "--out", kept, *given)
    made = json.loads(out)
    assert code == 0 and "stands for it" in err
    assert made["changes"] == [
        "ablate 0.1 (mean)",
        "ablate 2.3 (mean)",
        "scale 3.0 by -2",
        "patch 4.2",
    ]
    assert made["before"] != made["after"] and made["unrelated_perplexity"] != 0
    code, out, _ = saccade("edit", PROMPT, "--load", kept, "--token", "zebras", *given)
    loaded = json.loads(out)
    del made["unrelated_perplexity"]
    assert code == 0 and loaded == made


def test_a_change_everywhere_applies_to_generated_tokens(saccade, stories):
    given = ["--scale", "4.0=-4", "--scale", "3.1=-4", "--say", 6, "--model", stories.name]
    continuations = {}
    for at in ("all", "little girl"):
        code, out, _ = saccade("edit", PROMPT, "--at", at, "--json", *given)
        assert code == 0
        continuations[at] = json.loads(out)["continuation_edited"]
    assert continuations["all"] != continuations["little girl"]


def test_an_edit_for_another_model_is_refused(saccade, stories, told_in_a_line, tmp_path):
    kept = tmp_path / "edit"
    given = ["--model", stories.name]
    assert saccade("edit", PROMPT, "--ablate", "1.0", "--out", kept, *given)[0] == 0
    manifest = kept / "manifest.json"
    whole = json.loads(manifest.read_text())
    whole["edit"]["model_fingerprint"] = "0123456789abcdef"
    manifest.write_text(json.dumps(whole))
    for command in (["edit", PROMPT, "--load", kept], ["edit", "a cat", "--load", kept]):
        code, _, err = saccade(*command, *given)
        assert code == 2 and "the edit was made for" in told_in_a_line(err)
