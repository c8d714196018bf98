"""A little web server on this machine stands for those of the data sets' makers."""

import hashlib
import threading
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler

import pytest

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks import datasets as fetching
from saccade.zoo.tasks.datasets import (
    DATA_SETS,
    DataFile,
    DataSet,
    fetch_data,
    fetched_dir,
    find_data,
    list_data,
)

CONTENTS = {"one.txt": b"eins\n", "two.txt": b"zwei\n"}


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()


class Quiet(SimpleHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.asked.append(self.path)
        super().do_GET()


@pytest.fixture
def server(tmp_path):
    """A folder that is served, and a list of what was asked for."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name, data in CONTENTS.items():
        (folder / name).write_bytes(data)
    Quiet.asked = []
    with HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}/", Quiet.asked
        running.shutdown()
        thread.join()


def numbers(place: str) -> DataSet:
    files = tuple(
        DataFile(name, place + name, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
        for name, data in CONTENTS.items()
    )
    return DataSet("numbers", "two words", "public domain", "nowhere", "numbers", files)


@pytest.fixture
def known(server, monkeypatch):
    monkeypatch.setitem(DATA_SETS, "numbers", numbers(server[1]))


@pytest.mark.usefixtures("known")
def test_a_data_set_is_fetched_once_and_then_found(server):
    told = []
    folder = fetch_data("numbers", progress=lambda *step: told.append(step))
    assert folder == fetched_dir() / "numbers" == find_data("numbers")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == CONTENTS
    assert told == [
        ("fetching one.txt", 0, 2),
        ("fetching two.txt", 1, 2),
        ("fetched numbers", 2, 2),
    ]
    fetch_data("numbers")
    assert server[2] == ["/one.txt", "/two.txt"]


@pytest.mark.usefixtures("known")
def test_a_file_that_is_not_the_expected_one_is_refused_and_not_kept(server):
    (server[0] / "two.txt").write_bytes(b"drei\n")
    with pytest.raises(TaskError, match=r"could not fetch two\.txt: what .* is not the file"):
        fetch_data("numbers")
    assert [file.name for file in (fetched_dir() / "numbers").iterdir()] == ["one.txt"]


@pytest.mark.usefixtures("known")
def test_a_server_that_refuses_is_named_with_its_answer(server):
    (server[0] / "one.txt").unlink()
    with pytest.raises(TaskError, match=r"could not fetch one\.txt: 127\.0\.0\.1:\d+ answered 404"):
        fetch_data("numbers")


def test_without_a_network_one_line_says_so(monkeypatch):
    monkeypatch.setitem(DATA_SETS, "numbers", numbers("http://127.0.0.1:1/"))
    with pytest.raises(TaskError, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
        fetch_data("numbers")
    assert "--data" in caught.value.hint and "\n" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_named(server, monkeypatch, tmp_path):
    monkeypatch.setitem(DATA_SETS, "numbers", numbers(server[1]))
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(TaskError, match=r"could not write .*one\.txt") as caught:
        fetch_data("numbers")
    assert "SACCADE_CACHE" in caught.value.hint


def test_a_set_that_nobody_gives_away_is_refused_with_its_page():
    with pytest.raises(TaskError, match="wikitext-2 cannot be fetched") as caught:
        fetch_data("wikitext-2")
    assert "https://" in caught.value.hint


def test_the_users_folder_comes_before_the_cache(tmp_path):
    for place in (tmp_path / "mine", tmp_path / "data", tmp_path / "cache" / "data"):
        (place / "multi30k").mkdir(parents=True)
        (place / "multi30k" / "train.de").write_text("ein Hund\n")
    assert find_data("multi30k", tmp_path / "mine") == tmp_path / "mine" / "multi30k"
    assert find_data("multi30k") == tmp_path / "data" / "multi30k"
    (tmp_path / "data" / "multi30k" / "train.de").unlink()
    assert find_data("multi30k") == fetched_dir() / "multi30k"


def test_the_folder_itself_may_be_named(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "input.txt.gz").write_bytes(b"")
    assert find_data("tinyshakespeare", tmp_path / "here") == tmp_path / "here"


def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(tmp_path):
    with pytest.raises(TaskError, match="the data set treebank is not there: looked in") as caught:
        find_data("treebank")
    assert str(tmp_path / "data") in str(caught.value)
    assert "`saccade data fetch treebank`" in caught.value.hint
    assert "--data or SACCADE_DATA" in caught.value.hint


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match="no data set named 'multi3k'") as caught:
        find_data("multi3k")
    assert caught.value.hint == "did you mean 'multi30k'?"
    with pytest.raises(UsageError) as caught:
        find_data("zzz")
    assert "tinyshakespeare" in caught.value.hint


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no such folder: .*absent"):
        find_data("multi30k", tmp_path / "absent")


def test_all_sets_are_listed_with_their_places(tmp_path):
    (tmp_path / "data" / "treebank").mkdir()
    (tmp_path / "data" / "treebank" / "treebank.zip").write_bytes(b"")
    listed = {each.data_set.name: each.where for each in list_data()}
    assert listed.keys() == DATA_SETS.keys()
    assert listed["treebank"] == tmp_path / "data" / "treebank"
    assert listed["multi30k"] is None


@pytest.mark.parametrize("data_set", DATA_SETS.values(), ids=DATA_SETS)
def test_what_is_known_of_a_set_is_complete(data_set):
    assert all([data_set.about, data_set.licence, data_set.source.startswith("https://")])
    for file in data_set.files:
        assert bool(file.url) == bool(file.hash) == data_set.can_be_fetched
        assert file.url.startswith("https://") or not file.url
    assert fetching.known_data_set(data_set.name) is data_set


def test_the_copies_at_hand_have_the_hashes_that_are_known(data_with, monkeypatch):
    checked = 0
    for name in ("multi30k", "treebank"):  # as their makers publish them, byte for byte
        monkeypatch.setenv("SACCADE_DATA", str(data_with(name)))
        for file in DATA_SETS[name].files:
            path = find_data(name) / file.name
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                assert (file.hash, file.n_bytes) == (f"sha256:{digest}", path.stat().st_size)
                checked += 1
    assert checked


def test_listing_data_sets_does_not_import_torch():
    import subprocess
    import sys

    code = (
        "import saccade.zoo.tasks.datasets as t, sys; t.list_data(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
