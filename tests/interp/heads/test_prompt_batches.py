"""Prompts in batches: each once, padded at the end, and read as if alone."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.prompt_batches import encode_prompts, prompt_batches

PROMPTS = ["One day, Lily", "Tom", "The cat saw a big red ball in the park", "She was happy"]


def test_every_prompt_is_in_one_batch_and_no_batch_is_too_large():
    encoded = [torch.arange(n) for n in (7, 3, 11, 2, 5, 13, 3)]
    batches = list(prompt_batches(encoded, max_tokens=14))
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(7))
    for batch in batches:
        assert batch.ids.numel() <= 14
        for row, ids, mask, last in zip(*batch, batch.last, strict=True):
            assert torch.equal(ids[mask], encoded[row])
            assert last == len(encoded[row]) - 1


def test_padding_does_not_change_activations(stories):
    encoded = encode_prompts(stories, PROMPTS)
    (batch,) = prompt_batches(encoded)
    together = capture(stories, batch.ids, mask=batch.mask)
    for place, row in enumerate(batch.rows.tolist()):
        alone = capture(stories, encoded[row][None])
        for layer, z in alone.z.items():
            activation = together.z[layer][place, batch.last[place]]
            torch.testing.assert_close(activation, z[0, -1], atol=1e-5, rtol=1e-4)


def test_no_prompts_are_refused_and_an_empty_one_is_named(stories):
    with pytest.raises(UsageError, match="there are no prompts"):
        encode_prompts(stories, [])
    with pytest.raises(UsageError, match="prompt 2: the text is empty"):
        encode_prompts(stories, ["Lily", "  "])
