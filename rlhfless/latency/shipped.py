"""JSON files of measured numbers that are shipped with the project: where they are, how they are read, checked and written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhfless.errors import UserError, other_version
from rlhfless.system.installation import data_folders


class ProfileError(UserError, ValueError):
    """A latency profile or a file of call tables does not exist or cannot be used.

    The message names the file and the field, and says what is needed.
    """


def shipped_files(folder: str) -> dict[str, Path]:
    """Return the shipped JSON files of a folder by name; those of the source checkout come before an installed package's."""
    files = [file for data in reversed(data_folders()) for file in sorted((data / folder).glob("*.json"))]
    return {file.stem: file for file in files}


def read_object(path: str | Path, what: str) -> dict[str, Any]:
    """Return the JSON object of a file.

    Args:
        what: such a file is, such as ``a profile``, for messages.

    Raises:
        ProfileError: the file cannot be read, or holds something else; one sentence.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ProfileError(f"{path}: line {error.lineno} is not JSON ({error.msg}); {what} is one JSON object") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read ({error}); {what} is a text file with one JSON object") from None
    if not isinstance(content, dict):
        raise ProfileError(f"{path}: holds a {type(content).__name__}; {what} is one JSON object")
    return content


def check_schema(content: Mapping[str, Any], path: str | Path, schema: str, version: int, what: str) -> None:
    """Refuse another ``schema`` or ``schema_version`` than the one that is read here (a ProfileError)."""
    if content["schema"] != schema:
        raise ProfileError(f"{path}: the field schema is {content['schema']!r}; {schema!r} is needed")
    if content.get("schema_version") != version:
        found = other_version(what, content.get("schema_version"), version)
        raise ProfileError(f"{path}: {found} (field schema_version)")


def write_object(path: str | Path, content: Mapping[str, Any], indent: int, comma: str) -> Path:
    """Write a JSON object atomically, each list of numbers on one line with ``comma`` between them; return the path."""
    path = Path(path)
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    text = re.sub(r"\[[\s\d.,eE+-]*\]", lambda numbers: re.sub(r"\s+", "", numbers.group()).replace(",", comma), text)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, path)
    return path
