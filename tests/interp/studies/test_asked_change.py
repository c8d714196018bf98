"""Requested changes, checked by the activations of the changed model."""

from __future__ import annotations

import pytest
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.interp.effects.replacement import reference_text
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import intervene
from saccade.interp.studies.edit.asked_edit import AskedChange, Elsewhere, make_change
from saccade.interp.studies.prompts import last_token_of

PROMPT, OTHER = "Tom saw a big red ball", "Lily saw a big cat and a dog"


@pytest.fixture(scope="module")
def reference(stories):
    return reference_text(stories, rows=3, window=19)


def activation(model, reference, *asked, text=PROMPT):
    elsewhere = Elsewhere(model, lambda: reference)
    changes = [make_change(model, each, prompt=PROMPT, elsewhere=elsewhere) for each in asked]
    with intervene(model, changes):
        return capture(model, model.encode(text)).z


def ablate(**more):
    return AskedChange(kind="ablate", layer=2, head=3, **more)


def patch(**more):
    return AskedChange(kind="patch", layer=3, head=2, **more)


def test_an_ablated_head_is_zero_its_mean_or_its_activations_on_another_text(stories, reference):
    of_text = capture(stories, reference).z[2][:, :, 3].flatten(0, 1)
    zero = activation(stories, reference, ablate())
    assert not zero[2][0, :, 3].any()
    mean = activation(stories, reference, ablate(by="mean", positions=(-2,)))
    assert_close(mean[2][0, -2, 3], of_text.mean(0), atol=1e-5, rtol=1e-4)
    some = activation(stories, reference, ablate(by="resample", positions=(-3, -1)))
    for position in (-3, -1):
        assert (of_text - some[2][0, position, 3]).abs().sum(-1).min() < 1e-4
    everywhere = activation(stories, reference, ablate(by="resample"))
    assert_close(everywhere[2][0, 0, 3], everywhere[2][0, -1, 3])


def test_scaling_and_patching_are_made_at_the_same_tokens_of_both_prompts(stories, reference):
    scale = AskedChange(kind="scale", layer=1, head=0, factor=0.5, positions=(-1,))
    plain = capture(stories, stories.encode(PROMPT)).z
    other = capture(stories, stories.encode(OTHER)).z
    z = activation(stories, reference, scale, patch(source=OTHER, positions=(-1,)))
    assert_close(z[1][0, -1, 0], plain[1][0, -1, 0] / 2)
    assert_close(z[1][0, :-1], plain[1][0, :-1])
    assert_close(z[3][0, -1, 2], other[3][0, -1, 2])


def test_a_patch_of_all_positions_needs_a_prompt_of_the_same_length(stories, reference):
    same = "Tom saw a big dog"
    whole = make_change(
        stories,
        patch(source=same),
        prompt="Tom saw a big cat",
        elsewhere=Elsewhere(stories, lambda: reference),
    )
    assert_close(whole.z, capture(stories, stories.encode(same)).z[3][0, :, 2])
    with pytest.raises(UsageError, match="the other prompt has"):
        activation(stories, reference, patch(source=f"{OTHER} and ran away"))
    for outside in (-30, 30):
        with pytest.raises(UsageError, match=f"position {outside} is not in the other prompt"):
            activation(stories, reference, patch(source=OTHER, positions=(outside,)))


def test_a_memory_is_injected_with_the_requested_strength_in_every_form(stories, reference):
    plain = capture(stories, stories.encode(PROMPT), residual=True).residual[2][0, -1]
    for form, strength in (("unembedding", 0.5), ("text", 1.0)):
        asked = AskedChange(
            kind="inject", layer=2, memory="dog", form=form, strength=strength, positions=(-1,)
        )
        change = make_change(
            stories, asked, prompt=PROMPT, elsewhere=Elsewhere(stories, lambda: reference)
        )
        with intervene(stories, change):
            now = capture(stories, stories.encode(PROMPT), residual=True).residual[2][0, -1]
        assert_close(now - plain, strength * change.vector, atol=1e-4, rtol=1e-4)
        if form == "unembedding":
            assert_close((now - plain).norm(), plain.norm() / 2, atol=1e-3, rtol=1e-3)


def test_impossible_changes_are_refused(stories, reference):
    with pytest.raises(UsageError, match="a patch needs a head and the prompt"):
        activation(stories, reference, patch())
    with pytest.raises(UsageError, match="no head 99 in layer 1"):
        activation(stories, reference, AskedChange(kind="ablate", layer=1, head=99))
    with pytest.raises(UsageError, match="cannot scale the residual stream"):
        activation(stories, reference, AskedChange(kind="scale", layer=1, factor=2.0))


def test_tokens_of_a_prompt_stand_for_their_last_token(stories):
    ids = stories.encode(PROMPT)[0]
    place = last_token_of(stories, PROMPT, "big red")
    read = stories.tokenizer.decode(ids[: len(ids) + place + 1], skip_special_tokens=True)
    assert read.strip() == "Tom saw a big red"
    assert last_token_of(stories, PROMPT, "ball") == -1
    for piece in ("blue", " "):
        with pytest.raises(UsageError, match="is not in the text"):
            last_token_of(stories, PROMPT, piece)
