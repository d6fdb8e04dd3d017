"""Imports prime-rl's traces: ``rollouts/step_{N}/train/all/traces.jsonl``, one episode per line.

An episode has ``traces``, or is itself one. A trace's ``nodes`` are messages; the response tokens are those of its assistant
messages, as their ``usage`` counts them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.importers.formats import Format, numbered
from rlhfless.trace.importers.import_session import ImportSession, batches, first_record
from rlhfless.trace.importers.record import Record, finite, is_number, text_id

STEP = r"step_(\d+)"
INSIDE = Path("train") / "all"
GENERATED = ("completion_tokens", "output_tokens")
PROMPT = ("prompt_tokens", "input_tokens")


def files(path: Path) -> list[tuple[int, Path]]:
    """Return step and path of the traces of a run's folder, of its folder ``rollouts``, of one step, or of one file."""
    if path.is_file():
        steps = numbered(path.absolute().parents[3], STEP) if len(path.absolute().parents) > 3 else []
        return [(step, path) for step, folder in steps if folder / INSIDE == path.absolute().parent]
    steps = numbered(path / "run_default" / "rollouts", STEP) or numbered(path / "rollouts", STEP) or numbered(path, STEP)
    steps = steps or [(step, folder) for step, folder in numbered(path.parent, STEP) if folder == path]
    names = ("traces.jsonl", "traces.jsonl.gz")
    return [(step, folder / INSIDE / name) for step, folder in steps for name in names if (folder / INSIDE / name).is_file()]


def detect(path: Path) -> bool:
    """Return whether the path is a folder or file of prime-rl: its first record has ``traces`` or ``nodes``."""
    step_files = files(path)
    return bool(step_files) and bool(first_record(step_files[0][1]).keys() & {"traces", "nodes"})


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Yield batches of responses, one response per trace of an episode."""
    step_files = files(reading.path)
    reading.expect(path for _, path in step_files)
    reading.machine_clock = True
    for step, path in step_files:
        rows = (row for episode in reading.records(path) for row in _rows(episode, step, reading))
        for batch in batches((row, 256) for row in rows):
            yield pd.DataFrame(batch)


def _rows(episode: Record, step: int, reading: ImportSession) -> Iterator[dict[str, Any]]:
    traces = episode.items("traces") if "traces" in episode.values else [episode.values]
    for at, trace in enumerate(traces):
        if not isinstance(trace, dict):
            episode.refuse("traces", trace, "a list of objects")
        prompt, response = _lengths(episode, trace)
        start, end = _times(trace.get("timing") or episode.values.get("timing"))
        text = _prompt_text(trace)
        group = _group(episode, trace)
        yield {
            "step": step,
            "prompt_id": group if group is not None else text,
            "prompt_text_id": text or group,
            "prompt_tokens": prompt,
            "response_tokens": response,
            "finish_reason": _reason(trace),
            "reward": _reward(trace.get("rewards", episode.values.get("rewards")), at, reading),
            "start_s": start,
            "end_s": end,
        }


def _lengths(episode: Record, trace: dict[str, Any]) -> tuple[int | None, int]:
    nodes = [node for node in trace["nodes"] if isinstance(node, dict)] if isinstance(trace.get("nodes"), list) else []
    generated = [node for node in nodes if _role(node) == "assistant"]
    if generated:
        counts = [_usage(node, GENERATED, node.get("token_ids")) for node in generated]
        first = _usage(generated[0], PROMPT, None)
    else:
        counts, first = [_usage(trace, GENERATED, None)], _usage(trace, PROMPT, None)
    if any(count is None for count in counts):
        episode.refuse("usage", trace.get("usage"), "an object with the completion_tokens of every assistant message")
    return first, sum(count for count in counts if count is not None)


def _usage(node: dict[str, Any], names: tuple[str, ...], token_ids: Any) -> int | None:
    usage = node.get("usage")
    for name in names:
        count = usage.get(name) if isinstance(usage, dict) else None
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**31:
            return count
    return len(token_ids) if isinstance(token_ids, list) and token_ids else None


def _role(node: dict[str, Any]) -> Any:
    message = node.get("message")
    return message.get("role") if isinstance(message, dict) else None


def _prompt_text(trace: dict[str, Any]) -> str | None:
    """Return an identifier of the text before the first assistant message."""
    before = []
    for node in trace["nodes"] if isinstance(trace.get("nodes"), list) else []:
        if not isinstance(node, dict) or _role(node) == "assistant":
            break
        before.append(node.get("message"))
    return text_id(json.dumps(before, sort_keys=True)) if before else None


def _group(episode: Record, trace: dict[str, Any]) -> str | None:
    info = trace.get("info")
    inside = info.get("group_id") if isinstance(info, dict) else None
    for value in (episode.values.get("group"), inside, episode.values.get("id")):
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)[:200]
    return episode.refuse("group", episode.values.get("group"), "the name of the prompt's group")


def _reason(trace: dict[str, Any]) -> str | None:
    if trace.get("errors"):
        return "aborted"
    truncated = trace.get("is_truncated")
    return {True: "length", False: "stop"}[truncated] if isinstance(truncated, bool) else None


def _reward(rewards: Any, at: int, reading: ImportSession) -> float | None:
    """Return a trace's reward: its number, the one named reward, or the only one; of several it is unknown which one counts."""
    if isinstance(rewards, list):
        rewards = rewards[at] if at < len(rewards) else None
    if isinstance(rewards, dict):
        numbers = [value for value in rewards.values() if is_number(value)]
        rewards = rewards.get("reward", numbers[0] if len(numbers) == 1 else None)
        if rewards is None and numbers:
            reading.note("reward: unknown where the log has several rewards and none is named 'reward'")
    return finite(rewards) if is_number(rewards) else None


def _times(timing: Any) -> tuple[float | None, float | None]:
    if not isinstance(timing, dict):
        return None, None
    for phase in ("agent", "generation"):
        span = timing.get(phase)
        if isinstance(span, dict):
            start, end = (finite(x) if is_number(x := span.get(name)) else None for name in ("start", "end"))
            if start is not None and end is not None and 0 < start <= end:  # a phase that failed ends at 0
                return start, end
    return None, None


FORMAT = Format(
    "prime-rl",
    "prime-rl's traces (rollouts/step_{N}/train/all/traces.jsonl)",
    detect,
    read,
    known_fields=frozenset(
        {"id", "group", "traces", "rewards", "timing", "nodes", "task", "info", "errors", "stop_condition", "is_truncated"}
        | {"policy_version", "usage", "metrics"}
    ),
    expected=frozenset({"id", "rewards", "timing"}),
)
