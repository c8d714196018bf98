"""Processes that share a fit, played by threads: what happens when they do not hold the same.

`test_fit_processes.py` has real ones; here each odd case is quick to set up.
"""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch

from saccade.distributed import Processes
from saccade.interp.heads.capture import capture
from saccade.interp.heads.model import open_model
from saccade.interp.lenses import gather as checkpoints
from saccade.interp.lenses.batches import CorpusBatches
from saccade.interp.lenses.closed_form import solve
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.gather import Checkpoint, Fit, gather, unfinished_fit
from saccade.interp.lenses.gradient import GradientConfig, find_objective, train
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.polish import PolishConfig, polish
from saccade.interp.lenses.residual_lenses import ResidualStatistics

LAYER, WINDOW = 3, 23


@dataclass
class Table:
    """Where threads lay what they want to exchange; a thread that stays away breaks it up."""

    world: int
    laid: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self):
        self.barrier = threading.Barrier(self.world, timeout=20)

    def exchange(self, rank, tensor):
        self.barrier.wait()
        self.laid[rank] = tensor.clone()
        self.barrier.wait()
        found = [self.laid[each] for each in range(self.world)]
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class Seat(Processes):
    """What a process does together with the others, over a table."""

    table: Table | None = None

    def add_up(self, tensors):
        for tensor in tensors:
            tensor.copy_(torch.stack(self.table.exchange(self.rank, tensor)).sum(0))

    def largest(self, tensor):
        tensor.copy_(torch.stack(self.table.exchange(self.rank, tensor)).amax(0))

    def from_first(self, tensors):
        for tensor in tensors:
            tensor.copy_(self.table.exchange(self.rank, tensor)[0])

    def in_order(self, tensor):
        parts = self.table.exchange(self.rank, tensor)
        assert len({(part.dtype, part.shape[1:]) for part in parts}) == 1, "they must fit together"
        return parts


@pytest.fixture(scope="module")
def models(stories):
    """One for each thread: their hooks would hear each other's runs."""
    return [stories, *(open_model(stories.name) for _ in range(2))]


def together(models, world, work):
    """Run work(model, processes) in so many threads at once; what each gave, by rank."""
    table = Table(world)
    with ThreadPoolExecutor(world) as pool:
        seats = [Seat(rank=rank, world=world, table=table) for rank in range(world)]
        running = [pool.submit(work, models[seat.rank], seat) for seat in seats]
        return [each.result(timeout=60) for each in running]


@pytest.mark.parametrize(("n_windows", "rows", "world"), [(5, 3, 3), (29, 3, 2), (50, 1, 2)])
def test_every_process_ends_with_the_sums_and_the_text_of_all(
    models, told, corpus_of, n_windows, rows, world
):
    """Also one that has nothing to read, one without held-out rows, and two that both have some."""
    corpus = corpus_of(told[:n_windows, :WINDOW])

    def work(model, processes):
        return gather(model, CorpusBatches(model, corpus, rows), processes=processes)

    expected = work(models[0], Processes())
    for found in together(models, world, work):
        for name, total in expected.statistics.sums.items():
            size = 1e-6 * float(total.abs().max()) if "scatter" in name else 1e-9
            torch.testing.assert_close(found.statistics.sums[name], total, rtol=1e-12, atol=size)
        assert found.ids.keys() == expected.ids.keys()
        assert all(torch.equal(found.ids[index], ids) for index, ids in expected.ids.items())
        assert torch.equal(found.sample.final, expected.sample.final)
        assert torch.equal(found.sample.z[LAYER], expected.sample.z[LAYER])


def test_text_keeps_its_order_when_a_shared_fit_is_taken_up_again(
    models, told, corpus_of, tmp_path, monkeypatch
):
    """With more than ten batches each, which sort differently by name than by number."""
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "PAUSE_OVER_WRITING", 0)
    corpus = corpus_of(told[:47, :7])

    def work(model, processes):
        kept = Checkpoint(tmp_path, f"reading-{processes.rank}.safetensors")
        batches = CorpusBatches(model, corpus, rows=2)
        return gather(model, batches, processes=processes, checkpoint=kept)

    first, again = together(models, 2, work), together(models, 2, work)
    for found in (*first, *again):
        windows = torch.cat([found.ids[index] for index in sorted(found.ids)])
        assert torch.equal(windows, corpus.windows)


def test_a_process_without_a_window_still_takes_part_in_training(models, told, corpus_of):
    corpus = corpus_of(told[:2, :WINDOW])

    def work(model, processes):
        lenses = {LAYER: HeadLens.start(model, LAYER)}
        config = GradientConfig(rows=2, steps=3, learning_rate=1e-2)
        objective = find_objective("kl")
        history = train(model, lenses, objective, corpus, config=config, processes=processes)
        return lenses[LAYER].state_dict(), history

    expected, losses = work(models[0], Processes())
    for found, history in together(models, 3, work):
        assert history == pytest.approx(losses, rel=1e-5)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)


def test_processes_that_were_stopped_at_different_steps_go_on_together(
    models, gathered, held_out, told, corpus_of, tmp_path, monkeypatch
):
    """The second finds a checkpoint of a later step; a step is only right if both take it."""
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "PAUSE_OVER_WRITING", 0)
    corpus = corpus_of(told[:12, :WINDOW])
    closed = solve(models[0], gathered.statistics, held_out)
    config = PolishConfig(rows=4, steps=6, tokens=384)

    def work(model, processes, *, limit=99, folder=tmp_path):
        lenses = {LAYER: copy.deepcopy(closed[LAYER])}
        kept = Checkpoint(folder, f"polishing-{processes.rank}.safetensors")
        parts = (model, lenses, gathered.statistics, held_out, corpus)

        def stop(stage, done, total):
            if done > limit:
                raise KeyboardInterrupt

        polish(*parts, config=config, processes=processes, checkpoint=kept, progress=stop)
        return lenses[LAYER].state_dict()

    expected = work(models[0], Processes(), folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        together(models, 2, lambda model, seat: work(model, seat, limit=2))
    with pytest.raises(KeyboardInterrupt):
        work(models[0], Processes(), limit=4, folder=tmp_path / "later")
    later = tmp_path / "later" / "polishing-0.safetensors"
    later.rename(tmp_path / "polishing-1.safetensors")
    for found in together(models, 2, work):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("n_windows", "world"), [(29, 2), (4, 3)])
def test_sums_of_a_kinds_own_are_those_of_all_processes(
    models, told, corpus_of, gathered, n_windows, world, tmp_path, monkeypatch
):
    """Also where one of the processes has nothing to read."""
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path))
    corpus = corpus_of(told[:n_windows, :WINDOW])

    def work(model, processes):
        with unfinished_fit({"fit": world}, rank=processes.rank) as unfinished:
            fit = Fit(
                model=model,
                config=FitConfig(rows=2),
                gathered=gathered,
                baseline=torch.zeros(model.d_vocab),
                text=corpus,
                held_out=corpus.windows[:0],
                processes=processes,
                unfinished=unfinished,
            )
            return fit.add_up(ResidualStatistics.empty(model)).sums

    expected = ResidualStatistics.empty(models[0])
    expected.add(
        capture(models[0], corpus.windows, residual=True), models[0].is_text(corpus.windows)
    )
    for found in (work(models[0], Processes()), *together(models, world, work)):
        for name, total in expected.sums.items():
            size = 1e-5 * float(total.abs().max())
            torch.testing.assert_close(found[name], total, rtol=0, atol=size)


def test_training_taken_up_again_by_several_processes_ends_in_the_lens_of_one(
    models, told, corpus_of, tmp_path, monkeypatch
):
    """Only the first process keeps a checkpoint: the others have its state from it."""
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "PAUSE_OVER_WRITING", 0)
    corpus, held_out = corpus_of(told[:12, :WINDOW]), told[12:15, :WINDOW]

    def work(model, processes, *, limit=99, folder=tmp_path):
        lenses = {LAYER: HeadLens.start(model, LAYER)}
        kept = Checkpoint(folder, "training")

        def stop(stage, done, total):
            if done > limit:
                raise KeyboardInterrupt

        history = train(
            model,
            lenses,
            find_objective("kl"),
            corpus,
            config=GradientConfig(rows=4, steps=6, learning_rate=1e-2),
            processes=processes,
            checkpoint=kept,
            progress=stop,
            held_out=held_out,
        )
        return lenses[LAYER].state_dict(), history

    expected, losses = work(models[0], Processes(), folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        together(models, 2, lambda model, seat: work(model, seat, limit=3))
    for found, history in together(models, 2, work):
        assert history == pytest.approx(losses, rel=1e-5)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)


def test_windows_longer_than_a_chunk_of_the_sums_are_added_one_by_one(
    models, told, corpus_of, monkeypatch
):
    batches = CorpusBatches(models[0], corpus_of(told[:7, :WINDOW]), 3)
    expected = gather(models[0], batches, processes=Processes())
    monkeypatch.setattr(checkpoints, "CHUNK", WINDOW // 2 - 1)  # every other position is read
    found = gather(models[0], batches, processes=Processes())
    assert found.statistics.n == expected.statistics.n > 0
    for name, total in expected.statistics.sums.items():
        size = 1e-6 * float(total.abs().max())
        torch.testing.assert_close(found.statistics.sums[name], total, rtol=0, atol=size)
