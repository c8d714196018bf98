"""What translation recipes share, by a stepper that cannot err and by a Transformer of a few steps.

The other translators' recipes are tested beside their own systems.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from saccade.cli.main import main
from saccade.errors import RecipeError
from saccade.trace.trace import Trace
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.recipes.recipe import TranslateOptions, find_recipe
from saccade.zoo.recipes.run import TrainedRun, load_run
from saccade.zoo.recipes.translation import (
    TOGETHER,
    AttentionTranslation,
    Tokenizers,
    TranslationSettings,
    pairs_perplexity,
    search,
)
from saccade.zoo.tasks.multi30k import SentencePairs
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.vocabulary import EOS, Padded

GERMAN = ["Ein Hund läuft.", "Eine Katze schläft.", "Ein kleiner Hund schläft im Gras."]
ENGLISH = ["A dog runs.", "A cat sleeps.", "A small dog sleeps in the grass."]
PAIRS = SentencePairs(GERMAN, ENGLISH)
TINY = ["d_model=12", "d_hidden=17", "n_layers=2", "n_heads=3", "n_pieces=70", "batch_tokens=64"]
FEW = ["steps=4", "minutes=0", "warmup=1", "validate_steps=2", "log_steps=2"]


class Echo(nn.Module):
    """Says its source again and looks at what it says: a translator whose answers are known."""

    def __init__(self, n_vocab: int) -> None:
        super().__init__()
        self.n_vocab = nn.Parameter(torch.tensor(float(n_vocab)))

    def forward(self, batch: PairBatch) -> Tensor:
        """Sure of the source's own tokens, at the target's places."""
        ids = functional.pad(batch.source, (0, batch.target_out.shape[1]), value=EOS)
        said = ids[:, : batch.target_out.shape[1]][batch.target_mask]
        return self._sure(said)

    def start(self, source: Padded) -> Started:
        """Nothing is done so far."""
        return Started(source.ids, torch.zeros(len(source.ids), dtype=torch.long))

    def step(self, tokens: Tensor, memory: Tensor, state: Tensor) -> Stepped:
        """The next token of the source."""
        assert len(tokens) == len(state)
        beam = len(state) // len(memory)
        rows, last = memory.repeat_interleave(beam, 0), memory.shape[1] - 1
        at = state.clamp_max(last)[:, None]
        weights = functional.one_hot(at[:, 0], memory.shape[1]).float()
        log_probs = self._sure(rows.gather(1, at)[:, 0]).log_softmax(-1)
        return Stepped(log_probs, state + 1, weights)

    def _sure(self, ids: Tensor) -> Tensor:
        return 20.0 * functional.one_hot(ids, int(self.n_vocab)).float()


class EchoRecipe(AttentionTranslation):
    def make_model(self, settings, n_source, n_target) -> Echo:
        return Echo(n_target)


def echo_run(**changes) -> TrainedRun:
    settings = TranslationSettings(n_pieces=70, **changes)
    tokenizers = Tokenizers.learn(settings, PAIRS)
    recipe = EchoRecipe(
        name="echo", about="Says its source again.", system="none", settings=settings
    )
    kept = json.loads(json.dumps(tokenizers.to_kept()))  # as a run folder holds it
    model = recipe.restore(settings, kept).eval()
    return TrainedRun(recipe=recipe, settings=settings, kept=kept, models=(model,))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "multi30k").mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "\n".join(lines * 7) + "\n"
            (folder / "multi30k" / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


def train(data, out, *changes):
    words = [word for change in (*TINY, *FEW, *changes) for word in ("--set", change)]
    name = "transformer-multi30k"
    assert main(["train", name, *words, "--data", str(data), "--out", str(out), "--json"]) == 0


@pytest.mark.parametrize("coding", ["bpe", "wordpiece", "words", "mixed"])
@pytest.mark.parametrize("is_joint", [True, False])
def test_tokenizers_are_the_same_after_a_run_kept_them(coding, is_joint):
    settings = TranslationSettings(n_pieces=70, coding=coding, is_joint=is_joint)
    tokenizers = Tokenizers.learn(settings, PAIRS)
    again = Tokenizers.from_kept(settings, json.loads(json.dumps(tokenizers.to_kept())))
    assert (tokenizers.source is tokenizers.target) == is_joint == (again.source is again.target)
    for before, after in ((tokenizers.source, again.source), (tokenizers.target, again.target)):
        assert before.encode(GERMAN[2]) == after.encode(GERMAN[2])
        assert len(before) == len(after)


def test_a_run_without_a_vocabulary_is_refused():
    with pytest.raises(RecipeError, match="kept no vocabulary"):
        Tokenizers.from_kept(TranslationSettings(), {})


def test_only_the_source_is_lowered():
    tokenizers = Tokenizers.learn(TranslationSettings(n_pieces=70, is_lowercase=True), PAIRS)
    pairs = tokenizers.pairs(PAIRS)
    assert tokenizers.source.decode(pairs.source.row(0).tolist()) == "ein hund läuft."
    assert tokenizers.target.decode(pairs.target.row(0).tolist()) == ENGLISH[0]
    ids = tokenizers.sources(["EIN Hund LÄUFT."]).ids[0]
    assert ids.tolist() == pairs.source.row(0).tolist()


def test_sentences_come_back_in_their_order_however_they_were_batched():
    run = echo_run()
    texts = [" ".join([GERMAN[n % 3]] * (1 + n % 4)) for n in range(TOGETHER + 5)]
    for size in (1, 3):
        options = TranslateOptions(beam=size)
        found = run.recipe.translate(run, texts, options)
        assert [each.text for each in found] == texts
        assert all(-1e-3 < each.log_prob <= 0 for each in found)


def test_no_translation_is_longer_than_it_may_be():
    run = echo_run()
    source = Tokenizers.from_kept(run.settings, run.kept).sources([GERMAN[2], GERMAN[0]])
    found = search(run.models, source, options=TranslateOptions(beam=2, max_length=4))
    assert [len(each.ids) for each in found] == [3, 3]  # and the end symbol


def test_several_models_are_searched_as_one():
    run = echo_run()
    both = replace(run, models=run.models * 2)
    (found,) = run.recipe.translate(both, GERMAN[:1], TranslateOptions(beam=2))
    assert found.text == GERMAN[0]


def test_the_scores_are_those_of_what_was_said(tmp_path):
    """One who says the source again is perfect where source and reference are the same."""
    (tmp_path / "multi30k").mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            file = tmp_path / "multi30k" / f"{part}.{language}"
            file.write_text("\n".join(GERMAN) + "\n", encoding="utf-8")
    run = echo_run()
    scores = run.recipe.evaluate(run, tmp_path)
    assert scores["bleu"] == pytest.approx(100) and scores["chrf"] == pytest.approx(100)
    assert scores["ter"] == 0 and scores["perplexity"] == pytest.approx(1, abs=1e-3)
    by_length = [value for name, value in scores.items() if name.startswith("bleu_of_")]
    assert by_length == [pytest.approx(100)]  # all are short


def test_perplexity_does_not_depend_on_the_batches():
    run = echo_run()
    pairs = Tokenizers.from_kept(run.settings, run.kept).pairs(PAIRS)
    whole, apart = (pairs_perplexity(run.model, pairs, tokens=n) for n in (4096, 1))
    assert whole == pytest.approx(apart)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_trace_shows_the_source_as_it_is_read_by_people(is_reversed):
    run = echo_run(is_reversed=is_reversed)
    (trace,) = run.recipe.trace(run, GERMAN[2])
    assert isinstance(trace, Trace)
    assert "".join(trace.memory).replace("▁", " ").strip() == f"{GERMAN[2]}</s>"
    assert trace.steps[-1] == "</s>"
    looked = [trace.most(step, top=1)[0].label for step in range(len(trace.steps))]
    assert looked == list(trace.steps)  # it says what it looks at, whichever way it reads


@pytest.mark.parametrize("changes", [[], ["is_pre_norm=false", "positions=learned", "ties=none"]])
def test_a_transformer_is_trained_evaluated_used_and_watched(
    changes, data, tmp_path, capsys, judge_translations
):
    train(data, tmp_path / "run", *changes)
    metrics = json.loads(capsys.readouterr().out)
    judged = judge_translations(tmp_path / "run", GERMAN * 7, ENGLISH * 7)
    assert metrics["value"] == pytest.approx(judged["bleu"], abs=0.01)
    assert metrics["test"]["chrf"] == pytest.approx(judged["chrf"], abs=0.01)
    assert main(["translate", str(tmp_path / "run"), GERMAN[0]]) == 0
    capsys.readouterr()
    assert main(["trace", str(tmp_path / "run"), GERMAN[0], "--json"]) == 0
    cross, past, source = json.loads(capsys.readouterr().out)
    assert cross["views"] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    assert cross["memory"] == source["memory"] == source["steps"]
    assert past["memory"] == ["<s>", *past["steps"][:-1]]
    for trace in (cross, past, source):
        assert torch.tensor(trace["weights"]).sum(-1).allclose(torch.ones(()), atol=1e-5)


def test_two_transformers_are_an_ensemble(data, tmp_path, capsys):
    for seed in (0, 1):
        train(data, tmp_path / f"seed-{seed}", f"seed={seed}")
    run = load_run([tmp_path / "seed-0", tmp_path / "seed-1"])
    scores = run.recipe.evaluate(run, data)
    assert "bleu" in scores and "perplexity" not in scores


def test_the_transformer_recipe_fits_its_time_and_knows_its_steps():
    recipe = find_recipe("transformer-multi30k")
    training = recipe.settings.training
    assert 0 < training.minutes <= recipe.minutes <= 45
    assert training.steps > 0  # its schedule falls to zero at the last
    assert (recipe.target, recipe.settings.beam, recipe.settings.target) == (37, 5, "en")


@pytest.mark.parametrize("coding", ["bpe", "wordpiece", "words", "mixed", "spelled"])
def test_words_that_become_unk_are_named(coding):
    run = echo_run(coding=coding)
    assert run.unknown_words("Ein Hund läuft.") == []
    assert run.unknown_words("Ein \u2603 läuft \u2603.") == ["\u2603"]
    # Only whole words have no other way to be read than by themselves.
    assert run.unknown_words("Ein Grund.") == (["Grund"] if coding == "words" else [])


def test_a_translation_of_unknown_words_says_so(data, tmp_path, capsys):
    train(data, tmp_path / "run", "coding=words")
    capsys.readouterr()
    assert main(["translate", str(tmp_path / "run"), "Ein Zebra schläft.", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["unknown"] == ["Zebra"]
    assert err == "note: 1 unknown, read as <unk>: 'Zebra'\n"
    assert main(["trace", str(tmp_path / "run"), "Ein Zebra schläft.", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["unknown"] == ["Zebra"] and "'Zebra'" in err
