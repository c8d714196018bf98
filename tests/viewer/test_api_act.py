"""Changing the model from the page, judged by the model run with the same change by hand."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch

TEXT = "Once upon a time, there was a little girl named"
SAME_LENGTH = "Once upon a time, there was a happy cat named"
INJECT = {"kind": "inject", "layer": 2, "head": 1, "memory": "dog", "strength": 4.0}
CHANGES = [
    {"kind": "ablate", "layer": 1, "head": 3},
    {"kind": "ablate", "layer": 1, "head": 3, "by": "mean"},
    {"kind": "scale", "layer": 1, "head": 3, "factor": 3.0},
    {"kind": "patch", "layer": 1, "head": 3, "source": SAME_LENGTH},
    {"kind": "patch", "layer": 1, "head": 3, "source": "A dog ran", "positions": [-1]},
    {"kind": "ablate", "layer": 1, "head": 3, "by": "resample"},
    {"kind": "ablate", "layer": 1, "head": 3, "positions": [0, -1]},
    INJECT,
    {**INJECT, "form": "lens"},
    {**INJECT, "form": "text", "strength": 1.0},
    {**INJECT, "head": None},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(map(str, change.values())))
def test_every_change_moves_the_output_and_the_page_sees_both(ask, change):
    found = ask("act", {"text": TEXT, "changes": [change]})
    plain = ask("predictions", {"text": TEXT, "top": 10})["positions"][-1]
    changed = ask("predictions", {"text": TEXT, "top": 10, "changes": [change]})["positions"][-1]
    for here, there in ((found["before"], plain["top"]), (found["after"], changed["top"])):
        assert [token["id"] for token in here] == [token["id"] for token in there]
        assert [token["value"] for token in here] == pytest.approx(
            [token["value"] for token in there], rel=1e-4
        )
    assert found["kl"] > 0
    assert found["token"]["text"] == found["before"][0]["text"]
    assert found["token"]["rank_before"] == 0
    gaps = [abs(token["after"] - token["before"]) for token in found["moved"]]
    assert gaps == sorted(gaps, reverse=True)


def test_an_ablation_is_the_model_without_the_head(ask, stories):
    from saccade.interp.heads.intervene import Ablate, intervene

    found = ask("act", {"text": TEXT, "changes": [CHANGES[0]], "token": "Tom"})
    ids = stories.encode(TEXT)
    with torch.no_grad(), intervene(stories, Ablate(1, 3)):
        chances = stories.hf(input_ids=ids).logits[0, -1].softmax(-1)
    best = chances.topk(10)
    assert [token["id"] for token in found["after"]] == best.indices.tolist()
    assert found["token"]["after"] == pytest.approx(float(chances[found["token"]["id"]]), rel=1e-3)
    assert found["changes"] == ["ablate 1.3 (zero)"]


def test_what_the_lens_predicted_is_the_difference_of_its_two_readings(ask, opened):
    from saccade.interp.heads.intervene import Scale, intervene
    from saccade.interp.readings.text_run import TextRun

    lens = opened.lenses["polished"].by_layer[1]
    z = TextRun(opened.model, TEXT).captured.z[1][:, -1]
    twice = z.clone()
    twice[:, 3] *= 3
    said = (lens(twice)[0, 3].log_softmax(-1) - lens(z)[0, 3].log_softmax(-1)).tolist()
    found = ask("act", {"text": TEXT, "changes": [CHANGES[2]], "lens": "polished"})
    for token in found["moved"]:
        assert token["predicted"] == pytest.approx(said[token["id"]], rel=1e-2, abs=1e-3)
    ids = opened.model.encode(TEXT)
    with torch.no_grad():
        old = opened.model.hf(input_ids=ids).logits[0, -1].log_softmax(-1)
        with intervene(opened.model, Scale(1, 3, 3.0)):
            new = opened.model.hf(input_ids=ids).logits[0, -1].log_softmax(-1)
    both = np.cov((new - old).numpy(), said, aweights=old.exp().numpy())
    expected = both[0, 1] / (both[0, 0] * both[1, 1]) ** 0.5
    assert found["agreement"] == pytest.approx(expected, abs=1e-2)


def test_it_goes_on_with_and_without_the_change(ask, stories):
    from saccade.interp.studies.prompts import go_on

    found = ask("act", {"text": TEXT, "changes": [INJECT], "say": 5})
    assert found["continuation"] == go_on(stories, TEXT, 5) and found["continuation_after"]


def test_a_kept_edit_is_in_every_other_answer(ask):
    plain = ask("reading", {"text": TEXT})
    edited = ask("reading", {"text": TEXT, "changes": [INJECT]})
    acted = ask("act", {"text": TEXT, "changes": [INJECT]})
    ids, after, before = (
        [token["id"] for token in tokens]
        for tokens in (edited["prediction"], acted["after"], plain["prediction"])
    )
    assert ids == after != before


@pytest.mark.parametrize("change", [INJECT, CHANGES[0], CHANGES[3]], ids=lambda it: it["kind"])
def test_a_downloaded_edit_is_one_that_the_command_line_loads(client, stories, tmp_path, change):
    from saccade.interp.heads.capture import capture
    from saccade.interp.studies.edit.edit_file import load_edit

    question = {"text": TEXT, "changes": [change]}
    reply = client.post("/api/edit", json=question)
    assert reply.headers["content-type"] == "application/zip"
    zipfile.ZipFile(io.BytesIO(reply.content)).extractall(tmp_path)
    with load_edit(tmp_path / "edit", stories).applied(stories):
        final = capture(stories, stories.encode(TEXT), layers=[]).final[0, -1]
    chances = stories.unembedding.logits(final).softmax(-1)
    acted = client.post("/api/act", json=question).json()
    assert acted["after"][0]["value"] == pytest.approx(float(chances.max()), rel=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "scale", "layer": 1, "head": 3, "factor": 1.0}, "a factor of 1 changes nothing"),
        ({"kind": "ablate", "layer": 1, "head": 99}, "no head 99 in layer 1"),
        ({"kind": "ablate", "layer": 99, "head": 1}, "no layer 99"),
        ({**INJECT, "strength": 0.0}, "a strength must be a number other than 0"),
        ({**INJECT, "head": None, "form": "lens"}, "needs a head"),
        ({"kind": "ablate", "layer": 1, "head": 3, "positions": [500]}, "never reached position"),
        ({**INJECT, "memory": " "}, "the memory is empty"),
        ({"kind": "patch", "layer": 1, "head": 3, "source": "A dog"}, "the other prompt has"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_in_words(client, change, said):
    reply = client.post("/api/act", json={"text": TEXT, "changes": [change]})
    assert reply.status_code == 400 and said in reply.json()["error"] and reply.json()["hint"]
