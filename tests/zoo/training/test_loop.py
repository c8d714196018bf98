"""The loop: that it learns, that it stops when it should, and that a stop is not felt."""

import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

from saccade.distributed import Processes
from saccade.errors import TrainingError
from saccade.zoo.training.checkpoint import load_checkpoint
from saccade.zoo.training.job import Carried, Curriculum, Job, LossOut
from saccade.zoo.training.loop import train, why_over
from saccade.zoo.training.run_folder import RunFolder
from saccade.zoo.training.run_state import begin_run
from saccade.zoo.training.settings import TrainConfig


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch):
    """Drawing takes longer than these trainings; `test_processes.py` looks at a picture."""
    from saccade.zoo.training import run_state as run

    monkeypatch.setattr(run, "save_curves", lambda *_, **__: None)


class DeadError(Exception):
    """Instead of a kill, for tests that need many."""


def dies_at(step):
    def before_step(model, now):
        if now == step:
            raise DeadError

    return before_step


def interrupts_at(step):
    def before_step(model, now):
        if now == step:
            os.kill(os.getpid(), signal.SIGINT)

    return before_step


def assert_same(folder, other):
    """To the last bit: weights, optimiser, generators and counters, the best weights as well."""
    found, expected = (load_checkpoint(RunFolder(f).checkpoint) for f in (folder, other))
    assert replace(found.state, seconds=0.0) == replace(expected.state, seconds=0.0)
    for part in ("weights", "optimiser", "random", "carried", "window"):
        mine, its = getattr(found, part), getattr(expected, part)
        assert mine.keys() == its.keys(), part
        for name, value in mine.items():
            if name not in ("0.python", "0.python_gauss"):  # the checker of types draws from it
                assert torch.equal(value, its[name]), f"{part} {name}"
    (mine, _), (its, _) = (RunFolder(f).read_best() for f in (folder, other))
    assert all(torch.equal(value, its[name]) for name, value in mine.items())


def test_it_learns_and_keeps_the_best(tiny_job, tmp_path, curve):
    job = tiny_job(epochs=12)
    trained = train(job, tmp_path / "run")
    assert trained.metrics["validation"]["right"] > 0.9
    assert trained.metrics["steps"] == 12 * 17 and trained.metrics["ended"] == "12 epochs"
    losses = [line["loss"] for line in curve(tmp_path / "run") if "loss" in line]
    assert len(losses) == 12 * 17 // 5 and losses[-1] < losses[0] / 3
    best, about = RunFolder(tmp_path / "run").read_best()
    scores = [line["validation"]["nll"] for line in curve(tmp_path / "run") if "validation" in line]
    assert about["scores"]["nll"] == min(scores) and not trained.model.training
    assert all(torch.equal(best[name], w) for name, w in trained.model.state_dict().items())


def test_it_does_what_a_plain_loop_does(tiny_job, tmp_path):
    job, other = (tiny_job(steps=23, epochs=0, clip=0.5, schedule="cosine", warmup=5) for _ in "ab")
    train(job, tmp_path / "run")
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(other.model.parameters())
    batches = [*other.batches(0), *other.batches(1)][:23]
    rates = [0.02 * min(1, k / 5) * (0.5 + 0.5 * cos(max(0, k - 5) / 18)) for k in range(1, 24)]
    other.model.train()
    for batch, rate in zip(batches, rates, strict=True):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        other.loss(other.model, batch).loss.backward()
        nn.utils.clip_grad_norm_(other.model.parameters(), 0.5)
        optimiser.step()
    last = load_checkpoint(tmp_path / "run" / "checkpoint").weights
    for name, weight in other.model.state_dict().items():
        torch.testing.assert_close(last[name], weight)


def test_products_are_rounded_only_where_the_training_says_so(tiny_job, tmp_path):
    kinds = {}

    def seeing(precision):
        job = tiny_job(steps=5, epochs=0, precision=precision)

        def loss(model, batch):
            product = model.output.weight @ model.output.weight.T
            kinds.setdefault(precision, product.dtype)
            return job.loss(model, batch)

        trained = train(replace(job, loss=loss), tmp_path / precision)
        return trained.model.output.weight

    exact, rounded = seeing("float32"), seeing("bfloat16")
    assert kinds == {"float32": torch.float32, "bfloat16": torch.bfloat16}
    assert rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, atol=0.05, rtol=0)


def cos(part):
    return float(torch.cos(torch.tensor(part * torch.pi, dtype=torch.float64)))


@pytest.mark.parametrize("more", [{}, {"validate_steps": 7, "schedule": "plateau-halving"}])
def test_a_run_that_dies_after_its_checkpoint_goes_on_along_the_same_curve(
    tiny_job, tmp_path, curve, more
):
    """Saved at step 22, dead at step 40: what was logged and kept in between is done again."""
    more = {"optimiser": "rmsprop", "momentum": 0.5, "average_last": 2, **more}
    train(tiny_job(**more), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tiny_job(**more, job={"before_step": interrupts_at(22)}), tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run" / "checkpoint").state
    assert (saved.step, saved.epoch, saved.batch) == (22, 1, 5)
    job = tiny_job(**more, job={"before_step": dies_at(40)})
    with pytest.raises(DeadError):
        train(job, tmp_path / "run", resume=True)
    assert curve(tmp_path / "run")[-1]["step"] > 22
    train(tiny_job(**more), tmp_path / "run", resume=True)
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_run_that_died_before_its_first_checkpoint_begins_again(tiny_job, tmp_path, curve):
    train(tiny_job(), tmp_path / "whole")
    with pytest.raises(DeadError):
        train(tiny_job(job={"before_step": dies_at(9)}), tmp_path / "run")
    train(tiny_job(), tmp_path / "run", resume=True)
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_run_that_is_done_can_be_made_longer(tiny_job, tmp_path, curve):
    train(tiny_job(epochs=3), tmp_path / "whole")
    train(tiny_job(epochs=1), tmp_path / "run")
    metrics = train(tiny_job(epochs=3), tmp_path / "run", resume=True).metrics
    assert metrics["epochs"] == 3
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")
    again = train(tiny_job(epochs=3), tmp_path / "run", resume=True).metrics
    assert {**again, "minutes": 0} == {**metrics, "minutes": 0}


def test_what_a_loss_remembers_is_remembered_by_its_checkpoint(tiny_job, tmp_path):
    def remembering(**more):
        held = {"sum": torch.zeros(2)}

        def loss(model, batch):
            held["sum"] = held["sum"] + batch.lengths.sum()
            found = job.loss(model, batch)
            return found._replace(loss=found.loss + 1e-4 * held["sum"].mean())

        def write(tensors):
            held.update({"sum": torch.zeros(2), **tensors})

        job = tiny_job()
        return replace(job, loss=loss, carried=Carried(lambda: held, write), **more)

    train(remembering(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(remembering(before_step=interrupts_at(22)), tmp_path / "run")
    train(remembering(), tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_folder_that_is_there_is_not_touched_unasked(tiny_job, tmp_path):
    train(tiny_job(epochs=1), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.json").read_bytes()
    with pytest.raises(TrainingError, match=r"run exists already") as refused:
        train(tiny_job(epochs=2), tmp_path / "run")
    assert refused.value.hint == "--resume continues it, --out DIR starts another"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(TrainingError, match=r"mine is no run of saccade: no manifest.json in it"):
        train(tiny_job(), tmp_path / "mine", resume=True)
    assert (tmp_path / "run" / "metrics.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"learning_rate": 0.5},
            "other settings: learning_rate: the run has 0.02, asked for is 0.5",
        ),
        ({"sizes": {"letters": "xyz"}}, "other data: letters: the run has 'abcdefg', asked for is"),
    ],
)
def test_a_run_is_not_taken_up_with_other_settings_or_data(tiny_job, tmp_path, change, words):
    train(tiny_job(epochs=1), tmp_path / "run")
    with pytest.raises(TrainingError, match=words):
        train(tiny_job(epochs=1, **change), tmp_path / "run", resume=True)
    with pytest.raises(TrainingError, match="recipe: the run has None, asked for is 'x'"):
        train(tiny_job(epochs=1), tmp_path / "run", resume=True, about={"recipe": "x"})


def test_a_nan_names_its_step_and_the_last_good_checkpoint_stays(tiny_job, tmp_path):
    """Every step is saved, as far as it can be; the log is only due every fifth."""

    def loss(model, batch):
        found = job.loss(model, batch)
        seen.append(1)
        return found._replace(loss=found.loss * (float("nan") if len(seen) == 13 else 1))

    job, seen = tiny_job(), []
    broken = tiny_job(checkpoint_minutes=0.0, job={"loss": loss})
    with pytest.raises(TrainingError, match="the loss is nan at step 13") as refused:
        train(broken, tmp_path / "run")
    assert "lower learning_rate" in refused.value.hint
    saved = load_checkpoint(tmp_path / "run" / "checkpoint")
    assert saved.state.step == 12
    assert all(bool(weight.isfinite().all()) for weight in saved.weights.values())


def with_losses(job, *factors):
    """The job with the loss of step k times factor k (the last one for all that follow)."""
    steps = []

    def loss(model, batch):
        out = job.loss(model, batch)
        if not model.training:
            return out
        steps.append(1)
        return out._replace(loss=out.loss * factors[min(len(steps), len(factors)) - 1])

    return replace(job, loss=loss)


def test_a_training_that_diverges_stops_and_its_best_weights_stay(tiny_job, tmp_path, curve):
    """Good for two epochs; then a rate at which every step makes it worse."""
    job = tiny_job(epochs=30, clip=0.0, optimiser="sgd", learning_rate=0.5)

    def ruin(model, step):
        if step == 40:
            with torch.no_grad():
                model.output.weight.mul_(1e6)

    with pytest.raises(TrainingError, match=r"the training diverges: the loss is .* at step 49, "):
        train(replace(job, before_step=ruin), tmp_path / "run")
    scores = {
        line["step"]: line["validation"]["nll"]
        for line in curve(tmp_path / "run")
        if "validation" in line
    }
    best = min(scores, key=scores.get)
    weights, about = RunFolder(tmp_path / "run").read_best()
    assert about["step"] == best <= 34 and about["scores"]["nll"] == scores[best]
    assert all(bool(weight.abs().max() < 100) for weight in weights.values())
    assert RunFolder(tmp_path / "run").metrics == {}


def test_divergence_says_what_it_was_and_what_is_kept(tiny_job, tmp_path):
    with pytest.raises(TrainingError, match="diverges") as refused:
        train(with_losses(tiny_job(), *[1.0] * 20, 1e6), tmp_path / "late")
    assert str(refused.value).endswith("at the first") and "at step 30, it was " in str(
        refused.value
    )
    assert "a lower learning_rate" in refused.value.hint
    assert "of step 17 (nll " in refused.value.hint and "late" in refused.value.hint
    with pytest.raises(TrainingError, match="at step 11, it was ") as refused:
        train(with_losses(tiny_job(), 1.0, 1e6), tmp_path / "early")
    assert refused.value.hint.endswith("no weights were stored")


def test_a_spike_is_no_divergence(tiny_job, tmp_path, curve):
    """Nine steps a million times too high, again and again, also where the log begins a line."""
    spikes = [1.0, *[1e6] * 9, 1.0, 1.0, *[1e6] * 9]
    train(with_losses(tiny_job(log_steps=4), *spikes, 1.0), tmp_path / "run")
    assert len([line for line in curve(tmp_path / "run") if "validation" in line]) == 3


def test_a_short_training_that_only_got_worse_is_no_result(tiny_job, tmp_path):
    """Fewer steps than it takes to be sure, but there is nothing good to report."""
    with pytest.raises(TrainingError, match=r"diverges: .* at step 5, it was ") as said:
        train(tiny_job(epochs=0, steps=5, learning_rate=1e4), tmp_path / "run")
    assert "no weights were stored" in said.value.hint
    assert not (tmp_path / "run" / "best").exists() and not RunFolder(tmp_path / "run").metrics


def test_divergence_is_noticed_at_the_same_step_after_a_resume(tiny_job, tmp_path):
    """Interrupted in the middle of what is too high, with a line of the log in between."""

    def ruined(step):
        def before_step(model, now):
            if now == 8:
                with torch.no_grad():
                    model.output.weight.mul_(1e6)
            if now == step:
                os.kill(os.getpid(), signal.SIGINT)

        return before_step

    with pytest.raises(KeyboardInterrupt):
        train(tiny_job(job={"before_step": ruined(12)}), tmp_path / "run")
    with pytest.raises(TrainingError, match=r"diverges: .* at step 17,"):
        train(tiny_job(), tmp_path / "run", resume=True)


def test_it_stops_when_the_score_no_longer_improves(tiny_job, tmp_path, curve):
    scores = iter([3.0, 2.0, 2.5, 2.1, 2.2, 1.0])
    job = tiny_job(epochs=50, patience=3, job={"validate": lambda _: {"nll": next(scores)}})
    metrics = train(job, tmp_path / "run").metrics
    assert metrics["ended"] == "no better score in 3 validations"
    assert (metrics["epochs"], metrics["best_step"]) == (5, 2 * 17)
    assert metrics["validation"] == {"nll": 2.0}


def test_the_rate_halves_on_a_plateau(tiny_job, tmp_path, curve):
    scores = iter([3.0, 3.5, 3.5, 2.0, 2.0, 1.0])
    plateau = {"schedule": "plateau-halving", "log_steps": 17, "epochs": 6}
    train(tiny_job(**plateau, job={"validate": lambda _: {"nll": next(scores)}}), tmp_path / "run")
    rates = [line["rate"] for line in curve(tmp_path / "run") if "rate" in line]
    assert rates == pytest.approx([0.02, 0.02, 0.01, 0.005, 0.005, 0.0025])


def test_more_can_be_better_and_enough_is_enough(tiny_job, tmp_path):
    scores = iter([0.3, 0.7, 0.5, 0.9, 0.95])
    job = tiny_job(epochs=50, job={"validate": lambda _: {"right": next(scores)}})
    job = replace(job, score="right", is_better="more", is_done=lambda found: found["right"] > 0.8)
    metrics = train(job, tmp_path / "run").metrics
    assert metrics["ended"] == "the scores are what was wanted"
    assert metrics["validation"] == {"right": 0.9} and metrics["epochs"] == 4


def test_the_curriculum_goes_on_when_a_stage_is_passed(tiny_job, tmp_path):
    job, seen = tiny_job(epochs=8, patience=1), []

    def batches(epoch, stage):
        seen.append((epoch, stage))
        return list(job.batches(epoch))[: 3 + stage]

    def is_passed(scores, stage):
        assert stage == seen[-1][1]
        return len(scores) == 2

    scores = iter([5.0, 5.5, 5.5, 5.5, 4.5, 4.0, 4.5, 1.0])
    staged = replace(
        job,
        batches=Curriculum(n_stages=3, batches=batches, is_passed=is_passed),
        validate=lambda _: {"nll": next(scores)},
    )
    metrics = train(staged, tmp_path / "run").metrics
    # Patience counts in the last stage only: 4.0 is the best, and 4.5 after it is one too many.
    assert seen == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]
    assert metrics["ended"] == "no better score in 1 validations" and metrics["epochs"] == 7
    assert metrics["steps"] == 3 + 3 + 4 + 4 + 5 * 3


def test_a_stage_that_is_passed_in_the_middle_of_an_epoch_ends_it(tiny_job, tmp_path):
    job, seen = tiny_job(epochs=2, validate_steps=7), []

    def batches(epoch, stage):
        seen.append((epoch, stage))
        return job.batches(epoch)

    stages = Curriculum(n_stages=2, batches=batches, is_passed=lambda *_: True)
    metrics = train(replace(job, batches=stages), tmp_path / "run").metrics
    assert seen == [(0, 0), (1, 1)] and metrics["steps"] == 7 + 17


def test_minutes_are_a_limit_and_a_run_can_be_given_more(tiny_job, tmp_path):
    metrics = train(tiny_job(epochs=0, minutes=0.3 / 60), tmp_path / "run").metrics
    assert metrics["ended"] == "0.005 minutes" and metrics["steps"] > 3
    more = train(tiny_job(epochs=0, minutes=0.6 / 60), tmp_path / "run", resume=True).metrics
    assert more["steps"] > metrics["steps"] and more["minutes"] >= 0.01
    assert len(str(more["minutes"])) <= len("0.01")  # pages show it as it is


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("counts", torch.arange(5))


def test_what_is_made_by_counting_is_validated_and_kept(tiny_job, tmp_path):
    job = tiny_job(epochs=0)
    job = replace(job, model=Counts(), validate=lambda model: {"nll": float(model.counts.sum())})
    metrics = train(job, tmp_path / "run").metrics
    assert metrics["ended"] == "nothing to train" and metrics["validation"] == {"nll": 10.0}
    best, _ = RunFolder(tmp_path / "run").read_best()
    assert best["counts"].tolist() == [0, 1, 2, 3, 4]


def test_what_is_made_by_counting_has_no_gradients_for_several_processes_to_share(
    tiny_job, tmp_path
):
    """DistributedDataParallel refuses a model without weights."""

    class Alone(Processes):
        def wait(self):
            pass

    run = begin_run(
        replace(tiny_job(epochs=0), model=Counts()),
        tmp_path / "run",
        about={},
        resume=False,
        processes=Alone(rank=0, world=2),
        is_interrupted=lambda: False,
        progress=None,
    )
    assert why_over(run) == "nothing to train"


def test_the_mean_of_the_last_weights_is_kept_if_it_is_better(tmp_path):
    """A weight that is thrown to and fro around its aim: the mean of two is nearer."""

    def job(**more):
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 2.0)
        return Job(
            model=model,
            batches=lambda _: [torch.ones(2, 1)],
            loss=lambda model, x: LossOut((model(x) - 3).square().mean(), n=2),
            validate=lambda model: {"error": abs(model.weight.item() - 3)},
            score="error",
            is_better="less",
            config=TrainConfig(epochs=5, optimiser="sgd", learning_rate=0.99, clip=0.0, **more),
        )

    last = train(job(), tmp_path / "last").metrics
    averaged = train(job(average_last=2), tmp_path / "averaged")
    assert not last["is_averaged"] and averaged.metrics["is_averaged"]
    assert averaged.metrics["validation"]["error"] < 0.1 * last["validation"]["error"]
    assert abs(averaged.model.weight.item() - 3) == averaged.metrics["validation"]["error"]


def test_the_hook_sees_every_step_and_progress_is_told(tiny_job, tmp_path):
    steps, told = [], []
    job = tiny_job(epochs=2, job={"before_step": lambda _, step: steps.append(step)})
    train(job, tmp_path / "run", progress=lambda *words: told.append(words))
    assert steps == list(range(1, 35))
    assert [words[:3] for words in told] == [("training", step, 34) for step in steps]
    assert told[-1][3].startswith("loss ")


def test_batches_of_unknown_number_are_fine_unless_the_rate_must_know(tiny_job, tmp_path):
    job = tiny_job(epochs=2)
    stream = {"batches": lambda epoch: (batch for batch in job.batches(epoch))}
    assert train(tiny_job(epochs=2, job=stream), tmp_path / "run").metrics["steps"] == 34
    with pytest.raises(TrainingError, match="cosine falls to zero at the last step"):
        train(tiny_job(epochs=2, schedule="cosine", job=stream), tmp_path / "other")


def test_an_epoch_of_batches_of_unknown_number_is_as_long_as_the_first_was(tiny_job, tmp_path):
    """Progress is shown once a total is known: the epochs times the batches of the first one."""
    job, told = tiny_job(epochs=3), []

    def stream(epoch):
        return (batch for batch in job.batches(epoch)[epoch:])

    folder = tmp_path / "run"
    streamed = tiny_job(epochs=3, job={"batches": stream})
    steps = train(streamed, folder, progress=lambda *words: told.append(words)).metrics["steps"]
    assert steps == 17 + 16 + 15
    assert [words[1:3] for words in told] == [(step, 3 * 17) for step in range(18, steps + 1)]
    assert load_checkpoint(RunFolder(folder).checkpoint).state.epoch_length == 17


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"batches": lambda _: []}, "there is no batch in epoch 0"),
        ({"score": "bleu"}, "validation gives no 'bleu', it gives nll, right"),
        (
            {"validate": lambda _: {"nll": float("nan")}},
            "the validation's nll is nan at step 17",
        ),
    ],
)
def test_a_job_that_cannot_be_trained_says_why(tiny_job, tmp_path, job, words):
    with pytest.raises(TrainingError, match=words):
        train(tiny_job(epochs=1, job=job), tmp_path / "run")


def test_the_manifest_says_what_was_run(tiny_job, tmp_path):
    train(tiny_job(epochs=1), tmp_path / "run", about={"command": "saccade train x"})
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["format"] == 1 and manifest["command"] == "saccade train x"
    assert manifest["config"]["epochs"] == 1 and manifest["config"]["seed"] == 0
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["system"] == "Mirror" and manifest["processes"] == 1
