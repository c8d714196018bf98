"""Recipes run on a device that is not the CPU: a tensor that was not moved is refused.

There is no GPU in the tests; `second_device.py` plays one. Every system of every family is trained
for two steps, validated, evaluated, loaded again and used there.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, replace

import pytest
import torch
from second_device import DEVICE, SecondDevice, second_device
from small_data import ENGLISH, GERMAN, WRITTEN

from saccade.zoo.cells.stacks import cell_names, make_cell
from saccade.zoo.models.rnn_encoder_decoder import RnnEncoderDecoder, score_phrases
from saccade.zoo.recipes.recipe import (
    Recipe,
    RescoreOptions,
    SampleOptions,
    TranslateOptions,
    families,
    find_recipe,
)
from saccade.zoo.recipes.rescoring import rescore_translations
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.tokenizers import WordTokenizer
from saccade.zoo.training import loop, run_state
from saccade.zoo.training.checkpoint import seed_all
from saccade.zoo.training.loop import train
from saccade.zoo.training.settings import with_settings

FEW = ["steps=2", "validate_steps=2"]
MACHINE = ["d_bits=3", "d_hidden=8", "n_slots=8", "n_slots_tested=11", "d_slot=5"]
BITS = ["n_test=8", "n_valid=8", "lengths=2,3", "tested=3"]
SCENE = ["size=40", "n_clutter=1", "batch=13", "d_hidden=16"]
WORDS = ["coding=words", "n_pieces=17", "batch_tokens=64", "beam=2"]
TEXT = ["d_embed=5", "d_hidden=7", "streams=5", "window=13", "valid=0.1"]
STORY = ["tasks=1", "batch=16"]
SPOKEN = ["d_hidden=8", "batch=4", "n_valid=4", "n_test=4", "n_layers=2", "shortest=1", "longest=2"]
CAPTION = ["d_embed=5", "d_hidden=7", "batch=9"]
PHOTOS = [*CAPTION, "size=24", "margin=4", "channels=3,4,5,6,7", "n_others=4", "min_count=1"]
SAID = "Mary went to the hall. John took the milk. Where is Mary?"


@dataclass(frozen=True)
class Small:
    """How a recipe is made small, and what it is asked when it is trained."""

    settings: list[str]
    traced: str | None = None
    translated: str | None = None
    is_trained: bool = True


SMALL = {
    "adding-lstm": Small(["length=6", "d_hidden=8", "n_test=20"], "0.5 0.2* 0.9 0.1*"),
    "adding-irnn": Small(["length=6", "d_hidden=8", "n_test=20"], "0.5 0.2* 0.9 0.1*"),
    "adding-unitary": Small(["length=6", "d_hidden=8", "n_test=20"], "0.5 0.2* 0.9 0.1*"),
    "copying-lstm": Small(["length=4", "d_hidden=8", "n_test=20"], "1 2 3 4 5 6 7 0 1 2"),
    "row-mnist": Small(["d_hidden=8", "batch=13"], "0"),
    "lstm-copy": Small(["d_bits=3", "d_hidden=8", *BITS]),
    "ntm-copy": Small([*MACHINE, *BITS], "2"),
    "ntm-repeat-copy": Small([*MACHINE, *BITS], "2x2"),
    "ntm-sort": Small([*MACHINE, *BITS, "n_wanted=2"], "3"),
    "dnc-copy": Small([*MACHINE, *BITS], "2"),
    "sam-recall": Small([*MACHINE, *BITS], "3"),
    "ham-sort": Small(["d_bits=2", *BITS, "d_node=8", "d_hidden=8"], "3 0 2"),
    "execute": Small(
        ["length=1", "d_embed=7", "d_hidden=13", "programs=60", "n_valid=5", "n_test=20"],
        "print(12)",
        "print(12)",
    ),
    "ram-mnist": Small(["n_glimpses=2", "d_hidden=16", "d_glimpse=8", "batch=16"], "0"),
    "ram-cluttered60-random": Small([*SCENE, "n_glimpses=2", "d_glimpse=8"], "0"),
    "conv-mnist": Small(["d_hidden=8", "batch=16"]),
    "fc-mnist": Small(["d_hidden=8", "batch=16"]),
    "dram-pairs": Small(
        ["size=84", "n_glimpses=2", "patch=8", "n_scales=2", "d_hidden=16", "batch=16"], "0"
    ),
    "diffram-cluttered100": Small([*SCENE, "n_glimpses=2"], "0"),
    "edram-cluttered100": Small([*SCENE, "n_glimpses=2", "channels=4,6"], "0"),
    "stn-cluttered60": Small([*SCENE, "channels=4,6"], "0"),
    "stn-multi-cluttered60": Small([*SCENE, "channels=4,6"], "0"),
    "draw-mnist": Small(["n_steps=2", "d_hidden=16", "d_latent=4", "batch=13"], "0"),
    "draw-mnist-noattention": Small(["n_steps=2", "d_hidden=16", "d_latent=4", "batch=13"], "0"),
    "foveal-mnist": Small(["n_glimpses=2", "side=5", "d_hidden=8", "d_factor=8", "batch=16"], "0"),
    "bahdanau-multi30k": Small([*WORDS, "d_hidden=8", "d_embed=5"], GERMAN[0], GERMAN[0]),
    "luong-multi30k": Small([*WORDS, "d_hidden=8", "view=local-p"], GERMAN[0], GERMAN[0]),
    "luong-multi30k local-m": Small(
        [*WORDS, "d_hidden=8", "view=local-m", "attention=location", "is_fed=false"],
        GERMAN[0],
        GERMAN[0],
    ),
    "gnmt-multi30k": Small([*WORDS, "d_model=8"], GERMAN[0], GERMAN[0]),
    "hybrid-multi30k": Small(
        [*WORDS, "coding=spelled", "d_model=8", "d_letter=5", "n_pieces=5"],
        "Ein Zwergpudel",
        GERMAN[0],
    ),
    "seq2seq-multi30k": Small([*WORDS, "d_hidden=8", "d_embed=5"], None, GERMAN[0]),
    "encoder-decoder-multi30k": Small([*WORDS, "d_hidden=8", "d_maxout=5"], None, GERMAN[0]),
    "continuous-multi30k": Small([*WORDS, "d_model=8"], None, GERMAN[0]),
    "transformer-multi30k": Small(
        [*WORDS, "d_model=12", "d_hidden=17", "n_layers=2", "n_heads=3"],
        GERMAN[0],
        GERMAN[0],
    ),
    "charlm-shakespeare": Small(TEXT, "the cat"),
    "wordlm": Small([*TEXT, "n_words=23", "precision=float32"], "the lamp"),
    "wordlm-memoryless": Small([*TEXT, "n_words=23"], "the lamp"),
    "ngram-words": Small(["order=3", "n_words=23"], "the lamp", is_trained=False),
    "memnn-babi": Small([*STORY, "d_embed=5", "d_hidden=7"], SAID),
    "memn2n-babi": Small([*STORY, "d_embed=5", "n_tries=2"], SAID),
    "dmn-babi-10k": Small([*STORY, "d_hidden=7"], SAID),
    "reader-books-attentive": Small(["n_labels=14", "d_embed=5", "d_hidden=7"], "0"),
    "reader-books-impatient": Small(["n_labels=14", "d_embed=5", "d_hidden=7"], "0"),
    "reader-books-deep-lstm": Small(["n_labels=14", "d_embed=5", "d_hidden=7"], "0"),
    "reader-books-nearest": Small(["n_labels=14"], "0", is_trained=False),
    "caption-scenes-soft": Small([*CAPTION, "channels=3,4,4,5,6"], "0"),
    "caption-scenes-hard": Small([*CAPTION, "channels=3,4,4,5,6"], "0"),
    "caption-scenes-tell": Small([*CAPTION, "channels=3,4,4,5,6"], "0"),
    "caption-flickr8k-1000": Small([*PHOTOS, "beam=2"], "1"),
    "caption-flickr8k-1000-tell": Small([*PHOTOS, "beam=2"], "1"),
    "video-digits": Small([*CAPTION, "d_frame=5"], "0"),
    "video-digits-plain": Small([*CAPTION, "d_frame=5"], "0"),
    "ctc-digits": Small([*SPOKEN, "strides=2,2"], "bob 37", "bob 37"),
    "las-digits": Small(SPOKEN, "bob 37", "bob 37"),
    "las-digits-location": Small(SPOKEN, "bob 37", "bob 37"),
    "las-digits-monotonic": Small(SPOKEN, "bob 37", "bob 37"),
    "ctc-words": Small(["d_hidden=8", "n_layers=1", "batch=8", "order=3", "beam=2"], "1", "1"),
    "hard-attention": Small(["d_hidden=8", "d_embed=5"], "dd_oogg", "dd_oogg"),
    "grammar-treebank": Small(
        ["d_embed=7", "d_hidden=11", "n_layers=1", "batch_tokens=400", "beam=2"],
        "the cat sat.",
        "the cat sat.",
    ),
}


@pytest.fixture(scope="module")
def data(little_mnist):
    """Every data set in small; SACCADE_DATA names them."""
    for write in WRITTEN:
        write(little_mnist)
    parts = {"anna": 1, "bo": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saccade.zoo.tasks.pen_words.part_of", lambda person: parts.get(person, 0))
        yield little_mnist


@pytest.fixture
def elsewhere(monkeypatch):
    """Trainings find the second device when they ask for one."""
    monkeypatch.setattr(loop, "device_of", lambda _: DEVICE)
    monkeypatch.setattr(run_state, "device_of", lambda _: DEVICE)
    with second_device() as device:
        yield device


def test_a_forgotten_move_is_refused():
    with SecondDevice():
        model = torch.nn.Linear(3, 5).to(DEVICE)
        x = torch.randn(7, 3)
        with pytest.raises(RuntimeError, match="expected all tensors on the same device"):
            model(x)
        assert model(x.to(DEVICE)).device == DEVICE
        torch.testing.assert_close(model(x.to(DEVICE)).cpu(), model.cpu()(x))


def test_indices_go_to_the_second_device_and_not_back():
    here, at = torch.arange(12).view(3, 4), torch.tensor([2, 0])
    with SecondDevice():
        there = here.to(DEVICE)
        assert there[at].tolist() == here[at].tolist()
        with pytest.raises(RuntimeError, match="expected all tensors on the same device"):
            here[at.to(DEVICE)]
        with pytest.raises(RuntimeError, match="expected all tensors on the same device"):
            there[at] = here[:2]


def test_a_generator_of_the_other_device_is_refused():
    chance = torch.Generator()
    with SecondDevice(), pytest.raises(RuntimeError, match="expected a generator of the second"):
        torch.rand(3, device=DEVICE, generator=chance)
    with SecondDevice():
        assert torch.rand(3, generator=chance).to(DEVICE).device == DEVICE


def test_every_system_of_every_family_is_here():
    def kind(recipe):
        return type(recipe).__name__, recipe.system

    wanted = {kind(recipe) for recipes in families().values() for recipe in recipes}
    assert wanted == {kind(find_recipe(name.split()[0])) for name in SMALL}


@pytest.mark.parametrize("name", SMALL)
def test_a_system_trains_evaluates_and_is_used_elsewhere(name, data, tmp_path, elsewhere):
    recipe, small = find_recipe(name.split()[0]), SMALL[name]
    settings = with_settings(recipe.settings, [*small.settings, *(FEW if small.is_trained else ())])
    train_recipe(recipe, tmp_path / "run", settings=settings)  # and evaluates, on that device
    assert elsewhere.n_done > 0 or not small.is_trained
    run = load_run(tmp_path / "run")
    run.model.to(DEVICE)
    assert recipe.can_trace == (small.traced is not None)
    if small.traced is not None:
        assert json.dumps([trace.to_dict() for trace in run.trace(small.traced)])
    assert recipe.can_translate == (small.translated is not None)
    if small.translated is not None:
        options = TranslateOptions(beam=2, max_length=4)
        assert len(run.translate([small.translated], options)) == 1
    if type(recipe).sample is not Recipe.sample:
        assert len(run.sample(SampleOptions(length=3, prompt="the ")))


def test_an_interrupted_training_resumes_elsewhere(data, tmp_path, elsewhere):
    recipe = find_recipe("charlm-shakespeare")  # which carries a state from step to step
    words = [*SMALL[recipe.name].settings, "steps=3", "validate_steps=2", "average_last=2"]
    settings = with_settings(recipe.settings, words)

    def stop(_, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def weights(folder, **changes):
        seed_all(0)
        job = replace(recipe.build(settings, data), **changes)
        return train(job, tmp_path / folder, resume=not changes).model.state_dict()

    with pytest.raises(KeyboardInterrupt):
        weights("run", before_step=stop)
    resumed, whole = weights("run"), weights("whole")
    assert {each.device for each in resumed.values()} == {DEVICE}
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


@pytest.mark.usefixtures("elsewhere")
def test_an_ensemble_translates_and_a_second_run_rescores_elsewhere(data, tmp_path):
    name = "seq2seq-multi30k"
    for seed in (0, 1):
        words = [*SMALL[name].settings, *FEW, f"seed={seed}", "valid_sentences=1"]
        settings = with_settings(find_recipe(name).settings, words)
        train_recipe(find_recipe(name), tmp_path / str(seed), settings=settings)
    both = load_run([tmp_path / "0", tmp_path / "1"])
    for model in both.models:
        model.to(DEVICE)
    assert evaluate_run(both, data)["metric"] == "bleu"
    options = RescoreOptions(n_best=2)
    assert len(rescore_translations(both, both, GERMAN, options=options)) == len(GERMAN)


@pytest.mark.usefixtures("elsewhere")
def test_phrases_are_scored_elsewhere():
    tokenizer = WordTokenizer.build([*GERMAN, *ENGLISH])
    model = RnnEncoderDecoder(
        n_source=len(tokenizer), n_target=len(tokenizer), d_embed=5, d_hidden=7
    ).eval()
    here = score_phrases(model, GERMAN, ENGLISH, tokenizer=tokenizer)
    there = score_phrases(model.to(DEVICE), GERMAN, ENGLISH, tokenizer=tokenizer)
    assert [each.log_prob for each in there] == pytest.approx([each.log_prob for each in here])


@pytest.mark.parametrize("name", cell_names())
def test_a_cell_reads_elsewhere_as_it_does_here(name, elsewhere):
    torch.manual_seed(0)
    cell = make_cell(name, 3, 6).eval()
    inputs = torch.randn(2, 5, 3)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    here = cell.unroll(inputs, mask=mask).outputs
    there = cell.to(DEVICE).unroll(inputs.to(DEVICE), mask=mask.to(DEVICE)).outputs
    assert there.device == DEVICE
    torch.testing.assert_close(there.cpu(), here)
    stepped, _ = cell.step(inputs[:, 0].to(DEVICE), cell.start(2))
    torch.testing.assert_close(stepped.cpu(), here[:, 0])
