"""Effects of heads against interventions on whole runs, and against direct logit attribution."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import kl_div

sys.path.insert(0, str(Path(__file__).parents[1] / "heads"))  # families.py is beside its tests

from families import VOCAB, tiny

from saccade.interp.effects.effects import EVERY_KIND, Part, correlation, measure_effects
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate, intervene
from saccade.interp.heads.model import LanguageModel, wrap_model
from saccade.interp.heads.residual_path import direct_logits

N_TOKENS, TOP = 11, 5


@pytest.fixture(scope="module", params=["llama", "gemma2", "gpt2", "falcon", "granite"])
def model(request) -> LanguageModel:
    wrapped = wrap_model(tiny(request.param), None, name=request.param)
    wrapped._shown.update({id_: f"<{id_}>" for id_ in range(VOCAB)})  # no tokenizer
    return wrapped


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(VOCAB, (1, N_TOKENS), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def mean(model) -> Replacement:
    text = torch.randint(VOCAB, (5, 17), generator=torch.Generator().manual_seed(8))
    return Replacement.mean(model, text)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(17, 23)


@pytest.fixture(scope="module")
def effects(model, ids, mean, target):
    return measure_effects(
        model, ids, replacement=mean, targets=target, kinds=EVERY_KIND, top=TOP
    ).effects[0]


def logits_of(model, ids) -> torch.Tensor:
    return model.hf(input_ids=ids).logits[0, -1].float()


def logits_without(model, ids, mean: Replacement, layer: int, heads: list[int]) -> torch.Tensor:
    """The whole model with some heads replaced at the last position."""
    changes = [
        Ablate(layer, head, "mean", mean.heads[layer][head], positions=[N_TOKENS - 1])
        for head in heads
    ]
    with intervene(model, changes), torch.no_grad():
        return logits_of(model, ids)


@torch.no_grad()
def test_kl_and_fall_of_the_token_are_those_of_whole_runs(model, ids, mean, effects, target):
    plain = logits_of(model, ids)
    largest = 0.0
    for at in model.layers:
        for head in [*range(at.n_heads), None]:
            part = Part(at.index, head, "attention" if head is None else "head")
            heads = list(range(at.n_heads)) if head is None else [head]
            without = logits_without(model, ids, mean, at.index, heads)
            kl = kl_div(without.log_softmax(-1), plain.softmax(-1), reduction="sum")
            found = effects.parts[part]
            assert found.kl == pytest.approx(float(kl), rel=1e-3, abs=1e-6)
            fall = (plain[17] - plain[23]) - (without[17] - without[23])
            assert found.on_token == pytest.approx(float(fall), rel=1e-3, abs=1e-4)
            largest = max(largest, float(kl))
    assert largest > 1e-3


@torch.no_grad()
def test_promoted_and_suppressed_tokens_are_those_whose_probability_moves(
    model, ids, mean, effects
):
    plain = logits_of(model, ids).log_softmax(-1)
    at = model.layers[1]
    without = logits_without(model, ids, mean, at.index, [1]).log_softmax(-1)
    change = plain - without
    weighted = change * ((plain.exp() + without.exp()) / 2).sqrt()
    found = effects.parts[Part(at.index, 1, "head")]
    assert [token.id for token in found.promotes] == weighted.topk(TOP).indices.tolist()
    assert [token.id for token in found.suppresses] == (-weighted).topk(TOP).indices.tolist()
    for token in (*found.promotes, *found.suppresses):
        assert token.value == pytest.approx(float(change[token.id]), rel=1e-3, abs=1e-5)
    assert all(token.value > 0 for token in found.promotes)
    assert all(token.value < 0 for token in found.suppresses)


@torch.no_grad()
def test_direct_parts_are_direct_logit_attribution(model, ids):
    """Against zero, and against `direct_logits`, which projects each head by itself."""
    found = measure_effects(
        model, ids, replacement=Replacement.zero(model), targets=Target(17, 23)
    ).effects[0]
    captured = capture(model, ids, residual=True)
    last = [N_TOKENS - 1]
    for at in model.layers:
        one, other = (
            direct_logits(model, captured, at.index, torch.tensor([[token]]), positions=last)[0, 0]
            for token in (17, 23)
        )
        for head in range(at.n_heads):
            direct = found.parts[Part(at.index, head, "head")].direct
            assert direct == pytest.approx(float(one[head] - other[head]), rel=1e-3, abs=1e-5)


@torch.no_grad()
def test_direct_parts_of_a_whole_model_add_up_to_its_score(ids):
    """Embedding, heads, biases and feed-forward parts: all that is written into the stream."""
    model = wrap_model(tiny("llama"), None, name="llama")
    model._shown.update({id_: f"<{id_}>" for id_ in range(VOCAB)})
    zero, target = Replacement.zero(model), Target(3, 5)
    found = measure_effects(
        model, ids, replacement=zero, targets=target, kinds=["attention", "feed-forward"]
    ).effects[0]
    captured = capture(model, ids, residual=True)
    embedded = model.hf.get_input_embeddings()(ids)[:, -1]
    states = model.final_norm.frozen(embedded, captured.final_residual[:, -1])
    start = float(states[0] @ target.direction(model.unembedding))
    total = start + sum(effect.direct for effect in found.parts.values())
    assert total == pytest.approx(found.target_score, abs=1e-4)


def test_an_effect_of_nothing_is_nothing(model, ids):
    """A head that is replaced by its own activation."""
    captured = capture(model, ids)
    own = Replacement("prompt", {layer: z[0, -1] for layer, z in captured.z.items()})
    found = measure_effects(model, ids, replacement=own).effects[0]
    assert max(effect.kl for effect in found.parts.values()) < 1e-7
    assert max(abs(effect.on_token) for effect in found.parts.values()) < 1e-4


def test_the_default_target_is_the_likeliest_token(model, ids, mean):
    found = measure_effects(model, ids, replacement=mean, top=TOP).effects[0]
    logits = logits_of(model, ids)
    assert found.target.token == int(logits.argmax())
    assert found.prediction.ids[0].tolist() == logits.topk(TOP).indices.tolist()
    assert found.target_score == pytest.approx(float(logits.max() - logits.mean()), abs=1e-4)


def test_prompts_of_a_batch_have_the_effects_they_have_alone(model, mean):
    rows = torch.randint(VOCAB, (3, 7), generator=torch.Generator().manual_seed(6))
    lengths, targets = [7, 3, 5], [Target(1), None, Target(4, 9)]
    together = measure_effects(
        model, rows, replacement=mean, lengths=lengths, targets=targets, top=TOP
    ).effects
    for row, n in enumerate(lengths):
        alone = measure_effects(
            model, rows[row : row + 1, :n], replacement=mean, targets=targets[row], top=TOP
        ).effects[0]
        for part, effect in alone.parts.items():
            assert together[row].parts[part].kl == pytest.approx(effect.kl, rel=1e-3, abs=1e-6)
            assert together[row].parts[part].on_token == pytest.approx(effect.on_token, abs=1e-4)


def test_a_lens_that_is_the_model_agrees_with_it(ids):
    """A lens made from the exact effects: its change is the model's, so it correlates with 1."""
    model = wrap_model(tiny("llama"), None, name="llama")
    model._shown.update({id_: f"<{id_}>" for id_ in range(VOCAB)})
    zero = Replacement.zero(model)
    plain = logits_of(model, ids)

    def lens(layer: int, activation: torch.Tensor) -> torch.Tensor:
        assert activation.shape[0] == 2  # the activation, and what replaces it
        rows = []
        for head in range(model.layer(layer).n_heads):
            ablated = Ablate(layer, head, positions=[N_TOKENS - 1])
            with intervene(model, ablated), torch.no_grad():
                rows.append(logits_of(model, ids))
        return torch.stack([plain.expand(len(rows), -1), torch.stack(rows)])

    found = measure_effects(model, ids, replacement=zero, lens_logits=lens).effects[0]
    for effect in found.parts.values():
        assert effect.lens_agreement == pytest.approx(1.0, abs=1e-3)


def test_agreement_is_a_weighted_correlation():
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 3, 29, generator=generator, dtype=torch.float64)
    counts = torch.randint(1, 5, (29,), generator=generator)
    weight = counts.double() / counts.sum()
    for row in range(3):
        repeated = [each[row].repeat_interleave(counts) for each in (a, b)]
        expected = torch.corrcoef(torch.stack(repeated))[0, 1]
        found = correlation(a[row : row + 1], b[row : row + 1], weight)
        assert float(found) == pytest.approx(float(expected), abs=1e-9)
