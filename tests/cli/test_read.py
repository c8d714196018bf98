"""`saccade read` and `saccade model`, on a random model of three layers saved in a folder."""

import csv
import io
import json
import os
import signal
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where the means of the model are computed once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def read(folder, saved, capsys, monkeypatch, cache):
    """Runs the command; its exit code, what it printed, and what it said on stderr."""
    from saccade.cli.main import main

    monkeypatch.setenv("SACCADE_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments, model=folder, lens=saved, command="read"):
        given = ["--model", str(model), *(["--lens", str(lens)] if lens else [])]
        code = main([command, *map(str, arguments), *given])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def reading(lenses, read):
    """What Python reads, with the same means."""
    from saccade.interp.readings.reader import read as read_one

    def get(text=TEXT, **options):
        return read_one(lenses.model, text, lenses=lenses, **options)

    return get


def test_the_heads_with_the_largest_effects_are_shown_first(read, reading):
    code, out, err = read(TEXT)
    assert code == 0 and err == ""
    names = [line.split()[0] for line in out.splitlines() if "  effect  " in line]
    assert names[:8] == [head.name for head in reading().ranked()[:8]]
    assert "\x1b" not in out  # not a terminal: no colours
    for label in ("predicts", "promotes", "suppresses", "attends to", "quality ", "direct "):
        assert label in out


def test_without_lenses_the_effects_are_shown(read, reading):
    code, out, err = read(TEXT, lens=None)
    assert code == 0 and err == ""
    assert "  effect  " in out and "knows" not in out
    code, out, err = read(TEXT, "--no-effects", lens=None)
    assert (code, out) == (1, "")
    assert "no lenses for" in err and "hint: fit lenses with `saccade lens fit" in err


def test_json_is_the_reading_of_the_shown_heads(read, reading):
    code, out, err = read(TEXT, "--json", "--top", 3, "--heads", 4, "--by", "quality")
    loaded = json.loads(out)
    assert code == 0 and err == ""
    expected = reading().ranked("quality")[:4]
    assert [(h["layer"], h["head"]) for h in loaded["heads"]] == [
        (h.layer, h.head) for h in expected
    ]
    shown = loaded["heads"][0]
    assert shown["lens"]["kl_from_baseline"] == pytest.approx(
        expected[0].lens.kl_from_baseline, rel=1e-4
    )
    assert shown["effect"]["kl"] == pytest.approx(expected[0].effect.kl, rel=1e-4)
    assert all(len(head["lens"]["predicts"]) == 3 for head in loaded["heads"])
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
    assert code == 0 and "promotes" in out and err == f"wrote {path}\n"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_a_page_that_cannot_be_written_is_said_in_a_line(read, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, out, err = read(TEXT, "--html", tmp_path / "file" / "page.html")
    error, hint = err.strip().splitlines()
    assert (code, out) == (1, "") and "could not write" in error and hint.startswith("hint: ")


def test_lenses_are_found_in_their_default_place(read, lenses, monkeypatch, tmp_path):
    from saccade.interp.lenses.lens_set import default_lens_path

    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path))
    lenses.save(default_lens_path(lenses.model))
    assert "knows" in read(TEXT, lens=None)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "tokens"),
    [
        ([""], 2, "empty"),
        (["  \n"], 2, "the text is empty"),
        (["w1 " * 20], 2, "the text is too long: it has 20 tokens"),
        ([TEXT, "--layer", 3], 2, "no layer 3"),
        ([TEXT, "--layer", -1], 2, "no layer -1"),
        ([TEXT, "--head", 6], 2, "no head 6"),
        ([TEXT, "--layer", 1, "--head", -2], 2, "no head -2 in layer 1"),
        ([TEXT, "--position", 4], 2, "no position 4: the text has 4 tokens"),
        ([TEXT, "--top", 0], 2, "cannot show 0 tokens"),
        ([TEXT, "--heads", 0], 2, "Invalid value for '--heads'"),
        ([], 2, "expected either a prompt or --prompts FILE, got neither"),
        ([TEXT, "--prompts", "file"], 2, "expected either a prompt or --prompts FILE, got both"),
        ([TEXT, "--summary"], 2, "--summary is about many prompts"),
        ([TEXT, "--json", "--csv", "-"], 2, "--json and --csv were both given"),
        ([TEXT, "--chat"], 1, "has no chat template"),
        ([TEXT, "--token", "w3", "--against", "w3"], 2, "begin with the same token"),
        ([TEXT, "--against", "w3"], 2, "a contrast needs a token"),
        (["--prompts", "nowhere.txt"], 2, "cannot read the prompts from nowhere.txt"),
        ([TEXT, "--plugin", "nowhere.py"], 2, "no plugin at nowhere.py"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(read, arguments, code, tokens):
    got, out, err = read(*arguments)
    error, hint = err.strip().splitlines()
    assert (got, out) == (code, "")
    assert error.startswith("error: ") and tokens in error
    assert hint.startswith("hint: ")


# Many prompts.

MANY = ["w17 w3 w41 w5", "w2 w9", "w8 w7 w6 w5 w4 w3", "w1"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n\n".join(MANY) + "\n")
    return path


def test_many_prompts_stream_a_line_of_json_each_in_their_order(read, reading, prompts):
    code, out, err = read("--prompts", prompts, "--json", "--heads", 3)
    assert code == 0 and err == ""
    lines = [json.loads(line) for line in out.splitlines()]
    assert [each["text"] for each in lines] == MANY
    assert [each["prompt"] for each in lines] == [1, 3, 5, 7]  # the lines of the file
    for line in lines:
        expected = reading(line["text"]).ranked()[:3]
        assert [h["effect"]["kl"] for h in line["heads"]] == pytest.approx(
            [h.effect.kl for h in expected], rel=1e-3
        )


def test_many_prompts_as_csv_have_a_row_a_head(read, prompts, tmp_path):
    code, out, _ = read("--prompts", prompts, "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and len(rows) == len(MANY) * LAYERS * HEADS
    assert read("--prompts", prompts, "--csv", tmp_path / "table.csv")[1] == ""
    assert (tmp_path / "table.csv").read_text() == out
    one = read(MANY[0], "--csv", "-")[1]
    for line, expected in zip(csv.DictReader(io.StringIO(one)), rows, strict=False):
        assert line["promotes"] == expected["promotes"] and line["head"] == expected["head"]
        assert float(line["kl"]) == pytest.approx(float(expected["kl"]), rel=1e-3)


def test_the_summary_is_the_mean_effect_of_each_head(read, reading, prompts):
    code, out, _ = read("--prompts", prompts, "--token", "w9", "--summary", "--json")
    found = json.loads(out)
    assert code == 0 and found["n_prompts"] == 4 and found["token"] == "w9"
    readings = [reading(text, token="w9") for text in MANY]
    for head in found["heads"]:
        effects = [r.at(head["layer"], head["head"]).effect.on_token for r in readings]
        assert head["mean"] == pytest.approx(sum(effects) / 4, abs=1e-4)
    shown = read("--prompts", prompts, "--token", "w9", "--heads", 2)[1]
    best = found["heads"][0]
    assert f"{best['layer']}.{best['head']} " in shown and "95% interval" in shown


def test_a_file_of_json_may_ask_for_tokens(read, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "w1 w2", "token": "w5"}\n{"prompt": "w3", "position": 0}\n')
    lines = [json.loads(line) for line in read("--prompts", path, "--json")[1].splitlines()]
    assert lines[0]["target"]["text"].strip() == "w5" and lines[1]["position"] == 0


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("", "there are no prompts in"),
        ("\n \n", "there are no prompts in"),
        ('{"prompt": "w1"}\n{"prompt": \n', "line 2 of"),
        ("w1\n\n" + "w2 " * 20, "prompt 3: the text is too long: it has 20 tokens"),
    ],
)
def test_a_broken_file_of_prompts_is_told_before_anything_is_read(read, tmp_path, content, tokens):
    path = tmp_path / "prompts.txt"
    path.write_text(content)
    code, out, err = read("--prompts", path, "--json")
    error, hint = err.strip().splitlines()
    assert (code, out) == (2, "") and tokens in error and hint.startswith("hint: ")


def test_ctrl_c_while_a_line_is_written_takes_effect_after_it(monkeypatch):
    from saccade.cli.options import line_writer

    class Interrupted(io.StringIO):
        """Is interrupted when it has half of what it is given."""

        def write(self, lines):
            half = len(lines) // 2
            super().write(lines[:half])
            os.kill(os.getpid(), signal.SIGINT)
            return super().write(lines[half:])

    out = Interrupted()
    monkeypatch.setattr("sys.stdout", out)
    before = signal.getsignal(signal.SIGINT)
    with line_writer() as write, pytest.raises(KeyboardInterrupt):
        write("first\n")
    assert out.getvalue() == "first\n"
    assert signal.getsignal(signal.SIGINT) is before


# Generation.


def test_generation_shows_a_line_a_token_and_the_text(read):
    code, out, err = read(TEXT, "--tokens", 5, lens=None, command="generate")
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert len(lines) == 7 and lines[-1].startswith(TEXT)
    assert all(len(line) <= 80 and "%" in line for line in lines[:5])
    read_json = read(TEXT, "--tokens", 5, "--json", lens=None, command="generate")[1]
    loaded = [json.loads(line) for line in read_json.splitlines()]
    assert [each["position"] for each in loaded] == [4, 5, 6, 7, 8]
    written = [each["text"].strip() for each in loaded]
    assert lines[-1].split()[4:] == [each for each in written if each != "w0"]  # a special token
    assert all(each["promoted_by"][0]["effect"] > 0 for each in loaded)


@pytest.mark.parametrize(
    ("arguments", "code", "tokens"),
    [
        ([""], 2, "the text is empty"),
        ([TEXT, "--tokens", 16], 2, "cannot write 16 tokens: the prompt has 4"),
        ([TEXT, "--top-p", 0], 2, "no probability 0.0"),
        ([TEXT, "--chat", "--tokens", 2], 1, "has no chat template"),
    ],
)
def test_what_cannot_be_generated_is_said_in_a_line(read, arguments, code, tokens):
    got, out, err = read(*arguments, lens=None, command="generate")
    error, hint = err.strip().splitlines()
    assert (got, out) == (code, "") and tokens in error and hint.startswith("hint: ")


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
