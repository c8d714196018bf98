"""Runs many commands, each in a process of its own that is forked from one that has torch loaded.

Started by `test_fuzz.py` with a folder to work in. A line of JSON on stdin is a case: arguments,
and what stands on stdin. A line of JSON on stdout is what came of it: the exit code, what was
printed, and how it ended. Arguments that begin with "@" name what `make` built; those that begin
with "+" a copy of it that the case may change.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import importlib
import io
import json
import os
import pkgutil
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parent.parent.parent
PLUGIN = ROOT / "tests" / "zoo" / "training" / "tiny.py"
PROMPT = "One day, Lily saw the"
STORY = [
    f"One day, {who} {did} the {what}. "
    for what in ("ball", "tree", "cake", "dog", "red car")
    for who in ("Lily", "Tom", "the cat", "a bird")
    for did in ("saw", "liked", "found", "wanted")
]
GERMAN = ["Ein Hund läuft.", "Eine Katze schläft.", "Ein kleiner Hund schläft im Gras."]
ENGLISH = ["A dog runs.", "A cat sleeps.", "A small dog sleeps in the grass."]
PIPES = ("pipe", "pipe.txt", "pipe.jsonl")
GIB = 2**30
SHOWN = 2**17  # characters of an output that are sent back
BLOCKED = 2.0  # seconds without any work done, asleep
WORKING = 3.0  # seconds of work after which a command that shows progress is let off
BUSY = 10.0  # seconds of work without a sign of life
FOREVER = 120.0  # seconds by the clock
# A server is as far as it gets when it has said this; progress is shown as "stage: 3/7".
SIGNS = re.compile(rb"Ctrl-C stops it|: \d+/\d+")  # the viewer's line, or progress


def main(folder: Path) -> None:
    """Build what commands work on, then run cases until there are no more."""
    os.environ.update(
        HOME=str(folder),
        SACCADE_CACHE=str(folder / "cache"),
        SACCADE_DATA=str(folder / "made" / "data"),
        HF_HUB_OFFLINE="1",
        HF_ENDPOINT="http://127.0.0.1:9",
        TOKENIZERS_PARALLELISM="false",
        COLUMNS="120",
        MPLCONFIGDIR=str(folder / "matplotlib"),
    )
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    (folder / "cache").mkdir(parents=True)
    made = folder / "made"
    build(made)
    say(results, {"made": str(made)})
    for line in sys.stdin:
        say(results, run_case(json.loads(line), folder, made))


def say(results: Any, found: dict[str, Any]) -> None:
    results.write(json.dumps(found) + "\n")
    results.flush()


def build(made: Path) -> None:
    """A model, and by the commands themselves: lenses, a guard, an edit, runs and traces."""
    import torch

    import saccade.cli.options

    load_everything()
    torch.set_num_threads(1)
    saccade.cli.options.LINE_EVERY = 0.0
    (made / "data" / "multi30k").mkdir(parents=True)
    write_texts(made)
    write_model(made / "model")
    remember_model(str(made / "model"))
    few = ["steps=4", "minutes=0", "warmup=1", "validate_steps=2", "log_steps=2"]
    small = ["d_model=12", "d_hidden=17", "n_layers=2", "n_heads=3", "n_pieces=70"]
    chars = ["d_embed=7", "d_hidden=11", "streams=5", "window=13", "valid=0.1", "epochs=1"]
    model = ["--model", "@model"]
    atlas = ["atlas", "build", *model, "--head", "1", "--window", "16", "--tokens", "256", "--out"]
    lens = ["lens", "fit", *model, "--window", "16", "--rows", "4", "--corpus", "@corpus.txt"]
    for arguments in (
        [*lens, "--tokens", "1024", "--out", "@lens"],
        [*lens[:-1], "@other.txt", "--tokens", "1024", "--out", "@lens2"],
        [*atlas, "@atlas", "--corpus", "@corpus.txt"],
        [*atlas, "@atlas2", "--corpus", "@other.txt"],
        ["guard", "fit", "@prompts.txt", *model, "--lens", "@lens", "--out", "@guard"],
        ["edit", PROMPT, *model, "--ablate", "1.0", "--corpus", "@corpus.txt", "--out", "@edit"],
        ["train", "tiny-mirror", "--plugin", str(PLUGIN), "--set", "epochs=1", "--out", "@run"],
        ["trace", "@run", "abc", "--plugin", str(PLUGIN), "--out", "@trace"],
        ["train", "transformer-multi30k", *settings(few + small), "--out", "@translator"],
        ["train", "charlm-shakespeare", *settings(chars), "--out", "@writer"],
    ):
        found = run_case({"arguments": arguments, "check": False}, made.parent, made)
        assert found["code"] == 0, f"{arguments}: {found['err']}"
    keep(made)


def load_everything() -> None:
    """Import all that commands import, so that no case has to wait for it."""
    import saccade

    for package in ("saccade", "datasets", "matplotlib.pyplot", "rich.progress", "uvicorn"):
        importlib.import_module(package)
    for module in pkgutil.walk_packages(saccade.__path__, "saccade."):
        if module.name != "saccade.__main__":
            importlib.import_module(module.name)


def settings(changes: list[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def write_texts(made: Path) -> None:
    """Corpora and prompts, and what is neither: files no command should trip over."""
    (made / "corpus.txt").write_text("".join(STORY * 3), encoding="utf-8")
    (made / "other.txt").write_text("".join(reversed(STORY * 3)), encoding="utf-8")
    (made / "prompts.txt").write_text("\n".join(STORY[:30]), encoding="utf-8")
    (made / "pairs.txt").write_text("The {man|woman} saw\nA {boy|girl} ran\n", encoding="utf-8")
    sentences = {"context": "Lily is a BLANK girl.", "stereotype": "Lily is a happy girl."}
    sentences |= {"anti-stereotype": "Lily is a sad girl.", "unrelated": "Lily is a blue girl."}
    (made / "stereo.jsonl").write_text(f"{json.dumps(sentences)}\n" * 8, encoding="utf-8")
    for part in ("train", "val", "test_2016_flickr"):
        for language, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "\n".join(lines * 7) + "\n"
            (made / "data" / "multi30k" / f"{part}.{language}").write_text(text, encoding="utf-8")
    (made / "data" / "tinyshakespeare").mkdir()
    plays = made / "data" / "tinyshakespeare" / "input.txt"
    plays.write_text("the cat sat on the mat.\na cat is no dog.\n" * 30, encoding="utf-8")
    deep = "[" * 200_000
    odd = {
        "binary.bin": bytes(range(256)) * 9,
        "binary.txt": bytes(range(256)) * 9,
        "latin.txt": b"caf\xe9 " * 50,
        "empty.txt": b"",
        "empty.jsonl": b"",
        "deep.json": deep.encode(),
        "deep.jsonl": b'{"text": ' + deep.encode() + b"\n",
        "half.jsonl": b'{"text": "\\ud83d alone"}\n{"text": 3}\n',
        "long-word.txt": b"a" * 300_000,
        "notes/diary.txt": b"Dear diary,\n",
        "notes/manifest.json": b'{"format": 3}',
        "notes/config.json": deep.encode(),
    }
    for name, content in odd.items():
        path = made / "user" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (made / "user" / "nothing").mkdir()
    for name in PIPES:
        os.mkfifo(made / "user" / name)
    (made / "user" / "loop.txt").symlink_to("loop.txt")


def write_model(folder: Path) -> None:
    """A random model of two layers, with a tokenizer of bytes and their pairs."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(STORY, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=24,
        intermediate_size=29,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).eval().save_pretrained(folder)


def remember_model(path: str) -> None:
    """Open the model once, for the cases that open it and nothing else; it is the default, too."""
    from saccade.interp.heads import model as heads

    really_open, opened = heads.open_model, heads.open_model(path)
    assert len(opened.fingerprint) and len(opened.tokenizer_fingerprint)

    def open_model(name: Any = None, **options: Any) -> Any:
        named = path if name in (None, heads.DEFAULT_MODEL) else name
        is_known = str(named) == path and not any(options.values())
        return opened if is_known else really_open(named, **options)

    heads.open_model = open_model


def run_case(case: dict[str, Any], folder: Path, made: Path) -> dict[str, Any]:
    """What came of a case, and which files of the user's it changed."""
    here = Path(tempfile.mkdtemp(dir=folder, prefix="case-"))
    files = {name: here.with_name(f"{here.name}.{name}") for name in ("in", "out", "err")}
    files["in"].write_bytes(bytes(case.get("stdin", []) or b"") * case.get("times", 1))
    arguments = [expanded(each, made, here) for each in case["arguments"]]
    before = contents(made) if case.get("check", True) else {}
    pid = os.fork()
    if pid == 0:
        child(arguments, here, files)
    found = watch(pid, files)
    after = contents(made) if case.get("check", True) else {}
    found["changed"] = sorted(name for name in before if before[name] != after.get(name))
    if before != after:
        restore(made)
    for name in ("out", "err"):
        content = files[name].read_bytes()
        found[name] = content[-SHOWN:].decode("utf-8", "backslashreplace")
        found[f"{name}_is_whole"] = len(content) <= SHOWN
    found["left"] = sorted(str(path.relative_to(here)) for path in here.rglob("*"))[:20]
    shutil.rmtree(here, ignore_errors=True)
    shutil.rmtree(own_folder(here), ignore_errors=True)
    for path in files.values():
        path.unlink()
    return found


def own_folder(here: Path) -> Path:
    return here.with_name(f"{here.name}-own")


def expanded(argument: str, made: Path, here: Path) -> str:
    option, equals, value = argument.partition("=")
    if option.startswith("--") and value.startswith(("@", "+")):
        return option + equals + expanded(value, made, here)
    if argument.startswith("@"):
        return str(made / argument[1:])
    if argument.startswith("+"):
        copy = own_folder(here) / argument[1:]
        if not copy.exists():
            shutil.copytree(made / argument[1:], copy)
        return str(copy)
    return argument


def contents(made: Path) -> dict[str, str]:
    """A hash of every file that was made, so that a changed one is noticed."""
    found = {}
    for path in made.rglob("*"):
        name = str(path.relative_to(made))
        is_file = path.is_file() and not path.is_symlink()
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else "no file"
    return found


def keep(made: Path) -> None:
    """Put a copy of all that was made aside, for `restore`."""
    kept = made.with_name("kept")
    shutil.copytree(made, kept, symlinks=True, ignore=lambda *_: set(PIPES))


def restore(made: Path) -> None:
    """Undo what a case has done, so that the next one finds all as it was."""
    shutil.rmtree(made)
    shutil.copytree(made.with_name("kept"), made, symlinks=True)
    for name in PIPES:
        os.mkfifo(made / "user" / name)


def child(arguments: list[str], here: Path, files: dict[str, Path]) -> None:
    """Become the command: its own folder, streams and a limit to its memory."""
    code = 70
    try:
        os.chdir(here)
        for number, (name, flags) in enumerate(
            (
                ("in", os.O_RDONLY),
                ("out", os.O_WRONLY | os.O_CREAT),
                ("err", os.O_RDWR | os.O_CREAT),
            )
        ):
            os.dup2(os.open(files[name], flags), number)
        sys.stdin, sys.stdout, sys.stderr = streams()
        faulthandler.enable(file=sys.stderr)
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
        limit = size_of_process() + 2 * GIB
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB))
        from saccade.cli.main import main as saccade

        code = saccade(arguments)
    except BaseException:  # noqa: BLE001  what a process of its own would show
        import traceback

        traceback.print_exc()
        code = 99
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def streams() -> tuple[TextIO, TextIO, TextIO]:
    """As Python makes them of the descriptors 0 to 2 in a terminal of today."""
    given, out, err = (
        os.fdopen(n, mode, closefd=False) for n, mode in enumerate(("rb", "wb", "wb"))
    )
    return (
        io.TextIOWrapper(given, "utf-8"),
        io.TextIOWrapper(out, "utf-8"),
        io.TextIOWrapper(err, "utf-8", "backslashreplace", line_buffering=True),
    )


def size_of_process() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def watch(pid: int, files: dict[str, Path]) -> dict[str, Any]:
    """Wait for a process to end; end it where it waits for ever or shows no sign of life."""
    begin = asleep_since = time.monotonic()
    worked, pause = 0.0, 0.001
    while True:
        done, status, _ = os.wait4(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {"code": code, "ended": "exit", "seconds": time.monotonic() - begin}
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)
        now, (state, used) = time.monotonic(), work_of(pid)
        if state != "S" or used > worked:
            asleep_since, worked = now, used
        ended = verdict(used, now - asleep_since, now - begin, files)
        if ended is not None:
            if ended not in ("working", "serving"):
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.3)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"code": None, "ended": ended, "seconds": time.monotonic() - begin}


def verdict(used: float, asleep: float, passed: float, files: dict[str, Path]) -> str | None:
    if asleep > BLOCKED or used > WORKING:
        told = files["err"].read_bytes() if files["err"].exists() else b""
        answers = files["out"].stat().st_size if files["out"].exists() else 0
        if SIGNS.search(told) or answers:  # a stream answers as it goes
            return "working"
    if asleep > BLOCKED:
        return "blocked"
    return "busy" if used > BUSY or passed > FOREVER else None


def work_of(pid: int) -> tuple[str, float]:
    """Whether a process sleeps, and how many seconds it has worked."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "Z", 0.0
    return state, (int(rest[10]) + int(rest[11])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
