"""The answers of the server, judged by what the command line and Python say of the same prompt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

TEXT = "Once upon a time, there was a little girl named"
OTHER = "Once upon a time, there was a little dog named"


def test_the_reading_is_what_the_command_prints(ask, config, opened, lens_folders, capsys):
    from saccade.cli.main import main

    for folder in lens_folders:
        found = ask("reading", {"text": TEXT, "lens": folder.name})
        told = ["read", TEXT, "--model", config.model, "--lens", str(folder)]
        assert main([*told, "--all", "--mlp", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert found.pop("lens") == folder.name
        assert _close(found, printed)


def test_a_reading_on_a_token_is_what_the_command_prints(ask, config, lens_folders, capsys):
    from saccade.cli.main import main

    told = ["read", TEXT, "--model", config.model, "--lens", str(lens_folders[0]), "--all", "--mlp"]
    told += ["--token", "Lily", "--against", "Tom", "--ablate", "zero", "--position", "5", "--json"]
    assert main(told) == 0
    printed = json.loads(capsys.readouterr().out)
    asked = {"token": "Lily", "against": "Tom", "ablate": "zero", "position": 5}
    found = ask("reading", {"text": TEXT, **asked})
    assert found.pop("lens") == "closed"
    assert _close(found, printed)
    by_id = {name: f"#{found[name]['id']}" for name in ("target", "against")}
    by_id = {"token": by_id["target"], "against": by_id["against"]}
    again = ask("reading", {"text": TEXT, **asked, **by_id})
    assert again["heads"] == found["heads"]


def test_another_token_or_lens_needs_no_new_run_of_the_effects(ask, monkeypatch):
    from saccade.interp.effects import effects

    runs = []
    before = effects.run_copies
    monkeypatch.setattr(
        effects, "run_copies", lambda *args, **named: runs.append(1) or before(*args, **named)
    )
    for asked in ({}, {"lens": "polished"}, {"token": "Lily"}, {"token": "Lily", "against": "Tom"}):
        ask("reading", {"text": TEXT, **asked})
    ask("measure", {"text": TEXT, "measure": "direct", "token": "Tom"})
    ask("agreement", {"text": TEXT, "layer": 1, "head": 1})
    assert len(runs) == 1
    ask("reading", {"text": TEXT, "ablate": "zero"})
    assert len(runs) == 2


def test_the_effects_of_a_changed_model_are_those_of_the_model_inside_the_change(ask, stories):
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.intervene import Ablate, intervene
    from saccade.interp.readings.reader import read

    change = {"kind": "ablate", "layer": 1, "head": 2, "by": "zero"}
    found = ask("reading", {"text": TEXT, "changes": [change]})
    with intervene(stories, [Ablate(1, 2)]):
        expected = read(stories, TEXT, replacement=Replacement.usual(stories))
    kl = [head["effect"]["kl"] for head in found["heads"]]
    assert kl == pytest.approx(
        [h.effect.kl for h in expected.heads if h.effect is not None], rel=1e-3, abs=1e-6
    )
    plain = [head["effect"]["kl"] for head in ask("reading", {"text": TEXT})["heads"]]
    assert kl != pytest.approx(plain, rel=1e-2, abs=1e-6)


def test_a_model_without_lenses_is_read(opened, config):
    from dataclasses import replace

    from fastapi.testclient import TestClient

    from saccade.viewer.app import make_app
    from saccade.viewer.security import Address
    from saccade.viewer.session import Session

    session = Session(replace(config, has_model=False))
    session.use(opened._replace(lenses={}))
    with TestClient(make_app(session, Address(port=80)), base_url="http://127.0.0.1") as client:
        reply = client.post("/api/reading", json={"text": TEXT})
        card = client.post("/api/head", json={"text": TEXT, "layer": 1, "head": 1}).json()
        both = client.post("/api/compare", json={"text": TEXT, "other": OTHER}).json()
    found = reply.json()
    assert reply.status_code == 200 and found["lens"] is None
    assert all(head["effect"]["kl"] >= 0 and head["lens"] is None for head in found["heads"])
    assert [lens["name"] for lens in card["lenses"]] == ["unembedding"]
    assert both["lens"] is None and len(both["heads"]) == len(found["heads"])
    assert all(each["kl_from_baseline"] is None and each["effect"] for each in both["heads"])
    session.close()


def test_view_prints_what_the_server_answers(ask, config, lens_folders, capsys):
    from saccade.cli.main import main

    question = {"text": TEXT, "layer": 3, "head": 2}
    told = ["view", "--model", config.model, "--lens", str(lens_folders[0])]
    told += ["--lens", str(lens_folders[1]), "--print", "head", "--ask", json.dumps(question)]
    assert main(told) == 0
    assert _close(json.loads(capsys.readouterr().out), ask("head", question))


def test_a_head_card_has_the_tokens_of_the_reading_under_every_lens(ask):
    readings = {
        name: ask("reading", {"text": TEXT, "lens": name}) for name in ("closed", "polished")
    }
    card = ask("head", {"text": TEXT, "layer": 2, "head": 1})
    assert [each["name"] for each in card["lenses"]] == ["unembedding", "closed", "polished"]
    for each in card["lenses"][1:]:
        (head,) = [h for h in readings[each["name"]]["heads"] if (h["layer"], h["head"]) == (2, 1)]
        for name in ("kl_from_baseline", "predicts", "adds", "suppresses", "quality"):
            assert _close(each[name], head["lens"][name]), name
        agreement = ask("agreement", {"text": TEXT, "layer": 2, "head": 1})["lenses"][each["name"]]
        assert agreement == pytest.approx(head["effect"]["lens_agreement"], abs=1e-4)
    assert sum(card["attention"]) == pytest.approx(1.0, abs=1e-4)
    best = max(range(len(card["attention"])), key=card["attention"].__getitem__)
    assert best == head["attends"][0]["position"]


def test_attention_rows_are_triangular_and_sum_to_one(ask):
    found = ask("attention", {"text": TEXT, "layer": 1, "head": 0})
    card = ask("head", {"text": TEXT, "layer": 1, "head": 0})
    assert [len(row) for row in found["weights"]] == list(range(1, len(found["tokens"]) + 1))
    assert all(sum(row) == pytest.approx(1.0, abs=1e-2) for row in found["weights"])
    assert found["weights"][-1] == pytest.approx(card["attention"], abs=1e-4)


def test_a_long_text_gives_the_same_attention_as_a_short_one(stories, monkeypatch):
    from saccade.interp.readings import text_run

    kept = text_run.TextRun(stories, TEXT)
    monkeypatch.setattr(text_run, "WEIGHTS_BYTES", 0)
    long = text_run.TextRun(stories, TEXT)
    assert not long.captured.attention
    for layer in (0, 3):
        torch.testing.assert_close(long.attention_of(layer), kept.attention_of(layer))
    for layer, row in long.attention_at(4).items():
        torch.testing.assert_close(row, kept.attention_at(4)[layer])


def test_predictions_are_those_of_the_hugging_face_model(ask, stories):
    found = ask("predictions", {"text": TEXT, "top": 3})
    ids = stories.encode(TEXT)
    with torch.no_grad():
        chances = stories.hf(input_ids=ids).logits[0].softmax(-1)
    for at, each in enumerate(found["positions"]):
        best = chances[at].topk(3)
        assert [token["id"] for token in each["top"]] == best.indices.tolist()
        assert [token["value"] for token in each["top"]] == pytest.approx(
            best.values.tolist(), rel=1e-3
        )
        entropy = -(chances[at] * chances[at].log()).sum()
        assert each["entropy"] == pytest.approx(float(entropy), rel=1e-3)
        if at:
            surprise = -chances[at - 1, ids[0, at]].log()
            assert each["surprise"] == pytest.approx(float(surprise), rel=1e-3, abs=1e-5)
    assert found["positions"][0]["surprise"] is None


def test_contributions_and_effects_are_those_of_heads_rank(ask, config, capsys):
    from saccade.cli.main import main

    told = ["heads", "rank", TEXT, "--token", "Lily", "--against", "Tom", "--ablate", "zero"]
    assert main([*told, "--model", config.model, "--json"]) == 0
    ranking = json.loads(capsys.readouterr().out)
    for measure, figure in (("direct", "direct"), ("token", "effect")):
        question = {"text": TEXT, "measure": measure, "token": "Lily", "against": "Tom"}
        question["ablate"] = "zero"
        found = ask("measure", question)
        assert found["token"]["text"] == ranking["token"]
        flat = [value for row in found["rows"] for value in row["values"]]
        expected = [head[figure] for head in ranking["heads"]]
        assert flat == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_effect_at_an_earlier_position_is_that_of_the_shorter_prompt(ask, stories):
    short = "Once upon a time, there was a little girl"
    at = stories.encode(short).shape[1] - 1
    early = ask("measure", {"text": TEXT, "measure": "effect", "position": at, "token": "named"})
    alone = ask("measure", {"text": short, "measure": "effect", "token": "named"})
    assert _close(early["rows"], alone["rows"], tolerance=1e-3)


def test_mass_is_what_the_lens_gives_to_the_tokens(ask, opened):
    from saccade.interp.readings.text_run import TextRun

    found = ask("measure", {"text": TEXT, "measure": "mass", "words": "a,the", "lens": "closed"})
    lenses, run = opened.lenses["closed"], TextRun(opened.model, TEXT)
    ids = [int(opened.model.encode(f"x {token}")[0, -1]) for token in ("a", "the")]
    for row in found["rows"]:
        z = run.captured.z[row["layer"]][:, -1]
        chances = lenses.by_layer[row["layer"]](z)[0].softmax(-1)[:, ids].sum(-1)
        always = float(lenses.baseline.softmax(-1)[ids].sum())
        assert row["values"] == pytest.approx((chances - always).tolist(), abs=1e-4)


def test_measures_of_lenses_and_of_attention_are_those_of_the_reading(ask):
    reading = ask("reading", {"text": TEXT})
    says = ask("measure", {"text": TEXT, "measure": "lens"})
    gain = ask("measure", {"text": TEXT, "measure": "gain"})
    entropy = ask("measure", {"text": TEXT, "measure": "entropy"})
    for head in reading["heads"]:
        layer, number = head["layer"], head["head"]
        assert says["rows"][layer]["values"][number] == pytest.approx(
            head["lens"]["kl_from_baseline"], rel=1e-4
        )
        quality = head["lens"]["quality"]
        share = quality["gain"] / (quality["gain"] + quality["kl"])
        assert gain["rows"][layer]["values"][number] == pytest.approx(share, rel=1e-4)
    card = ask("head", {"text": TEXT, "layer": 0, "head": 3})
    assert entropy["rows"][0]["values"][3] == pytest.approx(card["entropy"], rel=1e-4)


def test_the_grid_ends_in_what_the_model_predicts(ask):
    grid = ask("positions", {"text": TEXT, "first": 2, "count": 5, "top": 3})
    said = ask("predictions", {"text": TEXT, "top": 3})
    assert grid["site"] == "residual" and grid["first"] == 2
    for at in range(5):
        ids = [token["id"] for token in said["positions"][2 + at]["top"]]
        # After the last layer the logit lens is the model.
        assert grid["final"]["ids"][at] == ids == grid["ids"][-1][at]
        assert [grid["texts"][str(id_)] for id_ in ids] == [
            token["text"] for token in said["positions"][2 + at]["top"]
        ]


def test_the_grid_of_a_head_has_the_tokens_of_its_readings(ask):
    grid = ask("positions", {"text": TEXT, "head": 1, "first": 4, "count": 1, "lens": "polished"})
    reading = ask("reading", {"text": TEXT, "position": 4, "lens": "polished"})
    for place, layer in enumerate(grid["layers"]):
        (head,) = [h for h in reading["heads"] if (h["layer"], h["head"]) == (layer, 1)]
        assert grid["ids"][place][0] == [token["id"] for token in head["lens"]["predicts"]]


def test_a_pinned_token_stands_where_it_does_in_the_grid(ask):
    grid = ask("positions", {"text": TEXT, "top": 10})
    pinned = f"#{grid['ids'][2][5][3]}"
    ranks = ask("ranks", {"text": TEXT, "tokens": [pinned, "Lily"]})
    assert ranks["tokens"][0]["id"] == int(pinned[1:])
    assert ranks["tokens"][0]["ranks"][2][5] == 3
    assert ranks["tokens"][0]["values"][2][5] == pytest.approx(grid["values"][2][5][3], rel=1e-3)


@pytest.mark.parametrize("ablate", ["mean", "zero"])
def test_compared_prompts_have_the_scores_of_heads_rank(ask, config, capsys, ablate):
    from saccade.cli.main import main

    asked = {"token": "Lily", "against": "Spot", "ablate": ablate}
    found = ask("compare", {"text": TEXT, "other": OTHER, **asked})
    for side, text in (("left", TEXT), ("right", OTHER)):
        told = ["heads", "rank", text, "--token", "Lily", "--against", "Spot", "--ablate", ablate]
        assert main([*told, "--model", config.model, "--json"]) == 0
        ranking = json.loads(capsys.readouterr().out)
        assert found[side]["score"] == pytest.approx(ranking["score"], rel=1e-3)
        assert found[side]["probability"] == pytest.approx(ranking["probability"], rel=1e-3)
        place = ("left", "right").index(side)
        for part in ("effect", "direct"):
            here = [head[part][place] for head in found["heads"]]
            assert here == pytest.approx([h[part] for h in ranking["heads"]], abs=1e-3)
    for head in found["heads"]:
        assert head["difference"] == pytest.approx(head["effect"][1] - head["effect"][0], abs=1e-4)


@pytest.mark.parametrize("ablate", ["mean", "zero"])
def test_map_card_positions_and_comparison_tell_the_same_effect(ask, ablate):
    asked = {"text": TEXT, "token": "Lily", "against": "Spot", "ablate": ablate}
    by_token, by_direct = (ask("measure", {**asked, "measure": m}) for m in ("token", "direct"))
    heads = ask("reading", asked)["heads"]
    compared = ask("compare", {**asked, "other": OTHER})["heads"]
    attribution = ask("attribution", asked)["rows"]
    assert len(heads) == len(compared) > 10
    for head, other in zip(heads, compared, strict=True):
        layer, number = head["layer"], head["head"]
        assert (layer, number) == (other["layer"], other["head"])
        effect, direct = head["effect"]["on_token"], head["effect"]["direct"]
        assert by_token["rows"][layer]["values"][number] == pytest.approx(effect, abs=1e-5)
        assert by_direct["rows"][layer]["values"][number] == pytest.approx(direct, abs=1e-5)
        assert other["effect"][0] == pytest.approx(effect, abs=1e-5)
        assert other["direct"][0] == pytest.approx(direct, abs=1e-5)
        # A pass of its own, of the same replacement.
        assert attribution[layer]["values"][-1][number] == pytest.approx(effect, abs=1e-3)


def test_a_prompt_compared_with_itself_differs_in_nothing(ask):
    found = ask("compare", {"text": TEXT, "other": TEXT})
    assert found["against"] is None
    assert all(head["difference"] == 0 for head in found["heads"])


def test_lenses_are_shown_with_what_they_were_made_from(ask, opened):
    for each in ask("lenses"):
        lenses = opened.lenses[each["name"]]
        assert each["n_tokens"] == lenses.provenance.n_tokens and "/" not in each["corpus"]
        gain = next(m for m in each["measures"] if m["measure"] == "gain")
        assert [row["values"] for row in gain["rows"]] == [
            pytest.approx(row, rel=1e-4) for row in lenses.quality["gain"].values()
        ]
        assert each["measures"][0]["measure"] == "explained"


def test_a_metric_that_tells_nothing_about_a_lens_is_not_offered(opened):
    from dataclasses import replace

    from saccade.viewer.reading_service import about_lenses

    lenses = opened.lenses["closed"]
    ranks = {layer: [0.5] * len(row) for layer, row in lenses.quality["gain"].items()}
    scored = replace(lenses, quality={**lenses.quality, "spearman": ranks, "ablation": ranks})
    names = [each.measure for each in about_lenses("closed", scored).measures]
    assert "ablation" in names and "spearman" not in names


def test_roles_are_what_the_command_prints(ask, config, capsys):
    from saccade.cli.main import main

    asked = [part for role in ("induction", "previous", "duplicate") for part in ("--role", role)]
    assert main(["heads", "roles", "--model", config.model, "--json", *asked]) == 0
    found = ask("roles")
    # The little model splits names into pieces, so the two roles that need them are left out.
    left_out = found.pop("left_out")
    assert set(left_out) == {"name-mover", "copy"}
    assert all("splits names into pieces" in reason for reason in left_out.values())
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("left_out") == {}
    assert _close(found, printed)


def test_the_gallery_lists_runs_beside_the_published_number(ask, gallery_folder):
    from saccade.zoo.recipes.recipe import find_recipe

    runs = {run["name"]: run for run in ask("runs")}
    assert set(runs) == {"adding-gru", "damaged"}
    done, recipe = runs["adding-gru"], find_recipe("adding-gru")
    assert done["state"] == "done" and done["value"] == 0.0013
    assert done["published"] == recipe.published and done["is_better"] == recipe.is_better
    assert runs["damaged"]["state"] == "damaged" and "cannot be read" in runs["damaged"]["note"]
    whole = ask("runs/adding-gru")
    assert len(whole["curve"]["loss"]) <= 400 and whole["curve"]["loss"][0] == 1.0
    assert list(whole["curve"]["validation"]) == ["step", "mse", "other"]
    assert ask("runs/damaged")["state"] == "damaged"


def test_a_training_that_was_killed_is_not_said_to_go_on(gallery_folder, tmp_path):
    import os
    import time

    from saccade.viewer.runs import Gallery

    run = shutil.copytree(gallery_folder / "adding-gru", tmp_path / "half")
    (run / "metrics.json").unlink()
    gallery = Gallery([tmp_path])
    os.utime(run / "log.jsonl")
    assert gallery.run("half").state == "running"
    long_ago = time.time() - 3600
    os.utime(run / "log.jsonl", (long_ago, long_ago))
    assert [each.state for each in gallery.runs()] == ["stopped"]


def test_a_damaged_trace_does_not_hide_the_others(gallery_folder, tmp_path):
    from saccade.viewer.runs import Gallery

    shutil.copytree(gallery_folder / "dog", tmp_path / "dog")
    for name, steps in (("number", 5), ("none", None), ("deep", [[[]]] * 3)):
        bad = shutil.copytree(gallery_folder / "dog", tmp_path / name)
        manifest = json.loads((bad / "manifest.json").read_text())
        (bad / "manifest.json").write_text(json.dumps({**manifest, "steps": steps}))
    (shutil.copytree(gallery_folder / "dog", tmp_path / "bytes") / "manifest.json").write_bytes(
        bytes(range(256))
    )
    assert "dog" in {each.name for each in Gallery([tmp_path]).traces()}


def test_a_saved_trace_is_given_as_it_was_saved(ask, gallery_folder):
    from saccade.trace.trace import load_trace

    (listed,) = ask("traces")
    assert listed == {"name": "dog", "kind": "attention", "title": "ein Hund .", "n_steps": 2}
    assert ask("traces/dog") == load_trace(gallery_folder / "dog").to_dict()


def test_status_names_the_model_and_what_can_be_asked(ask, stories):
    status = ask("status")
    assert status["state"] == "ready" and status["lenses"] == ["closed", "polished"]
    assert sum(layer["n_heads"] for layer in status["model"]["layers"]) == stories.n_heads
    assert status["job"] is None and status["waiting"] == 0 and "she" in status["word_lists"]


def test_nothing_is_computed_twice(ask, session, monkeypatch):
    from saccade.interp.readings import text_run

    runs = []
    before = text_run.capture
    monkeypatch.setattr(
        text_run, "capture", lambda *args, **named: runs.append(1) or before(*args, **named)
    )
    for lens in ("closed", "polished", "closed"):
        ask("reading", {"text": TEXT, "lens": lens})
    ask("head", {"text": TEXT, "layer": 1, "head": 1})
    ask("head", {"text": TEXT, "layer": 4, "head": 7, "position": 3})
    ask("attention", {"text": TEXT, "layer": 2, "head": 2})
    ask("positions", {"text": TEXT})
    ask("measure", {"text": TEXT, "measure": "direct"})
    assert len(runs) == 1


def _close(found: object, expected: object, *, tolerance: float = 1e-4) -> bool:
    """The same but for the last digits, which another batch or run rounds in another way."""
    if isinstance(expected, float) and isinstance(found, int | float):
        return abs(found - expected) <= tolerance * max(1.0, abs(expected))
    if isinstance(expected, dict) and isinstance(found, dict):
        same = found.keys() == expected.keys()
        return same and all(_close(found[k], expected[k], tolerance=tolerance) for k in found)
    if isinstance(expected, list) and isinstance(found, list):
        pairs = zip(found, expected, strict=False)
        same = len(found) == len(expected)
        return same and all(_close(a, b, tolerance=tolerance) for a, b in pairs)
    return found == expected


def test_the_page_folder_is_part_of_the_package():
    import saccade

    page = Path(saccade.__file__).parent / "viewer" / "page"
    assert (page / "index.html").is_file() and (page / "main.js").is_file()
