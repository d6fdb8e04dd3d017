"""Places work items on their servers with the solver's list scheduler, and writes work into a record: allocations and spans.

``place_work`` says where and when items run. ``write_work`` writes what has run on either clock; nothing else writes rows of
preparation and learning. ``add_work`` does both for a step whose generation is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlhfless.executor.step.record import HeldGpus, StepRecord
from rlhfless.executor.step.work_items import Gpus, ItemRun, WorkItem, WorkServer, bought_as, bytes_of
from rlhfless.executor.step.work_order import groups_of
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.timing.work_schedule import NO_GATE, WorkItems, schedule_work

OVERLAP_S = 1e-9

Held = Iterable[tuple[Sequence[int], float]]
"""GPUs of actors, and until when these need them."""


class Hold(NamedTuple):
    """GPUs that a server of work holds with one role from ``start_s`` to ``end_s``; infinite: to the end of the step.

    Its process starts (``startup`` is ``start``), or its models are loaded (``load``), in the first ``startup_s`` seconds.
    """

    server: WorkServer
    role: str
    start_s: float
    end_s: float
    startup_s: float = 0.0
    startup: str = "load"

    def shares(self, gpu_ids: Iterable[int]) -> bool:
        """Return whether it holds one of these GPUs."""
        return not set(self.server.gpu_ids).isdisjoint(gpu_ids)


ExecutedWork = tuple[Sequence[ItemRun], Sequence[Hold]]
"""Items that have run, in the order in which they were given, then those that were lost; and the GPUs held for all of them."""


def place_work(
    work: Sequence[WorkItem],
    record: StepRecord,
    held: Held = (),
    *,
    seconds: Sequence[float] | None = None,
    results: Sequence[Any] | None = None,
) -> ExecutedWork:
    """Return when and where each item of a generated step runs: one call of ``schedule_work``.

    Args:
        held: GPUs that actors need until then. seconds: of the items; None: their own. results: of their functions.

    Raises:
        PlanningError: two servers would have one GPU at the same time.
    """
    if not work:
        return (), ()
    completions = record.completions if any(item.responses for item in work) else {}
    complete_s: dict[int, float] = {}  # by identity of the responses, as many items may wait for the same
    for item in work:
        if id(item.responses) not in complete_s:
            complete_s[id(item.responses)] = max((completions[r].time_s for r in item.responses), default=-math.inf)
    number_of: dict[Gpus, int] = {}
    for item in work:
        number_of.setdefault(item.gpus, len(number_of))
    servers = [server for gpus in number_of for server in gpus.servers(record.plan)]
    gates, gate_of = groups_of([item.items for item in work])  # one for all items that wait for the same
    counts = [(before, gate) for gate, waited in enumerate(gates) for before in waited]
    items = WorkItems(
        [float(item.seconds or 0.0) for item in work] if seconds is None else seconds,
        [max(record.start_s + item.after_s, complete_s[id(item.responses)]) for item in work],
        waits_for=[gate if item.items else NO_GATE for gate, item in zip(gate_of, work, strict=True)],
        counts_for=np.array(counts, dtype=np.int64).reshape(-1, 2),
        place=[number_of[item.gpus] for item in work],
        priority=[float(item.priority) for item in work],
    )
    needed_until_s: dict[int, float] = {}
    for gpu_ids, until_s in held:
        for gpu in gpu_ids:
            needed_until_s[gpu] = max(needed_until_s.get(gpu, -math.inf), until_s)
    free_s = []  # when a server may start its first item
    for server in servers:
        at_s = max((needed_until_s.get(gpu, -math.inf) for gpu in server.gpu_ids), default=-math.inf)
        free_s.append((max(at_s, record.start_s + server.from_s) if server.from_s else at_s) + server.startup_s)
    schedule = schedule_work(items, free_s, [number_of[server.gpus] for server in servers])
    runs = tuple(
        ItemRun(item, servers[server].holder, start, end, None if results is None else results[i])
        for i, (item, server, start, end) in enumerate(
            zip(work, schedule.server.tolist(), schedule.start_s.tolist(), schedule.end_s.tolist(), strict=True)
        )
    )
    in_turn: list[list[ItemRun]] = [[] for _ in servers]
    for i in schedule.order.tolist():
        in_turn[int(schedule.server[i])].append(runs[i])
    holds: list[Hold] = []
    for server, of_server, at_s in zip(servers, in_turn, free_s, strict=True):
        if server.held_all_step:
            role = (of_server[0].item if of_server else next(item for item in work if item.gpus == server.gpus)).holder_role
            holds.append(Hold(server, role, max(record.start_s, at_s - server.startup_s), math.inf, server.startup_s))
        else:
            holds += _holds(server, of_server)
    _check_holders(holds)
    return runs, holds


def _holds(server: WorkServer, runs: Sequence[ItemRun]) -> list[Hold]:
    """Return what a server holds from its first item to its last, one row for each role that it has in turn.

    It loads its models right before its first item.
    """
    holds: list[Hold] = []
    for run in (run for run in runs if run.end_s > run.start_s):
        if not holds:
            holds.append(Hold(server, run.item.holder_role, run.start_s - server.startup_s, run.end_s, server.startup_s))
        elif holds[-1].role == run.item.holder_role:
            holds[-1] = holds[-1]._replace(end_s=run.end_s)
        else:
            holds[-1] = holds[-1]._replace(end_s=run.start_s)
            holds.append(Hold(server, run.item.holder_role, run.start_s, run.end_s))
    return holds


def _check_holders(holds: Sequence[Hold]) -> None:
    latest: dict[int, Hold] = {}
    for hold in sorted(holds, key=lambda hold: (hold.start_s, hold.end_s)):
        for gpu in hold.server.gpu_ids:
            before = latest.get(gpu)
            if before is not None and hold.start_s < before.end_s - OVERLAP_S and before.server.holder != hold.server.holder:
                raise PlanningError(
                    f"GPU {gpu} would be held by {before.server.holder!r} and {hold.server.holder!r} at the same time; let the "
                    "items of one wait for those of the other, or give them GPUs of their own"
                )
            if before is None or hold.end_s > before.end_s:
                latest[gpu] = hold


def add_work(record: StepRecord, work: Sequence[WorkItem], cluster: Cluster | MixedCluster) -> None:
    """Place and write items of a step whose other rows are written, at their own seconds, and close its record again.

    Raises:
        PlanningError: two servers would have one GPU at the same time.
    """
    runs, holds = place_work(work, record, [(row["gpu_ids"], float(row["end_s"])) for row in record.allocations])
    end_s = max([record.end_s, *(run.end_s for run in runs)])
    write_work(record, runs, holds, cluster, end_s)
    record.work += runs
    record.close(end_s)


def write_work(
    record: StepRecord, runs: Sequence[ItemRun], holds: Sequence[Hold], cluster: Cluster | MixedCluster, end_s: float
) -> None:
    """Write allocations and spans of executed items, and an event ``released`` for each actor whose GPUs they took over.

    Args:
        end_s: of the step.
    """
    _write_released(record, holds)
    write_holds(record, holds, cluster, end_s)
    by_holder: dict[str, list[ItemRun]] = {hold.server.holder: [] for hold in holds if hold.server.is_somewhere}
    for run in sorted(runs, key=lambda run: run.start_s):
        if run.holder in by_holder:
            by_holder[run.holder].append(run)
    for of_holder in by_holder.values():
        _write_spans(record, of_holder)


def write_holds(record: StepRecord, holds: Iterable[Hold], cluster: Cluster | MixedCluster, end_s: float) -> None:
    """Write the allocations of work, and the spans of starting up; ``end_s``: of the step, or until when it is written."""
    for hold in holds:
        server, until_s = hold.server, end_s if hold.end_s == math.inf else hold.end_s
        if not server.is_somewhere:
            continue
        record.span(server.holder, "start", hold.start_s, hold.start_s + hold.startup_s, call=hold.startup)
        for gpus in allocated(server, cluster) if until_s > hold.start_s else ():
            record.allocate(server.holder, hold.role, gpus, hold.start_s, until_s)


def allocated(server: WorkServer, cluster: Cluster | MixedCluster) -> list[HeldGpus]:
    """Return a server's GPUs as they are billed, those of each node of the cluster; GPUs beside it are taken to be on one node.

    A server on the CPU of a node has none, which cost nothing.
    """
    usd, of_node = server.gpus.usd_per_gpu_hour, dict[int, list[int]]()
    for gpu in server.gpu_ids:
        like = gpu if gpu < cluster.gpus else server.gpu_ids[0]
        of_node.setdefault(bought_as(like, cluster)[0] if server.node is None else server.node, []).append(gpu)
    found = []
    for node, ids in (of_node or {server.node or 0: []}).items():
        pool = bought_as(min(ids, default=0), cluster)[1]
        usd_per_gpu_s = pool.usd_per_gpu_s if usd is None else usd / 3600.0
        found.append(HeldGpus(pool.kind, node, tuple(ids), pool.market, usd_per_gpu_s))
    return found


def _write_released(record: StepRecord, holds: Iterable[Hold]) -> None:
    """Write when actors released the GPUs that work runs on; the actors' allocations are written already."""
    first: dict[str, Hold] = {}
    for hold in sorted(holds, key=lambda hold: hold.start_s):
        if hold.server.actor is not None:
            first.setdefault(hold.server.holder, hold)
    for holder, hold in first.items():
        before = [a for a in record.allocations if a["end_s"] <= hold.start_s + OVERLAP_S and hold.shares(a["gpu_ids"])]
        if before:
            last = max(before, key=lambda allocation: float(allocation["end_s"]))
            record.event(last["end_s"], "released", last["holder"], to=holder, role=hold.role)


def _write_spans(record: StepRecord, runs: Iterable[ItemRun]) -> None:
    """Write the spans of one holder: like items that follow each other without a pause are one span."""
    together: list[ItemRun] = []
    for run in runs:
        if together and (run.start_s != together[-1].end_s or _alike(run) != _alike(together[-1])):
            _write_span(record, together)
            together = []
        together.append(run)
    if together:
        _write_span(record, together)


def _alike(run: ItemRun) -> tuple[Any, ...]:
    return run.item.kind, run.item.call, run.item.detail, run.lost


def _write_span(record: StepRecord, runs: Sequence[ItemRun]) -> None:
    item, responses = runs[0].item, sum(len(run.item.responses) for run in runs)
    if runs[0].lost:
        record.span(runs[0].holder, item.kind, runs[0].start_s, runs[-1].end_s, call="lost")
        return
    what: dict[str, Any] = {} if item.call is None else {"call": item.call}
    if responses:
        what["responses"] = responses
    sizes = [size for run in runs if (size := bytes_of(run.result)) is not None]
    if sizes:
        what["bytes"] = sum(sizes)
    record.span(runs[0].holder, item.kind, runs[0].start_s, runs[-1].end_s, **what, **item.detail)
