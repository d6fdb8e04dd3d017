"""Copies of logs without texts, so that people can share what their run did and not what it was about.

Kept are lengths, times, rewards, finish reasons, the numbers of steps under the framework's names, and the engine's lines.
Prompts become salted hashes of their names, and runs and actors are numbered. Texts, further columns of responses, notes and
names of files are left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.engine_lines import write_engine
from rlhfless.trace.importers.run_facts import write_facts
from rlhfless.trace.importers.scalars import RUN, write_scalars
from rlhfless.trace.io import Trace
from rlhfless.trace.schema.tables import ROLLOUTS

if TYPE_CHECKING:
    from rlhfless.trace.importers.registry import ImportedLog, OpenedLog

KEPT = tuple(column.name for column in ROLLOUTS if column.dtype != "json")
NUMBERED = ("run", "actor")


def write_redacted(log: OpenedLog | ImportedLog, folder: str | Path) -> Path:
    """Write a copy of a log without texts into a new folder, which is read like any log.

    Raises:
        TraceError: the folder is there already, or cannot be written.
    """
    folder = Path(folder)
    if folder.exists():
        raise TraceError(f"{folder}: is there already; name a new folder")
    rollouts = log.rollouts if hasattr(log, "rollouts") else log.trace.rollouts
    if rollouts is not None:
        Trace(redacted(rollouts), meta={"framework": log.framework}).save(folder)
    else:
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise TraceError(f"{folder}: cannot be made ({error.strerror}); a writable folder is needed") from error
    if len(log.scalars):
        write_scalars(folder, _numbered(log.scalars, (RUN,)))
    if len(log.engine):
        write_engine(folder, log.engine)
    if log.facts:
        write_facts(folder, log.facts, log.framework)
    return folder


def redacted(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Return rollouts without texts: prompts are hashed with a salt that nobody keeps, runs and actors are numbered."""
    salt = secrets.token_bytes(16)
    kept = rollouts[[name for name in KEPT if name in rollouts.columns]].copy()
    kept["prompt_id"] = [blake2b(str(one).encode("utf-8", "replace"), digest_size=8, key=salt).hexdigest()
                         for one in kept["prompt_id"]]  # fmt: skip
    return _numbered(kept, NUMBERED)


def _numbered(frame: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Return the frame with numbers in place of the texts of some columns, those that it has."""
    texts = {}
    for name in names:
        if name in frame.columns:
            codes, _ = pd.factorize(frame[name])
            texts[name] = [None if code < 0 else f"{name}-{code}" for code in codes]
    return frame.assign(**texts)
