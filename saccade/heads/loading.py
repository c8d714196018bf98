"""Find and load a model by name, and say in one line why when it cannot be done."""

from __future__ import annotations

import difflib
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from saccade.errors import MissingPackageError, ModelError, UsageError
from saccade.heads.default import DEFAULT_MODEL, default_source
from saccade.heads.quiet import quiet_transformers

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
DECODERS = "saccade reads decoder-only language models such as GPT-2, Llama or Qwen"
# Seconds to wait for the hub to answer at all; downloads then take what they take.
HUB_TIMEOUT = 5.0


def load_model(
    name: str | Path, *, dtype: str | None, device_map: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal model and its tokenizer by folder, hub name or the default's name."""
    chosen = _checked_dtype(dtype, device_map)
    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        raise MissingPackageError(
            f"device_map={device_map!r} needs the package accelerate, which is not installed",
            hint="pip install accelerate",
        )
    source, is_folder = _source(name)
    with quiet_transformers():
        if not is_folder:
            try:
                return _load(source, name, chosen, device_map, is_local=True)
            except ModelError as error:
                if error.__cause__ is None:  # it is there, and it is not a model for us
                    raise
            _ask_hub(source)
        return _load(source, name, chosen, device_map, is_local=is_folder)


def _load(
    source: str, name: str | Path, dtype: Any, device_map: str | None, *, is_local: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load config, tokenizer and weights, the quick ones first; local ones ask no network."""
    part = "config"
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=is_local)
        refuse_other_kinds(config, str(name))
        part = "weights"
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            device_map=device_map,
            local_files_only=is_local,
            output_loading_info=True,
        )
        part = "tokenizer"
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=is_local)
    except ModelError:
        raise
    except Exception as error:  # transformers, safetensors and the network have many of their own
        raise _could_not(name, part, error) from error
    hf, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"the checkpoint of {name} lacks {len(missing)} of the model's weights, the first "
            f"being {missing[0]}",
            hint="it is incomplete or of another kind of model: fetch it again",
        )
    return hf, tokenizer


def refuse_other_kinds(config: Any, name: str) -> None:
    """Refuse what is not a decoder-only language model, as far as its config tells."""
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder model ({kind}), not a causal language model",
            hint=DECODERS,
        )
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
        near = difflib.get_close_matches(dtype, DTYPES, n=1)
        raise UsageError(
            f"unknown dtype {dtype!r}: expected one of {', '.join(DTYPES)}",
            hint=f"did you mean {near[0]!r}?" if near else "leave it out for float32",
        )
    return "auto" if dtype == "auto" else getattr(torch, dtype)


def _source(name: str | Path) -> tuple[str, bool]:
    """What to load from, and whether it is a folder (or else a hub name)."""
    text = str(name)
    if text == DEFAULT_MODEL:
        text = default_source()
    folder = Path(text).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{text} is not a model: the folder has no config.json",
                hint="give the folder that holds config.json, the weights and the tokenizer",
            )
        return str(folder), True
    if folder.is_file():
        raise ModelError(
            f"{text} is a file, not a model folder",
            hint="give the folder that holds config.json, the weights and the tokenizer",
        )
    if isinstance(name, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise ModelError(
            f"no model folder at {text}", hint=f"check the path, or use {DEFAULT_MODEL!r}"
        )
    return text, False


def _ask_hub(name: str) -> None:
    """Return if the hub has the model; never wait for long."""
    local = f"use a folder, the default {DEFAULT_MODEL!r}, or a model that is already in the cache"
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except HFValidationError as error:
        raise ModelError(f"{name!r} is neither a folder nor a hub name", hint=local) from error
    except GatedRepoError as error:
        raise ModelError(
            f"the hub wants you to accept the terms of {name} first",
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
            f"{name} is not in the local cache, and HF_HUB_OFFLINE forbids to fetch it",
            hint=local,
        ) from error
    except Exception as error:  # the hub's HTTP library has its own errors, and has changed before
        raise ModelError(
            f"{name} is neither a folder nor whole in the local cache, and the Hugging Face hub "
            f"cannot be reached ({type(error).__name__})",
            hint=f"check the network, or {local}",
        ) from error


def _could_not(name: str | Path, part: str, error: Exception) -> ModelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
    hint = "the files are damaged or incomplete: fetch them again"
    if "trust_remote_code" in str(error):
        hint = "models that bring their own code are not run; use one that transformers knows"
    elif isinstance(error, MemoryError) or "out of memory" in str(error):
        hint = "choose dtype='bfloat16', or a device_map that spreads the model"
    elif part == "tokenizer":
        hint = "put the tokenizer's files (tokenizer.json) beside the weights"
    elif os.environ.get("HF_HUB_OFFLINE"):
        hint = "HF_HUB_OFFLINE is set: fetch the model while online first"
    return ModelError(f"could not load the {part} of {name}: {reason[:200]}", hint=hint)
