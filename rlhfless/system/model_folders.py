"""Loads local model folders of transformers as data only: Python code in a folder is never run.

transformers would ask on the terminal whether to run such code; here it is refused without asking. Does not load transformers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError

NO_CODE = {"trust_remote_code": False}  # where an ``Auto`` class is not given it, transformers asks on the terminal
NAMES_CODE = ("config.json", "tokenizer_config.json")


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
