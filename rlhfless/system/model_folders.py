"""Finds and loads model folders of transformers as data only: Python code in a folder is never run.

transformers would ask on the terminal whether to run such code; here it is refused without asking. Does not load transformers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError, reason
from rlhfless.system.hub_names import may_be_on_hub

NO_CODE = {"trust_remote_code": False}  # where an ``Auto`` class is not given it, transformers asks on the terminal
NAMES_CODE = ("config.json", "tokenizer_config.json")
TEXTS = ("*.json", "*.txt", "*.model", "*.jinja")
WEIGHTS = "*.safetensors"


def local_folder(name: str | Path, *, weights: bool = True) -> Path:
    """Return the folder of a model: the one of this name, or the copy of a model of the hub, which is loaded once.

    Where to look is the hub client's setting, as everywhere: ``HF_ENDPOINT``, ``HF_HOME``, ``HF_HUB_OFFLINE``. Weights are
    safetensors, and no code is loaded.

    Args:
        name: a path, or ``owner/name`` on the hub if there is no such path. weights: whether they are needed.

    Raises:
        InputError: there is no such folder, and the name is none of the hub, or the hub gave no model of this name.
    """
    path = Path(name)
    if path.exists():
        return path
    if not may_be_on_hub(name, owned=True):
        raise InputError(f"{name}: there is no such folder; name a folder with a model of transformers (config.json)")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(name), allow_patterns=[*TEXTS, *[WEIGHTS] * weights], ignore_patterns="*/*"))
    except Exception as error:  # whatever the client or the network says
        raise InputError(
            f"{name}: is neither a folder here nor a model that the hub gave ({reason(error)}); name a folder with a model of "
            "transformers, or a model of a hub that can be reached"
        ) from error


def from_folder(kind: Any, folder: str | Path, **options: Any) -> Any:
    """Call ``kind.from_pretrained`` on a local folder, without its code and without a network.

    Args:
        kind: an ``Auto`` class of transformers, such as ``AutoTokenizer``.
        options: of ``from_pretrained``.

    Raises:
        InputError: it cannot be loaded without the folder's own code.
        Exception: other errors of transformers are passed on.
    """
    with code_refused(folder):
        return kind.from_pretrained(folder, local_files_only=True, **NO_CODE, **options)


@contextlib.contextmanager
def code_refused(folder: str | Path) -> Iterator[None]:
    """Context manager for calls of transformers with ``NO_CODE``: they fail in one sentence where a model needs its own code.

    Raises:
        InputError: the folder's model needs its own code.
    """
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):  # the argument that transformers tells to give
            raise
        raise InputError(
            f"{folder}: {_named_code(Path(folder))}, which is never run; give a model and a tokenizer whose classes "
            "are part of transformers"
        ) from error


def _named_code(folder: Path) -> str:
    for name in NAMES_CODE:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if code := json.loads((folder / name).read_text("utf-8")).get("auto_map"):
                return f"its {name} names Python code of its own (auto_map: {', '.join(code)})"
    return "it needs Python code of its own"
