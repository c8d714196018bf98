"""Scores of lenses, judged by sums over the vocabulary written out as the definitions have them."""

import io
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from saccade.errors import LensError, ModelError, UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.model import wrap_model
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.evaluate import _basis, choose_positions, evaluate_lenses
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.lens import activation_at
from saccade.interp.lenses.lens_set import Lenses, Provenance
from saccade.interp.lenses.residual_lenses import baseline_lenses, tuned_lenses

sys.path.insert(0, str(Path(__file__).parent.parent / "heads"))

from families import VOCAB, tiny

WINDOWS, LENGTH, BYTES = 5, 7, 131
TEN = 10


def corpus_of(windows: torch.Tensor) -> Corpus:
    return Corpus(source="some text", fingerprint="f" * 16, windows=windows, n_bytes=BYTES)


def head_lenses(model, *, size: float = 0.3, seed: int = 0) -> Lenses:
    generator = torch.Generator().manual_seed(seed)
    by_layer = {at.index: HeadLens.start(model, at.index) for at in model.layers}
    for lens in by_layer.values():
        for parameter in lens.parameters():
            parameter.data.copy_(size * torch.randn(parameter.shape, generator=generator))
    provenance = Provenance(
        prefix=model.prefix,
        model=model.name,
        model_fingerprint=model.fingerprint,
        tokenizer_fingerprint="",
        kind="head",
        method="closed-form",
        corpus="other text",
        corpus_fingerprint="0" * 16,
        n_tokens=1000,
    )
    baseline = torch.randn(model.d_vocab, generator=generator).log_softmax(-1)
    return Lenses(model=model, by_layer=by_layer, baseline=baseline, provenance=provenance)


@pytest.fixture(scope="module")
def model():
    return wrap_model(tiny("llama"), None, name="llama")


@pytest.fixture(scope="module")
def lenses(model):
    return head_lenses(model)


@pytest.fixture(scope="module")
def corpus():
    generator = torch.Generator().manual_seed(3)
    return corpus_of(torch.randint(3, VOCAB, (WINDOWS, LENGTH), generator=generator))


@pytest.fixture(scope="module")
def evaluation(lenses, corpus):
    return evaluate_lenses(lenses, corpus, baselines=("logit", "logit-head"))


def softmax(logits: list[float]) -> list[float]:
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@torch.no_grad()
def by_definition(lenses, corpus) -> dict[str, dict[tuple[int, int], float]]:
    """Every measure by loops over windows, positions and lenses, one token after the other."""
    model, figures = lenses.model, {}
    captured = capture(model, corpus.windows, residual=True)
    logits = model.hf(corpus.windows, use_cache=False).logits
    for site in lenses.sites:
        lens = lenses.by_layer[site[0]]
        said = lens(activation_at(model, captured, site[0], lens.site)).unflatten(
            0, (WINDOWS, LENGTH)
        )
        rows = []
        for window in range(WINDOWS):
            for position in range(1, LENGTH - 1):
                p = softmax(logits[window, position].tolist())
                q = softmax(said[window, position, site[1]].tolist())
                order = sorted(range(VOCAB), key=lambda token, q=q: -q[token])
                top, following = p.index(max(p)), int(corpus.windows[window, position + 1])
                bits = -math.log2(q[following]) * WINDOWS * LENGTH / BYTES
                rows.append((kl(p, q), order[0] == top, top in order[:TEN], bits))
        figures[site] = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    names = ("kl", "top1", "top10", "bits_per_byte")
    return {name: {site: row[i] for site, row in figures.items()} for i, name in enumerate(names)}


def test_every_figure_is_what_its_definition_gives(lenses, corpus, evaluation):
    for name, expected in by_definition(lenses, corpus).items():
        found = evaluation.lenses.by_measure()[name]
        assert evaluation.lenses.sites == tuple(expected)
        torch.testing.assert_close(found.tolist(), list(expected.values()), atol=1e-4, rtol=1e-4)


def test_the_figures_of_other_kinds_are_too(model, corpus, evaluation):
    assert [scores.kind for scores in evaluation.baselines] == ["logit", "logit-head"]
    assert len(evaluation.baselines[0].sites) == model.n_layers
    for scores in evaluation.baselines:
        for name, expected in by_definition(baseline_lenses(model, scores.kind), corpus).items():
            found = scores.by_measure()[name].tolist()
            torch.testing.assert_close(found, list(expected.values()), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_the_baseline_lens_and_the_model_are_measured_by_the_same_definitions(
    model, lenses, corpus, evaluation
):
    logits = model.hf(corpus.windows, use_cache=False).logits[:, 1:-1].flatten(0, 1).tolist()
    following = corpus.windows[:, 2:].flatten().tolist()
    q = softmax(lenses.baseline.tolist())
    kls = [kl(softmax(row), q) for row in logits]
    assert evaluation.baseline_kl == pytest.approx(sum(kls) / len(kls), rel=1e-5)
    per_byte = WINDOWS * LENGTH / BYTES / len(following)
    own = [-math.log2(softmax(row)[token]) for row, token in zip(logits, following, strict=True)]
    assert evaluation.model_bits_per_byte == pytest.approx(sum(own) * per_byte, rel=1e-5)
    baseline = -sum(math.log2(q[token]) for token in following) * per_byte
    assert evaluation.baseline_bits_per_byte == pytest.approx(baseline, rel=1e-5)


def test_a_lens_that_always_says_the_baseline_gains_nothing(model, lenses, corpus):
    silent = head_lenses(model, size=0.0)
    for lens in silent.by_layer.values():
        lens.token_bias.data.copy_(lenses.baseline + 3.0)  # a shift of all logits changes nothing
    silent = replace(silent, baseline=lenses.baseline)
    scores = evaluate_lenses(silent, corpus, baselines=()).lenses
    torch.testing.assert_close(scores.gain, torch.zeros_like(scores.gain), atol=1e-5, rtol=0)


def test_a_lens_that_is_the_model_has_no_kl_and_agrees_everywhere(evaluation):
    logit = evaluation.baselines[0]
    assert float(logit.kl[-1]) == pytest.approx(0.0, abs=1e-5)
    assert float(logit.kl[0]) > 0.1
    assert float(logit.top1[-1]) == float(logit.top10[-1]) == 1.0
    assert float(logit.bits_per_byte[-1]) == pytest.approx(evaluation.model_bits_per_byte, rel=1e-4)


def test_gain_is_what_the_baseline_lens_has_more(evaluation):
    for scores in (evaluation.lenses, *evaluation.baselines):
        torch.testing.assert_close(scores.gain, evaluation.baseline_kl - scores.kl)
        assert scores.means["kl"] == pytest.approx(sum(scores.kl.tolist()) / len(scores.sites))


@pytest.mark.parametrize(
    ("chunk_bytes", "batch_tokens"),
    [(1, 2 * LENGTH), (6 * VOCAB * 4 * 5, 10**6), (6 * VOCAB * 4 * 11, 3 * LENGTH), (10**9, 1)],
)
def test_neither_chunks_nor_batches_change_the_figures(
    lenses, corpus, evaluation, monkeypatch, chunk_bytes, batch_tokens
):
    monkeypatch.setattr("saccade.interp.lenses.evaluate.BATCH_TOKENS", batch_tokens)
    again = evaluate_lenses(
        lenses, corpus, baselines=("logit", "logit-head"), chunk_bytes=chunk_bytes
    )
    pairs = zip(
        (again.lenses, *again.baselines), (evaluation.lenses, *evaluation.baselines), strict=True
    )
    for one, other in pairs:
        for name, values in one.by_measure().items():
            torch.testing.assert_close(values, other.by_measure()[name], atol=1e-4, rtol=1e-4)


def test_the_share_is_the_gain_over_that_of_the_best_lens(model, lenses, corpus):
    best = head_lenses(model, size=0.1, seed=1)
    scores = evaluate_lenses(lenses, corpus, baselines=(), best=best).lenses
    theirs = evaluate_lenses(replace(best, baseline=lenses.baseline), corpus, baselines=()).lenses
    known = theirs.gain > 0
    torch.testing.assert_close(scores.share[known], (scores.gain / theirs.gain)[known])
    assert scores.share[~known].isnan().all()
    assert known.any() and theirs.gain.sum() > 0
    assert scores.means["share"] == pytest.approx(float(scores.gain.sum() / theirs.gain.sum()))
    same = evaluate_lenses(lenses, corpus, baselines=(), best=lenses).lenses
    assert same.share[same.gain > 0].tolist() == pytest.approx([1.0] * int((same.gain > 0).sum()))


def test_a_tuned_lens_can_be_compared_with(model, lenses, corpus):
    scores = evaluate_lenses(lenses, corpus, baselines=[tuned_lenses(model, corpus)])
    (tuned,) = scores.baselines
    assert (tuned.kind, tuned.method, len(tuned.sites)) == ("tuned", "closed-form", model.n_layers)
    assert float(tuned.kl[-1]) == pytest.approx(0.0, abs=1e-4)


def test_a_large_text_is_sampled_evenly(model):
    windows = torch.arange(101 * 97).view(101, 97)
    chosen, picked = choose_positions(model, windows, 211)
    assert int(picked.sum()) == 211
    assert not picked[:, -1].any()  # its next token is not there
    assert not picked[:, 0].any()  # attention rests on the first token
    assert picked.any(1).all()
    starts = chosen[:, 0].diff() // 97
    assert int(starts.max()) - int(starts.min()) <= 1
    columns = picked.nonzero()[:, 1]
    assert abs(columns.float().mean() - 47.5) < 5
    assert len(columns.unique()) > 30  # not the same few positions of each window


def test_a_small_text_is_scored_whole_and_said_so(corpus, evaluation):
    assert evaluation.n_positions == WINDOWS * (LENGTH - 2)
    assert evaluation.n_tokens == corpus.n_tokens
    assert not evaluation.is_fitted_on


def test_a_sample_is_scored_as_the_text_of_its_windows(lenses, corpus):
    """With one position a window asked for, the figures are the means over those positions."""
    n = WINDOWS * (LENGTH - 2)
    some = evaluate_lenses(lenses, corpus, baselines=(), max_positions=n // 2)
    assert some.n_positions == n // 2
    chosen, picked = choose_positions(lenses.model, corpus.windows, n // 2)
    parts = [(window, row.nonzero()[:, 0]) for window, row in zip(chosen, picked, strict=True)]
    with torch.no_grad():
        logits = lenses.model.hf(torch.stack([w for w, _ in parts]), use_cache=False).logits
    q = softmax(lenses.baseline.tolist())
    kls = [
        kl(softmax(row[position].tolist()), q)
        for row, (_, at) in zip(logits, parts, strict=True)
        for position in at.tolist()
    ]
    assert some.baseline_kl == pytest.approx(sum(kls) / len(kls), rel=1e-5)


def test_progress_of_every_stage_ends_when_all_is_done(lenses, corpus):
    steps: dict[str, list[tuple[int, int]]] = {}
    blocks = 3  # so that there is something left to tell after the first step
    evaluate_lenses(
        lenses,
        corpus,
        chunk_bytes=WINDOWS * (LENGTH - 1) * 6 * 4 * -(-VOCAB // blocks),
        progress=lambda stage, *step: steps.setdefault(stage, []).append(step),
    )
    assert list(steps) == ["reading", "scoring"]
    for of_stage in steps.values():
        done, totals = zip(*of_stage, strict=True)
        assert len(set(totals)) == 1
        assert list(done) == sorted(set(done))
        assert done[-1] == totals[0]
    assert len(steps["scoring"]) == blocks


def test_no_lens_is_asked_for_more_tokens_than_may_be_held(model, lenses, corpus, monkeypatch):
    """Nor is the model: positions x heads x vocabulary is too much for a large vocabulary."""
    n, asked = WINDOWS * (LENGTH - 2), []
    forward, logits = HeadLens.forward, type(model.unembedding).logits

    def watched(self, activation, *, tokens=None):
        said = forward(self, activation, tokens=tokens)
        asked.append(said.shape[-1])
        return said

    def watched_logits(self, final, *, tokens=None):
        said = logits(self, final, tokens=tokens)
        asked.append(said.shape[-1])
        return said

    monkeypatch.setattr(HeadLens, "forward", watched)
    monkeypatch.setattr(type(model.unembedding), "logits", watched_logits)
    evaluate_lenses(lenses, corpus, baselines=(), chunk_bytes=n * 6 * 4 * 17)
    assert max(asked) == 17
    assert sum(asked) == VOCAB * (
        2 + model.n_layers
    )  # once for its sums, once for its probabilities


@pytest.mark.parametrize(("activation_bytes", "at_once"), [(1, 1024), (10**9, 7), (10**5, 1024)])
def test_neither_groups_of_layers_nor_of_positions_change_the_figures(
    lenses, corpus, evaluation, monkeypatch, activation_bytes, at_once
):
    monkeypatch.setattr("saccade.interp.lenses.evaluate.HELD_BYTES", activation_bytes)
    monkeypatch.setattr("saccade.interp.lenses.evaluate.POSITIONS_AT_ONCE", at_once)
    again = evaluate_lenses(lenses, corpus, baselines=("logit", "logit-head"))
    for one, other in zip(again.baselines, evaluation.baselines, strict=True):
        torch.testing.assert_close(one.kl, other.kl, atol=1e-5, rtol=1e-5)
    for name, values in again.lenses.by_measure().items():
        expected = evaluation.lenses.by_measure()[name]
        torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)
    assert again.baseline_kl == pytest.approx(evaluation.baseline_kl, rel=1e-6)


@torch.no_grad()
def test_a_large_vocabulary_costs_no_digits():
    """Judged by float64. In float32, sums over 262,144 tokens are off by a thousandth of a nat."""
    from transformers import LlamaConfig, LlamaForCausalLM

    d_vocab = 262_144
    config = LlamaConfig(
        vocab_size=d_vocab,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    large = wrap_model(LlamaForCausalLM(config).eval(), None, name="many tokens")
    lenses = head_lenses(large, size=0.5)
    windows = torch.randint(0, d_vocab, (3, 5), generator=torch.Generator().manual_seed(1))
    found = evaluate_lenses(lenses, corpus_of(windows), baselines=())
    captured = capture(large, windows)
    scored = slice(1, -1)  # neither the first token nor the last, whose next one is not there
    final, z = captured.final[:, scored].flatten(0, 1), captured.z[0][:, scored].flatten(0, 1)
    log_p = large.unembedding.logits(final).double().log_softmax(-1)
    log_q = lenses.by_layer[0](z).double().log_softmax(-1)
    own = (log_p.exp() * log_p).sum(-1).mean()
    expected = own - torch.einsum("nw,nhw->nh", log_p.exp(), log_q).mean(0)
    torch.testing.assert_close(found.lenses.kl, expected, atol=5e-6, rtol=0)
    baseline = own - (log_p.exp() @ lenses.baseline.double().log_softmax(-1)).mean()
    assert found.baseline_kl == pytest.approx(float(baseline), abs=5e-6)


def test_states_of_few_dimensions_are_held_by_a_basis_and_others_are_not():
    generator = torch.Generator().manual_seed(0)
    n, heads, rank, d = 47, 3, 5, 31
    within = torch.randn(heads, n, rank, generator=generator)
    # Directions of very different size, as those of real heads are.
    across = torch.randn(heads, rank, d, generator=generator) * torch.logspace(0, -4, rank)[:, None]
    activation = (within @ across).transpose(0, 1)
    basis = _basis(activation, rank + 2)
    assert basis is not None and basis.shape == (heads, rank + 2, d)
    found = activation.transpose(0, 1) @ basis.transpose(1, 2) @ basis
    torch.testing.assert_close(found.transpose(0, 1), activation, atol=1e-5, rtol=0)
    assert _basis(torch.randn(n, heads, d, generator=generator), rank + 2) is None
    assert _basis(activation[:rank], rank + 2) is None  # nothing would be saved


def test_a_lens_that_rules_tokens_out_has_figures_all_the_same(model, lenses, corpus):
    """Whole blocks of tokens without any probability must not give what is no number."""
    ruled_out = head_lenses(model)
    for lens in ruled_out.by_layer.values():
        lens.token_bias.data[:, :40] = torch.finfo(torch.float32).min / 4
    found = evaluate_lenses(
        ruled_out, corpus, baselines=(), chunk_bytes=WINDOWS * LENGTH * 6 * 4 * 8
    )
    assert torch.isfinite(found.lenses.kl).all() and torch.isfinite(found.lenses.top1).all()
    assert (found.lenses.kl > 1e30).all()


def test_quality_can_be_kept_with_the_lenses(lenses, evaluation):
    kept = lenses.with_quality(evaluation.quality())
    for i, (layer, head) in enumerate(lenses.sites):
        quality = kept.quality_of(layer, head)
        assert set(quality) == {"kl", "gain", "top1", "top10"}
        assert quality["kl"] == pytest.approx(float(evaluation.lenses.kl[i]), abs=1e-5)


def test_json_holds_every_head_and_the_means(evaluation):
    found = json.loads(evaluation.to_json())
    assert found == evaluation.to_dict()
    assert found["n_positions"] == evaluation.n_positions
    rows = found["lenses"]["heads"]
    assert [(row["layer"], row["head"]) for row in rows] == list(evaluation.lenses.sites)
    mean = sum(row["gain"] for row in rows) / len(rows)
    assert found["lenses"]["mean"]["gain"] == pytest.approx(mean, abs=1e-5)
    assert [each["kind"] for each in found["baselines"]] == ["logit", "logit-head"]


def test_what_is_no_number_is_null_in_json(evaluation):
    broken = replace(evaluation.lenses, kl=torch.full_like(evaluation.lenses.kl, torch.inf))
    found = json.loads(replace(evaluation, lenses=broken).to_json())
    assert found["lenses"]["heads"][0]["kl"] is None


def test_tables_show_the_means_the_layers_and_the_heads(model, evaluation):
    console = Console(width=140, record=True, file=io.StringIO())
    for table in (evaluation.to_table(), evaluation.to_layer_table(), evaluation.to_head_table()):
        console.print(table)
    text = console.export_text()
    for token in ("head x ", "logit-head", "baseline", "the model itself", "best head"):
        assert token in text
    assert f"{evaluation.lenses.means['kl']:.3f}" in text
    assert evaluation.to_layer_table().row_count == model.n_layers
    assert evaluation.to_head_table().row_count == model.n_heads


def test_every_column_of_numbers_says_what_they_are(evaluation):
    for table in (evaluation.to_table(), evaluation.to_layer_table(), evaluation.to_head_table()):
        headings = [str(column.header) for column in table.columns]
        assert all(headings) and len(set(headings)) == len(headings), table.title
        assert {"KL", "gain", "top1", "top10", "bits/byte"} <= set(headings), table.title


def test_what_cannot_be_compared_is_refused(model, lenses, corpus):
    with pytest.raises(UsageError, match="a head lens has to be fitted"):
        evaluate_lenses(lenses, corpus, baselines=("head",))
    with pytest.raises(UsageError, match="no lens kind 'logits'"):
        evaluate_lenses(lenses, corpus, baselines=("logits",))
    stranger = wrap_model(tiny("gpt2"), None, name="gpt2")
    with pytest.raises(LensError, match="bound to another model"):
        evaluate_lenses(lenses, corpus, baselines=[baseline_lenses(stranger, "logit")])
    with pytest.raises(LensError, match="have 3 sites, these have 18"):
        evaluate_lenses(lenses, corpus, best=baseline_lenses(model, "logit"))
    with pytest.raises(UsageError, match="at most 0 positions"):
        evaluate_lenses(lenses, corpus, max_positions=0)
    with pytest.raises(UsageError, match="nothing to score: 5 windows of 1 tokens"):
        evaluate_lenses(lenses, corpus_of(corpus.windows[:, :1]))


def test_heads_without_a_direct_path_are_left_out_by_default_and_refused_by_name(corpus):
    plain = wrap_model(tiny("gpt2"), None, name="gpt2")
    normed = replace(plain, layers=tuple(replace(at, reaches_stream=False) for at in plain.layers))
    baselines = evaluate_lenses(head_lenses(normed), corpus).baselines
    assert [scores.kind for scores in baselines] == ["logit"]
    with pytest.raises(ModelError, match="no direct path to the tokens"):
        baseline_lenses(normed, "logit-head")


def test_a_model_that_has_learnt_is_read_better_at_depth(stories):
    """The logit lens of stories comes nearer the model with each layer (Belrose et al., 2023)."""
    text = "Once upon a time there was a little girl named Lily. She loved to play in the park. "
    ids = stories.encode(text * 3)[:, :64].view(2, 32).cpu()
    lenses = head_lenses(stories, size=0.0)
    (logit,) = evaluate_lenses(lenses, corpus_of(ids), baselines=("logit",)).baselines
    assert (logit.kl.diff() < 0).all()
    assert float(logit.top1[-1]) == 1.0


def test_long_windows_are_read_one_at_a_time(lenses, corpus, monkeypatch):
    """The memory of a forward pass is bounded by its tokens, as far as whole windows allow."""
    for batch_tokens, expected in ((2 * LENGTH - 1, [1, 2, 3, 4, 5]), (2 * LENGTH, [2, 4, 5])):
        monkeypatch.setattr("saccade.interp.lenses.evaluate.BATCH_TOKENS", batch_tokens)
        read = []

        def note(stage, done, total, read=read):
            if stage == "reading":
                read.append((done, total))

        evaluate_lenses(lenses, corpus, baselines=(), progress=note)
        assert read == [(done, WINDOWS) for done in expected]
