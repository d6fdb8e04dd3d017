"""Imports AReaL's rollouts: ``rollout.dump_to_file=true`` → ``rollout/{version}/{task_id}.jsonl``, one sample per line.

``seqlen`` includes the prompt. Files ``session_tracer/sessions-r{rank}.jsonl`` next to the folder have the times of every
session; a task's sessions are its samples, in the order of their numbers. Task ids are drawn anew for every visit, so prompts
are identified by their text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.importers.formats import Format, numbered
from rlhfless.trace.importers.import_session import ImportSession, batches, first_record
from rlhfless.trace.importers.record import Record, finite, is_number, text_id
from solver.model.plurals import counted

MARKS = {"task_id", "seqlen", "prompt_len"}
TASK = r"(\d+)\.jsonl(?:\.gz)?"
Times = dict[int, list[tuple[int, float | None, float | None]]]


def files(path: Path) -> list[tuple[int, Path]]:
    """Return version and path of all tasks of an experiment's folder, of its folder ``rollout``, of one version, or of one
    task.
    """
    if path.is_file():
        return [(int(path.parent.name), path)] if _is_number(path.parent.name) else []
    if _is_number(path.name):
        versions = [(int(path.name), path)]
    else:
        versions = numbered(path / "rollout", r"(\d+)") or numbered(path, r"(\d+)")
    return [(version, task) for version, folder in versions for _, task in numbered(folder, TASK)]


def sessions(path: Path) -> list[Path]:
    """Return the session tracer's files next to or above a folder of rollouts."""
    for folder in (path, *list(path.absolute().parents)[:3]):
        if session_files := sorted((folder / "session_tracer").glob("sessions-r*.jsonl*")):
            return session_files
    return []


def detect(path: Path) -> bool:
    """Return whether the path is such a folder or file, whose first record has task_id, seqlen and prompt_len."""
    rollout_files = files(path)
    return bool(rollout_files) and first_record(rollout_files[0][1]).keys() >= MARKS


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Yield batches of responses; the version is the step, and the version of a response's first token its weights."""
    rollout_files = files(reading.path)
    traced = sessions(reading.path)
    reading.expect([*traced, *(path for _, path in rollout_files)])
    times = _times(reading, traced)
    reading.machine_clock = True
    unknown = 0

    def rows() -> Iterator[tuple[dict[str, Any], int]]:
        nonlocal unknown
        for version, path in rollout_files:
            task = [_row(record, version) for record in reading.records(path)]
            task_times = times.get(task[0].pop("task_id"), []) if task else []
            for at, row in enumerate(task):
                row.pop("task_id", None)
                start, end = task_times[at][1:] if len(task_times) == len(task) else (None, None)
                unknown += start is None
                yield row | ({"start_s": start, "end_s": end} if traced else {}), 256

    for batch in batches(rows()):
        yield pd.DataFrame(batch)
    if traced and unknown:
        reading.note(f"times: unknown for {counted(unknown, 'response')}, because their task lacks sessions of some samples")


def _row(record: Record, version: int) -> dict[str, Any]:
    whole, prompt, task = record.whole("seqlen"), record.whole("prompt_len"), record.whole("task_id")
    if prompt > whole:
        record.refuse("prompt_len", prompt, f"at most 'seqlen', which is {whole},")
    named = isinstance(record.values.get("prompt"), str)
    fields = ("task_id", "sample_idx", "seqlen", "head_version", "tail_version", "reward", "completion")
    return {
        "task_id": task,
        "step": version,
        "prompt_id": text_id(record.text("prompt")) if named else f"task-{task}",
        "response_id": text_id(repr([record.values.get(name) for name in fields])),
        "prompt_tokens": prompt,
        "response_tokens": whole - prompt,
        "reward": record.number("reward"),
        "weights_version": record.maybe_whole("head_version"),
    }


def _times(reading: ImportSession, paths: list[Path]) -> Times:
    """Task → its sessions by number, each with the start of its first and the end of its last generation."""
    times: Times = {}
    rollout_fields = set(reading.fields)
    for path in paths:
        for record in reading.records(path):
            phases = record.values.get("phases")
            calls = phases.get("generate") if isinstance(phases, dict) else None
            spans = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
            starts, ends = ([_second(call.get(name)) for call in spans] for name in ("start_ts", "end_ts"))
            start, end = min(filter(None, starts), default=None), max(filter(None, ends), default=None)
            if start is None or end is None or end < start:
                start = end = None
            times.setdefault(record.whole("task_id"), []).append((record.whole("session_id"), start, end))
    reading.fields = rollout_fields  # of rollouts only
    return {task: sorted(task_sessions, key=lambda session: session[0]) for task, task_sessions in times.items()}


def _second(value: Any) -> float | None:
    return finite(value) if is_number(value) and value >= 0 else None


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 16


FORMAT = Format(
    "areal",
    "AReaL's rollouts (rollout/{version}/{task_id}.jsonl, with session_tracer/ if it exists)",
    detect,
    read,
    known_fields=frozenset(
        {"task_id", "sample_idx", "seqlen", "prompt_len", "head_version", "tail_version", "version_rle", "reward"}
        | {"original_reward", "prompt", "completion"}
    ),
    expected=frozenset({"task_id", "sample_idx", "seqlen", "prompt_len", "head_version", "reward", "prompt"}),
)
