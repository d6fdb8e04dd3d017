"""Composes a latency profile of measured numbers; ``profile.py`` says what a profile has, and reads and writes it.

Inputs: records of the actor, its times, the link of its KV caches, and where the numbers come from. Added are the fits, the
transfer time per KV token and the schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlhfless.latency.batch_changes import TimedChange
from rlhfless.latency.fit import fit_changes, fit_table, residuals
from rlhfless.latency.profile import SCHEMA, SCHEMA_VERSION, mixed_prefill
from solver.model.iteration_table import IterationTable


@dataclass(frozen=True)
class ProfiledActor:
    """The actor of a profile.

    Attributes:
        kind, gpus: of its GPUs, and how many. precision: of the weights.
        max_batch: slots. capacity: its KV memory, as ``kv_capacity`` returns it.
    """

    kind: str
    gpus: int
    precision: str
    max_batch: int
    capacity: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ProfiledTimes:
    """Measured times of the actor.

    Attributes:
        table: of iterations. changes: of responses that join (prefill) and end. start_s, sync_s: of a start and a weight sync.
        token_budget: the most tokens that an iteration feeds if the table has mixed iterations, beyond ``max_batch``.
    """

    table: IterationTable
    changes: Sequence[TimedChange]
    start_s: float
    sync_s: float
    token_budget: int | None = None


@dataclass(frozen=True)
class KvLink:
    """The link that KV caches are sent over: in words, its bandwidth, and the seconds that every transfer takes at least."""

    what: str
    bytes_per_s: float
    base_s: float = 0.0


@dataclass(frozen=True)
class ProfileOrigin:
    """Where the numbers of a profile come from, in words: method, command, date (ISO) and licence.

    Attributes:
        assumptions: every number that is assumed rather than measured, with the reason.
    """

    origin: str
    command: str
    date: str
    licence: str
    assumptions: Mapping[str, str]


def compose_profile(
    name: str, model: str, actor: ProfiledActor, times: ProfiledTimes, link: KvLink, origin: ProfileOrigin
) -> dict[str, Any]:
    """Return a profile made from measured numbers, ready for ``save_profile``."""
    capacity, per_token_bytes = actor.capacity, actor.capacity["kv_bytes_per_token"]
    table = IterationTable(times.table.batch, times.table.context_tokens, np.round(times.table.iteration_s, 9))
    samples = [TimedChange(*map(int, row[:3]), *(round(float(seconds), 9) for seconds in row[3:])) for row in times.changes]
    fit, prefill = fit_table(table, actor.max_batch, capacity["tokens"]), fit_changes(samples)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "model": model,
        "kind": actor.kind,
        "gpus_per_actor": actor.gpus,
        "precision": actor.precision,
        "origin": origin.origin,
        "command": origin.command,
        "date": origin.date,
        "licence": origin.licence,
        "assumptions": dict(origin.assumptions),
        "fit": {**asdict(fit), "over": "the table's points with batch <= max_batch and KV tokens <= kv_capacity_tokens"},
        "prefill": {
            "base_s": prefill.base_s,
            "per_token_s": prefill.per_token_s,
            "per_join_s": prefill.per_join_s,
            "per_end_s": prefill.per_end_s,
            **residuals(prefill.errors),
            **mixed_prefill(table, fit, actor.max_batch, times.token_budget, capacity["tokens"]),
            "samples": dict(zip(TimedChange._fields, map(list, zip(*samples, strict=True)), strict=True)),
        },
        "start_s": float(times.start_s),
        "sync_s": float(times.sync_s),
        "transfer_base_s": float(link.base_s),
        "transfer_per_kv_token_s": float(per_token_bytes / link.bytes_per_s),
        "link": {"what": link.what, "bytes_per_s": float(link.bytes_per_s), "kv_bytes_per_token": per_token_bytes},
        "max_batch": int(actor.max_batch),
        "kv_capacity_tokens": capacity["tokens"],
        "kv_capacity": dict(capacity),
        "table": {
            "batch": [int(value) for value in table.batch],
            "context_tokens": [int(value) for value in table.context_tokens],
            "step_s": table.iteration_s.tolist(),
        },
    }
