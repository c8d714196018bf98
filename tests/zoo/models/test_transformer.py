"""The Transformer: judged by torch's own, by its own steps, and by what it learns."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from saccade.errors import UsageError
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ensemble import log_prob_of
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Stepper
from saccade.zoo.models.transformer import DecoderLayer, EncoderLayer, Transformer, head_traces
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.tasks.pairs import PairBatch, Pairs
from saccade.zoo.tasks.vocabulary import BOS, EOS, Padded, Ragged

N_SOURCE, N_TARGET = 23, 29
KINDS = list(itertools.product([True, False], ["sinusoidal", "learned"]))


def make(*, dropout=0.0, is_pre_norm=True, positions="sinusoidal", ties="target", seed=0, **sizes):
    torch.manual_seed(seed)
    held = {"n_source": N_SOURCE, "n_target": N_TARGET, "d_model": 12, "d_hidden": 17, **sizes}
    return Transformer(
        n_layers=2,
        n_heads=3,
        dropout=dropout,
        is_pre_norm=is_pre_norm,
        positions=positions,
        ties=ties,
        **held,
    )


def pairs_of(*lengths: tuple[int, int]) -> Pairs:
    generator = torch.Generator().manual_seed(1)

    def row(n: int, size: int) -> list[int]:
        return torch.randint(4, size, (n,), generator=generator).tolist()

    sources = Ragged.of([row(n, N_SOURCE) for n, _ in lengths])
    return Pairs.of(sources, Ragged.of([row(n, N_TARGET) for _, n in lengths]))


@pytest.fixture
def batch() -> PairBatch:
    return pairs_of((5, 7), (3, 2), (6, 4)).batch(torch.arange(3))


def source_of(batch: PairBatch) -> Padded:
    return Padded(batch.source, batch.source_mask)


@pytest.mark.parametrize("is_pre_norm", [True, False])
def test_an_encoder_layer_is_that_of_torch(is_pre_norm, batch):
    torch.manual_seed(2)
    theirs = nn.TransformerEncoderLayer(
        12, 3, dim_feedforward=17, dropout=0.0, batch_first=True, norm_first=is_pre_norm
    )
    ours = EncoderLayer(12, 3, d_hidden=17, dropout=0.0, is_pre_norm=is_pre_norm)
    copy = {
        "attention": theirs.self_attn,
        "feed_forward.0": theirs.linear1,
        "feed_forward.2": theirs.linear2,
        "around_attention.norm": theirs.norm1,
        "around_feed_forward.norm": theirs.norm2,
    }
    for name, module in copy.items():
        ours.get_submodule(name).load_state_dict(module.state_dict())
    x, mask = torch.randn(3, 7, 12), batch.source_mask
    wanted = theirs(x, src_key_padding_mask=~mask)
    assert torch.allclose(ours(x, mask[:, None])[0][mask], wanted[mask], atol=1e-5)


@pytest.mark.parametrize("is_pre_norm", [True, False])
def test_a_decoder_layer_is_that_of_torch(is_pre_norm, batch):
    torch.manual_seed(3)
    theirs = nn.TransformerDecoderLayer(
        12, 3, dim_feedforward=17, dropout=0.0, batch_first=True, norm_first=is_pre_norm
    )
    ours = DecoderLayer(12, 3, d_hidden=17, dropout=0.0, is_pre_norm=is_pre_norm)
    copy = {
        "attention": theirs.self_attn,
        "cross": theirs.multihead_attn,
        "feed_forward.0": theirs.linear1,
        "feed_forward.2": theirs.linear2,
        "around_attention.norm": theirs.norm1,
        "around_cross.norm": theirs.norm2,
        "around_feed_forward.norm": theirs.norm3,
    }
    for name, module in copy.items():
        ours.get_submodule(name).load_state_dict(module.state_dict())
    x, memory, mask = torch.randn(3, 5, 12), torch.randn(3, 7, 12), batch.source_mask
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    wanted = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=~mask)
    assert torch.allclose(ours(x, memory, mask[:, None])[0], wanted, atol=1e-5)


@pytest.mark.parametrize(("is_pre_norm", "positions"), KINDS)
def test_steps_say_what_the_whole_says(is_pre_norm, positions, batch):
    model = make(is_pre_norm=is_pre_norm, positions=positions).eval()
    whole = model(batch).log_softmax(-1)
    memory, state = model.start(source_of(batch))
    by_step = []
    for tokens in batch.target_in.T:
        stepped = model.step(tokens, memory, state)
        state = stepped.state
        by_step.append(stepped.log_probs)
    stacked = torch.stack(by_step, dim=1)[batch.target_mask]  # [token, d_vocab]
    assert torch.allclose(stacked, whole, atol=1e-5)


def test_padding_changes_nothing(batch):
    model = make().eval()
    together = model(batch).split(batch.target_mask.sum(1).tolist())
    pairs = pairs_of((5, 7), (3, 2), (6, 4))
    for row, logits in enumerate(together):
        assert torch.allclose(logits, model(pairs.batch(torch.tensor([row]))), atol=1e-5)


def test_hypotheses_of_a_sentence_share_its_memory(batch):
    model = make().eval()
    memory, state = model.start(source_of(batch))
    tokens = torch.arange(4, 10)  # two hypotheses of each of the three sentences
    wide = model.step(tokens, memory, tuple(_twice(each) for each in state))
    wider = model.step(tokens.flip(0), memory, wide.state)
    for row in range(6):
        alone = Padded(*(part[row // 2][None] for part in source_of(batch)))
        one_memory, one_state = model.start(alone)
        stepped = model.step(tokens[row, None], one_memory, one_state)
        assert torch.allclose(stepped.log_probs[0], wide.log_probs[row], atol=1e-5)
        stepped = model.step(tokens.flip(0)[row, None], one_memory, stepped.state)
        assert torch.allclose(stepped.log_probs[0], wider.log_probs[row], atol=1e-5)


def _twice(kept):
    return type(kept)(*(part.repeat_interleave(2, 0) for part in kept))


def test_it_can_be_decoded_and_its_beam_tells_the_likelihood(batch):
    model = make().eval()
    assert isinstance(model, Stepper)
    source = source_of(batch)
    found = beam(model, source, size=4, max_length=6).best
    again = log_prob_of(model, source, [[each.ids] for each in found])[:, 0]
    assert again.tolist() == pytest.approx([each.log_prob for each in found], abs=1e-4)


@pytest.mark.parametrize("ties", ["all", "target", "none"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_gradients_reach_every_weight(ties, positions, batch):
    model = make(ties=ties, positions=positions, n_source=N_TARGET, dropout=0.1)
    token_loss(model(batch), batch.target_out[batch.target_mask], smoothing=0.1).loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_tied_embeddings_are_one():
    model = make(ties="all", n_source=N_TARGET)
    assert model.source_embedding.weight is model.output.weight is model.target_embedding.weight
    apart = make(ties="none")
    assert apart.output.weight is not apart.target_embedding.weight


def test_vocabularies_of_different_size_cannot_share_their_embeddings():
    with pytest.raises(UsageError, match="shared by vocabularies of 23 and 29"):
        make(ties="all")


def test_heads_look_at_real_places_and_at_the_past_only(batch):
    model = make().eval()
    looks = model.look(source_of(batch), batch.target_in)
    assert looks.source.shape == (3, 2, 3, 7, 7)
    assert looks.cross.shape == (3, 2, 3, 8, 7)
    for weights in looks:
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
    padding = ~batch.source_mask[:, None, None, None]
    assert (looks.source * padding == 0).all() and (looks.cross * padding == 0).all()
    assert (looks.past.triu(1) == 0).all()


def test_looking_goes_through_the_same_network(batch):
    """The last cross weights depend on all that comes before them in both stacks."""
    model = make().eval()
    looks = model.look(source_of(batch), batch.target_in)
    seen = {}

    def keep(module, given, told, result):
        seen["query"], seen["memory"] = given

    handle = model.decoder[1].cross.register_forward_hook(keep, with_kwargs=True)
    model(batch)
    handle.remove()
    mask = batch.source_mask[:, None]
    cross = model.decoder[1].cross
    wanted = cross(seen["query"], seen["memory"], mask=mask, need_weights=True).weights
    assert torch.allclose(looks.cross[:, 1], wanted, atol=1e-5)


def test_traces_name_every_head():
    model = make().eval()
    ids = torch.tensor([[4, 5, EOS]])
    looks = model.look(Padded(ids, ids > 0), torch.tensor([[BOS, 7]]))
    labels = {"source": ["ein", "Hund", "</s>"], "read": ["<s>", "dog"], "said": ["dog", "</s>"]}
    traces = head_traces(looks, **labels, title="dog")
    assert [each.kind for each in traces] == [
        "cross-attention",
        "past-attention",
        "source-attention",
    ]
    assert traces[0].views == ("0.0", "0.1", "0.2", "1.0", "1.1", "1.2")
    assert torch.equal(traces[0].weights[4], looks.cross[0, 1, 1])
    assert (traces[2].steps, traces[2].memory) == (traces[2].memory, ("ein", "Hund", "</s>"))


def test_it_learns_to_say_its_source_back_to_front():
    torch.manual_seed(5)
    model = make(d_model=24, d_hidden=48, seed=5)
    rows = torch.randint(4, 11, (512, 5)).tolist()
    pairs = Pairs.of(Ragged.of(rows), Ragged.of(rows), is_reversed=True)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    # The rate falls: at a constant one the end depends on how a processor rounds.
    falling = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, total_iters=20)
    for epoch in range(20):
        for part in pairs.batches(tokens=384, seed=0, epoch=epoch):
            out = token_loss(model(part), part.target_out[part.target_mask])
            optimiser.zero_grad()
            out.loss.backward()
            optimiser.step()
        falling.step()
    fresh = torch.randint(4, 11, (64, 5), generator=torch.Generator().manual_seed(6))
    ids = torch.cat([fresh, torch.full((64, 1), EOS)], dim=1)
    said = [each.ids for each in greedy(model.eval(), Padded(ids, ids > 0), max_length=8)]
    right = sum(ids == row[::-1] for ids, row in zip(said, fresh.tolist(), strict=True))
    assert right > 57, f"{right} of 64"
