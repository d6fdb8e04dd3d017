"""A model's ``config.json`` as a log: it has no steps and no responses, and ``diagnosis/memory.py`` says what it takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.record import finite, is_number

LARGEST = 2**20  # bytes of a configuration; a larger file is none
NEEDED = ("num_hidden_layers", "num_attention_heads")
PARTS = ("text_config", "llm_config", "thinker_config")


def _config(path: Path) -> dict[str, Any]:
    """Return the configuration of a file's text decoder; empty if the file is none."""
    try:
        if not path.is_file() or path.suffix.lower() != ".json" or path.stat().st_size > LARGEST:
            return {}
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(config, dict):
        return {}
    parts = (config, *(config[name] for name in PARTS if isinstance(config.get(name), Mapping)))
    return next((dict(part) for part in parts if all(isinstance(part.get(name), int) for name in NEEDED)), {})


def detect(path: Path) -> bool:
    """Return whether the path is a model's configuration."""
    return bool(_config(path))


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Report the layers and the longest context; yields no responses.

    Raises:
        TraceError: the file is no model's configuration.
    """
    config = _config(reading.path)
    if not config:
        raise TraceError(f"{reading.path}: is not a model's configuration; a JSON object with {' and '.join(NEEDED)} is needed")
    for fact, name in (("model_layers", "num_hidden_layers"), ("max_context_tokens", "max_position_embeddings")):
        value = config.get(name)
        if is_number(value) and (number := finite(value)) is not None and number > 0:
            reading.facts[fact] = number
    if "model_layers" not in reading.facts:
        raise TraceError(
            f"{reading.path}: the field num_hidden_layers is {config['num_hidden_layers']}; a whole number above 0 is needed"
        )
    reading.note("model: a configuration and no log, so only its memory is known")
    yield from ()


FORMAT = Format("model", "the configuration of a model (config.json)", detect, read)
