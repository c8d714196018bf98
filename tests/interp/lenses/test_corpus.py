"""Reading text: what is kept, how it is counted, and what is refused."""

import gzip
import json
import os
import sys
import time
from email.message import Message
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.error import HTTPError

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from saccade.errors import CorpusError, MissingPackageError, UsageError
from saccade.interp.heads.model import Encoding
from saccade.interp.lenses import corpus as corpus_module
from saccade.interp.lenses import documents as documents_module
from saccade.interp.lenses.corpus import Corpus, read_corpus, shard, split

WINDOW = 7
TOKENS = "The cat sat on the mat — naïve 日本語 😀.\n\nIt   rained,\n    all day\tlong! 1234 (so)\n"


def like_a_model(tokenizer, *, max_positions=None, encoding=None):
    """What of a model the reading of a corpus needs."""
    encoding = encoding or Encoding.of(tokenizer)
    return SimpleNamespace(tokenizer=tokenizer, max_positions=max_positions, encoding=encoding)


@pytest.fixture(scope="module")
def model():
    """A byte-level tokenizer with an end-of-text token, taught on the spot."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=307,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([TOKENS * 3], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    return like_a_model(tokenizer, max_positions=64)


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces so small that a short text has many."""
    monkeypatch.setattr(corpus_module, "_PIECE", 101)
    monkeypatch.setattr(documents_module, "BLOCK", 101)
    monkeypatch.setattr(corpus_module, "_PIECES", 3)


def plain_ids(model, text: str) -> list[int]:
    return model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def write(path: Path, data: str | bytes) -> Path:
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def rows(*texts: str) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def ids_of(corpus: Corpus) -> list[int]:
    return corpus.windows.flatten().tolist()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_text_file_is_cut_into_whole_windows(model, tmp_path, name):
    whole = plain_ids(model, TOKENS)
    corpus = read_corpus(write(tmp_path / name, TOKENS), model, window=WINDOW)
    kept = len(whole) // WINDOW * WINDOW
    assert ids_of(corpus) == whole[:kept]
    assert corpus.windows.shape == (kept // WINDOW, WINDOW)
    assert corpus.windows.dtype == torch.int64
    assert corpus.n_tokens == kept
    assert corpus.source == str(tmp_path / name)


def test_a_long_text_read_in_pieces_gives_the_ids_of_the_whole(model, tmp_path, small_pieces):
    text = TOKENS * 53
    corpus = read_corpus(write(tmp_path / "a.txt", text), model, window=WINDOW)
    assert ids_of(corpus) == plain_ids(model, text)[: corpus.n_tokens]


def test_text_without_any_line_or_space_is_read_in_pieces_too(model, tmp_path, small_pieces):
    text = "日本語naïve" * 201
    corpus = read_corpus(write(tmp_path / "a.txt", text), model, window=WINDOW)
    assert ids_of(corpus) == plain_ids(model, text)[: corpus.n_tokens]


def test_real_text_read_in_pieces_gives_the_ids_of_the_whole(stories, tmp_path):
    """A tokenizer that puts a space before every text must not do so before every piece."""
    package = Path(corpus_module.__file__).parents[2]
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py")))
    text = text[:400_000]
    (source := tmp_path / "text.txt.gz").write_bytes(gzip.compress(text.encode()))
    corpus = read_corpus(source, stories, max_tokens=100_000)
    assert corpus.windows[:, 1:].flatten().tolist() == plain_ids(stories, text)[: corpus.n_tokens]
    assert corpus.n_tokens == 100_000 // 255 * 255


@pytest.mark.parametrize("text", [TOKENS * 5, "plain words only " * 31])
def test_bytes_are_those_of_the_text_in_the_windows(model, tmp_path, small_pieces, text):
    for window in range(5, 11):
        corpus = read_corpus(write(tmp_path / "a.txt", text), model, window=window)
        raw = model.tokenizer.convert_ids_to_tokens(ids_of(corpus))
        # In a byte-level vocabulary each character of a token is one byte of the text.
        true = sum(len(token) for token in raw)
        assert true <= corpus.n_bytes <= true + 3
        assert int(corpus.window_bytes.sum()) == corpus.n_bytes


def test_a_text_of_whole_windows_has_all_its_bytes(model, tmp_path):
    corpus = read_corpus(write(tmp_path / "a.txt", TOKENS), model, window=1)
    assert corpus.n_bytes == len(TOKENS.encode())
    documents = read_corpus(write(tmp_path / "b.jsonl", rows("ab cd", "日本")), model, window=1)
    assert documents.n_bytes == len("ab cd日本".encode())


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_documents_of_a_jsonl_file_are_separated_by_the_end_of_text(model, tmp_path, name):
    file = write(tmp_path / name, rows("the cat", "", "sat on") + "\n" + rows("the mat"))
    eos = model.tokenizer.eos_token_id
    expected = [
        *plain_ids(model, "the cat"),
        eos,
        *plain_ids(model, "sat on"),
        eos,
        *plain_ids(model, "the mat"),
    ]
    assert ids_of(read_corpus(file, model, window=1)) == expected


def test_the_only_string_field_of_a_row_will_do(model, tmp_path):
    file = write(tmp_path / "a.jsonl", '{"id": 3, "story": "the cat"}\n{"text": "sat", "by": "me"}')
    ids = ids_of(read_corpus(file, model, window=1))
    assert model.tokenizer.decode(ids) == "the cat<eos>sat"


def test_half_a_character_in_json_does_not_stop_the_reading(model, tmp_path):
    file = write(tmp_path / "a.jsonl", '{"text": "the \\ud83d cat"}')
    assert model.tokenizer.decode(ids_of(read_corpus(file, model, window=1))) == "the ? cat"


def test_a_folder_and_a_list_of_files_are_read_in_order(model, tmp_path):
    write(tmp_path / "b.txt", "the mat")
    write(tmp_path / "a.jsonl", rows("the cat"))
    write(tmp_path / "c.png", b"\x89PNG\0")
    folder = read_corpus(str(tmp_path), model, window=1)
    assert model.tokenizer.decode(ids_of(folder)) == "the cat<eos>the mat"
    files = read_corpus([tmp_path / "b.txt", tmp_path / "a.jsonl"], model, window=1)
    # Each of several sources has windows of its own, so that nothing stands between them.
    assert model.tokenizer.decode(ids_of(files)) == "the matthe cat"


def test_reading_stops_at_the_tokens_asked_for(model, tmp_path, small_pieces):
    # Far behind them the file is broken, and nobody notices.
    file = write(tmp_path / "a.txt", (TOKENS * 101).encode() + b"\0")
    corpus = read_corpus(file, model, window=WINDOW, max_tokens=3 * WINDOW + 2)
    assert ids_of(corpus) == plain_ids(model, TOKENS)[: 3 * WINDOW]


def test_a_byte_order_mark_and_line_ends_of_windows_leave_no_trace(model, tmp_path, small_pieces):
    marked = b"\xef\xbb\xbf" + (TOKENS * 7).replace("\n", "\r\n").encode()
    plain = read_corpus(write(tmp_path / "a.txt", TOKENS * 7), model, window=WINDOW)
    other = read_corpus(write(tmp_path / "b.txt", marked), model, window=WINDOW)
    assert (other.fingerprint, other.n_bytes) == (plain.fingerprint, plain.n_bytes)


def test_the_fingerprint_is_that_of_the_ids(model, tmp_path):
    one, same, other = (
        read_corpus(write(tmp_path / name, text), model, window=WINDOW)
        for name, text in (("a.txt", TOKENS), ("b.txt.gz", TOKENS), ("c.txt", "X" + TOKENS))
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert len(one.fingerprint) == 16


def test_a_tokenizer_without_offsets_shares_the_bytes_out(model, tmp_path, small_pieces):
    class Slow:
        is_fast = False
        eos_token_id = None

        def __call__(self, texts, *, return_offsets_mapping, **_):
            assert not return_offsets_mapping
            return {"input_ids": [[len(token) for token in text.split()] for text in texts]}

    text = "one two three four\n" * 37
    slow = like_a_model(Slow(), encoding=Encoding())
    corpus = read_corpus(write(tmp_path / "a.txt", text), slow, window=4)
    assert ids_of(corpus) == [3, 3, 5, 4] * 37
    assert corpus.n_bytes == len(text)


def test_a_text_without_line_breaks_is_cut_between_tokens(model, tmp_path, small_pieces):
    """A tokenizer without offsets has no context around a piece: a cut token would be two."""

    class Slow:
        is_fast = False
        eos_token_id = None

        def __call__(self, texts, **_):
            return {"input_ids": [[len(token) for token in text.split()] for text in texts]}

    slow = like_a_model(Slow(), encoding=Encoding())
    text = "one two three fourteen " * 41
    corpus = read_corpus(write(tmp_path / "a.txt", text), slow, window=4)
    assert ids_of(corpus) == [3, 3, 5, 8] * 41


def test_a_tokenizer_written_in_python_is_read_with(tmp_path):
    from transformers import ByT5Tokenizer

    slow = like_a_model(ByT5Tokenizer())
    corpus = read_corpus(write(tmp_path / "a.txt", TOKENS), slow, window=1)
    assert corpus.n_tokens == corpus.n_bytes == len(TOKENS.encode())


# -- Parts of a corpus. --


@pytest.fixture
def eleven(model, tmp_path) -> Corpus:
    file = write(tmp_path / "a.txt", TOKENS * 9)
    return read_corpus(file, model, window=WINDOW, max_tokens=11 * WINDOW)


@pytest.mark.parametrize(
    ("held_out", "n"), [(3, 3), (10, 10), (0.2, 2), (0.01, 1), (0.99, 10), (0.5, 6)]
)
def test_the_last_windows_are_held_out(eleven, held_out, n):
    train, held_out_part = split(eleven, held_out=held_out)
    assert len(held_out_part.windows) == n
    assert torch.equal(torch.cat([train.windows, held_out_part.windows]), eleven.windows)
    assert train.n_bytes + held_out_part.n_bytes == eleven.n_bytes
    assert len({train.fingerprint, held_out_part.fingerprint, eleven.fingerprint}) == 3


@pytest.mark.parametrize("held_out", [0, 11, -1, 0.0, 1.0, 1.5])
def test_holding_out_none_or_all_is_refused(eleven, held_out):
    with pytest.raises(UsageError, match=f"cannot hold out {held_out} of 11 windows"):
        split(eleven, held_out=held_out)


def test_one_window_cannot_be_split(eleven):
    train, _ = split(eleven, held_out=10)
    with pytest.raises(CorpusError, match="only one window of 7 tokens"):
        split(train, held_out=1)


@pytest.mark.parametrize("world_size", [1, 2, 3, 13])
def test_shards_hold_every_window_once(eleven, world_size):
    shards = [shard(eleven, rank, world_size) for rank in range(world_size)]
    together = torch.empty_like(eleven.windows)
    for rank, part in enumerate(shards):
        together[rank::world_size] = part.windows
    assert torch.equal(together, eleven.windows)
    assert sum(len(part.windows) for part in shards) == 11
    assert sum(part.n_bytes for part in shards) == eleven.n_bytes


def test_parts_of_a_corpus_made_by_hand_share_its_bytes():
    corpus = Corpus(source="here", fingerprint="", windows=torch.arange(20).view(5, 4), n_bytes=50)
    train, held_out_part = split(corpus, held_out=2)
    assert (train.n_bytes, held_out_part.n_bytes) == (30, 20)


# -- What is refused, and with which tokens. --


@pytest.mark.parametrize(
    ("name", "data", "tokens"),
    [
        ("a.txt", "", "a.txt contains no text"),
        ("a.jsonl", "\n\n", "a.jsonl contains no text"),
        ("a.txt.gz", "", "a.txt.gz contains no text"),
        ("a.txt", b"text\0more", "is not text: a NUL byte at byte 4"),
        (
            "a.txt",
            b"\xef\xbb\xbfnaive \xff",
            r"is not text: invalid UTF-8 \(invalid start byte\) at byte 9",
        ),
        (
            "a.txt",
            "naïve".encode()[:3],
            r"is not text: invalid UTF-8 \(unexpected end of data\) at byte 2",
        ),
        ("a.txt", "text".encode("utf-16"), "is not text"),
        ("a.jsonl", rows("x").encode() + b'{"text": "\xff"}', "invalid .* at byte 10 of line 2"),
        ("a.jsonl", rows("x") + "{oops}", "a.jsonl line 2 is not valid JSON: .* at column 2"),
        ("a.jsonl", rows("x", "y") + '{"n": 3}', "line 3 has no text: .* 0 string fields"),
        ("a.jsonl", '{"a": "x", "b": "y"}', "line 1 has no text: .* 2 string fields"),
        ("a.jsonl", '["x"]', "line 1 has no text"),
        ("a.jsonl", rows("x") + '{"text": ' + "[" * 200_000, "line 2 is not valid JSON: Recursion"),
        ("a.jsonl", '{"text": ' + "9" * 6000 + "}", "line 1 is not valid JSON: ValueError"),
        ("a.csv", "x,y", "unsupported file type: .*a.csv"),
        ("a.gz", "x", "unsupported file type: .*a.gz"),
    ],
)
def test_text_that_cannot_be_read_is_refused(model, tmp_path, name, data, tokens):
    with pytest.raises(CorpusError, match=tokens) as caught:
        read_corpus(write(tmp_path / name, data), model, window=WINDOW)
    assert caught.value.hint


def test_a_pipe_is_refused_instead_of_waited_for(model, tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    for source in (tmp_path / "a.txt", tmp_path):
        with pytest.raises(CorpusError, match=r"expected a text file, got .*a.txt, which is"):
            read_corpus(source, model, window=WINDOW)


def test_the_byte_is_right_where_a_character_lies_across_two_blocks(model, tmp_path, small_pieces):
    data = b"x" * 100 + "é".encode() + b"y" * 300 + b"\xe2\x28"
    with pytest.raises(CorpusError, match=r"at byte 402"):
        read_corpus(write(tmp_path / "a.txt", data), model, window=WINDOW)


def test_a_text_shorter_than_a_window_says_how_much_is_missing(model, tmp_path):
    found = len(plain_ids(model, "the cat"))
    with pytest.raises(CorpusError, match=f"window: {found} tokens found, 64 needed"):
        read_corpus(write(tmp_path / "a.txt", "the cat"), model, window=64)


@pytest.mark.parametrize("cut", [slice(0, -9), slice(0, 30), slice(4, None)])
def test_a_broken_gzip_file_is_refused(model, tmp_path, cut):
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress((TOKENS * 99).encode())[cut])
    with pytest.raises(CorpusError, match=r"a.txt.gz is a broken gzip file"):
        read_corpus(file, model, window=WINDOW)


@pytest.mark.parametrize(
    "source",
    ["nowhere.txt", "no/where/at/all", "./nowhere", "/nowhere", "a.b/c.jsonl", "x.csv", ""],
)
def test_a_path_that_is_not_there_is_no_dataset(model, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="no such file: "):
        read_corpus(source, model, window=WINDOW)
    with pytest.raises(CorpusError, match="no such file: nowhere"):
        read_corpus(Path("nowhere"), model, window=WINDOW)


def test_a_missing_file_is_found_missing_before_the_first_is_read(model, tmp_path):
    broken = write(tmp_path / "a.txt", b"\0")
    with pytest.raises(CorpusError, match="no such file"):
        read_corpus([broken, tmp_path / "b.txt"], model, window=WINDOW)


def test_an_empty_folder_and_an_empty_list_are_refused(model, tmp_path):
    with pytest.raises(CorpusError, match=r"has no file that ends in .txt, .txt.gz, .jsonl"):
        read_corpus(tmp_path, model, window=WINDOW)
    with pytest.raises(CorpusError, match="the corpus contains no text"):
        read_corpus([], model, window=WINDOW)


def test_a_file_that_may_not_be_read_is_refused(model, tmp_path, monkeypatch):
    # Simulated, because an administrator may read everything.
    def refuse(file, mode):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(documents_module, "open", refuse, raising=False)
    with pytest.raises(CorpusError, match=r"could not read .*a.txt: Permission denied"):
        read_corpus(write(tmp_path / "a.txt", TOKENS), model, window=WINDOW)


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"window": 65}, "a window of 65 tokens is longer than the model's context of 64"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"window": 9, "max_tokens": 8}, "max_tokens 8 is less than one window of 9"),
    ],
)
def test_sizes_that_cannot_be_met_are_refused(model, tmp_path, asked, tokens):
    with pytest.raises(UsageError, match=tokens):
        read_corpus(write(tmp_path / "a.txt", TOKENS), model, **asked)


# -- Datasets: the package is played, so that no network is needed. --


@pytest.fixture
def hub(monkeypatch):
    """A `datasets` package with one dataset; what it was asked for is kept."""
    asked = []

    def load_dataset(name, config, *, split, streaming, trust_remote_code):
        assert trust_remote_code is False  # older versions ask on stdin when it is left open
        asked.append((name, config, split, streaming))
        if config == "wrong":
            raise ValueError("BuilderConfig 'wrong' not found.\nAvailable: ['small']")
        return iter([{"text": "the cat"}, {"text": "the mat"}])

    played = ModuleType("datasets")
    played.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", played)
    monkeypatch.setattr(documents_module, "_check_hub", lambda _: None)
    return asked


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("stories", ("stories", None, "train", True)),
        ("me/my-stories", ("me/my-stories", None, "train", True)),
        ("me/stories_2.0:small", ("me/stories_2.0", "small", "train", True)),
        ("stories:small:test", ("stories", "small", "test", True)),
        ("stories::test", ("stories", None, "test", True)),
    ],
)
def test_a_dataset_is_streamed_by_name(model, hub, source, expected):
    corpus = read_corpus(source, model, window=1)
    assert hub == [expected]
    assert model.tokenizer.decode(ids_of(corpus)) == "the cat<eos>the mat"


def test_an_existing_path_wins_over_a_dataset(model, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stories").mkdir()
    write(tmp_path / "stories" / "a.txt", TOKENS)
    read_corpus("stories", model, window=WINDOW)
    assert hub == []


def test_a_dataset_that_cannot_be_opened_says_why_in_one_line(model, hub):
    with pytest.raises(CorpusError, match=r"stories:wrong: BuilderConfig 'wrong' not found\.$"):
        read_corpus("stories:wrong", model, window=1)


def test_a_dataset_without_the_package_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError, match="needs the package 'datasets'") as caught:
        read_corpus("stories", model, window=1)
    assert "pip install datasets" in caught.value.hint


def test_no_network_is_said_within_seconds(model, monkeypatch):
    from huggingface_hub import constants

    played = ModuleType("datasets")
    played.load_dataset = None
    monkeypatch.setitem(sys.modules, "datasets", played)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    start = time.monotonic()
    with pytest.raises(CorpusError, match="no file named stories, and no network"):
        read_corpus("stories", model, window=1)
    assert time.monotonic() - start < 20


def test_a_hub_that_answers_anything_counts_as_reachable(monkeypatch):
    from huggingface_hub import constants

    asked = []

    def answer(url, *, timeout):
        asked.append(url)
        raise HTTPError(url, 503, "busy", Message(), None)

    monkeypatch.setattr(documents_module, "urlopen", answer)
    documents_module._check_hub("stories")
    assert asked == [constants.ENDPOINT]


# -- What the tokenizer puts in front of a text. --


def with_bos(model) -> SimpleNamespace:
    """The same tokenizer, which now begins each text with a token of its own."""
    backend = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
    backend.add_special_tokens(["<bos>"])
    bos = backend.token_to_id("<bos>")
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", bos)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>"
    )
    return like_a_model(tokenizer, max_positions=64)


def test_every_window_begins_as_the_tokenizer_begins_a_prompt(model, tmp_path):
    begun = with_bos(model)
    bos = begun.tokenizer.bos_token_id
    text = TOKENS * 9
    corpus = read_corpus(write(tmp_path / "a.txt", text), begun, window=WINDOW)
    assert (corpus.windows[:, 0] == bos).all()
    assert (corpus.windows[:, 1:] != bos).all()
    assert corpus.windows[0].tolist() == begun.tokenizer(text).input_ids[:WINDOW]
    kept = corpus.windows[:, 1:].flatten().tolist()
    assert kept == plain_ids(model, text)[: len(kept)]
    assert corpus.n_tokens == len(kept) == len(corpus.windows) * (WINDOW - 1)
    plain = read_corpus(tmp_path / "a.txt", model, window=WINDOW - 1)
    assert (plain.n_tokens, plain.n_bytes) == (corpus.n_tokens, corpus.n_bytes)


def test_the_tokens_asked_for_need_not_include_what_the_tokenizer_puts_in_front(model, tmp_path):
    begun, file = with_bos(model), write(tmp_path / "a.txt", TOKENS)
    corpus = read_corpus(file, begun, window=WINDOW, max_tokens=WINDOW - 1)
    assert corpus.windows.tolist() == [begun.tokenizer(TOKENS).input_ids[:WINDOW]]
    with pytest.raises(UsageError, match=r"max_tokens 5 is less than one window of 7 tokens"):
        read_corpus(file, begun, window=WINDOW, max_tokens=WINDOW - 2)


def test_a_window_without_room_for_text_is_refused(model, tmp_path):
    with pytest.raises(UsageError, match="a window of 1 tokens has no room for text"):
        read_corpus(write(tmp_path / "a.txt", TOKENS), with_bos(model), window=1)


def test_several_sources_have_the_windows_and_the_held_out_ends_of_each(model, tmp_path):
    files = [
        write(tmp_path / f"{name}.txt", text)
        for name, text in (("a", TOKENS * 41), ("b", ("X" + TOKENS) * 53), ("c", "the cat " * 60))
    ]
    alone = [read_corpus(file, model, window=WINDOW) for file in files]
    together = read_corpus(files, model, window=WINDOW)
    assert torch.equal(together.windows, torch.cat([each.windows for each in alone]))
    assert torch.equal(
        together.held_out_windows(), torch.cat([each.held_out_windows() for each in alone])
    )
    assert together.n_bytes == sum(each.n_bytes for each in alone)
    for each in alone:
        n = len(each.windows)
        assert int(each.held_out_windows().sum()) == max(1, n // 16)
        assert each.held_out_windows()[-1] and not each.held_out_windows()[0]


def test_the_tokens_asked_for_are_those_of_all_sources_together(model, tmp_path):
    files = [write(tmp_path / f"{name}.txt", TOKENS * 9) for name in "abc"]
    whole = read_corpus(files[0], model, window=WINDOW)
    some = read_corpus(files, model, window=WINDOW, max_tokens=whole.n_tokens + 2 * WINDOW + 1)
    assert some.n_tokens == whole.n_tokens + 2 * WINDOW
    with pytest.raises(CorpusError, match=r"short.txt is shorter than one window"):
        read_corpus([files[0], write(tmp_path / "short.txt", "the")], model, window=WINDOW)


def test_a_shard_keeps_the_held_out_windows_of_the_whole(model, tmp_path):
    whole = read_corpus(write(tmp_path / "a.txt", TOKENS * 99), model, window=WINDOW)
    shards = [shard(whole, rank, 2) for rank in range(2)]
    assert all(each.held_out_windows().any() for each in shards)
    together = torch.empty_like(whole.held_out_windows())
    for rank, each in enumerate(shards):
        together[rank::2] = each.held_out_windows()
    assert torch.equal(together, whole.held_out_windows())
