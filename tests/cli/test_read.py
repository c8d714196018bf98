"""`saccade read` and `saccade model`, on a random model of three layers saved in a folder."""

import io
import json
from dataclasses import replace

import pytest
import torch

LAYERS, HEADS, VOCAB, CONTEXT = 3, 6, 101, 19
TEXT = "w17 w3 w41 w5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model as Hugging Face saves one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(3)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=53,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        head_dim=10,
        max_position_embeddings=CONTEXT,
    )
    path = tmp_path_factory.mktemp("models") / "tiny"
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    backend = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCAB)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def lenses(folder):
    from saccade.interp.heads.model import open_model
    from saccade.interp.lenses.head_lens import HeadLens
    from saccade.interp.lenses.lens_set import Lenses, Provenance

    model = open_model(folder)
    generator = torch.Generator().manual_seed(1)
    by_layer = {}
    for at in model.layers:
        by_layer[at.index] = HeadLens.start(model, at.index).requires_grad_(False)
        for parameter in by_layer[at.index].parameters():
            parameter.normal_(0, 0.3, generator=generator)
    gain = {str(layer): [0.1 * (layer + h) for h in range(HEADS)] for layer in range(LAYERS)}
    provenance = Provenance(
        prefix=model.prefix,
        model="tiny",
        model_fingerprint=model.fingerprint,
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        kind="head",
        method="random",
        corpus="none",
        corpus_fingerprint="0",
        n_tokens=0,
    )
    baseline = torch.randn(VOCAB, generator=generator).log_softmax(-1)
    quality = {"gain": gain, "kl": {k: [3.0] * HEADS for k in gain}}
    return Lenses(
        model=model, by_layer=by_layer, baseline=baseline, provenance=provenance, quality=quality
    )


@pytest.fixture(scope="module")
def saved(lenses, tmp_path_factory):
    path = tmp_path_factory.mktemp("lenses") / "tiny-lens"
    lenses.save(path)
    return path


@pytest.fixture
def read(folder, saved, capsys, monkeypatch, tmp_path):
    """Runs the command; its exit code, what it printed, and what it said on stderr."""
    from saccade.cli.main import main

    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments, model=folder, lens=saved):
        given = ["--model", str(model), *(["--lens", str(lens)] if lens else [])]
        code = main(["read", *map(str, arguments), *given])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_heads_that_say_most_are_shown_first(read, lenses):
    code, out, err = read(TEXT)
    assert code == 0 and err == ""
    names = [line.split()[0] for line in out.splitlines() if "  lens  " in line]
    assert names == [head.name for head in lenses.read(TEXT).ranked()[:8]]
    assert "\x1b" not in out  # not a terminal: no colours
    for label in ("predicts", "adds", "suppresses", "attends to", "quality ", "direct "):
        assert label in out


def test_json_is_the_reading_of_the_shown_heads(read, lenses):
    code, out, err = read(TEXT, "--json", "--top", 3, "--heads", 4, "--by", "quality")
    loaded = json.loads(out)
    assert code == 0 and err == ""
    expected = lenses.read(TEXT).ranked("quality")[:4]
    assert [(h["layer"], h["head"]) for h in loaded["heads"]] == [
        (h.layer, h.head) for h in expected
    ]
    assert loaded["heads"][0]["kl_from_baseline"] == pytest.approx(
        expected[0].kl_from_baseline, rel=1e-4
    )
    assert all(len(head["predicts"]) == 3 for head in loaded["heads"])
    assert loaded["text"] == TEXT


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--all"], [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]),
        (["--all", "--layer", 1], [(1, head) for head in range(HEADS)]),
        (["--all", "--head", 5], [(layer, 5) for layer in range(LAYERS)]),
        (["--layer", 2, "--head", 0], [(2, 0)]),
    ],
)
def test_filters_choose_heads(read, options, expected):
    _, out, _ = read(TEXT, "--json", *options)
    assert [(head["layer"], head["head"]) for head in json.loads(out)["heads"]] == expected


def test_the_text_can_come_from_stdin(read, monkeypatch):
    _, out, _ = read(TEXT, "--json", "--all")
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT + "\n"))
    assert read("-", "--json", "--all")[1] == out


def test_a_position_and_the_unembedding_can_be_asked_for(read):
    _, out, _ = read(TEXT, "--json", "--position", 1, "--unembedding")
    loaded = json.loads(out)
    assert loaded["position"] == 1 and loaded["heads"][0]["unembedded"]
    assert "unembedding" in read(TEXT, "--unembedding")[1]


def test_a_page_is_written_beside_what_is_printed(read, tmp_path):
    path = tmp_path / "page.html"
    code, out, err = read(TEXT, "--html", path)
    assert code == 0 and "adds" in out and err == f"wrote {path}\n"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_a_page_that_cannot_be_written_is_said_in_a_line(read, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, out, err = read(TEXT, "--html", tmp_path / "file" / "page.html")
    error, hint = err.strip().splitlines()
    assert (code, out) == (1, "") and "could not write" in error and hint.startswith("hint: ")


def test_lenses_are_found_in_their_default_place(read, lenses):
    from saccade.interp.lenses.lens_set import default_lens_path

    code, out, err = read(TEXT, lens=None)
    assert (code, out) == (1, "")
    assert (
        err.startswith("error: no lenses for") and "hint: fit lenses with `saccade lens fit" in err
    )
    lenses.save(default_lens_path(lenses.model))
    assert read(TEXT, lens=None)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "tokens"),
    [
        ([""], 2, "the text is empty"),
        (["  \n"], 2, "the text is empty"),
        (["w1 " * 20], 2, "the text is too long: it has 20 tokens"),
        ([TEXT, "--layer", 3], 2, "no layer 3"),
        ([TEXT, "--layer", -1], 2, "no layer -1"),
        ([TEXT, "--head", 6], 2, "no head 6"),
        ([TEXT, "--layer", 1, "--head", -2], 2, "no head -2 in layer 1"),
        ([TEXT, "--position", 4], 2, "no position 4: the text has 4 tokens"),
        ([TEXT, "--top", 0], 2, "cannot show 0 tokens"),
        ([TEXT, "--heads", 0], 2, "Invalid value for '--heads'"),
        ([TEXT, "--plugin", "nowhere.py"], 2, "no plugin at nowhere.py"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(read, arguments, code, tokens):
    got, out, err = read(*arguments)
    error, hint = err.strip().splitlines()
    assert (got, out) == (code, "")
    assert error.startswith("error: ") and tokens in error
    assert hint.startswith("hint: ")


def test_a_missing_model_or_lens_is_said_in_a_line(read, tmp_path, monkeypatch):
    from saccade.interp.lenses import hub

    monkeypatch.setattr(hub, "HfApi", lambda: Hub(ConnectionError("no route")))
    monkeypatch.setattr(hub, "snapshot_download", not_cached)
    (tmp_path / "empty").mkdir()
    for options, tokens in (
        ({"model": tmp_path / "empty"}, "is not a model: the folder has no config.json"),
        ({"model": "./nowhere"}, "no model folder at ./nowhere"),
        ({"lens": "./nowhere"}, "no lenses at ./nowhere: there is no such folder"),
        ({"lens": tmp_path / "empty"}, "empty"),
        ({"lens": "someone/lens"}, "the Hugging Face hub cannot be reached (ConnectionError)"),
    ):
        code, out, err = read(TEXT, **options)
        error, hint = err.strip().splitlines()
        assert (code, out) == (1, "") and tokens in error and hint.startswith("hint: ")


def test_lenses_of_another_model_are_refused(read, lenses, tmp_path):
    provenance = replace(lenses.provenance, model="other", model_fingerprint="f" * 16)
    replace(lenses, provenance=provenance).save(tmp_path / "other")
    code, _, err = read(TEXT, lens=tmp_path / "other")
    assert code == 1 and "was fitted for the model of other" in err


def test_a_plugin_that_fails_is_named(read, tmp_path):
    plugin = tmp_path / "broken.py"
    plugin.write_text("1 / 0")
    code, _, err = read(TEXT, "--plugin", plugin)
    assert code == 2 and "broken.py fails: ZeroDivisionError" in err
    plugin.write_text("import saccade")
    assert read(TEXT, "--plugin", plugin)[0] == 0


def test_a_model_is_described(folder, capsys):
    from saccade.cli.main import main

    assert main(["model", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"{LAYERS * HEADS} in {LAYERS} layers, {HEADS} a layer, of 10 features" in shown
    assert shown.count("passed ") == 3
    assert main(["model", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["n_heads"] == LAYERS * HEADS and facts["max_positions"] == CONTEXT
    assert [at["heads"] for at in facts["layers"]] == [HEADS] * LAYERS


class Hub:
    """Stands where the network begins; remembers what was sent, or fails."""

    def __init__(self, error=None):
        self.error, self.sent = error, []

    def model_info(self, _, *, timeout):
        assert timeout <= 10
        if self.error:
            raise self.error

    def create_repo(self, name, *, private, exist_ok):
        assert exist_ok
        if self.error:
            raise self.error
        self.sent.append(("repo", name, private))
        return f"hub:{name}"

    def create_commit(self, repo_id, operations, *, commit_message):
        assert repo_id == "me/lens" and commit_message
        self.sent += [(each.path_in_repo, each.path_or_fileobj) for each in operations]


def not_cached(name, **options):
    from huggingface_hub.errors import LocalEntryNotFoundError

    assert options["local_files_only"]
    raise LocalEntryNotFoundError("not cached")


def test_lenses_are_read_from_the_hub_by_name(read, saved, monkeypatch):
    from saccade.interp.lenses import hub

    monkeypatch.setattr(hub, "HfApi", Hub)
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: str(saved))
    assert read(TEXT, lens="someone/lens")[0] == 0
    monkeypatch.setattr(hub, "HfApi", lambda: Hub(ConnectionError("no route")))
    assert read(TEXT, lens="someone/lens")[0] == 0  # what was fetched before is used


def test_lenses_are_pushed_with_a_card_that_says_how_to_use_them(saved, tmp_path, monkeypatch):
    from saccade.errors import LensError
    from saccade.interp.lenses import hub

    fake = Hub()
    monkeypatch.setattr(hub, "HfApi", lambda: fake)
    assert hub.push_lenses(saved, "me/lens", private=True) == "hub:me/lens"
    assert ("repo", "me/lens", True) in fake.sent
    sent = dict(each[:2] for each in fake.sent)
    assert {file.name for file in saved.iterdir()} < sent.keys()
    assert "--lens me/lens" in sent["README.md"].decode()
    with pytest.raises(LensError):
        hub.push_lenses(tmp_path, "me/lens")
    fake.error = ConnectionError("no route")
    with pytest.raises(LensError, match=r"cannot be reached \(ConnectionError\)"):
        hub.push_lenses(saved, "me/lens")
