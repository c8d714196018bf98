"""`saccade lens push`: one clear line when the hub cannot be reached, and no waiting."""

import json
import shutil
import time
from pathlib import Path

import pytest

from saccade.interp.lenses import hub
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.lens_set import Lenses, Provenance, load_lenses


@pytest.fixture(scope="module")
def folder(stories, tmp_path_factory):
    import torch

    provenance = Provenance(
        prefix=stories.prefix,
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
    lenses = Lenses(
        model=stories, by_layer=by_layer, baseline=torch.zeros(512), provenance=provenance
    )
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

    def create_commit(self, name, operations, *, commit_message):
        self.files = {each.path_in_repo: read(each.path_or_fileobj) for each in operations}
        self.taken.append((name, commit_message))


def read(content):
    return content if isinstance(content, bytes) else Path(content).read_bytes()


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
    assert taken.taken == [("me/lens", True), ("me/lens", "Lenses for stories")]  # one commit
    card = taken.files["README.md"].decode()
    assert "1,234 tokens of a book" in card and "--lens me/lens" in card
    assert taken.files.keys() == {"README.md", *(file.name for file in folder.iterdir())}
    for file in folder.iterdir():  # to the last bit, except for how the manifest is set
        same = json.loads if file.name == "manifest.json" else bytes
        assert same(taken.files[file.name]) == same(file.read_bytes())
    _, out, _ = saccade("lens", "push", folder, "me/lens", "--json")
    assert json.loads(out) == {"address": "https://hub.example/me/lens"}


@pytest.fixture
def private(folder, tmp_path, monkeypatch):
    """Lenses whose manifest names places of this machine, wherever a manifest can."""
    secret = tmp_path / "home" / "alice-miller" / "secret project"
    secret.mkdir(parents=True)
    monkeypatch.chdir(secret)
    (secret / "corpora" / "books").mkdir(parents=True)
    shutil.copytree(folder, lens := tmp_path / "lens")
    manifest = json.loads((lens / "manifest.json").read_text())
    manifest["provenance"]["model"] = str(secret / "tiny-model") + "/"
    manifest["provenance"]["corpus"] = (
        f"{secret}/books, ../alice-miller/x.txt, ~/notes.jsonl, corpora/books"
        " + roneneldan/TinyStories, Salesforce/wikitext:wikitext-2-raw-v1:train + self"
        f" + C:\\Users\\alice-miller\\y.txt, {Path.home()}"
    )
    manifest["provenance"]["settings"] |= {
        "plugin": str(secret / "own.py"),
        "more": [f"{secret}/a/b"],
    }
    (lens / "manifest.json").write_text(json.dumps(manifest))
    return lens


def test_no_path_of_this_machine_is_published(saccade, private, stories, monkeypatch):
    monkeypatch.setattr(hub, "HfApi", taken := Hub())
    code, _, err = saccade("lens", "push", private, "me/lens")
    assert code == 0, err
    everything = b"\n".join(taken.files.values()).decode("latin-1") + str(taken.taken)
    for part in ("miller", "secret project", str(Path.home()), "corpora", "Users", "..", "~"):
        assert part not in everything, part
    provenance = json.loads(taken.files["manifest.json"])["provenance"]
    assert provenance["model"] == "tiny-model"
    assert provenance["corpus"].startswith("books, x.txt, notes.jsonl, books + ")
    assert (
        "roneneldan/TinyStories, Salesforce/wikitext:wikitext-2-raw-v1:train + self"
        in (provenance["corpus"])
    )
    assert provenance["settings"] == {"plugin": "own.py", "more": ["b"]}
    card = taken.files["README.md"].decode()
    assert "of tiny-model, fitted on 1,234 tokens of books, x.txt" in card


def test_published_lenses_can_be_read_again(saccade, private, stories, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "HfApi", taken := Hub())
    saccade("lens", "push", private, "me/lens")
    (fetched := tmp_path / "fetched").mkdir()
    for name, content in taken.files.items():
        (fetched / name).write_bytes(content)
    there, here = (load_lenses(path, stories) for path in (fetched, private))
    assert there.by_layer[2].weight.equal(here.by_layer[2].weight)


def test_damaged_lenses_are_not_published(saccade, private, told_in_a_line, monkeypatch):
    monkeypatch.setattr(hub, "HfApi", taken := Hub())
    damaged = bytearray((private / "lenses.safetensors").read_bytes())
    damaged[-1] ^= 1
    (private / "lenses.safetensors").write_bytes(damaged)
    code, _, err = saccade("lens", "push", private, "me/lens")
    assert code == 1 and "was changed after it was written" in told_in_a_line(err)
    assert not taken.taken
