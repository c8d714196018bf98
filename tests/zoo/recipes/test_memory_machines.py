"""Machines with a memory: short tasks are learnt, metrics are what they say, tapes are shown."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.trace.plot import draw_trace
from saccade.zoo.recipes import memory_machines
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import TrainedRun, load_run, train_recipe
from saccade.zoo.training.settings import with_settings

NAMES = (
    *("ntm-copy", "lstm-copy", "ntm-repeat-copy", "ntm-recall", "ntm-sort"),
    *("dnc-copy", "dnc-recall", "sam-recall"),
)
SMALL = [
    *("d_bits=3", "d_hidden=24", "n_slots=16", "n_slots_tested=19", "d_slot=8"),
    *("n_valid=20", "n_test=40"),
]
SHORT = {
    "ntm-copy": ["lengths=1,2", "tested=2,3", "steps=400", "learning_rate=0.01"],
    "dnc-copy": ["lengths=1,2", "tested=2", "steps=30"],
    "sam-recall": ["lengths=2,3", "tested=3", "steps=10"],
    "ntm-repeat-copy": ["lengths=1,2", "repeats=1,3", "tested=2", "steps=20"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = {}

    def run(name):
        if name not in made:
            recipe, folder = find_recipe(name), tmp_path_factory.mktemp("runs") / name
            words = [*SMALL, "batch=16", "validate_steps=100", *SHORT[name]]
            settings = with_settings(recipe.settings, words)
            made[name] = folder, train_recipe(recipe, folder, settings=settings)
        return made[name]

    return run


def test_a_short_copy_is_learnt(runs):
    _, metrics = runs("ntm-copy")
    assert metrics["value"] == metrics["test"]["wrong_bits_2"] < 1.5  # guessing has 3
    assert metrics["test"]["wrong_bits_3"] < 4.5


@pytest.mark.parametrize("name", SHORT)
def test_metrics_count_wrong_bits_and_right_sequences(name, runs):
    folder, metrics = runs(name)
    run = load_run(folder)
    length = run.settings.tested[0]
    seed = memory_machines.TEST_SEED
    test = memory_machines.bit_batch(run.settings, length, batch=40, seed=seed, length=length)
    wrong = []
    # All at once: a sparse memory chooses slots, and rounding may tip the choice of a single one.
    for row, said in enumerate(run.model.run(test.inputs, 19).logits):
        wrong.append(
            sum(
                int((said[at, bit] > 0).item() != bool(test.targets[row, at, bit]))
                for at in test.is_asked[row].nonzero()[:, 0].tolist()
                for bit in range(test.targets.shape[2])
            )
        )
    assert metrics["test"][f"wrong_bits_{length}"] == pytest.approx(sum(wrong) / 40, rel=1e-4)
    right = 100 * sum(not each for each in wrong) / 40
    assert metrics["test"][f"right_{length}"] == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "text", "n_steps", "views"),
    [
        ("ntm-copy", "4", 9, ("write", "read")),
        ("ntm-copy", "101 011", 5, ("write", "read")),
        ("dnc-copy", "3", 7, ("write", "read")),
        ("sam-recall", "3", 20, ("write", "read")),
        ("ntm-repeat-copy", "2x3", 10, ("write", "read 1", "read 2")),
    ],
)
def test_a_tape_has_a_row_for_every_step_and_a_view_for_every_head(
    name, text, n_steps, views, runs, tmp_path
):
    run = load_run(runs(name)[0])
    (trace,) = run.recipe.trace(run, text)
    assert trace.kind == "tape" and trace.views == views
    assert len(trace.steps) == n_steps
    assert (trace.weights.sum(-1) <= 1 + 1e-4).all() and (trace.weights.amax((0, 1)) > 0.02).all()
    draw_trace(trace, tmp_path / "tape.png")
    assert (tmp_path / "tape.png").stat().st_size > 1000 and "tape" in trace.to_html()


def test_the_tape_of_given_bits_begins_with_them_and_says_how_wrong_it_is(runs):
    run = load_run(runs("ntm-copy")[0])
    (trace,) = run.recipe.trace(run, "101 011")
    assert trace.steps[:3] == ("101", "011", "mark")
    said = "".join(step.removeprefix("> ") for step in trace.steps[3:])
    wrong = sum(one != other for one, other in zip(said, "101011", strict=True))
    assert trace.meta["wrong_bits"] == wrong


def test_the_mark_that_says_how_often_is_a_mark(runs):
    run = load_run(runs("ntm-repeat-copy")[0])
    (trace,) = run.recipe.trace(run, "2x3")
    assert [step == "mark" for step in trace.steps[:3]] == [False, False, True]
    assert all(step.startswith("> ") and len(step) == 6 for step in trace.steps[3:])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ntm-copy", "four"),
        ("ntm-copy", "0"),
        ("ntm-copy", "10 11"),
        ("ntm-repeat-copy", "3"),
        ("ntm-repeat-copy", "3x"),
        ("sam-recall", "1"),
    ],
)
def test_other_texts_are_refused(name, text, runs):
    run = load_run(runs(name)[0])
    with pytest.raises(UsageError, match="expected") as refused:
        run.recipe.trace(run, text)
    assert "for example" in refused.value.hint


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_has_a_machine_for_its_task(name, learns_from):
    recipe = find_recipe(name)
    settings = with_settings(recipe.settings, ["batch=2", "n_valid=2"])
    job = recipe.build(settings, None)
    batch = next(iter(job.batches_of(0, 0)))
    assert learns_from(job, batch)
    for given in recipe.gallery:
        memory_machines.given_batch(settings, given)


def test_several_heads_have_a_view_each():
    recipe = find_recipe("ntm-sort")
    settings = with_settings(recipe.settings, SMALL)
    model = recipe.restore(settings, {})
    batch = memory_machines.bit_batch(settings, 0, batch=1, seed=0)
    with torch.no_grad():
        weights, views = memory_machines.head_weights(model.run(batch.inputs))
    assert views == ("write 1", "write 2", "read 1", "read 2")
    assert weights.shape == (4, batch.inputs.shape[1], 16)


def test_the_control_has_as_many_weights_as_the_machine():
    sizes = []
    for name in ("ntm-copy", "lstm-copy"):
        recipe = find_recipe(name)
        model = recipe.restore(recipe.settings, {})
        sizes.append(sum(w.numel() for w in model.parameters() if w.requires_grad))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


def test_the_control_has_no_tape_to_show():
    recipe = find_recipe("lstm-copy")
    run = TrainedRun(
        recipe=recipe,
        settings=recipe.settings,
        kept={},
        models=(recipe.restore(recipe.settings, {}),),
    )
    assert not recipe.can_trace and find_recipe("ntm-copy").can_trace
    with pytest.raises(UsageError, match="lstm-copy has no attention to trace"):
        recipe.trace(run, "4")
