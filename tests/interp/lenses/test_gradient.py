"""Training by gradient steps, judged by a step written out in plain torch."""

import copy

import pytest
import torch

from saccade.distributed import Processes
from saccade.errors import LensError
from saccade.interp.heads.capture import capture
from saccade.interp.lenses import gather as checkpoints
from saccade.interp.lenses import gradient
from saccade.interp.lenses.batches import CorpusBatches, windows_of_step
from saccade.interp.lenses.fit import fit_on
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.gather import Checkpoint
from saccade.interp.lenses.gradient import GradientConfig, find_objective, train
from saccade.interp.lenses.head_lens import DenseHeadLens, HeadLens
from saccade.interp.lenses.lens import lens_kind

LAYER, ROWS = 3, 5


@pytest.fixture(scope="module")
def text(told, corpus_of):
    """As many windows as a step reads, so that every step reads the same ones."""
    return corpus_of(told[:ROWS, :23])


def trained(model, lens, text, objective="kl", *, layer=LAYER, **settings):
    config = GradientConfig(rows=ROWS, **settings)
    lenses = {layer: copy.deepcopy(lens)}
    kind = find_objective(objective)
    history = train(model, lenses, kind, text, config=config, processes=Processes())
    return lenses[layer], history


@torch.no_grad()
def seen_by_hand(model, ids, layer):
    return capture(model, ids).z[layer], model.hf(ids, use_cache=False).logits.softmax(-1)


def kl(p, logits):
    return (p * (p.log() - logits.log_softmax(-1))).sum(-1)


def loss_by_hand(model, lens, ids, *, over, positions):
    """Position by position and row by row, from the model's own logits."""
    z, p = seen_by_hand(model, ids, LAYER)
    columns = [ids.shape[1] - 2] if positions == "last" else range(1, ids.shape[1] - 1)
    terms = []
    for row in range(len(ids)):
        for column in columns:
            logits = lens(z[row, column][None])[0]  # [head, d_vocab]
            said = logits.sum(0, keepdim=True) if over == "layer" else logits
            terms.append(kl(p[row, column], said).sum())
    return torch.stack(terms).mean()


@pytest.mark.parametrize("over", ["head", "layer"])
@pytest.mark.parametrize("positions", ["all", "last"])
def test_a_step_is_adams_own_on_the_loss_written_out(stories, text, over, positions, monkeypatch):
    # So small that a batch is cut into many pieces.
    monkeypatch.setattr(gradient, "CHUNK_BYTES", 4 * 512 * 8 * 11)
    start = DenseHeadLens.start(stories, LAYER)
    found, history = trained(stories, start, text, steps=1, over=over, positions=positions)
    expected = copy.deepcopy(start)
    optimiser = torch.optim.Adam(expected.parameters(), lr=1e-3)
    order = windows_of_step(ROWS, 1, rows=ROWS, seed=0)
    loss = loss_by_hand(stories, expected, text.windows[order], over=over, positions=positions)
    loss.backward()
    optimiser.step()
    n_losses = 1 if over == "layer" else 8
    assert history[0] == pytest.approx(float(loss.detach()) / n_losses, rel=1e-4)
    for name, value in expected.state_dict().items():
        moved = (value - start.state_dict()[name]).abs()
        assert moved.max() > 5e-4
        # Adam's first step is the sign of the gradient: where that is next to nothing, either.
        wrong = (found.state_dict()[name] - value).abs() > 1e-5
        assert wrong.float().mean() < 0.01


@pytest.mark.parametrize("objective", ["kl", "reverse-kl", "cross-entropy", "input"])
@pytest.mark.parametrize("kind", ["head", "dense", "tuned"])
def test_every_kind_of_lens_is_trained_towards_every_objective(stories, text, kind, objective):
    start = lens_kind(kind).start(stories, LAYER)
    settings = {"steps": 7, "learning_rate": 2e-3 if kind == "dense" else 1e-2}
    lens, history = trained(stories, start, text, objective, **settings)
    assert history[-1] < history[0] - 0.02
    assert len(history) == 7 and not any(p.requires_grad for p in lens.parameters())


def test_the_sum_of_a_layers_lenses_is_trained_as_one(stories, text):
    start = HeadLens.start(stories, LAYER)
    settings = {"steps": 5, "learning_rate": 1e-2}
    _, alone = trained(stories, start, text, over="head", **settings)
    _, summed = trained(stories, start, text, over="layer", **settings)
    assert summed[0] == pytest.approx(alone[0], rel=1e-5)  # all silent at the start
    assert summed[-1] < alone[-1]  # eight lenses together get on faster than each for itself


def test_all_windows_are_read_once_before_any_comes_again():
    turns = [
        torch.cat([windows_of_step(12, step, rows=4, seed=1) for step in steps])
        for steps in ((1, 2, 3), (4, 5, 6))
    ]
    for turn in turns:
        assert sorted(turn.tolist()) == list(range(12))
    assert not torch.equal(*turns)
    assert not torch.equal(turns[0][:4], windows_of_step(12, 1, rows=4, seed=2))
    assert len(windows_of_step(3, 1, rows=8, seed=0)) == 3


def test_a_parameter_that_the_loss_does_not_reach_stays_as_it_is(stories, text):
    start = HeadLens.start(stories, LAYER)
    start.spare = torch.nn.Parameter(torch.ones(3))
    lens, _ = trained(stories, start, text, steps=2)
    assert torch.equal(lens.spare, torch.ones(3))


def test_training_that_was_stopped_goes_on_and_ends_in_the_same_lens(
    stories, told, corpus_of, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "PAUSE_OVER_WRITING", 0)
    text, steps = corpus_of(told[:23, :13]), []

    def stop_at_four(stage, done, total):
        steps.append(done)
        if steps == [1, 2, 3, 4]:
            raise KeyboardInterrupt

    def start(*, checkpoint=None, progress=None):
        lenses = {LAYER: HeadLens.start(stories, LAYER)}
        config = GradientConfig(rows=ROWS, steps=9, learning_rate=1e-2)
        history = train(
            stories,
            lenses,
            find_objective("kl"),
            text,
            config=config,
            processes=Processes(),
            checkpoint=checkpoint,
            progress=progress,
        )
        return lenses[LAYER].state_dict(), history

    with pytest.raises(KeyboardInterrupt):
        start(checkpoint=Checkpoint(tmp_path, "training-0.safetensors"), progress=stop_at_four)
    kept = Checkpoint(tmp_path, "training-0.safetensors")
    resumed, history = start(checkpoint=kept, progress=stop_at_four)
    expected, whole = start()
    assert steps == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9]
    assert history == whole
    assert all(torch.equal(resumed[name], value) for name, value in expected.items())


def test_the_published_recipe_lowers_the_kl_of_its_own_start(
    stories, corpus, judged, tmp_path, monkeypatch
):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path))
    config = FitConfig(method="published", kind="dense", layers=(LAYER,), steps=25)
    batches = CorpusBatches(stories, corpus, rows=13)
    lenses = fit_on(stories, batches, config, processes=Processes())
    assert set(lenses.by_layer) == {LAYER} and lenses.by_layer[LAYER].kind == "dense"
    before = judged.kl(DenseHeadLens.start(stories, LAYER), LAYER)
    after = judged.kl(lenses.by_layer[LAYER], LAYER)
    assert (after < before - 0.05).all()


def test_a_layer_is_trained_in_pieces_of_the_size_that_memory_allows(stories, text, monkeypatch):
    """Eleven positions at a time, however many there are: smaller pieces take longer."""
    monkeypatch.setattr(gradient, "CHUNK_BYTES", 4 * stories.d_vocab * 8 * 11)
    sizes = []

    def counted(logits, target):
        sizes.append(len(logits))
        return find_objective("kl")(logits, target)

    lenses = {LAYER: HeadLens.start(stories, LAYER)}
    config = GradientConfig(rows=ROWS, steps=1)
    train(stories, lenses, counted, text, config=config, processes=Processes())
    n = ROWS * (text.windows.shape[1] - 2)  # neither BOS nor the last token
    assert sizes == [11] * (n // 11) + [n % 11]
    sizes.clear()
    monkeypatch.setattr(gradient, "CHUNK_BYTES", 1)
    train(stories, lenses, counted, text, config=config, processes=Processes())
    assert sizes == [1] * n


# -- A training that goes wrong. --


@pytest.mark.parametrize("rate", [100.0, 1e30, float("inf")])
def test_a_training_that_diverges_is_stopped_in_one_line(stories, told, corpus_of, rate, tmp_path):
    config = FitConfig(method="train", learning_rate=rate, layers=(LAYER,), steps=9, rows=4)
    batches = CorpusBatches(stories, corpus_of(told[:48]), rows=4)
    with pytest.raises(LensError, match="the training diverged") as raised:
        fit_on(stories, batches, config, processes=Processes(), save_to=tmp_path / "lens")
    assert "\n" not in str(raised.value) and "smaller --learning-rate" in raised.value.hint
    assert not (tmp_path / "lens").exists()


def test_the_state_with_the_least_held_out_loss_is_kept(stories, told, text, corpus_of):
    """Five windows are soon known by heart: the last state is not the best on others."""
    start = HeadLens.start(stories, LAYER)
    held_out = told[ROWS : ROWS + 2, :23]
    judge = find_objective("kl")
    config = GradientConfig(rows=ROWS, steps=64, learning_rate=0.3)

    def loss(lens):
        return train(  # a step of rate zero says the loss and changes nothing
            stories,
            {LAYER: copy.deepcopy(lens)},
            judge,
            corpus_of(held_out),
            config=GradientConfig(rows=2, steps=1, learning_rate=0.0),
            processes=Processes(),
        )[0]

    chosen, last = ({LAYER: copy.deepcopy(start)} for _ in range(2))
    given = {"config": config, "processes": Processes()}
    train(stories, last, judge, text, **given)
    train(stories, chosen, judge, text, held_out=held_out, **given)
    assert loss(chosen[LAYER]) < loss(last[LAYER]) - 1e-3
    assert loss(chosen[LAYER]) <= loss(start) + 1e-6
