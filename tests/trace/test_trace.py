"""A trace: what it holds, what it says of a step, and that it comes back from disk."""

import json

import pytest
import torch

from saccade.errors import StoreError
from saccade.store.folder import write_folder
from saccade.trace.trace import Trace, load_trace, save_trace

STEPS, KEYS, HEADS = 3, 5, 7


@pytest.fixture
def heads():
    torch.manual_seed(0)
    return Trace(
        kind="attention",
        steps=("the", "cat", "</s>"),
        memory=("die", "Katze", "$x$", "<b>", "."),
        weights=torch.randn(HEADS, STEPS, KEYS).softmax(-1),
        views=tuple(f"0.{head}" for head in range(HEADS)),
        title="heads & hops",
        meta={"run": "x", "score": -1.5},
    )


def test_it_comes_back_from_disk_as_it_was(heads, tmp_path):
    save_trace(tmp_path / "trace", heads)
    found = load_trace(tmp_path / "trace")
    assert torch.equal(found.weights, heads.weights)
    assert found.to_dict() == heads.to_dict()
    save_trace(tmp_path / "trace", found)  # over itself
    one = Trace(kind="x", steps=("a",), memory=("b", "c"), weights=torch.ones(1, 2) / 2)
    save_trace(tmp_path / "one", one)
    assert load_trace(tmp_path / "one").to_dict() == one.to_dict()


def test_what_a_step_read_most_is_the_mean_over_the_views(heads):
    weights = heads.weights.mean(0)[1]
    looks = heads.most(1, top=2)
    assert [look.weight for look in looks] == pytest.approx(sorted(weights.tolist())[:-3:-1])
    assert all(heads.memory[look.position] == look.label for look in looks)
    assert len(heads.most(1, top=99)) == KEYS


def test_what_was_not_read_at_all_is_not_named():
    trace = Trace(kind="x", steps=("a",), memory=("b", "c"), weights=torch.tensor([[0.0, 1.0]]))
    assert [look.label for look in trace.most(0)] == ["c"]


def test_labels_that_do_not_fit_the_weights_are_a_bug(heads):
    with pytest.raises(AssertionError, match=r"weights are \(2, 3\), their labels say \(1, 3\)"):
        Trace(kind="x", steps=("a",), memory=("b", "c", "d"), weights=torch.ones(2, 3))
    with pytest.raises(AssertionError, match=r"their labels say \(0, 3, 5\)"):
        Trace(kind="x", steps=heads.steps, memory=heads.memory, weights=heads.weights)


def test_its_numbers_go_to_json(heads):
    found = json.loads(json.dumps(heads.to_dict()))
    torch.testing.assert_close(torch.tensor(found["weights"]), heads.weights)


def test_a_folder_of_something_else_is_refused(tmp_path):
    write_folder(tmp_path / "lens", {"kind": "lens"}, {"a.safetensors": {"a": torch.ones(1)}})
    with pytest.raises(StoreError, match="lens holds no trace"):
        load_trace(tmp_path / "lens")
    with pytest.raises(StoreError, match="no such folder"):
        load_trace(tmp_path / "nothing")
