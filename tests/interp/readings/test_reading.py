"""Readings are judged by loops in plain Python, and by what Hugging Face's own model gives."""

import json
import math
from dataclasses import replace

import pytest
import torch

LAYERS, HEADS, D_HEAD, D_MODEL, VOCAB, TOP = 3, 6, 10, 48, 101, 7
TEXT = "w17 w3 w41 w5 w29 w97"


def tiny_model():
    """A random llama whose tokens are w0 to w100, split at spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    from saccade.interp.heads.model import wrap_model

    torch.manual_seed(11)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCAB,
        hidden_size=D_MODEL,
        intermediate_size=53,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        head_dim=D_HEAD,
        max_position_embeddings=19,
        initializer_range=0.3,
    )
    hf = AutoModelForCausalLM.from_config(config)
    tokens = {f"w{n}": n for n in range(VOCAB)}
    backend = Tokenizer(models.WordLevel(tokens, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0")
    return wrap_model(hf, tokenizer, name="tiny")


def with_lenses(model, make, *, quality=None):
    from saccade.interp.lenses.lens_set import Lenses, Provenance

    generator = torch.Generator().manual_seed(5)
    by_layer = {at.index: make(model, at.index, generator) for at in model.layers}
    provenance = Provenance(
        prefix=model.prefix,
        model=model.name,
        model_fingerprint=model.fingerprint,
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        kind=by_layer[0].kind,
        method="random",
        corpus="none",
        corpus_fingerprint="0",
        n_tokens=0,
    )
    baseline = torch.randn(model.d_vocab, generator=generator).mul(2).log_softmax(-1)
    return Lenses(
        model=model,
        by_layer=by_layer,
        baseline=baseline,
        provenance=provenance,
        quality=quality or {},
    )


def random_head_lens(model, layer, generator):
    from saccade.interp.lenses.head_lens import HeadLens

    lens = HeadLens.start(model, layer).requires_grad_(False)
    for parameter in lens.parameters():
        parameter.normal_(0, 0.3, generator=generator)
    return lens


def logit_lens(model, layer, _):
    from saccade.interp.lenses.residual_lenses import LogitLens

    return LogitLens.start(model, layer)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def lenses(model):
    gain = {str(layer): [0.1 * layer - 0.07 * h for h in range(HEADS)] for layer in range(LAYERS)}
    kl = {layer: [3.0 - each for each in row] for layer, row in gain.items()}
    return with_lenses(model, random_head_lens, quality={"kl": kl, "gain": gain})


@pytest.fixture(scope="module")
def reading(lenses):
    from saccade.interp.readings.reader import read

    return read(lenses, TEXT, top=TOP, unembedding=True)


@pytest.fixture(scope="module")
def run(model):
    """What passes by in a run of the Hugging Face model itself, seen by hooks of this test."""
    seen = {"z": {}, "wrote": {}}
    handles = []
    for layer, block in enumerate(model.hf.model.layers):

        def keep(_, args, output, layer=layer):
            seen["z"][layer] = args[0][0, -1].view(HEADS, D_HEAD)
            seen["wrote"][layer] = output[0, -1]

        handles.append(block.self_attn.o_proj.register_forward_hook(keep))
    handles.append(
        model.hf.model.norm.register_forward_pre_hook(
            lambda _, args: seen.__setitem__("end", args[0][0, -1])
        )
    )
    with torch.no_grad():
        seen["logits"] = model.hf(model.encode(TEXT)).logits[0, -1]
    for handle in handles:
        handle.remove()
    return seen


def softmax_by_hand(logits):
    most = max(logits)
    parts = [math.exp(logit - most) for logit in logits]
    return [part / sum(parts) for part in parts]


def chances_by_loops(lenses, z, layer, head):
    """p of every token under one lens: W_U (A z + b) + c, then a softmax, number by number."""
    lens, rows = lenses.by_layer[layer], lenses.model.unembedding.weight.tolist()
    weight, bias = lens.weight[head].tolist(), lens.bias[head].tolist()
    hidden = [
        bias[d] + sum(z[layer][head][i].item() * weight[i][d] for i in range(D_HEAD))
        for d in range(D_MODEL)
    ]
    token_bias = lens.token_bias[head].tolist()
    return softmax_by_hand(
        [
            token_bias[w] + sum(a * b for a, b in zip(rows[w], hidden, strict=True))
            for w in range(VOCAB)
        ]
    )


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 5), (2, 3)])
def test_what_a_head_says_agrees_with_loops_over_the_tokens(lenses, reading, run, layer, head):
    p = chances_by_loops(lenses, run["z"], layer, head)
    usual = [math.exp(each) for each in lenses.baseline.tolist()]
    shares = [a * math.log(a / b) for a, b in zip(p, usual, strict=True)]
    drops = [b * math.log(a / b) for a, b in zip(p, usual, strict=True)]
    read = reading.at(layer, head)
    assert read.kl_from_baseline == pytest.approx(sum(shares), rel=1e-4)
    for tokens, figures, sign in (
        (read.predicts, p, 1),
        (read.adds, shares, 1),
        (read.suppresses, drops, -1),
    ):
        order = sorted(range(VOCAB), key=lambda w, f=figures, s=sign: -s * f[w])[:TOP]
        assert [token.id for token in tokens] == order
        assert [token.value for token in tokens] == pytest.approx(
            [figures[w] for w in order], rel=1e-3
        )
        assert [token.text.strip() for token in tokens] == [f"w{w}" for w in order]


def test_an_added_token_is_likelier_than_always_and_a_suppressed_one_less(lenses, reading, run):
    usual = [math.exp(each) for each in lenses.baseline.tolist()]
    p = chances_by_loops(lenses, run["z"], 1, 2)
    read = reading.at(1, 2)
    assert read.adds and read.suppresses
    assert all(p[token.id] > usual[token.id] and token.value > 0 for token in read.adds)
    assert all(p[token.id] < usual[token.id] and token.value < 0 for token in read.suppresses)


def test_the_prediction_is_the_models_own(reading, run):
    p = softmax_by_hand(run["logits"].tolist())
    order = sorted(range(VOCAB), key=lambda w: -p[w])[:TOP]
    assert [token.id for token in reading.prediction] == order
    assert reading.prediction[0].value == pytest.approx(p[order[0]], rel=1e-4)


def frozen_by_hand(model, run, part):
    scale = (run["end"].square().mean() + model.hf.config.rms_norm_eps).rsqrt()
    return part * scale * model.hf.model.norm.weight


def test_contributions_sum_to_what_all_attention_adds_to_the_predicted_tokens_logit(
    model, reading, run
):
    row = model.hf.lm_head.weight[reading.prediction[0].id]
    whole = sum(float(frozen_by_hand(model, run, run["wrote"][at]) @ row) for at in range(LAYERS))
    assert sum(head.direct for head in reading.heads) == pytest.approx(whole, rel=1e-4)


def test_a_contribution_and_the_raw_unembedding_are_those_of_the_heads_own_columns(
    model, reading, run
):
    layer, head = 1, 4
    columns = model.hf.model.layers[layer].self_attn.o_proj.weight[
        :, head * D_HEAD : (head + 1) * D_HEAD
    ]
    added = frozen_by_hand(model, run, columns @ run["z"][layer][head])
    logits = (model.hf.lm_head.weight @ added).tolist()
    read = reading.at(layer, head)
    assert read.direct == pytest.approx(logits[reading.prediction[0].id], rel=1e-3)
    order = sorted(range(VOCAB), key=lambda w: -logits[w])[:TOP]
    assert [token.id for token in read.unembedded] == order
    assert [w.value for w in read.unembedded] == pytest.approx([logits[w] for w in order], rel=1e-3)


def test_a_head_attends_to_what_the_eager_model_says_it_does(model, reading):
    model.hf.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            rows = model.hf(model.encode(TEXT), output_attentions=True).attentions
    finally:
        model.hf.set_attn_implementation("sdpa")
    for layer in range(LAYERS):
        for head in range(HEADS):
            weights = rows[layer][0, head, -1].tolist()
            shown = reading.at(layer, head).attends
            order = sorted(range(len(weights)), key=lambda k, w=weights: -w[k])[: len(shown)]
            assert [source.position for source in shown] == order
            assert [s.weight for s in shown] == pytest.approx([weights[k] for k in order], abs=1e-5)
            assert [s.text.strip() for s in shown] == [TEXT.split()[k] for k in order]


def test_heads_come_in_order_of_depth_and_each_ranking_falls(reading):
    assert [(head.layer, head.head) for head in reading.heads] == [
        (layer, head) for layer in range(LAYERS) for head in range(HEADS)
    ]
    for by, figure in (
        ("lens", lambda head: head.kl_from_baseline),
        ("direct", lambda head: head.direct),
        ("quality", lambda head: head.quality["gain"]),
    ):
        ranked = reading.ranked(by)
        assert sorted(ranked, key=figure, reverse=True) == list(ranked)
        assert {head.name for head in ranked} == {head.name for head in reading.heads}


def test_quality_is_that_of_the_lens_and_a_share_of_the_baseline_lens(reading):
    head = reading.at(2, 0)
    assert head.quality == pytest.approx({"kl": 2.8, "gain": 0.2})
    assert head.explained == pytest.approx(0.2 / 3.0)


def test_a_position_inside_a_text_is_read_as_if_the_text_ended_there(lenses):
    from saccade.interp.readings.reader import read

    inside, cut = read(lenses, TEXT, position=2), read(lenses, " ".join(TEXT.split()[:3]))
    assert inside.position == cut.position == 2
    assert len(inside.tokens) == 6 and len(cut.tokens) == 3
    assert [h.kl_from_baseline for h in inside.heads] == pytest.approx(
        [h.kl_from_baseline for h in cut.heads], rel=1e-4
    )
    assert [[w.id for w in h.adds] for h in inside.heads] == [
        [w.id for w in h.adds] for h in cut.heads
    ]
    assert read(lenses, TEXT, position=-4).to_dict() == inside.to_dict()


def test_lenses_measured_together_say_what_they_say_alone(monkeypatch):
    from saccade.interp.lenses import top_tokens

    generator = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(5, 1301, generator=generator)
    baseline = torch.randn(1301, generator=generator).log_softmax(-1)
    together = top_tokens.lens_prediction(logits, baseline, top=3)
    monkeypatch.setattr(top_tokens, "CHUNK", 2 * 1301)  # three chunks, the last of one row
    for said in (
        top_tokens.lens_prediction(logits, baseline, top=3),
        *(top_tokens.lens_prediction(logits[at : at + 1], baseline, top=3) for at in range(5)),
    ):
        at = (
            slice(None)
            if len(said.kl_from_baseline) == 5
            else int((together.kl_from_baseline == said.kl_from_baseline).nonzero())
        )
        torch.testing.assert_close(
            said.kl_from_baseline, together.kl_from_baseline[at].view_as(said.kl_from_baseline)
        )
        for part, whole in zip(said[1:], together[1:], strict=True):
            assert torch.equal(part.ids, whole.ids[at].view_as(part.ids))


def test_all_shares_sum_to_the_kl_from_the_baseline():
    from saccade.interp.lenses.top_tokens import lens_prediction

    generator = torch.Generator().manual_seed(2)
    logits, baseline = torch.randn(3, 29, generator=generator), torch.randn(29).log_softmax(-1)
    said = lens_prediction(logits, baseline, top=29)
    torch.testing.assert_close(said.adds.values.sum(-1), said.kl_from_baseline)
    torch.testing.assert_close(said.predicts.values.sum(-1), torch.ones(3))
    backwards = (baseline.exp() * (logits.log_softmax(-1) - baseline)).sum(-1)
    torch.testing.assert_close(said.suppresses.values.sum(-1), backwards)


def test_a_lens_that_is_the_baseline_one_says_nothing():
    from saccade.interp.lenses.top_tokens import lens_prediction

    baseline = torch.randn(31).log_softmax(-1)
    assert (
        lens_prediction(baseline[None] + 5.0, baseline, top=3).kl_from_baseline.abs().item() < 1e-5
    )


def test_a_token_that_the_baseline_lens_has_never_seen_does_not_make_the_kl_infinite():
    from saccade.interp.lenses.top_tokens import lens_prediction

    baseline = torch.tensor([0.5, 0.5, 0.0]).log()
    said = lens_prediction(torch.tensor([[1.0, 1.0, 1.0]]), baseline, top=1)
    assert said.kl_from_baseline.isfinite().all() and int(said.adds.ids) == 2


@pytest.mark.parametrize("d_vocab", [5, 640, 641, 1301, 4096])
def test_the_largest_are_those_of_topk(d_vocab):
    from saccade.interp.lenses.top_tokens import largest

    scores = torch.randn(3, d_vocab, generator=torch.Generator().manual_seed(d_vocab))
    found, expected = largest(scores, 5), scores.topk(5)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.ids, expected.indices)


def test_a_lens_of_the_residual_stream_is_one_entry_a_layer_and_the_last_is_the_model(model):
    from saccade.errors import LensError
    from saccade.interp.readings.reader import read

    reading = read(with_lenses(model, logit_lens), TEXT, top=TOP)
    assert [(head.layer, head.head, head.name) for head in reading.heads] == [
        (layer, None, str(layer)) for layer in range(LAYERS)
    ]
    last = reading.at(LAYERS - 1)
    assert [token.id for token in last.predicts] == [token.id for token in reading.prediction]
    assert last.direct is None and last.attends == () and last.unembedded == ()
    with pytest.raises(LensError, match="no head has a direct effect"):
        reading.ranked("direct")
    assert reading.to_table(heads=2).count("  lens  ") == 2  # one per entry
    assert f'"layer":{LAYERS - 1},"head":null' in reading.to_html()


def test_a_model_that_hides_its_attention_is_read_without_it(lenses, monkeypatch):
    from saccade.errors import ModelError
    from saccade.interp.lenses import reading

    own = reading.capture

    def hiding(*args, attention=(), **kwargs):
        if attention:
            raise ModelError("could not see the attention weights", hint="")
        return own(*args, **{k: v for k, v in kwargs.items() if k != "attention_positions"})

    monkeypatch.setattr(reading, "capture", hiding)
    heads = reading.read(lenses, TEXT).heads
    assert all(head.attends == () and head.direct is not None for head in heads)


def test_the_json_holds_what_the_reading_does(reading):
    loaded = json.loads(reading.to_json())
    assert loaded["tokens"] == reading.tokens and loaded["position"] == 5
    assert len(loaded["heads"]) == LAYERS * HEADS
    head = loaded["heads"][-1]
    assert (head["layer"], head["head"]) == (LAYERS - 1, HEADS - 1)
    assert head["kl_from_baseline"] == pytest.approx(reading.heads[-1].kl_from_baseline, rel=1e-5)
    assert head["adds"][0].keys() == {"id", "text", "value"}
    assert head["attends"][0].keys() == {"position", "text", "weight"}


def test_without_being_asked_the_raw_unembedding_is_left_out(lenses):
    from saccade.interp.readings.reader import read

    assert all(head.unembedded == () for head in read(lenses, TEXT).heads)


@pytest.mark.parametrize("width", [40, 79, 120])
def test_the_table_keeps_to_its_width_and_shows_spaces(reading, width):
    text = reading.to_table(width=width, heads=3)
    assert max(map(len, text.splitlines())) <= width
    assert "·w" in text and "\x1b" not in text
    assert text.count("  adds  ") == 3


def test_a_weak_lens_is_called_weak(reading):
    from saccade.interp.readings.reading_table import grade

    assert "weak" in grade(reading.at(0, 5)) and "weak" not in grade(reading.at(2, 0))
    assert grade(replace(reading.at(2, 0), quality={})) == "not scored"


def test_what_cannot_be_read_is_refused_in_words(model, lenses, reading):
    from saccade.errors import LensError, UsageError
    from saccade.interp.readings.reader import read

    for call, kind, tokens in (
        (lambda: read(lenses, "  "), UsageError, "the text is empty"),
        (lambda: read(lenses, "w1 " * 20), UsageError, "has 20 tokens, and tiny reads at most 19"),
        (
            lambda: read(lenses, TEXT, position=6),
            UsageError,
            "no position 6: the text has 6 tokens",
        ),
        (lambda: read(lenses, TEXT, position=-7), UsageError, "no position -7"),
        (lambda: read(lenses, TEXT, top=0), UsageError, "cannot show 0 tokens"),
        (lambda: reading.at(0, 6), UsageError, "no layer 0 head 6: it has 0.0 to 2.5"),
        (lambda: reading.at(1), UsageError, "no layer 1"),
        (
            lambda: read(replace(lenses, quality={}), TEXT).ranked("quality"),
            LensError,
            "never scored",
        ),
    ):
        with pytest.raises(kind, match=tokens) as caught:
            call()
        assert caught.value.hint


def test_reading_leaves_no_hooks_behind(model, lenses):
    from saccade.interp.readings.reader import read

    def n_hooks():  # transformers keeps some of its own once it was asked for attention
        return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.hf.modules()]

    before = n_hooks()
    read(lenses, TEXT)
    assert n_hooks() == before


def test_a_model_that_has_learnt_is_read_too(stories):
    from saccade.interp.readings.reader import read

    reading = read(with_lenses(stories, random_head_lens), "Once upon a time, there was a", top=3)
    assert reading.prediction[0].text == " little"
    assert len(reading.heads) == stories.n_heads
    assert all(head.kl_from_baseline > 0 and len(head.predicts) == 3 for head in reading.heads)
