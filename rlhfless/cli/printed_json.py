"""Prints the JSON of ``--format json``: its schema and version first, by which a program knows what it reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

VERSIONS = {
    "rlhfless-plan": 1,
    "rlhfless-simulation": 1,
    "rlhfless-step": 1,
    "rlhfless-layouts": 2,
    "rlhfless-estimate": 1,
    "rlhfless-what-ifs": 1,
    "rlhfless-drafts": 1,
}
"""Version of the JSON of each command. It grows when a key is renamed or removed, or changes its meaning (docs/stability.md).

A diagnosis (``Diagnosis.to_dict``) and findings (``Findings.to_dict``) have theirs.
"""


def print_json(schema: str, content: Mapping[str, Any]) -> None:
    """Print ``content`` as one line of JSON, after ``schema`` and ``version``; what is unknown is None."""
    print(json.dumps({"schema": schema, "version": VERSIONS[schema], **_plain(content)}, allow_nan=False))


def _plain(value: Any) -> Any:
    """Return a value for JSON, which has no number for what is unknown or infinite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
