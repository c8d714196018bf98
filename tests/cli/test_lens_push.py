"""`saccade lens push`: one clear line when the hub cannot be reached, and no waiting."""

import json
import time

import pytest

from saccade.lenses import hub
from saccade.lenses.collection import Lenses, Made
from saccade.lenses.head_lens import HeadLens


@pytest.fixture(scope="module")
def folder(stories, tmp_path_factory):
    import torch

    made = Made(
        model="stories",
        model_fingerprint=stories.fingerprint,
        tokenizer_fingerprint=stories.tokenizer_fingerprint,
        kind="head",
        method="closed-form",
        corpus="a book",
        corpus_fingerprint="0" * 16,
        n_tokens=1234,
    )
    by_layer = {2: HeadLens.start(stories, 2)}
    lenses = Lenses(model=stories, by_layer=by_layer, constant=torch.zeros(512), made=made)
    lenses.save(path := tmp_path_factory.mktemp("push") / "lens")
    return path


class Hub:
    """Takes what it is given, or fails as it is told to."""

    def __init__(self, failure=None):
        self.failure, self.taken = failure, []

    def __call__(self):
        return self

    def create_repo(self, name, **options):
        if self.failure is not None:
            raise self.failure
        self.taken.append((name, options["private"]))
        return f"https://hub.example/{name}"

    def upload_file(self, *, path_or_fileobj, path_in_repo, **_):
        self.taken.append((path_in_repo, path_or_fileobj.decode()))

    def upload_folder(self, *, folder_path, allow_patterns, **_):
        self.taken.append((folder_path, allow_patterns))


def test_without_a_network_one_line_says_so_at_once(saccade, folder, told_in_a_line, monkeypatch):
    monkeypatch.setattr(hub, "HfApi", Hub(ConnectionError("no route to host")))
    started = time.monotonic()
    code, out, err = saccade("lens", "push", folder, "me/lens")
    assert (code, out) == (1, "") and time.monotonic() - started < 5
    line = told_in_a_line(err)
    assert "the Hugging Face hub cannot be reached (ConnectionError)" in line
    assert len(err.strip().splitlines()) == 2


def test_a_name_that_is_none_is_refused(saccade, folder, told_in_a_line, monkeypatch):
    from huggingface_hub.errors import HFValidationError

    monkeypatch.setattr(hub, "HfApi", Hub(HFValidationError("bad")))
    code, _, err = saccade("lens", "push", folder, "me/my/lens")
    assert code == 1 and "'me/my/lens' is neither a folder nor a hub name" in told_in_a_line(err)


def test_a_folder_without_lenses_is_not_pushed(saccade, told_in_a_line, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "HfApi", taken := Hub())
    code, _, err = saccade("lens", "push", tmp_path, "me/lens")
    assert code == 1 and "no manifest.json in it" in told_in_a_line(err)
    assert not taken.taken


def test_lenses_are_pushed_with_a_card_and_their_address_is_printed(saccade, folder, monkeypatch):
    monkeypatch.setattr(hub, "HfApi", taken := Hub())
    code, out, err = saccade("lens", "push", folder, "me/lens", "--private")
    assert (code, out, err) == (0, "https://hub.example/me/lens\n", "")
    (name, private), (readme, card), (path, patterns) = taken.taken
    assert (name, private, readme, path) == ("me/lens", True, "README.md", str(folder))
    assert "1,234 tokens of a book" in card and "--lens me/lens" in card
    assert "manifest.json" in patterns
    _, out, _ = saccade("lens", "push", folder, "me/lens", "--json")
    assert json.loads(out) == {"address": "https://hub.example/me/lens"}
