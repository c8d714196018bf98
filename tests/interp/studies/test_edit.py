"""Memories, the search for where to inject them, and the folder of an edit."""

from __future__ import annotations

import json

import pytest
import torch
from torch.testing import assert_close

from saccade.errors import InterventionError, LensError, ModelError, UsageError
from saccade.interp.effects.replacement import reference_text
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import (
    Ablate,
    InjectHead,
    InjectResidual,
    Patch,
    Scale,
    intervene,
)
from saccade.interp.studies.edit.edit_file import Edit, describe, load_edit
from saccade.interp.studies.edit.injection import (
    Memory,
    lens_memory,
    memory_tokens,
    point_to_heads,
    unembedding_memory,
)
from saccade.interp.studies.edit.injection_search import (
    MOST_COST,
    POINTED,
    STRENGTHS,
    SearchSpace,
    UnrelatedText,
    search_edit,
)
from saccade.store.folder import read_manifest, read_tensors, write_folder

PROMPT = "One day, a girl went to the park with her"


@pytest.fixture(scope="module")
def unrelated(stories):
    return UnrelatedText(stories, reference_text(stories, rows=4, window=30))


@pytest.fixture
def edit(stories):
    generator = torch.Generator().manual_seed(6)
    wide = torch.randn(stories.d_model, generator=generator)
    narrow = torch.randn(3, stories.layer(1).d_head, generator=generator)
    changes = (
        InjectResidual(2, wide, 1.5, (-2, -1)),
        InjectHead(1, 3, narrow[0], 0.5),
        Ablate(0, 1, "mean", narrow[1]),
        Scale(3, 0, -2.0, (-1,)),
        Patch(4, 2, narrow[1:], (-3, -2)),
    )
    return Edit(
        model=stories.name,
        model_fingerprint=stories.fingerprint,
        about="all kinds",
        prompt=PROMPT,
        changes=changes,
    )


def test_a_memory_through_the_unembedding_raises_its_tokens_above_all_others(stories):
    tokens = memory_tokens(stories, "dog")
    memory = unembedding_memory(stories, tokens)
    assert float(memory.norm()) == pytest.approx(1)
    said = stories.unembedding.linear(memory)
    weight = stories.unembedding.weight
    by_loop = sum(weight[token] - weight.mean(0) for token in tokens)
    assert_close(memory, by_loop / by_loop.norm())
    assert {*said.topk(len(tokens)).indices.tolist()} & {*tokens}


def test_the_lens_of_its_own_inverse_predicts_the_memory_as_far_as_it_can(story_lenses):
    model = story_lenses.model
    tokens = memory_tokens(model, "dog")
    memory = unembedding_memory(model, tokens)
    z = lens_memory(story_lenses, 3, 2, memory)
    weight = story_lenses.by_layer[3].weight[2]
    # Least squares: the residual is orthogonal to everything the lens can predict.
    heard = z @ weight
    heard = heard * (heard @ memory) / heard.square().sum()
    left = weight @ (memory - heard)
    assert float(left.abs().max()) < 1e-4 * float(weight.norm())


def test_heads_are_ranked_by_how_far_their_lenses_predict_the_memory(story_lenses):
    tokens = memory_tokens(story_lenses.model, "mom")
    pointed = point_to_heads(story_lenses, PROMPT, tokens)
    assert len(pointed) == story_lenses.model.n_heads
    z = capture(story_lenses.model, story_lenses.model.encode(PROMPT)).z
    for layer, head, lift in pointed[:3]:
        said = story_lenses.by_layer[layer](z[layer][0, -1:])[0, head].log_softmax(-1)
        expected = sum(float(said[w] - story_lenses.baseline[w]) for w in tokens) / len(tokens)
        assert lift == pytest.approx(expected, abs=1e-3)
    lifts = [each.lift for each in pointed]
    assert lifts == sorted(lifts, reverse=True)


@pytest.mark.parametrize("form", ["unembedding", "lens", "text"])
def test_a_found_edit_has_the_effect_it_reports(story_lenses, unrelated, form):
    model = story_lenses.model
    token = memory_tokens(model, "dog")[0]
    space = SearchSpace(form=form, positions=(-3, -1))
    found = search_edit(
        model, PROMPT, "a dog", token=token, unrelated=unrelated, space=space, lenses=story_lenses
    )
    ids = model.encode(PROMPT)

    def chance():
        return float(model.unembedding.logits(capture(model, ids).final[0, -1]).softmax(-1)[token])

    assert found.before == pytest.approx(chance(), rel=1e-3)
    with found.edit.applied(model):
        assert found.after == pytest.approx(chance(), rel=1e-3)
    assert found.after > found.before
    # A text is also tried in the residual stream.
    places = POINTED + (len(model.layers[::3]) if form == "text" else 0)
    assert found.n_tried == places * len(STRENGTHS[form])
    assert found.cost == pytest.approx(unrelated.cost(found.edit.changes), abs=1e-5)
    assert found.cost <= MOST_COST


def test_a_text_of_strength_one_replaces_the_activation(stories):
    ids, memory = stories.encode(PROMPT), "She had a big dog"
    activation = capture(stories, ids, residual=True)
    read = capture(stories, stories.encode(memory), residual=True)
    made = Memory(stories, memory, form="text")
    for place in ((2, None), (3, 1)):
        change = made.injection(activation, place, strength=1.0, positions=(-4, -2))
        with intervene(stories, change):
            found = capture(stories, ids, residual=True)
        for position in (-4, -2):
            if place[1] is None:
                assert_close(found.residual[2][0, position], read.residual[2][0, -1])
            else:
                # A later capture sees the injected activation.
                assert_close(found.z[3][0, position, 1], read.z[3][0, -1, 1])


def test_a_memory_through_tokens_has_the_norm_of_the_activation(story_lenses):
    model = story_lenses.model
    activation = capture(model, model.encode(PROMPT), residual=True)
    stream, z = activation.residual[2][0, -2], activation.z[2][0, -2]
    columns = model.layer(2).projection.weight.unflatten(1, (-1, z.shape[-1]))[:, 1]
    wanted = {
        ("unembedding", None): stream.norm(),
        ("unembedding", 1): (columns @ z[1]).norm(),
        ("lens", 1): z[1].norm(),
    }
    for (form, head), length in wanted.items():
        made = Memory(model, "dog", form=form, lenses=story_lenses)
        change = made.injection(activation, (2, head), strength=0.5, positions=[-2])
        assert_close(change.vector.norm(), length, atol=1e-4, rtol=1e-4)


def test_the_cost_is_the_rise_of_perplexity_after_the_middle_of_each_text(stories, unrelated):
    push = torch.randn(stories.d_model, generator=torch.Generator().manual_seed(8))
    ids = unrelated.ids
    half = ids.shape[1] // 2

    def loss():
        total = 0.0
        for row in ids:
            said = stories.hf(input_ids=row[None]).logits[0].log_softmax(-1)
            for place in range(half, len(row)):
                total -= float(said[place - 1, row[place]])
        return total / (len(ids) * (ids.shape[1] - half))

    with torch.no_grad():
        plain = loss()
        with intervene(stories, InjectResidual(2, push, 3.0, (half - 1,))):
            edited = loss()
    expected = torch.tensor(edited - plain).exp() - 1
    found = unrelated.cost([InjectResidual(2, push, 3.0, (-1,))])
    assert found == pytest.approx(float(expected), abs=1e-4)


def test_the_cost_of_a_change_everywhere_is_that_of_whole_texts(stories, unrelated):
    half = unrelated.ids.shape[1] // 2

    def loss():
        said = stories.hf(input_ids=unrelated.ids).logits[:, half - 1 : -1].log_softmax(-1)
        return -said.gather(-1, unrelated.ids[:, half:, None]).mean()

    with torch.no_grad():
        plain = loss()
        with intervene(stories, Scale(1, 0, 3.0)):
            edited = loss()
    expected = float((edited - plain).exp() - 1)
    assert unrelated.cost([Scale(1, 0, 3.0)]) == pytest.approx(expected, abs=1e-4)


def test_the_cost_of_an_edit_far_from_the_end_is_measured_later_in_the_text(stories, unrelated):
    assert unrelated.cost([Scale(1, 0, 3.0, (-20, -1))]) != 0
    with pytest.raises(UsageError, match="reaches 28 tokens back"):
        unrelated.cost([Scale(1, 0, 3.0, (-28,))])


def test_an_edit_is_the_same_after_saving_and_loading(stories, edit, tmp_path):
    edit.save(tmp_path / "edit")
    loaded = load_edit(tmp_path / "edit", stories)
    ids = stories.encode(PROMPT)
    with edit.applied(stories):
        expected = capture(stories, ids).final
    with loaded.applied(stories):
        assert torch.equal(capture(stories, ids).final, expected)
    assert (loaded.about, loaded.prompt) == ("all kinds", PROMPT)
    assert [*map(describe, loaded.changes)] == [*map(describe, edit.changes)]
    assert sorted(path.name for path in (tmp_path / "edit").iterdir()) == [
        "edit.safetensors",
        "manifest.json",
    ]


def test_generation_continues_from_an_edited_prompt(stories, edit):
    ids = stories.encode(PROMPT)
    given = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    with edit.applied(stories):
        cached = stories.hf.generate(input_ids=ids, **given)
    plain = stories.hf.generate(input_ids=ids, **given)
    assert not torch.equal(cached, plain)


def test_an_edit_for_another_model_is_refused(edit, tiny_llama):
    with pytest.raises(InterventionError, match=f"the edit was made for {edit.model} "):
        edit.check(tiny_llama)


@pytest.fixture
def tiny_llama():
    from families import tiny

    from saccade.interp.heads.model import wrap_model

    return wrap_model(tiny("llama"), None, name="tiny llama")


def test_a_folder_that_holds_no_edit_is_refused(stories, edit, story_lenses, tmp_path):
    with pytest.raises(InterventionError, match="no such folder"):
        load_edit(tmp_path / "nothing", stories)
    story_lenses.save(tmp_path / "lenses")
    with pytest.raises(InterventionError, match="holds no edit"):
        load_edit(tmp_path / "lenses", stories)
    edit.save(tmp_path / "edit")
    manifest = tmp_path / "edit" / "manifest.json"
    said = json.loads(manifest.read_text())
    del said["edit"]["changes"][0]["layer"]
    manifest.write_text(json.dumps(said))
    with pytest.raises(InterventionError, match=r"changes\.0\.layer: expected a value, found none"):
        load_edit(tmp_path / "edit", stories)


def test_each_change_has_a_short_description(edit):
    assert [*map(describe, edit.changes)] == [
        "inject into layer 2 with strength 1.5",
        "inject into 1.3 with strength 0.5",
        "ablate 0.1 (mean)",
        "scale 3.0 by -2",
        "patch 4.2",
    ]


@pytest.mark.parametrize("strength", [0.0, -1.0, 1e6, float("inf"), float("nan")])
def test_an_impossible_strength_is_refused(strength):
    with pytest.raises(UsageError, match="a strength must be a number above 0 and at most 100"):
        SearchSpace(strengths=[strength])


def test_the_form_lens_needs_a_head_and_a_lens_with_an_inverse(story_lenses, unrelated):
    model = story_lenses.model
    given = {"token": 5, "unrelated": unrelated}
    by_layer = SearchSpace(form="lens", places=[(1, None)])
    with pytest.raises(UsageError, match="needs a head, got only layer 1"):
        search_edit(model, PROMPT, "dog", space=by_layer, lenses=story_lenses, **given)
    with pytest.raises(UsageError, match="the search needs lenses"):
        search_edit(model, PROMPT, "dog", **given)
    with pytest.raises(UsageError, match="the memory is empty"):
        memory_tokens(model, " ")
    from saccade.interp.lenses.residual_lenses import baseline_lenses

    logit = baseline_lenses(model, "logit-head")
    with pytest.raises(LensError, match="has no inverse"):
        lens_memory(logit, 1, 0, unembedding_memory(model, [5]))


BAD = (
    *(None, float("nan"), float("inf"), -100, -100.5, 0, 10**23, 1e300, True),
    *("", "x", "1", "mean", "scale", [], [0.5], [10**23], {}, [[]], [None]),
)
ABSENT = object()


def changed_places(manifest):
    """Every field of an edit and of each of its changes: the dictionary it is in, and its name."""
    return [(manifest, name) for name in manifest] + [
        (change, name)
        for change in manifest["changes"]
        for name in (*change, "factor", "head", "odd")
    ]


def test_an_edit_with_any_value_in_any_field_is_refused_or_applied_never_a_crash(
    stories, edit, tmp_path
):
    edit.save(tmp_path / "edit")
    file = tmp_path / "edit" / "manifest.json"
    whole = json.loads(file.read_text())
    ids, messages, n_applied = stories.encode(PROMPT), [], 0
    for place, _ in enumerate(changed_places(whole["edit"])):
        for value in (*BAD, ABSENT):
            spoilt = json.loads(json.dumps(whole))
            holder, name = changed_places(spoilt["edit"])[place]
            holder[name] = value
            if value is ABSENT:
                del holder[name]
            file.write_text(json.dumps(spoilt))
            try:
                loaded = load_edit(tmp_path / "edit", stories)
            except InterventionError as error:
                messages.append(str(error))
                continue
            # An accepted edit has the right types, and either runs or raises a clear error.
            assert all(type(getattr(loaded, each)) is str for each in ("model", "about", "prompt"))
            try:
                with loaded.applied(stories):
                    assert capture(stories, ids).final.isfinite().all()
            except (InterventionError, ModelError) as error:
                messages.append(f"{tmp_path}: {error}")
            else:
                n_applied += 1
    assert not [each for each in messages if "\n" in each or str(tmp_path) not in each]
    assert len(messages) > 500 and 30 < n_applied < 120


@pytest.mark.parametrize(
    "spoil",
    [
        lambda each: each.index_fill(0, torch.tensor([0]), torch.nan),
        lambda each: each[..., :-1],
        lambda each: each[None, None, None],
        lambda each: each.round().int(),
        lambda each: each.new_zeros(()),
        lambda _: None,
    ],
    ids=["NaN", "shorter", "more axes", "integers", "a number", "absent"],
)
def test_an_edit_with_a_spoilt_tensor_is_refused(stories, edit, tmp_path, spoil):
    edit.save(tmp_path / "edit")
    said = read_manifest(tmp_path / "edit")["edit"]
    stored = read_tensors(tmp_path / "edit", "edit.safetensors")
    for name in stored:
        spoilt = {k: v for k, v in (stored | {name: spoil(stored[name])}).items() if v is not None}
        write_folder(tmp_path / "spoilt", {"edit": said}, {"edit.safetensors": spoilt})
        with pytest.raises(InterventionError, match="spoilt: "):
            load_edit(tmp_path / "spoilt", stories)


def test_a_vector_for_each_of_other_positions_is_refused(stories, edit, tmp_path):
    edit.save(tmp_path / "edit")
    said = read_manifest(tmp_path / "edit")["edit"]
    stored = read_tensors(tmp_path / "edit", "edit.safetensors")
    said["changes"][4]["positions"] = [-3, -2, -1]
    write_folder(tmp_path / "more", {"edit": said}, {"edit.safetensors": stored})
    with pytest.raises(InterventionError, match="a vector for each of 3 positions, got 2"):
        load_edit(tmp_path / "more", stories)


def test_a_tensor_that_belongs_to_no_change_is_refused(stories, edit, tmp_path):
    edit.save(tmp_path / "edit")
    said = read_manifest(tmp_path / "edit")["edit"]
    stored = read_tensors(tmp_path / "edit", "edit.safetensors")
    for name in ("9.z", "3.vector", "odd"):
        more = stored | {name: torch.zeros(3)}
        write_folder(tmp_path / "more", {"edit": said}, {"edit.safetensors": more})
        with pytest.raises(InterventionError, match=rf"{name.removeprefix('3.')}.* too"):
            load_edit(tmp_path / "more", stories)
