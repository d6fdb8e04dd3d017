"""Places work items on their servers with the solver's list scheduler, and writes them into a record: allocations and spans.

Inputs: items with their seconds, when responses are complete and GPUs free. Output: ``ExecutedWork``, and rows of the record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlhfless.executor.step.record import HeldGpus, StepRecord
from rlhfless.executor.step.work_items import ItemRun, WorkGpus, WorkItem, WorkServer, bought_as, bytes_of
from rlhfless.executor.step.work_order import groups_of
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.objective import NonGenerationPhases
from solver.model.plan import Plan
from solver.timing.work_schedule import NO_GATE, WorkItems, schedule_work

OVERLAP_S = 1e-9


class WorkHold(NamedTuple):
    """GPUs that a server of work holds with one role from ``start_s`` to ``end_s``; infinite: to the end of the step.

    Its first ``load_s`` seconds load models.
    """

    server: WorkServer
    gpus: WorkGpus
    role: str
    start_s: float
    end_s: float
    load_s: float = 0.0


@dataclass(frozen=True)
class ExecutedWork:
    """Items that have run, in the order in which they were given, and the GPUs that were held for them."""

    runs: tuple[ItemRun, ...] = ()
    holds: tuple[WorkHold, ...] = ()

    @property
    def finished_s(self) -> float:
        """Return when the last item ended; minus infinity without items."""
        return max((run.end_s for run in self.runs), default=-math.inf)

    def __add__(self, other: ExecutedWork) -> ExecutedWork:
        return ExecutedWork((*self.runs, *other.runs), (*self.holds, *other.holds))


NO_WORK = ExecutedWork()


def place_work(
    work: Sequence[WorkItem],
    plan: Plan,
    start_s: float,
    *,
    seconds: Sequence[float] | None = None,
    results: Sequence[Any] | None = None,
    complete_s: Callable[[int], float] = lambda response: -math.inf,
    free_s: Callable[[tuple[int, ...]], float] = lambda gpu_ids: -math.inf,
) -> ExecutedWork:
    """Return when and where each item runs: one call of ``schedule_work``.

    Args:
        start_s: of the step. seconds: of the items; None: their own. results: of their functions.
        complete_s: when a response is complete. free_s: when no actor needs any of these GPUs any more.

    Raises:
        PlanningError: two servers would have one GPU at the same time.
    """
    every = list(dict.fromkeys(item.gpus for item in work))
    number_of = {gpus: number for number, gpus in enumerate(every)}
    servers = [(place, server) for place, gpus in enumerate(every) for server in gpus.of(plan)]
    gates, gate_of = groups_of([item.items for item in work])  # one for all items that wait for the same
    counts = [(before, gate) for gate, waited in enumerate(gates) for before in waited]
    items = WorkItems(
        [float(item.seconds or 0.0) for item in work] if seconds is None else seconds,
        [max([start_s + item.after_s, *map(complete_s, item.responses)]) for item in work],
        waits_for=[gate if item.items else NO_GATE for gate, item in zip(gate_of, work, strict=True)],
        counts_for=np.array(counts, dtype=np.int64).reshape(-1, 2),
        place=[number_of[item.gpus] for item in work],
        priority=[float(item.priority) for item in work],
    )
    free = [_free_from(server, every[place], free_s(server.gpu_ids), start_s) for place, server in servers]
    schedule = schedule_work(items, free, [place for place, _ in servers])
    runs = tuple(
        ItemRun(item, servers[server][1].holder, start, end, None if results is None else results[i])
        for i, (item, server, start, end) in enumerate(
            zip(work, schedule.server.tolist(), schedule.start_s.tolist(), schedule.end_s.tolist(), strict=True)
        )
    )
    in_turn: dict[int, list[ItemRun]] = {}
    for i in schedule.order.tolist():
        in_turn.setdefault(int(schedule.server[i]), []).append(runs[i])
    holds: list[WorkHold] = []
    for number, (place, server) in enumerate(servers):
        of_server = in_turn.get(number, [])
        if every[place].for_step(server):
            role = of_server[0].item.role if of_server else next(item for item in work if item.gpus == every[place]).role
            load_s = _load_s(server, every[place])
            holds.append(WorkHold(server, every[place], role, max(start_s, free[number] - load_s), math.inf, load_s))
        else:
            holds += _holds(server, every[place], of_server)
    _check_holders(holds)
    return ExecutedWork(runs, tuple(holds))


def _free_from(server: WorkServer, gpus: WorkGpus, free_s: float, start_s: float) -> float:
    """Return when a server may start its first item, if no actor needs its GPUs from ``free_s`` on."""
    return max(free_s, start_s + gpus.from_s if _is_late(server, gpus) else free_s) + _load_s(server, gpus)


def _is_late(server: WorkServer, gpus: WorkGpus) -> bool:
    """Return whether the server's own GPUs are allocated after the start of the step."""
    return server.actor is None and gpus.from_s > 0


def _load_s(server: WorkServer, gpus: WorkGpus) -> float:
    """Return the seconds that it loads models, which GPUs that are allocated before the step have."""
    return gpus.load_s if server.actor is not None or _is_late(server, gpus) else 0.0


def _holds(server: WorkServer, gpus: WorkGpus, runs: Sequence[ItemRun]) -> list[WorkHold]:
    """Return what a server holds from its first item to its last, one row for each role that it has in turn.

    It loads its models right before its first item.
    """
    holds: list[WorkHold] = []
    load_s = _load_s(server, gpus)
    for run in (run for run in runs if run.end_s > run.start_s):
        if holds and holds[-1].role == run.item.role:
            holds[-1] = holds[-1]._replace(end_s=run.end_s)
            continue
        if holds:
            holds[-1] = holds[-1]._replace(end_s=run.start_s)
        loads_s = 0.0 if holds else load_s
        holds.append(WorkHold(server, gpus, run.item.role, run.start_s - loads_s, run.end_s, loads_s))
    return holds


def _check_holders(holds: Sequence[WorkHold]) -> None:
    latest: dict[int, WorkHold] = {}
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


def phase_items(phases: NonGenerationPhases, cluster: Cluster | MixedCluster, generated_s: float = 0.0) -> list[WorkItem]:
    """Return the phases outside generation as items: the learner prepares, then learns, when generation is over.

    Args:
        generated_s: when that is, in seconds from the start of the step.
    """
    if not phases.learner_gpus and not phases.seconds:
        return []
    ids = tuple(range(cluster.gpus, cluster.gpus + phases.learner_gpus))
    beside = sum(pool.nodes for pool in cluster.pools)
    server = WorkServer("learner", ids, beside if ids else None)  # phases without GPUs of their own are in no table
    learner = WorkGpus("learner", (server,), "learner", "step", phases.usd_per_gpu_hour)
    return [
        WorkItem("prepare", phases.prepare_s, gpus=learner, after_s=generated_s),
        WorkItem("learn", phases.learn_s, gpus=learner, after_s=generated_s, items=(0,)),
    ]


def add_work(record: StepRecord, work: Sequence[WorkItem], cluster: Cluster | MixedCluster) -> None:
    """Place and write items of a step whose other rows are written, at their own seconds, and close its record again.

    Raises:
        PlanningError: two servers would have one GPU at the same time.
    """
    held = [(set(row["gpu_ids"]), float(row["end_s"])) for row in record.allocations]
    completions = record.completions if any(item.responses for item in work) else {}
    executed = place_work(
        work, record.plan, record.start_s, complete_s=lambda response: completions[response].time_s,
        free_s=lambda gpu_ids: max((end_s for ids, end_s in held if not ids.isdisjoint(gpu_ids)), default=-math.inf),
    )  # fmt: skip
    end_s = max(record.end_s, executed.finished_s)
    write_work(record, executed, cluster, end_s)
    record.work += executed.runs
    record.close(end_s)


def write_work(record: StepRecord, work: ExecutedWork, cluster: Cluster | MixedCluster, end_s: float) -> None:
    """Write allocations and spans of executed items, and an event ``freed`` for each actor whose GPUs they took over.

    A holder on the CPU of a node has rows without GPUs, which cost nothing. Without GPUs and a node nothing is written.

    Args:
        end_s: of the step.
    """
    _write_freed(record, work.holds)
    write_holds(record, work.holds, cluster, end_s)
    for holder in dict.fromkeys(hold.server.holder for hold in work.holds if _is_somewhere(hold.server)):
        _write_spans(record, sorted((run for run in work.runs if run.holder == holder), key=lambda run: run.start_s))


def write_holds(record: StepRecord, holds: Iterable[WorkHold], cluster: Cluster | MixedCluster, end_s: float) -> None:
    """Write the allocations of work, and the spans of loading models; arguments as for ``write_work``."""
    for hold in holds:
        if not _is_somewhere(hold.server):
            continue
        record.span(hold.server.holder, "start", hold.start_s, hold.start_s + hold.load_s, call="load")
        node, pool = bought_as(min(hold.server.gpu_ids, default=0), cluster)
        usd = hold.gpus.usd_per_gpu_hour
        hold_end_s = end_s if hold.end_s == math.inf else hold.end_s
        if hold_end_s > hold.start_s:
            server, usd_per_gpu_s = hold.server, pool.usd_per_gpu_s if usd is None else usd / 3600.0
            gpus = HeldGpus(pool.kind, node if server.node is None else server.node, server.gpu_ids, pool.market, usd_per_gpu_s)
            record.allocate(server.holder, hold.role, gpus, hold.start_s, hold_end_s)


def _is_somewhere(server: WorkServer) -> bool:
    return bool(server.gpu_ids) or server.node is not None


def _write_freed(record: StepRecord, holds: Iterable[WorkHold]) -> None:
    """Write when actors gave back the GPUs that work runs on; the actors' allocations are written already."""
    first: dict[WorkServer, WorkHold] = {}
    for hold in sorted(holds, key=lambda hold: hold.start_s):
        if hold.server.actor is not None:
            first.setdefault(hold.server, hold)
    for server, hold in first.items():
        gpu_ids, latest_s = set(server.gpu_ids), hold.start_s + OVERLAP_S
        before = [a for a in record.allocations if a["end_s"] <= latest_s and not gpu_ids.isdisjoint(a["gpu_ids"])]
        if before:
            last = max(before, key=lambda allocation: float(allocation["end_s"]))
            record.event(last["end_s"], "freed", last["holder"], to=server.holder, role=hold.role)


def _write_spans(record: StepRecord, runs: Iterable[ItemRun]) -> None:
    """Write the spans of one holder: like items that follow each other without a pause are one span."""
    together: list[ItemRun] = []
    for run in runs:
        if together and (run.start_s != together[-1].end_s or _alike(run.item) != _alike(together[-1].item)):
            _write_span(record, together)
            together = []
        together.append(run)
    if together:
        _write_span(record, together)


def _alike(item: WorkItem) -> tuple[Any, ...]:
    return item.kind, item.call, item.detail


def _write_span(record: StepRecord, runs: Sequence[ItemRun]) -> None:
    item, responses = runs[0].item, sum(len(run.item.responses) for run in runs)
    what: dict[str, Any] = {} if item.call is None else {"call": item.call}
    if responses:
        what["responses"] = responses
    sizes = [size for run in runs if (size := bytes_of(run.result)) is not None]
    if sizes:
        what["bytes"] = sum(sizes)
    record.span(runs[0].holder, item.kind, runs[0].start_s, runs[-1].end_s, **what, **item.detail)
