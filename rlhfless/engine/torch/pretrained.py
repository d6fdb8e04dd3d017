"""Loads a pretrained transformers model from a folder or the hub: safetensors only, no code of the model.

A folder is read without network access.
"""

from __future__ import annotations

import json
import textwrap
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rlhfless.engine.common.stop_ids import stop_ids
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from rlhfless.errors import InputError, missing_extra
from rlhfless.system.model_folders import from_folder, local_folder
from solver.model.errors import as_given

try:
    import torch
    from safetensors import SafetensorError, safe_open
    from transformers import AutoModelForCausalLM
except ImportError as error:
    raise missing_extra("a pretrained model", error.name, "torch") from None

TOKENIZER_FILE = "char_tokenizer.json"
DEVICES = ("auto", "cpu", "cuda")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # number formats by their names in safetensors
FORMATS = tuple(STORED.values())


def load_pretrained(kind: Any, folder: str | Path) -> Any:
    """Return the model in a folder, in float32 on the CPU, in evaluation mode.

    Args:
        kind: class of transformers that loads it, such as ``AutoModelForCausalLM``. folder: or a name of the hub.

    Raises:
        InputError: ``folder`` lacks the model, or has no safetensors of it, or transformers cannot read it, or the model
            contains its own code, which would have to be run.
    """
    folder = local_folder(folder)
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: holds no model, config.json is missing; name a folder with a model of transformers")
    if not any(folder.glob("*.safetensors")):
        raise InputError(f"{folder}: holds no weights, model.safetensors is missing; save the weights as safetensors")
    try:
        return to_train(from_folder(kind, folder, use_safetensors=True, dtype=torch.float32))
    except InputError:
        raise
    except Exception as error:  # what a wrong config.json or damaged weights end in has classes of several libraries
        reason = textwrap.shorten(str(error), 200, placeholder=" ...")
        raise InputError(
            f"{folder}: its model cannot be loaded by {kind.__name__} ({reason}); give a folder written by "
            "a model's save_pretrained"
        ) from error


def to_train(model: Any) -> Any:
    """Return a model of transformers with its weights in float32, in which they are trained, and without dropout until it
    learns; it is changed in place.
    """
    model.float().eval()
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")  # transformers' fused kernel leaves the cap out
    return model


def checkpoint_dtype(folder: str | Path) -> str:
    """Return the number format in which a model's folder has its weights, and in which transformers loads them if none is asked
    for: ``float32``, ``bfloat16`` or ``float16``. Others count as float32.

    Example:
        >>> checkpoint_dtype("data/models/arithmetic-grpo")
        'float32'
    """
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
        named = [part.get(name) for part in parts for name in ("dtype", "torch_dtype")]
        found = next((str(name) for name in named if name is not None), None) or _format_of_weights(Path(folder))
    except (OSError, ValueError, AttributeError, SafetensorError):  # loading the model says what is wrong
        return "float32"
    return found if found in FORMATS else "float32"


def _format_of_weights(folder: Path) -> str | None:
    """Return the number format of the first weights in a folder's safetensors; None where there are none."""
    opener: Any = safe_open  # typed calls of it are refused
    for path in sorted(folder.glob("*.safetensors")):
        with opener(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                if (stored := STORED.get(file.get_slice(name).get_dtype())) is not None:
                    return stored
    return None


def load_model(folder: str | Path, device: torch.device | str = "cpu") -> tuple[Any, Any]:
    """Load a transformers model onto a device, with its tokenizer, the character tokenizer or its own.

    Args:
        folder: a folder, or ``owner/name`` of a model on the hub.

    Raises:
        InputError: ``folder`` lacks the model or the tokenizer, has no safetensors, or transformers cannot read it.
    """
    folder = local_folder(folder)
    model = load_pretrained(AutoModelForCausalLM, folder)
    tokenizer_file = folder / TOKENIZER_FILE
    tokenizer = CharTokenizer.load(tokenizer_file) if tokenizer_file.is_file() else PretrainedTokenizer.load(folder)
    return model.to(device), tokenizer


def stop_ids_of(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end a response: the tokenizer's end of text, and all others of the model's generation config."""
    given = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    others = given if isinstance(given, (list, tuple)) else [given]
    vocabulary = model.config.get_text_config().vocab_size
    return stop_ids([tokenizer.eos_token_id, *(int(i) for i in others if i is not None and 0 <= i < vocabulary)])


class SharedGpuWarning(UserWarning):
    """A model is on a GPU that actors use, too, because no other GPU is there."""


def choose_device(name: str, *, held: Collection[int] = ()) -> torch.device:
    """Return the device called ``cpu``, ``cuda`` or ``auto``; ``auto`` is a GPU where there is one.

    Of several GPUs it is the last one that no actor holds. Where actors hold all of them it is the first one, and a
    ``SharedGpuWarning`` says so.

    Args:
        held: GPUs that actors of a pool hold, by index; none where actors are emulated in this process.

    Raises:
        InputError: the name is none of these, or torch finds no CUDA device.
    """
    if name not in DEVICES:
        raise InputError(f"device is {name!r:.80}; choose one of {', '.join(DEVICES)}")
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise InputError("device is 'cuda', but torch finds no CUDA device here; choose 'cpu' or 'auto'")
    if name == "cpu" or not has_cuda:
        return torch.device("cpu")
    if not held:
        return torch.device("cuda")
    count = torch.cuda.device_count()
    free = [index for index in range(count) if index not in held]
    if not free:
        every = "the GPU" if count == 1 else f"all {count} GPUs"
        warnings.warn(
            f"actors use {every} of this machine, so the learner shares cuda:0 with one of them and both need room in its "
            "memory; leave a GPU to the learner with fewer gpus, or choose device 'cpu'",
            SharedGpuWarning,
            stacklevel=2,
        )
    return torch.device("cuda", free[-1] if free else 0)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the number format called ``float32``, ``bfloat16`` or ``auto``: bfloat16 on a GPU, float32 on the CPU.

    Raises:
        InputError: the name is none of these.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise InputError(f"dtype is {as_given(name)}; choose one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]
