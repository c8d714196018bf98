"""Tasks that ask what a cell has kept: small ones are learnt, and metrics are what they say."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.recipes import cell_benchmarks
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.long_range import BASELINE, adding_batch, copying_batch
from saccade.zoo.tasks.mnist import read_mnist
from saccade.zoo.training.settings import with_settings

SMALL = {
    "adding-gru": ["length=6", "d_hidden=24", "n_test=200", "enough=0.01", "steps=1200"],
    "copying-unitary": ["length=2", "d_hidden=32", "n_test=100", "enough=0.6", "steps=1200"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = {}

    def run(name):
        if name not in made:
            recipe, folder = find_recipe(name), tmp_path_factory.mktemp("runs") / name
            settings = with_settings(recipe.settings, SMALL[name])
            made[name] = folder, train_recipe(recipe, folder, settings=settings)
        return made[name]

    return run


def test_a_short_adding_problem_is_solved_and_its_metric_is_the_mean_squared_error(runs):
    folder, metrics = runs("adding-gru")
    assert metrics["value"] < 0.02 < BASELINE
    run = load_run(folder)
    test = adding_batch(0, length=6, batch=200, seed=cell_benchmarks.TEST_SEED)
    with torch.no_grad():
        off = [
            run.model(sequence[None])[0, -1, 0].item() - wanted.item()
            for sequence, wanted in zip(test.inputs, test.targets, strict=True)
        ]
    assert metrics["value"] == pytest.approx(sum(x * x for x in off) / 200, rel=1e-4)


def test_the_sum_comes_from_the_marked_numbers(runs):
    folder, _ = runs("adding-gru")
    run = load_run(folder)
    (trace,) = run.recipe.trace(run, "0.5 0.6* 0.4 0.5 0.7* 0.5")
    marked = trace.weights[0, [1, 4]].sum().item()
    assert float(trace.steps[0]) == pytest.approx(1.3, abs=0.3)
    assert trace.memory[1] == "0.6*" and marked > 0.6


def test_a_short_silence_is_bridged_and_recalled_symbols_are_counted(runs):
    folder, metrics = runs("copying-unitary")
    assert metrics["value"] > 0.5
    run = load_run(folder)
    again = evaluate_run(run)["test"]
    assert again == pytest.approx(metrics["test"], rel=1e-4)
    test = copying_batch(0, length=2, batch=100, seed=cell_benchmarks.TEST_SEED)
    with torch.no_grad():
        said = run.model(torch.eye(10)[test.inputs]).argmax(-1)
    right = [
        said[row, 12 + place] == test.inputs[row, place]
        for row in range(100)
        for place in range(10)
    ]
    assert metrics["value"] == pytest.approx(sum(right).item() / 1000)


def test_what_is_said_is_traced_to_what_was_heard(runs):
    folder, _ = runs("copying-unitary")
    run = load_run(folder)
    (trace,) = run.recipe.trace(run, "3 1 4 1 5 2 6 5 3 5")
    assert trace.memory == tuple("3141526535") and len(trace.steps) == 10
    assert (trace.weights.sum(-1) <= 1 + 1e-5).all() and trace.weights.sum() > 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("adding-gru", ""),
        ("adding-gru", "one two"),
        ("copying-unitary", "1 2 3"),
        ("copying-unitary", "9 1 4 1 5 2 6 5 3 5"),
    ],
)
def test_other_texts_are_refused(name, text, runs):
    run = load_run(runs(name)[0])
    with pytest.raises(UsageError, match="expected") as refused:
        run.recipe.trace(run, text)
    assert refused.value.hint


def test_every_setting_of_the_recipes_makes_a_model():
    sizes = dict.fromkeys(("lstm", "gru", "irnn", "unitary", "tanh"), ("adding", 2, 1))
    for name, (task, d_input, d_output) in [*sizes.items(), ("lstm", ("copying", 10, 10))]:
        recipe = find_recipe(f"{task}-{name}")
        model = recipe.restore(recipe.settings, {})
        inputs = torch.randn(2, 3, d_input, generator=torch.Generator().manual_seed(0))
        other = inputs.clone()
        other[0, 0] += 1
        said, changed = model(inputs), model(other)
        assert said.shape == (2, 3, d_output)
        # What was read first is still heard at the end, and in its own row only.
        assert not torch.equal(said[0, -1], changed[0, -1])
        torch.testing.assert_close(said[1], changed[1])


def test_accuracy_counts_digits_and_moved_digits_keep_their_ink(data_with):
    test = read_mnist("test", data_with("mnist"))
    few = type(test)(test.images[:700], test.labels[:700])
    torch.manual_seed(0)
    recipe = find_recipe("row-mnist")
    model = recipe.restore(recipe.settings, {}).eval()
    with torch.no_grad():
        named = [model(image[None] / 255)[0, -1].argmax() for image in few.images]
    right = sum(bool(one == other) for one, other in zip(named, few.labels, strict=True))
    assert cell_benchmarks.accuracy(model, few) == pytest.approx(100 * right / 700)
    images = few.images.float() / 255
    moved = cell_benchmarks._shifted(images, 1)
    torch.testing.assert_close(moved.sum((1, 2)), images.sum((1, 2)))
    assert cell_benchmarks._shifted(images, 0) is images
