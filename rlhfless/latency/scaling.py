"""Other GPUs by factors of known ones: a latency model by one factor, or the profile of a GPU kind of your own by several.

One factor scales a latency model to a log's own times, to a machine's drift, or to a straggler's slow-down. ``profile_like``
writes a profile file like any other, whose assumptions name the factors.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.latency.profile import compose_profile, kv_capacity, read_profile, save_profile, table_of
from rlhfless.latency.shipped import ProfileError
from rlhfless.latency.timing import TimedChange
from solver.model.errors import PlanningError, as_given, is_number
from solver.model.iteration_table import IterationTable
from solver.model.latency import TIMES, LatencyModel

GIB = 2**30
RUNNING = ("base_s", "per_response_s", "per_kv_token_s", "join_s", "prefill_base_s", "prefill_per_token_s")
"""Times of an actor that runs: its iterations, prefills and joins, not its start, weight syncs and transfers."""


def scaled(latency: LatencyModel, factor: float, times: tuple[str, ...] = TIMES) -> LatencyModel:
    """Return the latency model with seconds multiplied by ``factor``; the name stays the same.

    Args:
        times: names of the seconds that are multiplied; all of them by default. The table of iterations always is.

    Raises:
        PlanningError: the factor is not a number above 0.
    """
    if not (is_number(factor, 0) and factor > 0):
        raise PlanningError(f"the factor of a latency model is {as_given(factor)}; a finite number above 0 is needed")
    if factor == 1.0:
        return latency
    table = latency.table
    if table is not None:
        table = IterationTable(table.batch, table.context_tokens, table.iteration_s * factor)
    return replace(latency, table=table, **{name: getattr(latency, name) * factor for name in times})


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
    samples = known["prefill"]["samples"]
    rows = zip(*(samples[field] for field in TimedChange._fields), strict=True)
    profile = compose_profile(
        **{field: known[field] for field in ("model", "gpus_per_actor", "precision", "max_batch", "licence")},
        name=name,
        kind=kind,
        capacity=_capacity(known, memory_gib),
        table=_faster(known, decode, prefill),
        changes=[TimedChange(*row[:3], *(seconds / prefill for seconds in row[3:])) for row in rows],
        token_budget=known["prefill"].get("mixed", {}).get("token_budget"),
        start_s=known["start_s"] / start,
        sync_s=known["sync_s"] / start,
        link=known["link"]["what"],
        link_bytes_per_s=known["link"]["bytes_per_s"] * start,
        transfer_base_s=known["transfer_base_s"] / start,
        origin=f"assumed: {origin} times factors of speed ({factors}); {origin} is {known['origin']}",
        command=f"rlhfless.profile_like({origin!r}, kind={kind!r}, {factors})",
        date=datetime.date.today().isoformat(),
        assumptions={**known["assumptions"], "step_s": f"assumed: {origin} times factors of speed ({factors})"},
    )
    return save_profile(f"{name}.json" if path is None else path, profile)


def _faster(known: dict[str, Any], decode: float, prefill: float) -> IterationTable:
    """Return the iteration table: up to ``max_batch`` fed tokens decode, those beyond it are prompt tokens."""
    table = table_of(known)
    full = np.array([np.interp(known["max_batch"], table.batch, column) for column in table.iteration_s.T])
    decoding = table.batch[:, None] <= known["max_batch"]
    faster = np.where(decoding, table.iteration_s / decode, full / decode + (table.iteration_s - full) / prefill)
    return IterationTable(table.batch, table.context_tokens, faster)


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
