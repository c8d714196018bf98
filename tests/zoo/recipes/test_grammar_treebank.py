"""The parser's recipe, from a small treebank to metrics, trees and traces."""

import random
import zipfile

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.recipes import grammar_treebank
from saccade.zoo.recipes.recipe import TranslateOptions, find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.treebank import read_treebank, read_trees
from saccade.zoo.tasks.vocabulary import EOS, UNK
from saccade.zoo.training.settings import with_settings

SMALL = [
    *("d_embed=7", "d_hidden=11", "n_layers=1", "dropout=0.1", "batch_tokens=400", "beam=2"),
    *("epochs=30", "learning_rate=0.02", "warmup=2", "average_last=2", "max_words=9"),
]
NOUNS, VERBS = ("cat", "dog", "mat", "Gorbachev", "reselling"), ("sat", "slept", "barks")


def tree(chance):
    def noun():
        return f"(NP-SBJ (DT the) (NN {chance.choice(NOUNS)}))"

    inside = (
        f"(VP (VBD {chance.choice(VERBS)}) (PP (IN on) {noun()}))"
        if chance.random() < 0.5
        else (f"(VP (VBZ {chance.choice(VERBS)}))")
    )
    return f"( (S {noun()} {inside} (. .)) )"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, chance = tmp_path_factory.mktemp("data"), random.Random(0)
    with zipfile.ZipFile(folder / "treebank.zip", "w") as archive:
        for number in range(1, 31):
            text = "\n".join(tree(chance) for _ in range(4))
            archive.writestr(f"treebank/combined/wsj_{number:04}.mrg", text)
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    recipe = find_recipe("grammar-treebank")
    folder = tmp_path_factory.mktemp("runs") / "grammar"
    settings = with_settings(recipe.settings, SMALL)
    return folder, train_recipe(recipe, folder, settings=settings, data=data)


def test_it_learns_a_small_grammar_and_every_tree_is_one(run, data):
    folder, metrics = run
    assert metrics["value"] == metrics["test"]["f1"] > 90
    assert metrics["test"]["repairs"] == 0
    assert metrics["test"]["sentences"] == len(read_treebank(data, max_words=9).test)
    assert evaluate_run(load_run(folder), data)["test"] == pytest.approx(metrics["test"])


def test_two_runs_make_an_ensemble(run, data):
    opened = load_run([run[0], run[0]])
    assert evaluate_run(opened, data)["test"] == pytest.approx(run[1]["test"])


def test_a_users_sentence_is_parsed(run):
    opened = load_run(run[0])
    sentences = ["the cat slept.", "the zebra sat on the mat."]
    found = opened.recipe.translate(opened, sentences, TranslateOptions(beam=2))
    for each, sentence in zip(found, sentences, strict=True):
        (written,) = read_trees(each.text)
        assert written.words() == sentence.replace(".", " .").split()
        assert each.log_prob < 0
    with pytest.raises(UsageError, match="there is no word in ' '"):
        opened.recipe.translate(opened, [" "], TranslateOptions())


def test_a_trace_has_a_row_for_each_bracket_and_word(run):
    opened = load_run(run[0])
    (trace,) = opened.recipe.trace(opened, "the cat slept.")
    assert trace.memory == ("the", "cat", "slept", ".", "</s>")
    assert trace.steps[0] == "(S" and trace.steps[-2:] == (")S", "</s>")
    assert trace.steps.count("XX") == 4
    torch.testing.assert_close(trace.weights.sum(-1), torch.ones(2, len(trace.steps)))
    in_turn = trace.weights[1].argmax(-1).tolist()
    for step, at in enumerate(in_turn):
        assert at == trace.steps[:step].count("XX")


@pytest.fixture(scope="module")
def symbols():
    trees = read_trees(
        "(S (NP (DT the) (NNP IBM)) (VP (VBD ran)))"
        "(S (NP (DT the) (NNP NBC)) (VP (VBG running)))"
        "(S (NP (DT the) (NN ran)) (VP (VBG resting)))"
    )
    return grammar_treebank.Symbols.learn(trees, min_count=2)


def test_rare_words_are_known_by_their_class_and_odd_ones_not_at_all(symbols):
    assert set(symbols.words.words[4:]) == {"the", "ran", "<A>", "<a>", "<a>ing"}
    ids = symbols.encode_words([["the", "IBM", "jumping", "12"]])
    labels = [symbols.words.words[each] for each in ids.values.tolist()]
    assert labels == ["the", "<A>", "<a>ing", "<unk>"]
    assert ids.values[-1] == UNK


def test_each_word_has_a_class_and_each_class_is_its_own(symbols):
    words, classes = symbols.words.words, symbols.classes()
    named = {word: words[at] for word, at in zip(words, classes, strict=True)}
    assert named["the"] == named["ran"] == named["<a>"] == "<a>"
    assert named["<A>"] == "<A>" and named["</s>"] == "</s>"


def test_what_is_kept_gives_the_symbols_back(symbols):
    assert grammar_treebank.Symbols.from_kept(symbols.to_kept()) == symbols


def test_rare_words_are_blurred_more_often_and_symbols_never(symbols):
    rarity = grammar_treebank.rarity_of(symbols, 1.0)
    the, ran = symbols.words.ids["the"], symbols.words.ids["ran"]
    assert rarity[the].item() == pytest.approx(1 / 4) and rarity[ran].item() == pytest.approx(1 / 3)
    assert rarity[EOS] == 0 and rarity[symbols.words.ids["<A>"]] == 0
    source = torch.tensor([[the, ran, EOS]]).repeat(5000, 1)
    classes = torch.tensor(symbols.classes())
    found = grammar_treebank.blurred(source, classes, rarity, torch.Generator().manual_seed(0))
    shares = (found != source).float().mean(0)
    torch.testing.assert_close(shares, torch.tensor([1 / 4, 1 / 3, 0.0]), atol=0.03, rtol=0)
    assert (found[found != source] == symbols.words.ids["<a>"]).all()


def test_batches_are_the_same_for_the_same_epoch(data):
    settings = with_settings(find_recipe("grammar-treebank").settings, SMALL)
    job = find_recipe("grammar-treebank").build(settings, data)
    first, again, other = (
        torch.cat([batch.source.flatten() for batch in job.batches_of(epoch, 0)])
        for epoch in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
