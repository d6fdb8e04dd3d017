"""Describes an own GPU kind by factors: a latency profile like a known one, but so many times as fast.

The result is a profile file like any other, whose assumptions name the factors.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.latency.batch_changes import TimedChange
from rlhfless.latency.compose import KvLink, ProfiledActor, ProfiledTimes, ProfileOrigin, compose_profile
from rlhfless.latency.profile import ProfileError, kv_capacity, read_profile, save_profile
from solver.model.errors import as_given, is_number
from solver.model.iteration_table import IterationTable

GIB = 2**30


def profile_like(
    base: str | os.PathLike[str],
    *,
    kind: str = "own",
    decode: float = 1.0,
    prefill: float = 1.0,
    start: float = 1.0,
    memory_gib: float | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the latency profile of a GPU kind of your own: a known profile, with factors for its speed. Return the file.

    Pass the file as ``profile``. A kind of your own has no list price, so pass one too: ``rl.load(log, gpus=16, profile=file,
    hardware=rl.Hardware(usd_per_gpu_hour=3.0))``. To measure a GPU instead, use ``rlhfless profile``.

    Args:
        base: name or file of the known profile. kind: name of the own GPU kind.
        decode: speed of decode iterations relative to the known profile: 1.3 divides their seconds by 1.3.
        prefill: relative speed of prefill, separate or mixed with decoding.
        start: relative speed of start-up, weight sync and KV cache transfers.
        memory_gib: memory of a GPU, which sets the size of the KV cache; as in the known profile when None.
        path: JSON file to write; ``NAME.json`` in the working directory when None. An existing file is replaced.

    Raises:
        ProfileError: the known profile does not exist, a factor is not a number above 0, or the memory has no room for a KV
            cache.

    Example:
        >>> import pathlib, rlhfless as rl, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "h200.json")
        >>> file = rl.profile_like("h100-qwen2.5-3b-tp1", kind="h200", decode=1.4, memory_gib=131, path=path)
        >>> known, own = rl.load_profile("h100-qwen2.5-3b-tp1"), rl.load_profile(file)
        >>> own.kind, round(float(known.iteration_s(64, 64 * 1024) / own.iteration_s(64, 64 * 1024)), 2)
        ('h200', 1.4)
    """
    for name, factor in (("decode", decode), ("prefill", prefill), ("start", start), ("memory_gib", memory_gib or 1.0)):
        if not (is_number(factor, 0) and factor > 0):
            raise ProfileError(f"{name} is {as_given(factor)}; a finite number above 0 is needed")
    if not isinstance(kind, str) or not kind.strip():
        raise ProfileError(f"kind is {as_given(kind)}; the name of the GPU kind is needed")
    known = read_profile(base)
    origin = known["name"]
    name = origin.replace(known["kind"], kind, 1) if known["kind"] in origin else f"{kind}-{origin}"
    factors = f"decode={decode:g}, prefill={prefill:g}, start={start:g}, memory_gib={memory_gib}"
    changes = known["prefill"]["samples"]
    rows = zip(*(changes[field] for field in TimedChange._fields), strict=True)
    times = ProfiledTimes(
        _faster(known, decode, prefill),
        [TimedChange(*row[:3], *(seconds / prefill for seconds in row[3:])) for row in rows],
        known["start_s"] / start, known["sync_s"] / start, known["prefill"].get("mixed", {}).get("token_budget"),
    )  # fmt: skip
    profile = compose_profile(
        name,
        known["model"],
        ProfiledActor(kind, known["gpus_per_actor"], known["precision"], known["max_batch"], _capacity(known, memory_gib)),
        times,
        KvLink(known["link"]["what"], known["link"]["bytes_per_s"] * start, known["transfer_base_s"] / start),
        ProfileOrigin(
            f"assumed: {origin} times factors of speed ({factors}); {origin} is {known['origin']}",
            f"rlhfless.profile_like({origin!r}, kind={kind!r}, {factors})",
            datetime.date.today().isoformat(),
            known["licence"],
            {**known["assumptions"], "step_s": f"assumed: {origin} times factors of speed ({factors})"},
        ),
    )
    return save_profile(f"{name}.json" if path is None else path, profile)


def _faster(known: dict[str, Any], decode: float, prefill: float) -> IterationTable:
    """Return the iteration table: up to ``max_batch`` fed tokens decode, those beyond it are prompt tokens."""
    table = known["table"]
    fed, seconds = np.array(table["batch"], dtype=float), np.array(table["step_s"], dtype=float)
    full = np.array([np.interp(known["max_batch"], fed, column) for column in seconds.T])
    decoding = fed[:, None] <= known["max_batch"]
    faster = np.where(decoding, seconds / decode, full / decode + (seconds - full) / prefill)
    return IterationTable(fed, np.array(table["context_tokens"], dtype=float), faster)


def _capacity(known: dict[str, Any], memory_gib: float | None) -> dict[str, Any]:
    """Return the entry ``kv_capacity`` for GPUs with this memory."""
    capacity = dict(known["kv_capacity"])
    if memory_gib is None:
        return capacity
    inputs = ("gpus", "weight_bytes", "kv_bytes_per_token", "usable_fraction", "reserve_bytes_per_gpu")
    made = kv_capacity(memory_bytes_per_gpu=memory_gib * GIB, **{name: capacity[name] for name in inputs})
    if not made["tokens"]:
        raise ProfileError(
            f"memory_gib is {memory_gib:g}, which has no room for a KV cache beside the weights of {known['model']}; give more"
        )
    return made
