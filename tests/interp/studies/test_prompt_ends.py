"""Prompt ends, compared with each prompt run whole and alone."""

from __future__ import annotations

import pytest
import torch
from families import tiny
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.interp.heads.intervene import Ablate, InjectResidual, intervene
from saccade.interp.heads.model import wrap_model
from saccade.interp.studies.prompts import PromptEnds

LENGTHS = (9, 5, 7)


@pytest.fixture
def prompts():
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(3, 101, (n,), generator=generator) for n in LENGTHS]


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "bloom", "opt", "falcon"])
@pytest.mark.parametrize("tail", [1, 3])
def test_prompts_of_any_length_end_as_each_does_alone(family, tail, prompts):
    model = wrap_model(tiny(family), None, name=family)
    ends = PromptEnds(model, prompts, tail=tail)
    push = torch.randn(model.d_model, generator=torch.Generator().manual_seed(5))
    changes = [
        Ablate(1, 2, positions=range(-tail, 0)),
        InjectResidual(0, push, 2.0, positions=[-1]),
    ]
    for asked in ([], changes, changes[:1]):
        found = ends.logits(asked)
        for row, prompt in enumerate(prompts):
            with torch.no_grad():
                if not asked:
                    expected = model.hf(input_ids=prompt[None]).logits[0, -1]
                else:
                    with intervene(model, asked):
                        expected = model.hf(input_ids=prompt[None]).logits[0, -1]
            assert_close(found[row], expected, atol=1e-4, rtol=1e-3)


def test_a_prompt_that_is_all_tail_is_refused(prompts):
    model = wrap_model(tiny("llama"), None, name="llama")
    with pytest.raises(UsageError, match="no more than 5 tokens"):
        PromptEnds(model, prompts, tail=5)
