"""Imports slime's debug dumps: ``--dump-details DIR`` → ``rollout_data/{rollout_id}.pt``, one pickle of dicts per rollout.

A pickle can run any code when it is loaded. So torch loads it as plain data (``weights_only=True``). A file that needs more is
refused unless the user imports it with ``--unsafe-pickle``; the import then notes it.
"""

from __future__ import annotations

import json
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pandas as pd

from rlhfless.errors import missing_extra, reason
from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format, file_of, numbered
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.record import Record, finite, is_number, text_id

PATTERN = r"(\d+)\.pt(?:\.gz)?"
REASONS = {"completed": "stop", "truncated": "length", "aborted": "aborted", "failed": "aborted"}
GENERATE = "sglang_generate"


def files(path: Path) -> list[tuple[int, Path]]:
    """Return rollout and path of the dumps of a folder, of its folder ``rollout_data``, or of one dump; evaluations are left
    out.
    """
    return numbered(path / "rollout_data", PATTERN) or numbered(path, PATTERN) or file_of(path, PATTERN)


def detect(path: Path) -> bool:
    """Return whether the path is such a dump or a folder with some."""
    return bool(files(path))


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Yield a batch of responses per rollout; the rollout's number is the step."""
    rollout_files = files(reading.path)
    reading.expect(path for _, path in rollout_files)
    reading.machine_clock = True
    for rollout, path in rollout_files:
        samples = load(reading, path)
        rows = [_row(Record(sample, path, at), rollout, reading) for at, sample in enumerate(samples, start=1)]
        for sample in samples:
            reading.fields.update(map(str, sample))
        if rows:
            yield pd.DataFrame(rows)


def load(reading: ImportSession, path: Path) -> list[dict[str, Any]]:
    """Return the samples of one dump.

    Raises:
        TraceError: it contains more than plain data, or is not such a dump.
        MissingExtra: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise missing_extra("Reading slime's dumps", "torch", "torch") from error
    unsafe = reading.options.unsafe_pickle
    with reading.seekable(path) as stream:
        _refuse_bomb(reading, path, stream)
        try:
            content = torch.load(stream, map_location="cpu", weights_only=not unsafe)
        except Exception as error:  # an unsafe pickle may raise whatever it likes, a safe one does in several ways
            reason_text = reason(error)
            hint = "an intact dump is needed"
            if not unsafe and "weights" in str(error).lower():
                reason_text = "it contains more than plain data, and loading it can run arbitrary code"
                command = f"rlhfless convert {shlex.quote(str(reading.path))} --unsafe-pickle -o FOLDER"
                hint = f"for your own files only, `{command}` loads it nevertheless"
            raise TraceError(f"{path}: cannot be loaded ({reason_text}); {hint}") from error
    if unsafe:
        reading.note("WARNING: --unsafe-pickle ran any code that the dumps contain")
    samples = content.get("samples") if isinstance(content, dict) else None
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        raise TraceError(f"{path}: is not a dump of slime; a dict with a list of dicts 'samples' is needed")
    return samples


def _refuse_bomb(reading: ImportSession, path: Path, stream: IO[bytes]) -> None:
    """Refuse an archive whose parts unpack to more than the limit; torch itself packs nothing."""
    try:
        with zipfile.ZipFile(stream) as archive:
            packed = [part.file_size for part in archive.infolist() if part.compress_type != zipfile.ZIP_STORED]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        packed = []  # no archive; torch says what is wrong with it
    stream.seek(0)
    reading.guard.add_unpacked(path, sum(packed))


def _row(record: Record, rollout: int, reading: ImportSession) -> dict[str, Any]:
    response = record.whole("response_length")
    tokens = record.values.get("tokens")
    prompt_tokens = len(tokens) - response if isinstance(tokens, list) and len(tokens) >= response else None
    start, end = _times(record.values.get("trace"))
    group, prompt = record.maybe_whole("group_index"), record.values.get("prompt")
    if group is None and not prompt:
        record.refuse("group_index", group, "the prompt's number")
    versions = record.values.get("weight_versions")
    last = versions[-1] if isinstance(versions, list) and versions else None
    status = record.values.get("status")
    return {
        "step": rollout,
        "prompt_id": text_id(_text(prompt, reading, record.path)) if prompt else f"group-{group}",
        "prompt_tokens": prompt_tokens,
        "response_tokens": response,
        "finish_reason": REASONS.get(status) if isinstance(status, str) else None,
        "reward": _reward(record, reading),
        "weights_version": int(last)
        if isinstance(last, str) and last.isascii() and last.isdigit() and len(last) < 16
        else None,
        "start_s": start,
        "end_s": end,
    }


def _text(prompt: Any, reading: ImportSession, path: Path) -> str:
    """Return a prompt's text; of messages their JSON, which can be far longer than a dump whose lists hold each other many
    times."""
    if isinstance(prompt, str):
        return prompt
    pieces, size = [], 0
    for piece in json.JSONEncoder(sort_keys=True, default=str, skipkeys=True).iterencode(prompt):
        pieces.append(piece)
        size += len(piece)
        if size > reading.guard.limits.line_bytes:
            reading.guard.refuse_line(path, "a prompt")
    return "".join(pieces)


def _reward(record: Record, reading: ImportSession) -> float | None:
    """Return the reward, or that of a dict with one number; of several it is unknown which one counts."""
    reward = record.values.get("reward")
    if not isinstance(reward, dict):
        return record.number("reward")
    numbers = [value for value in reward.values() if is_number(value)]
    if len(numbers) != 1:
        reading.note("reward: unknown where the log has a dict with several numbers")
        return None
    return finite(numbers[0])


def _times(trace: Any) -> tuple[float | None, float | None]:
    """Start of the first and end of the last request of a sample, on the machine's clock."""
    events = trace.get("events") if isinstance(trace, dict) else None
    seconds: dict[str, list[float]] = {"span_start": [], "span_end": []}
    for event in events if isinstance(events, list) else []:
        if isinstance(event, dict) and event.get("name") == GENERATE and is_number(event.get("ts")):
            second, kind = finite(event["ts"]), event.get("type")
            if second is not None and second >= 0 and isinstance(kind, str) and kind in seconds:
                seconds[kind].append(second)
    start, end = min(seconds["span_start"], default=None), max(seconds["span_end"], default=None)
    return (None, None) if start is None or end is None or end < start else (start, end)


FORMAT = Format("slime", "slime's dumps (rollout_data/{rollout_id}.pt)", detect, read,
    known_fields=frozenset(
        {"group_index", "index", "prompt", "tokens", "multimodal_inputs", "multimodal_train_inputs", "response"}
        | {"response_length", "label", "reward", "loss_mask", "weight_versions", "rollout_log_probs", "status", "metadata"}
        | {"rollout_routed_experts", "remove_sample", "teacher_log_probs", "mopd_teacher_log_probs", "trace"}
        | {"generate_function_path", "train_metadata", "session_id", "non_generation_time", "spec_info", "prefix_cache_info"}
    ),
    expected=frozenset({"group_index", "prompt", "tokens", "response_length", "reward", "status", "trace"}),
)  # fmt: skip
