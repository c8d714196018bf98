"""Python code that a model brings with it: never run and never asked about on stdin.

Every folder here is a real model whose code leaves a mark when it is imported, opened by a real
process whose stdin says yes to everything.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Path({mark!r}).write_text("ran")

class OwnConfig(LlamaConfig):
    model_type = "own-llama"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
OWN_CONFIG = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
OWN_TOKENIZER = {"AutoTokenizer": [None, "own.OwnTokenizer"]}


def has_run(folder: Path) -> bool:
    """Whether the code of a model left its mark."""
    return (folder.parent / "ran").exists()


@pytest.fixture
def trap(story_folder: Path, tmp_path: Path) -> Any:
    """Makes a model folder with code of its own and the given entries in its JSON files."""

    def make(config: dict[str, Any], tokenizer: dict[str, Any]) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(story_folder, folder)
        for name, more in (("config.json", config), ("tokenizer_config.json", tokenizer)):
            file = folder / name
            file.write_text(json.dumps(json.loads(file.read_text()) | more))
        (folder / "own.py").write_text(CODE.format(mark=str(tmp_path / "ran")))
        return folder

    return make


def run(*arguments: object, cache: Path, yes: str = "y\n" * 50) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with a yes to every question."""
    return subprocess.run(
        [sys.executable, "-m", "saccade", *map(str, arguments)],
        check=False,
        input=yes,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ
        | {
            "SACCADE_CACHE": str(cache / "saccade"),
            "HF_HOME": str(cache / "hf"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
    )


UNKNOWN = {"model_type": "own-llama", "architectures": ["OwnModel"], "auto_map": OWN_CONFIG}
TOKENIZER = {"auto_map": OWN_TOKENIZER, "tokenizer_class": "OwnTokenizer"}


@pytest.mark.parametrize(
    ("command", "config", "tokenizer"),
    [(["model"], {}, TOKENIZER), (["guard", "score", "-", "--model"], UNKNOWN, {})],
    ids=["tokenizer", "config"],
)
def test_code_of_a_model_is_refused_in_a_line_whatever_stdin_says(
    trap, tmp_path, command, config, tokenizer
):
    folder = trap(config, tokenizer)
    done = run(*command, folder, cache=tmp_path)
    assert not has_run(folder)
    assert done.returncode == 1 and done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error == f"error: {folder} contains Python code of its own, which is not run"
    assert "--trust-remote-code" in hint


def test_a_model_that_transformers_knows_is_opened_without_its_code(trap, tmp_path, stories):
    folder = trap({"auto_map": OWN_CONFIG}, {"auto_map": OWN_TOKENIZER})
    done = run("model", folder, "--json", cache=tmp_path)
    assert not has_run(folder) and done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["type"], found["fingerprint"]) == ("llama", stories.fingerprint)


def test_a_kernel_that_a_config_names_is_not_fetched(trap, tmp_path):
    folder = trap({"_attn_implementation": "someone/kernel"}, {})
    done = run("model", folder, cache=tmp_path)
    assert done.returncode == 1 and "contains Python code of its own" in done.stderr


def test_code_runs_for_those_who_ask_for_it(trap, tmp_path):
    """Or the tests above would pass with a trap that catches nothing."""
    folder = trap(UNKNOWN, TOKENIZER)
    done = run("model", folder, "--trust-remote-code", "--json", cache=tmp_path, yes="")
    assert done.returncode == 0, done.stderr
    assert has_run(folder) and json.loads(done.stdout)["type"] == "own-llama"


@pytest.mark.parametrize(
    "command",
    [
        ("read", "-"),
        ("guard", "score", "-"),
        ("guard", "fit", "-"),
        ("find-bias", "--prompts", "-"),
        ("view", "--print", "model", "--ask", "-"),
    ],
    ids=" ".join,
)
def test_trust_is_refused_together_with_text_from_stdin(saccade, told_in_a_line, command, tmp_path):
    code, _, err = saccade(*command, "--model", tmp_path, "--trust-remote-code")
    assert code == 2
    assert "--trust-remote-code cannot be combined with input from stdin" in told_in_a_line(err)


def test_every_command_that_takes_a_model_takes_the_option():
    from typer.main import get_command

    from saccade.cli.main import app

    def leaves(command: Any, name: str) -> Any:
        for key, each in getattr(command, "commands", {}).items():
            yield from leaves(each, f"{name} {key}")
        if not hasattr(command, "commands"):
            yield name, {option for p in command.params for option in (p.name, *p.opts)}

    taking = {name: has for name, has in leaves(get_command(app), "saccade") if "--model" in has}
    assert len(taking) >= 14
    assert not [name for name, has in taking.items() if "--trust-remote-code" not in has]


def test_the_viewer_trusts_no_code_unless_it_was_started_so(trap):
    from saccade.errors import ModelError
    from saccade.viewer.worker import ViewConfig, open_model_and_lenses

    folder = trap(UNKNOWN, TOKENIZER)
    with pytest.raises(ModelError, match="contains Python code of its own"):
        open_model_and_lenses(ViewConfig(model=str(folder)), lambda *_: None)
    assert not has_run(folder)


@pytest.mark.parametrize("command", ["read", "model"])
def test_an_empty_name_is_not_the_default_model(saccade, told_in_a_line, command):
    code, _, err = saccade(
        *{"read": ["read", "Hi", "--model", ""], "model": ["model", ""]}[command]
    )
    assert code == 2 and "expected a text, got an empty one" in told_in_a_line(err)
