"""Answers about an atlas: those of the library, with what only an open model can add."""

from dataclasses import replace

import pytest

HEAD = "3.2"


@pytest.fixture(scope="module")
def atlas(atlas_folder):
    import saccade

    return saccade.load_atlas(atlas_folder)


def test_all_heads_and_metrics_are_in_the_overview_without_a_path_of_this_machine(ask, atlas):
    found = ask("atlas")
    assert (found["error"], found["hint"]) == ("", "")
    overview = found["atlas"]
    assert [row["name"] for row in overview["heads"]] == [head.name for head in atlas.heads]
    assert [row["kl"] for row in overview["heads"]] == pytest.approx(
        [head.kl for head in atlas.heads], rel=1e-5
    )
    assert overview["sources"] == ["red.txt", "green.txt", "blue.txt"]
    assert "/" not in overview["model"]
    # The attention to tokens after earlier occurrences is no score of the role.
    row, at = overview["heads"][9], overview["heads"][9]["head"]
    assert row["role.induction"] == pytest.approx(at / 8)
    assert row["induction"] == pytest.approx(atlas.heads[9].look.induction, rel=1e-4)


def test_heads_are_found_as_in_python(ask, atlas):
    token = atlas.tokens[int(atlas.records.promoted[0, 0, 0])]
    for asked, found in (
        ({"token": token}, atlas.find(token=token)),
        ({"role": "duplicate"}, atlas.find(role="duplicate")),
        (
            {"matters_in": "red.txt", "not_in": "blue.txt"},
            atlas.find(matters_in=atlas.provenance.sources[0], not_in=atlas.provenance.sources[2]),
        ),
        (
            {"like": HEAD, "where": ["role.induction<0.5"]},
            atlas.find(like=(3, 2), where=["role.induction<0.5"]),
        ),
    ):
        assert [row["name"] for row in ask("find", asked)] == [each.name for each in found]


def test_a_prompt_has_the_very_tokens_of_its_context(ask, atlas, stories):
    does = ask(f"atlas/{HEAD}")["does"]
    contexts = [*does["strongest"], *(each for s in does["strata"] for each in s["contexts"])]
    known = [context for context in contexts if context["prompt"] is not None]
    assert len(known) > len(contexts) / 2
    for context in contexts:
        ids = atlas.windows[context["window"], : context["position"] + 1].tolist()
        whole = context["before"] + "".join(context["tokens"])
        if context["prompt"] is None:
            typed = [stories.encode(text)[0].tolist() for text in (whole, whole.strip(" "))]
            assert ids not in typed
        else:
            assert stories.encode(context["prompt"])[0].tolist() == ids


def test_a_reading_of_a_prompt_has_the_recorded_effect(ask, atlas):
    does = ask(f"atlas/{HEAD}")["does"]
    context = next(each for each in does["strongest"] if each["prompt"] is not None)
    reading = ask("reading", {"text": context["prompt"]})
    (head,) = [h for h in reading["heads"] if (h["layer"], h["head"]) == (3, 2)]
    assert head["effect"]["kl"] == pytest.approx(context["kl"], rel=1e-3, abs=1e-5)
    assert [each["text"] for each in head["effect"]["promotes"][:2]] == [
        text for text, _ in context["promotes"][:2]
    ]


def test_without_a_model_contexts_have_no_prompt(config, atlas_folder):
    from saccade.viewer.atlas_service import AtlasService

    service = AtlasService(atlas_folder, lambda: None)
    assert "prompt" not in service.page(HEAD)["does"]["strongest"][0]
    nothing = AtlasService(None, lambda: None).overview()
    assert nothing.atlas is None and "without a model and without an atlas" in nothing.error
    assert "saccade view --atlas FOLDER" in nothing.hint


def test_an_atlas_of_another_model_is_not_shown(atlas, stories, tmp_path):
    from saccade.viewer.atlas_service import AtlasService

    other = replace(atlas, provenance=replace(atlas.provenance, model_fingerprint="0" * 16))
    other.save(tmp_path / "other")
    answer = AtlasService(tmp_path / "other", lambda: stories).overview()
    assert answer.atlas is None and "this is the atlas of" in answer.error


@pytest.mark.parametrize(
    ("route", "asked", "status", "words"),
    [
        ("atlas/9.9", None, 400, "this atlas has no head 9.9"),
        ("atlas/Mary", None, 400, "expected a layer and a head"),
        ("find", {"token": "zzyzx"}, 400, "no head of this atlas promotes the token 'zzyzx'"),
        ("find", {"where": ["kl>kl"]}, 400, "expected a metric and a bound"),
        ("find", {"matters_in": "/etc/passwd"}, 400, "no source of this atlas"),
        ("find", {"tokens": "x"}, 422, "tokens"),
        ("find", {"where": ["kl>0"] * 17}, 422, "where"),
    ],
)
def test_what_is_not_there_is_said(client, route, asked, status, words):
    path = f"/api/{route}"
    reply = client.get(path) if asked is None else client.post(path, json=asked)
    assert reply.status_code == status, reply.text
    assert words in reply.json()["error"]
    assert reply.json()["hint"]
