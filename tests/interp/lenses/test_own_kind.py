"""A kind of lens fits itself: the fit knows none by name, and a user's own is like the others."""

import ast
import inspect
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from saccade.cli.main import main
from saccade.cli.options import load_plugin
from saccade.distributed import Processes
from saccade.errors import LensError, UsageError
from saccade.interp.lenses import batches, fit, lens
from saccade.interp.lenses import gather as checkpoints
from saccade.interp.lenses.batches import CorpusBatches, SelfBatches
from saccade.interp.lenses.evaluate import evaluate_lenses
from saccade.interp.lenses.fit import fit_lenses, fit_on, merge_lenses
from saccade.interp.lenses.fit_config import FitConfig, Method
from saccade.interp.lenses.lens import (
    Lens,
    Site,
    fitted_kinds,
    lens_kind,
    lens_kinds,
    needs_residual,
    own_kinds,
    register_lens,
)
from saccade.interp.lenses.lens_set import load_lenses
from saccade.interp.lenses.residual_lenses import LogitLens
from saccade.interp.readings.reader import read
from saccade.store.atomic import cache_dir

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "own-lens.md"
SMALL = {"tokens": 1100, "window": 31, "rows": 7}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lens, "_REGISTERED", dict(lens._REGISTERED))


@pytest.fixture
def ridge(tmp_path):
    """The guide's lens with a closed form of its own, as a plugin that is loaded."""
    (source,) = re.findall(
        r"Save it as `ridge\.py`:\n\n```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL
    )
    (path := tmp_path / "ridge.py").write_text(source, encoding="utf-8")
    load_plugin(path)
    return path


def assert_same(one, other):
    """To the last bit."""
    assert one.by_layer.keys() == other.by_layer.keys()
    for layer, each in one.by_layer.items():
        theirs = other.by_layer[layer].state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in each.state_dict().items())
    assert torch.equal(one.baseline, other.baseline) and one.quality == other.quality


# -- No kind is known by name. --


def kinds_named(source: str, *, but: tuple[str, ...] = ()) -> list[str]:
    """Strings, classes and files of source code that stand for a kind, or a method, of lens."""
    tree = ast.parse(source)
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    kinds = {*lens_kinds(), *get_args(Method)} - {*but}
    classes, files = (
        {kind.__name__ for kind in own_kinds()},
        {kind.__module__ for kind in own_kinds()},
    )
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in told:
                in_prose = {"jacobian", "tuned", "dense", "logit", "logit-head"} & {*text.split()}
                found += [text] if text in kinds or in_prose else []
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found += [name] if name in classes else []
            case _:
                pass
        if isinstance(node, ast.ImportFrom) and node.module in files:
            found.append(str(node.module))
    return found


def test_the_fit_and_the_base_of_lenses_name_no_kind():
    assert not kinds_named(Path(fit.__file__).read_text("utf-8"))
    # "head" is a site too, and training is what any kind can have.
    source = Path(lens.__file__).read_text("utf-8")
    listed = inspect.getsource(own_kinds)  # the one list of them
    assert set(kinds_named(listed)) >= {kind.__name__ for kind in own_kinds()}
    assert not kinds_named(source.replace(listed, ""), but=(*get_args(Site), "train"))


@pytest.mark.parametrize(
    "source",
    [
        'if config.kind == "head":\n    pass',
        'if config.method in ("closed-form", "polish"):\n    pass',
        'raise ValueError(f"a jacobian lens {x}")',
        "from saccade.interp.lenses.jacobian_lens import fit_jacobian",
        "isinstance(each, HeadLens)",
        "kinds = residual_lenses.TunedLens",
    ],
)
def test_the_test_of_names_catches_what_it_should(source):
    assert kinds_named(source)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "head"},
        {"kind": "head", "method": "polish", "steps": 2},
        {"kind": "head", "method": "train", "steps": 2, "layers": (3,)},
        {"kind": "tuned", "layers": (1, 4)},
        {"kind": "tuned", "method": "polish", "steps": 2, "layers": (1,)},
        {"kind": "jacobian", "layers": (2,)},
        {"method": "published", "steps": 2, "layers": (1,)},
    ],
    ids=lambda settings: "-".join(str(settings.get(n, "")) for n in ("kind", "method")),
)
def test_a_kind_by_another_name_gives_the_same_lenses(stories, story_file, settings, monkeypatch):
    expected = fit_lenses(stories, story_file, FitConfig(**SMALL, **settings))
    monkeypatch.setattr(lens_kind(expected.provenance.kind), "kind", "renamed")
    asked = {**settings, **({"kind": "renamed"} if "kind" in settings else {})}
    found = fit_lenses(stories, story_file, FitConfig(**SMALL, **asked))
    assert (
        found.provenance.kind == "renamed" and found.provenance.method == expected.provenance.method
    )
    assert_same(found, expected)


# -- A lens of the user's own with a closed form. --


def test_its_closed_form_is_the_regression_of_the_final_state_on_z(stories, corpus, ridge):
    rows = CorpusBatches(stories, corpus, rows=13)
    found = fit_on(stories, rows, FitConfig(kind="ridge"), processes=Processes())
    assert found.provenance.kind == "ridge" and found.statistics is not None
    read = [rows.read(index) for index in range(len(rows))]
    kept = [
        stories.is_text(each.ids).gather(1, each.positions) & ~each.held_out[:, None]
        for each in read
    ]

    def rows_of(tensors):
        some = [activation[keep] for activation, keep in zip(tensors, kept, strict=True)]
        return torch.cat(some).double()

    final = rows_of([each.final for each in read])
    for layer in found.by_layer:
        z = rows_of([each.z[layer] for each in read])
        errors = []
        for tried in (0.01, 0.1, 1.0):
            error = 0.0
            for head in range(z.shape[1]):
                x = z[:, head] - z[:, head].mean(0)
                penalty = (tried * x.square().mean()).sqrt() * len(x) ** 0.5 * torch.eye(x.shape[1])
                # The ridge as rows of data: zero is to be said for each direction of z.
                design = torch.cat([x, penalty.double()])
                wanted = torch.cat(
                    [final - final.mean(0), final.new_zeros(len(penalty), len(final[0]))]
                )
                weight = torch.linalg.lstsq(design, wanted).solution
                ours = found.by_layer[layer].weight[head]
                error += float((ours - weight).abs().max() / weight.abs().max())
            errors.append(error / z.shape[1])
        assert min(errors) < 1e-3 < sorted(errors)[1]  # one of the three ridges, for all heads
        said = found.by_layer[layer](z.mean(0)[None].float())[0]
        torch.testing.assert_close(said, found.baseline.expand_as(said), rtol=0, atol=1e-4)


def test_it_is_read_with_evaluated_saved_and_loaded(stories, story_file, ridge, tmp_path, unseen):
    config = FitConfig(**SMALL, kind="ridge")
    lenses = fit_lenses(stories, story_file, config, save_to=tmp_path / "lens")
    loaded = load_lenses(tmp_path / "lens", stories)
    assert_same(loaded, lenses)
    assert loaded.provenance == lenses.provenance and set(loaded.quality_of(0, 0)) == {"kl", "gain"}
    assert not any(p.requires_grad for each in lenses.by_layer.values() for p in each.parameters())
    text = "One day, Lily saw a big"
    assert read(stories, text, lenses=loaded, effects=False).to_json() == (
        read(stories, text, lenses=lenses, effects=False).to_json()
    )
    evaluation = evaluate_lenses(loaded, unseen, max_positions=64, baselines=[])
    assert evaluation.lenses.kind == "ridge" and len(evaluation.lenses.sites) == 40
    assert evaluation.lenses.means["gain"] > 0.1  # over the baseline lens, on text not seen


@pytest.fixture
def unseen(told, corpus_of):
    return corpus_of(told[180:])


def test_it_can_be_trained_and_cannot_be_polished(stories, story_file, ridge):
    config = FitConfig(**SMALL, kind="ridge", method="train", steps=2, layers=(1,))
    trained = fit_lenses(stories, story_file, config)
    assert set(trained.by_layer) == {1} and trained.statistics is None
    assert bool(trained.by_layer[1].weight.abs().sum() > 0)
    tokens = "a ridge lens cannot be fitted by polish; use closed-form or train"
    with pytest.raises(UsageError, match=tokens):
        fit_lenses(stories, story_file, replace(config, method="polish"))
    assert "ridge" in fitted_kinds()


def test_it_needs_no_data_where_the_model_writes_its_own(stories, ridge):
    rows = SelfBatches(stories, 7, 3, 29, seed=1)
    found = fit_on(stories, rows, FitConfig(kind="ridge"), processes=Processes())
    assert found.provenance.corpus == "self" and set(found.by_layer) == set(range(5))


@pytest.fixture
def interrupted(monkeypatch):
    """Interrupts the third batch that is read; the batches that are."""
    read, reads = batches.CorpusBatches.read, []

    def third_is_interrupted(self, index):
        reads.append(index)
        if len(reads) == 3:
            raise KeyboardInterrupt
        return read(self, index)

    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "PAUSE_OVER_WRITING", 0)
    monkeypatch.setattr(batches.CorpusBatches, "read", third_is_interrupted)
    return reads


def test_interrupted_it_resumes_and_ends_in_the_same_lenses(
    stories, story_file, ridge, interrupted
):
    config = FitConfig(**SMALL, kind="ridge")
    with pytest.raises(checkpoints.FitInterrupted):
        fit_lenses(stories, story_file, config)
    resumed = fit_lenses(stories, story_file, config)
    n_batches = max(interrupted) + 1
    assert interrupted == [0, 1, 2, *range(2, n_batches)]
    assert not list((cache_dir() / "unfinished").iterdir())
    assert_same(resumed, fit_lenses(stories, story_file, config))


def test_the_command_is_interrupted_and_resumes(
    stories, story_file, ridge, interrupted, tmp_path, capsys
):
    given = {"plugin": ridge, "kind": "ridge", "model": stories.name, "corpus": story_file, **SMALL}
    command = ["lens", "fit", *(str(x) for k, v in given.items() for x in (f"--{k}", v)), "--json"]
    assert main([*command, "--out", str(tmp_path / "lens")]) == 130
    assert capsys.readouterr().err.endswith("resumes it\ninterrupted\n")
    assert main([*command, "--out", str(tmp_path / "lens")]) == 0
    assert interrupted[:4] == [0, 1, 2, 2]
    assert json.loads(capsys.readouterr().out)["provenance"]["kind"] == "ridge"
    whole = fit_lenses(stories, story_file, FitConfig(**SMALL, kind="ridge"))
    assert_same(load_lenses(tmp_path / "lens", stories), whole)


def test_shards_of_it_merge_to_what_their_sums_together_give(stories, told, corpus_of, ridge):
    def fitted(windows, kind="ridge"):
        rows = CorpusBatches(stories, corpus_of(windows), 3)
        return fit_on(stories, rows, FitConfig(kind=kind), processes=Processes())

    parts = [fitted(told[:32]), fitted(told[32:64])]
    merged = merge_lenses(parts)
    both = parts[0].statistics.merge(parts[1].statistics)
    solve = lens_kind("ridge").solve
    gathered = checkpoints.Gathered(both)
    for part in parts:
        gathered.keep(part.held_out)
    for layer, expected in solve(stories, gathered, 0).items():
        found = merged.by_layer[layer]
        assert type(found).__name__ == "RidgeLens"
        assert torch.equal(found.weight, expected.weight)
        assert not torch.equal(found.weight, parts[0].by_layer[layer].weight)
    with pytest.raises(LensError, match="cannot merge head lenses with ridge lenses"):
        merge_lenses([parts[0], fitted(told[64:96], "head")])


# -- What a kind gives back is checked, and it may sum up what it wants. --


@dataclass
class Shift:
    """How far the residual stream still has to go, summed over positions."""

    sums: dict[str, torch.Tensor]

    def add(self, captured, is_text=None):
        for layer, r in captured.residual.items():
            self.sums[f"{layer}"] += (captured.final_residual - r)[is_text].double().sum(0)
        self.sums["n"] += is_text.sum()


class ShiftedLens(LogitLens):
    """The logit lens of the stream moved by its mean distance from the end."""

    kind = "shifted"

    def __init__(self, **given):
        super().__init__(**given)
        width = self.unembedding.weight.shape[1]
        self.shift = lens.new_parameter(width, like=self.unembedding.weight)

    def forward(self, activation, *, tokens=None):
        return super().forward(activation + self.shift, tokens=tokens)

    @classmethod
    def methods(cls):
        return {"closed-form": lens.Method(run=cls.solve)}

    @classmethod
    def solve(cls, fit):
        zeros = {f"{at.index}": torch.zeros(64, dtype=torch.float64) for at in fit.model.layers}
        sums = fit.add_up(Shift({**zeros, "n": torch.zeros(1, dtype=torch.float64)})).sums
        found = {layer: cls.start(fit.model, layer) for layer in fit.layers}
        for layer, each in found.items():
            each.shift.data.copy_(sums[f"{layer}"] / sums["n"])
        return found


@pytest.fixture
def passes(monkeypatch):
    """The windows of every pass with the residual stream; the list of those to interrupt."""
    run, seen, stops = checkpoints.capture, [], []

    def watched(model, ids, **asked):
        seen.append(len(seen))
        if seen[-1] in stops:
            raise KeyboardInterrupt
        return run(model, ids, **asked)

    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "PAUSE_OVER_WRITING", 0)
    monkeypatch.setattr(checkpoints, "capture", watched)
    return seen, stops


@pytest.mark.parametrize("kind", ["shifted", "tuned"])
def test_sums_of_its_own_are_resumed_where_they_were(stories, story_file, passes, kind):
    register_lens(ShiftedLens)
    seen, stops = passes
    config = FitConfig(**SMALL, kind=kind, layers=(1, 3))
    whole = fit_lenses(stories, story_file, config)
    n_batches = len(seen)
    assert n_batches > 4
    seen.clear()
    stops.append(3)
    with pytest.raises(checkpoints.FitInterrupted):
        fit_lenses(stories, story_file, config)
    resumed = fit_lenses(stories, story_file, config)
    assert len(seen) == n_batches + 1  # the batch that was interrupted came again, and no other
    assert_same(resumed, whole)
    assert needs_residual(resumed.by_layer[1].site) and not resumed.quality


def test_sums_of_its_own_are_those_of_the_text_it_is_fitted_on(stories, corpus):
    from saccade.interp.heads.capture import capture

    register_lens(ShiftedLens)
    rows = CorpusBatches(stories, corpus, rows=13)
    found = fit_on(stories, rows, FitConfig(kind="shifted"), processes=Processes())
    fitted = corpus.windows[~corpus.held_out_windows()]
    captured, is_text = capture(stories, fitted, residual=True), stories.is_text(fitted)
    for layer, each in found.by_layer.items():
        expected = (captured.final_residual - captured.residual[layer])[is_text].mean(0)
        torch.testing.assert_close(each.shift.data, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (lambda cls, model: {0: cls.start(model, 0)}, r"got \{0: 'Strange'\}"),
        (lambda _, model: {k: LogitLens.start(model, k) for k in range(5)}, "0: 'LogitLens'"),
    ],
    ids=["layers", "kind"],
)
def test_what_could_not_be_loaded_again_is_refused(stories, story_file, given, tokens, tmp_path):
    class Strange(ShiftedLens):
        @classmethod
        def solve(cls, fit):
            return given(cls, fit.model)

    register_lens(Strange)
    config = FitConfig(**SMALL, kind="shifted")
    with pytest.raises(LensError, match=tokens) as raised:
        fit_lenses(stories, story_file, config, save_to=tmp_path / "lens")
    assert "must return a Strange for each of the layers [0, 1, 2, 3, 4]" in str(raised.value)
    assert raised.value.hint and not (tmp_path / "lens").exists()


def test_a_lens_that_says_nothing_of_methods_is_trained(stories, story_file):
    class Plain(ShiftedLens):
        kind = "plain"
        methods = classmethod(Lens.methods.__func__)

    register_lens(Plain)
    config = FitConfig(**SMALL, kind="plain", method="train", steps=3, layers=(2,))
    found = fit_lenses(stories, story_file, config)
    assert list(found.by_layer) == [2] and bool(found.by_layer[2].shift.abs().sum() > 0)
