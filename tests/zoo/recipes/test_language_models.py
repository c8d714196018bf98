"""Language models from a text to a figure, to samples and traces; small texts, small models."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from saccade.errors import TrainingError, UsageError
from saccade.zoo.cells.cell import tensors_of
from saccade.zoo.models.ngram import NgramLanguageModel
from saccade.zoo.models.rnn_language_model import RnnLanguageModel
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes import language_models
from saccade.zoo.recipes.recipe import SampleOptions, find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.text import make_corpus, split_text, stream_batches
from saccade.zoo.training.settings import with_settings

LINES = ["the cat sat on the mat.", "the dog, too, sat on the mat!", "a cat is no dog."]
TEXT = "\n".join(LINES * 20) + "\n"
SMALL = {
    "charlm-shakespeare": ["d_embed=7", "d_hidden=11", "streams=5", "window=13", "valid=0.1"],
    "wordlm": ["d_embed=7", "d_hidden=11", "streams=3", "window=5", "n_words=23", "valid=0.1"],
    "wordlm-memoryless": [
        "d_embed=7",
        "d_hidden=11",
        "streams=3",
        "window=5",
        "n_words=23",
        "valid=0.1",
    ],
    "ngram-words": ["order=3", "n_words=23"],
    "ngram-characters": ["order=4", "valid=0.1"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "tinyshakespeare").mkdir()
    (folder / "tinyshakespeare" / "input.txt").write_text(TEXT)
    (folder / "gutenberg").mkdir()
    (folder / "gutenberg" / "carroll-alice.txt").write_text(TEXT.replace("\n", "\n\n"))
    return folder


def small(name, *words):
    recipe = find_recipe(name)
    trained = [] if name.startswith("ngram") else ["epochs=8", "learning_rate=0.02", "warmup=0"]
    return recipe, with_settings(recipe.settings, [*SMALL[name], *trained, *words])


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    made = {}

    def run(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("runs") / name
            recipe, settings = small(name)
            made[name] = folder, train_recipe(recipe, folder, settings=settings, data=data)
        return made[name]

    return run


@pytest.mark.parametrize("name", SMALL)
def test_a_recipe_gives_its_metric_and_the_run_gives_it_again(name, runs, data):
    folder, metrics = runs(name)
    test = metrics["test"]
    assert test["perplexity"] == pytest.approx(math.exp(test["nats"]))
    assert test["bits"] == pytest.approx(test["nats"] / math.log(2))
    assert metrics["value"] == test[find_recipe(name).metric]
    assert evaluate_run(load_run(folder), data)["test"] == pytest.approx(test, rel=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_a_model_learns_more_than_how_frequent_symbols_are(name, runs, data):
    recipe, settings = small(name)
    corpus = recipe.read_corpus(settings, data)
    counts = Counter(corpus.train.tolist())
    ids = corpus.test.tolist()[1:]
    alone = -sum(math.log((counts[each] + 1) / (len(corpus.train) + 30)) for each in ids) / len(ids)
    test = runs(name)[1]["test"]
    assert test.get("nats_alone", test["nats"]) < 0.9 * alone  # without n-grams beside it


def test_the_metric_with_n_grams_is_that_of_mixing_probabilities_by_hand(runs, data):
    folder, metrics = runs("charlm-shakespeare")
    run, share = load_run(folder), find_recipe("charlm-shakespeare").settings.ngram_share
    assert share > 0
    corpus = run.recipe.read_corpus(run.settings, data)
    counted = NgramLanguageModel.count(corpus.train, order=7, d_vocab=len(corpus.vocabulary))
    nats, alone, states = [], [], None
    for batch in stream_batches(corpus.test, batch=4, window=13):  # the streams of the evaluation
        before = states or (None, None)
        first, second = run.model(batch.inputs, before[0]), counted(batch.inputs, before[1])
        states = first.state, second.state
        network, grams = (each.logits.softmax(-1) for each in (first, second))
        for row, at in batch.mask.nonzero().tolist():
            right = int(batch.targets[row, at])
            p, q = float(network[row, at, right]), float(grams[row, at, right])
            nats.append(-math.log((1 - share) * p + share * q))
            alone.append(-math.log(p))
    assert metrics["test"]["nats"] == pytest.approx(sum(nats) / len(nats), rel=1e-4)
    assert metrics["test"]["nats_alone"] == pytest.approx(sum(alone) / len(alone), rel=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_samples_go_on_from_the_prompt_and_follow_the_seed(name, runs):
    opened = load_run(runs(name)[0])
    options = SampleOptions(length=30, prompt="the cat", seed=3)
    text = opened.recipe.sample(opened, options)
    assert text.startswith("the cat")
    assert opened.recipe.sample(opened, options) == text
    assert opened.recipe.sample(opened, replace(options, seed=4)) != text
    assert opened.unknown_words("the cat") == []
    assert opened.unknown_words("the \u2603 \u2603\n") == ["\u2603"]
    units = 30 if opened.kept["unit"] == "character" else 1
    assert len(opened.recipe.sample(opened, SampleOptions(length=30))) >= units


def test_a_character_sample_has_as_many_characters_as_were_asked_for(runs):
    opened = load_run(runs("ngram-characters")[0])
    for prompt in ("", "a c"):
        text = opened.recipe.sample(opened, SampleOptions(length=17, prompt=prompt))
        assert len(text) == 17 + len(prompt)


def test_words_are_written_as_they_were_read(runs):
    opened = load_run(runs("ngram-words")[0])
    for text in ("the dog, too, sat", "a cat is no dog.\nthe"):
        ids = language_models.encode_text(opened.kept, text)
        assert language_models.decode_text(opened.kept, ids.tolist()) == text


def test_bad_options_are_refused(runs):
    opened = load_run(runs("ngram-words")[0])
    with pytest.raises(UsageError, match="temperature must be above 0"):
        opened.recipe.sample(opened, SampleOptions(temperature=0.0))
    with pytest.raises(UsageError, match="cannot have -1 symbols"):
        opened.recipe.sample(opened, SampleOptions(length=-1))
    with pytest.raises(UsageError, match="order: expected a whole number"):
        small("ngram-words", "order=three")


@pytest.mark.parametrize("name", SMALL)
def test_a_trace_has_weights_that_sum_to_one(name, runs):
    opened = load_run(runs(name)[0])
    (trace,) = opened.recipe.trace(opened, "the cat sat on the mat.")
    torch.testing.assert_close(trace.weights.sum(-1), torch.ones(len(trace.steps)))
    assert trace.steps[-1] in (".", "￭.")


def test_a_text_too_short_to_trace_is_refused(runs):
    opened = load_run(runs("wordlm")[0])
    with pytest.raises(UsageError, match="in a text of 1 symbols"):
        opened.recipe.trace(opened, "cat")


def test_an_n_gram_trace_shows_where_the_probability_comes_from(runs):
    opened = load_run(runs("ngram-words")[0])
    (trace,) = opened.recipe.trace(opened, "the cat sat on the mat.")
    assert trace.memory == ("none", "1-gram", "2-gram", "3-gram")
    assert trace.most(len(trace.steps) - 1, top=1)[0].label == "3-gram"


def test_another_text_is_refused_when_a_run_is_evaluated(runs, tmp_path):
    (tmp_path / "input.txt").write_text("zyx" * 200)
    with pytest.raises(UsageError, match="trained on another text"):
        evaluate_run(load_run(runs("charlm-shakespeare")[0]), tmp_path)


def test_counting_cannot_be_trained(data, tmp_path):
    recipe, settings = small("ngram-words", "epochs=1")
    with pytest.raises(TrainingError, match="has no weights that could be trained"):
        train_recipe(recipe, tmp_path / "run", settings=settings, data=data)


@pytest.fixture
def reading():
    torch.manual_seed(0)
    return language_models.ReadingOn(RnnLanguageModel(d_vocab=17, d_embed=5, d_hidden=7))


def test_the_loss_goes_on_where_the_last_batch_ended(reading):
    ids = torch.randint(17, (151,))
    losses = [
        reading.loss(reading.model, batch) for batch in stream_batches(ids, batch=3, window=11)
    ]
    whole = torch.cat([torch.stack([loss.loss * loss.n]) for loss in losses]).sum()
    logits = reading.model(ids[:150].view(3, 50)).logits
    torch.testing.assert_close(whole, token_loss(logits, ids[1:].view(3, 50)).loss * 150)


def test_what_is_carried_can_be_put_back(reading):
    first, second, third = stream_batches(torch.randint(17, (91,)), batch=3, window=10)
    reading.loss(reading.model, first)
    held = {name: value.clone() for name, value in reading.read().items()}
    wanted = reading.loss(reading.model, second).loss
    reading.write({})
    assert reading.state is None
    reading.write(held)
    assert len(tensors_of(reading.state)) == len(held) == 4
    torch.testing.assert_close(reading.loss(reading.model, second).loss, wanted)
    reading.loss(reading.model, third._replace(is_first=True))  # begins anew


def test_a_run_that_is_stopped_goes_on_along_the_same_curve(data, tmp_path, runs):
    recipe, settings = small("charlm-shakespeare", "validate_steps=4")
    straight = train_recipe(recipe, tmp_path / "one", settings=settings, data=data)

    def stop(stage, done, total, note):
        if done == 9:
            raise KeyboardInterrupt

    half = with_settings(settings, ["checkpoint_minutes=0"])
    with pytest.raises(KeyboardInterrupt):
        train_recipe(recipe, tmp_path / "two", settings=half, data=data, progress=stop)
    resumed = train_recipe(recipe, tmp_path / "two", settings=half, data=data, resume=True)
    assert resumed["test"] == straight["test"]


def test_each_epoch_begins_elsewhere_and_is_the_same_when_asked_again():
    ids = torch.arange(1000)
    settings = find_recipe("charlm-shakespeare").settings
    epochs = [language_models.turned_batches(ids, settings, epoch=epoch) for epoch in (0, 1, 2, 1)]
    firsts = [int(batches[0].inputs[0, 0]) for batches in epochs]
    assert firsts[0] == 0 and len(set(firsts)) == 3 and firsts[1] == firsts[3]
    for batches in epochs:
        seen = torch.cat([batch.targets[batch.mask] for batch in batches])
        assert len(seen.unique()) == 999


def test_perplexity_in_streams_is_that_of_the_whole_but_for_their_beginnings():
    torch.manual_seed(0)
    model = RnnLanguageModel(d_vocab=17, d_embed=5, d_hidden=7).eval()
    ids = torch.randint(17, (301,))
    whole = token_loss(model(ids[None, :-1]).logits, ids[None, 1:]).loss
    found = language_models.text_perplexity(model, ids, streams=1, window=23)
    assert found.nats == pytest.approx(whole.item(), rel=1e-5)
    assert found.n_tokens == 300
    several = language_models.text_perplexity(model, ids, streams=7, window=23)
    assert several.n_tokens == 300
    assert several.nats == pytest.approx(found.nats, abs=0.05)


def test_the_vocabulary_is_that_of_the_training_text():
    corpus = make_corpus(split_text("abab" * 10 + "c", valid=0.1, test=0.1), unit="character")
    assert language_models.kept_of(corpus)["words"][4:] == ["a", "b"]
