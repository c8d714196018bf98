"""Changes as a user asks for them, judged by what the heads then hold."""

from __future__ import annotations

import pytest
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.heads import capture, intervene
from saccade.investigations.asked_changes import AskedChanges, make_changes
from saccade.investigations.replacement import reference_text
from saccade.investigations.text_pieces import last_token_of

PROMPT, OTHER = "Tom saw a big red ball", "Lily saw a big cat and a dog"


@pytest.fixture(scope="module")
def reference(stories):
    return reference_text(stories, rows=3, window=19)


def held(model, asked, reference, text=PROMPT):
    changes = make_changes(model, asked, prompt=PROMPT, reference=reference)
    with intervene(model, changes):
        return capture(model, model.encode(text)).z


def test_an_ablated_head_holds_nothing_its_mean_or_what_it_held_elsewhere(stories, reference):
    of_text = capture(stories, reference).z[2][:, :, 3].flatten(0, 1)
    zero = held(stories, AskedChanges(ablate=[(2, 3)]), reference)
    assert not zero[2][0, :, 3].any()
    mean = held(stories, AskedChanges(ablate=[(2, 3)], by="mean", positions=[-2]), reference)
    assert_close(mean[2][0, -2, 3], of_text.mean(0), atol=1e-5, rtol=1e-4)
    some = AskedChanges(ablate=[(2, 3)], by="resample", positions=[-3, -1])
    for position in (-3, -1):
        z = held(stories, some, reference)[2][0, position, 3]
        assert (of_text - z).abs().sum(-1).min() < 1e-4
    everywhere = held(stories, AskedChanges(ablate=[(2, 3)], by="resample"), reference)
    assert_close(everywhere[2][0, 0, 3], everywhere[2][0, -1, 3])


def test_scaling_and_patching_are_made_at_the_same_tokens_of_both_prompts(stories, reference):
    asked = AskedChanges(scale=[((1, 0), 0.5)], patch=[(3, 2)], other=OTHER, positions=[-1])
    plain = capture(stories, stories.encode(PROMPT)).z
    other = capture(stories, stories.encode(OTHER)).z
    z = held(stories, asked, reference)
    assert_close(z[1][0, -1, 0], plain[1][0, -1, 0] / 2)
    assert_close(z[1][0, :-1], plain[1][0, :-1])
    assert_close(z[3][0, -1, 2], other[3][0, -1, 2])


def test_a_whole_patch_wants_a_prompt_of_as_many_tokens(stories, reference):
    same = "Sue saw a big red ball"
    if stories.encode(same).shape == stories.encode(PROMPT).shape:
        z = held(stories, AskedChanges(patch=[(3, 2)], other=same), reference)
        assert_close(z[3][0, :, 2], capture(stories, stories.encode(same)).z[3][0, :, 2])
    with pytest.raises(UsageError, match="the other prompt has"):
        held(stories, AskedChanges(patch=[(3, 2)], other=OTHER), reference)
    with pytest.raises(UsageError, match="position -30 is not in the other prompt"):
        held(stories, AskedChanges(patch=[(3, 2)], other=OTHER, positions=[-30]), reference)


def test_a_patch_from_nowhere_and_a_head_that_is_not_there_are_refused(stories, reference):
    with pytest.raises(UsageError, match="a patch needs a head and the prompt"):
        AskedChanges(patch=[(3, 2)])
    with pytest.raises(UsageError, match="no head 99 in layer 1"):
        make_changes(stories, AskedChanges(ablate=[(1, 99)]), prompt=PROMPT, reference=reference)


def test_words_of_a_prompt_stand_for_their_last_token(stories):
    ids = stories.encode(PROMPT)[0]
    place = last_token_of(stories, PROMPT, "big red")
    read = stories.tokenizer.decode(ids[: len(ids) + place + 1], skip_special_tokens=True)
    assert read.strip() == "Tom saw a big red"
    assert last_token_of(stories, PROMPT, "ball") == -1
    for piece in ("blue", " "):
        with pytest.raises(UsageError, match="is not in the text"):
            last_token_of(stories, PROMPT, piece)
