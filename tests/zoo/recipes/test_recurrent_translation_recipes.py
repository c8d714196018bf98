"""The recurrent translators' recipes from training to metrics, on a Multi30k of a few sentences."""

import json
from pathlib import Path

import pytest
import torch

from saccade.cli.main import main
from saccade.zoo import models
from saccade.zoo.recipes import rescoring
from saccade.zoo.recipes.recipe import RescoreOptions, find_recipe
from saccade.zoo.recipes.rescoring import pair_log_probs, rescore_translations
from saccade.zoo.recipes.run import load_run
from saccade.zoo.recipes.translation import Tokenizers
from saccade.zoo.tasks.multi30k import SentencePairs

GERMAN = ["Ein Hund läuft .", "Eine Katze schläft .", "Ein kleiner Hund schläft im Gras ."]
ENGLISH = ["A dog runs .", "A cat sleeps .", "A small dog sleeps in the grass ."]
TINY = ["d_hidden=11", "d_embed=7", "n_pieces=60", "steps=4", "log_steps=2", "minutes=0"]
NAMES = (
    "seq2seq-multi30k",
    "seq2seq-multi30k-forward",
    "gnmt-multi30k",
    "hybrid-multi30k",
    "encoder-decoder-multi30k",
    "continuous-multi30k",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "multi30k").mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "\n".join(lines * 7) + "\n"
            (folder / "multi30k" / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


def train(name, data, out, *changes):
    settings = find_recipe(name).settings
    known = {*vars(settings), *vars(settings.training)}
    tiny = [change for change in TINY if change.split("=")[0] in known]
    words = [word for change in (*tiny, *changes) for word in ("--set", change)]
    assert main(["train", name, *words, "--data", str(data), "--out", str(out), "--json"]) == 0


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Two runs of one recipe and one of another, whose vocabulary is not theirs."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train("seq2seq-multi30k", data, folder / f"seed-{seed}", f"seed={seed}")
    train("hybrid-multi30k", data, folder / "hybrid", "d_model=8", "d_letter=5", "n_pieces=5")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_names_its_system_and_fits_its_time(name):
    recipe = find_recipe(name)
    assert Path(models.__file__).with_name(f"{recipe.system}.py").is_file()
    assert 0 < recipe.settings.training.minutes <= 45 and 0 < recipe.minutes <= 45
    assert recipe.published is None or recipe.source


def test_forward_and_reversed_differ_in_the_order_of_the_source_alone():
    both = [vars(find_recipe(f"seq2seq-multi30k{end}").settings) for end in ("", "-forward")]
    assert {key for key in both[0] if both[0][key] != both[1][key]} == {"is_reversed"}
    assert both[0]["is_reversed"]


@pytest.mark.parametrize("name", ["gnmt-multi30k", "encoder-decoder-multi30k"])
def test_a_recipe_is_trained_evaluated_and_used(name, data, tmp_path, capsys, judge_translations):
    train(name, data, tmp_path / "run", *(["d_model=8"] if "gnmt" in name else []))
    metrics = json.loads(capsys.readouterr().out)
    judged = judge_translations(tmp_path / "run", GERMAN * 7, ENGLISH * 7)
    assert metrics["value"] == pytest.approx(judged["bleu"], abs=0.01)
    assert metrics["test"]["chrf"] == pytest.approx(judged["chrf"], abs=0.01)
    assert main(["translate", str(tmp_path / "run"), GERMAN[0]]) == 0
    has_attention = name == "gnmt-multi30k"
    assert main(["trace", str(tmp_path / "run"), GERMAN[0], "--json"]) == (
        0 if has_attention else 2
    )


def test_the_hybrid_model_is_traced_with_its_letters(runs, capsys):
    assert main(["trace", str(runs / "hybrid"), "Ein Zwergpudel", "--json"]) == 0
    (trace,) = json.loads(capsys.readouterr().out)
    assert "<unk>" in trace["memory"] and "·w" not in trace["memory"]  # w was never seen
    weights = torch.tensor(trace["weights"])
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))


def test_runs_with_other_seeds_make_an_ensemble(runs, data, tmp_path, capsys):
    both = [str(runs / "seed-0"), str(runs / "seed-1")]
    out = ["--out", str(tmp_path / "both"), "--data", str(data), "--json"]
    assert main(["eval", *both, *out]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["metric"] == "bleu"
    by_length = {name: value for name, value in metrics["test"].items() if "_words" in name}
    # All sentences have 4 to 7 words, and so are in the one bucket: its BLEU is that of all.
    assert by_length == {"bleu_of_4_to_7_words": pytest.approx(metrics["value"])}


def test_a_second_translator_chooses_among_the_best_of_a_first(runs, data, capsys):
    words = ["rescore", str(runs / "seed-0"), str(runs / "hybrid"), "--n-best", "3"]
    assert main([*words, "--data", str(data), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"bleu", "bleu_before"}


def test_rescoring_ranks_by_the_average_of_both_scores(runs):
    first, second = load_run(runs / "seed-0"), load_run(runs / "hybrid")
    own = rescore_translations(first, second, GERMAN, options=RescoreOptions(n_best=5, weight=0.0))
    assert [each.after for each in own] == [each.before for each in own]
    other = rescore_translations(
        first, second, GERMAN, options=RescoreOptions(n_best=5, weight=1.0)
    )
    tokenizers = Tokenizers.from_kept(first.settings, first.kept)
    judge = Tokenizers.from_kept(second.settings, second.kept)

    def score(text, said):
        pairs = judge.pairs(SentencePairs([text], [said]))
        n_tokens = int(pairs.target.lengths[0]) - 1
        norm = ((5 + n_tokens) / 6) ** second.settings.length_penalty  # Wu et al., 2016
        return pair_log_probs(second.model, pairs)[0].item() / norm

    groups = rescoring._n_best(first, tokenizers.sources(GERMAN), 5)
    for text, group, each in zip(GERMAN, groups, other, strict=True):
        said = [tokenizers.target.decode(one.ids) for one in group]
        assert each.before == said[0] and each.after == max(said, key=lambda s: score(text, s))


def test_the_log_probability_of_pairs_does_not_depend_on_their_company(runs):
    run = load_run(runs / "hybrid")
    tokenizers = Tokenizers.from_kept(run.settings, run.kept)
    together = pair_log_probs(run.model, tokenizers.pairs(SentencePairs(GERMAN, ENGLISH)))
    for row, (source, target) in enumerate(zip(GERMAN, ENGLISH, strict=True)):
        alone = pair_log_probs(run.model, tokenizers.pairs(SentencePairs([source], [target])))
        torch.testing.assert_close(together[row], alone[0])
