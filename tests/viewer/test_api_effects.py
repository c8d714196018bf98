"""Attribution, measured cells, flow and generation, judged by runs that share no code with them."""

from __future__ import annotations

import json

import pytest
import torch

TEXT = "Once upon a time, there was a little girl named"
POSITION, LAYER, HEAD = 3, 1, 2


def score_without(stories, token: int, against: int) -> float:
    """The score of the prediction when one head is replaced by its mean at one position."""
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.intervene import Ablate, intervene

    mean = Replacement.usual(stories).heads[LAYER][HEAD]
    ids = stories.encode(TEXT)
    with torch.no_grad():
        plain = stories.hf(input_ids=ids).logits[0, -1]
        with intervene(stories, [Ablate(LAYER, HEAD, "mean", mean, positions=[POSITION])]):
            changed = stories.hf(input_ids=ids).logits[0, -1]
    return float((plain[token] - plain[against]) - (changed[token] - changed[against]))


def test_a_measured_cell_is_what_the_hugging_face_model_loses(ask, stories):
    tokens = [stories.encode(f"x {word}")[0, -1].item() for word in ("a", "the")]
    asked = {"text": TEXT, "token": f"#{tokens[0]}", "against": f"#{tokens[1]}"}
    cell = ask("cell", {**asked, "layer": LAYER, "head": HEAD, "at": POSITION})
    assert cell["on_token"] == pytest.approx(score_without(stories, *tokens), abs=1e-3)


def test_the_end_of_the_attribution_map_is_the_reading(ask):
    asked = {"text": TEXT, "token": "Lily"}
    found, reading = ask("attribution", asked), ask("reading", asked)
    at_end = {
        (row["layer"], head): value
        for row in found["rows"]
        for head, value in enumerate(row["values"][-1])
    }
    for head in reading["heads"]:
        assert at_end[head["layer"], head["head"]] == pytest.approx(
            head["effect"]["on_token"], abs=2e-3
        )
    for each in found["checked"]:
        place = {"layer": each["layer"], "head": each["head"], "at": each["position"]}
        assert ask("cell", {**asked, **place})["on_token"] == pytest.approx(each["exact"], abs=2e-3)


def test_a_position_after_the_prediction_is_refused(client):
    question = {"text": TEXT, "position": 2, "layer": LAYER, "head": HEAD, "at": POSITION}
    reply = client.post("/api/cell", json=question)
    assert reply.status_code == 400 and "comes after the prediction" in reply.json()["error"]


def test_a_higher_threshold_leaves_less_of_the_flow_and_needs_no_new_graph(ask, monkeypatch):
    from saccade.viewer import effect_service

    low = ask("flow", {"text": TEXT, "threshold": 0.02})
    monkeypatch.setattr(effect_service, "find_flow", lambda *_, **__: pytest.fail("computed again"))
    high = ask("flow", {"text": TEXT, "threshold": 0.3})
    assert 0 < high["kept"] < low["kept"] <= 1
    assert {node["name"] for node in high["nodes"]} < {node["name"] for node in low["nodes"]}
    names = {node["name"] for node in high["nodes"]} | {"prediction"}
    assert all(edge["to"] in names for edge in high["edges"])


def test_a_sampled_text_is_that_of_the_command_line(ask, config, capsys):
    from saccade.cli.main import main

    texts = []
    for seed in (3, 4):
        told = ["generate", TEXT, "--model", config.model, "--tokens", "6", "--json"]
        assert main([*told, "--temperature", "1.5", "--seed", str(seed)]) == 0
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        asked = {"text": TEXT, "temperature": 1.5, "seed": seed}
        found = [ask("generate", {**asked, "index": at}) for at in range(6)]
        assert [each["token"]["id"] for each in found] == [each["id"] for each in printed]
        texts.append([each["token"]["id"] for each in found])
        best = max(found[0]["heads"], key=lambda head: head["effect"])
        assert best["layer"] == printed[0]["promoted_by"][0]["layer"]
    assert texts[0] != texts[1]


def test_the_written_tokens_are_those_of_the_hugging_face_model(ask, stories):
    ids = stories.encode(TEXT)
    with torch.no_grad():
        whole = stories.hf.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
    found = [ask("generate", {"text": TEXT, "index": at}) for at in (4, 0, 1, 2, 3)]
    assert [each["token"]["id"] for each in (*found[1:], found[0])] == whole.tolist()
    reading = ask("reading", {"text": TEXT, "token": f"#{whole[0]}"})
    effects = [head["effect"]["on_token"] for head in reading["heads"]]
    assert [head["effect"] for head in found[1]["heads"]] == pytest.approx(effects, abs=2e-3)
