"""Completes a logged run into traces, so that what is computed of a logged and of an executed run is the same.

A log has lengths of responses, and maybe seconds of its phases. Which replica generated a response when is simulated: by the
run's own dispatch, on its GPUs, with a latency profile that is scaled to its times. All that the run held is in the trace: GPUs
that no replica used, replicas that wait for the step's last response or for the learner, the learner's own GPUs, and the
seconds of preparation, learning and sending weights. A fixed reservation pays for all of it.

What nobody knows is a list of traces: one for each dispatch that the run may have used, and for each draw of lengths that were
not logged. Their spread is the range of every number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from rlhfless.analysis.assumptions import Assumptions
from rlhfless.analysis.framework_defaults import RunSetup
from rlhfless.analysis.gpu_seconds import (
    COMPLETED,
    GENERATES,
    REST,
    Generation,
    PhaseSeconds,
    foreground_of_holders,
    generation_of,
)
from rlhfless.analysis.log_texts import opened_log
from rlhfless.analysis.own_times import OwnTimes, own_times
from rlhfless.errors import InputError
from rlhfless.simulate import SimulationConfig, checked_steps, simulate
from rlhfless.trace import ImportedLog, LogWithoutResponses, OpenedLog, Trace
from rlhfless.trace.schema.tables import NO_ACTOR, TABLES
from solver.model.cluster import Cluster
from solver.model.errors import as_given
from solver.model.latency import LatencyModel

LEARNER = "learner"


class StatedHardware(Protocol):
    """GPUs and profile as a user states them; ``rlhfless.run.Hardware`` is one, and says what its methods do."""

    @property
    def gpus(self) -> int | None: ...
    def completed(self, meta: Mapping[str, Any], source: str) -> tuple[StatedHardware, dict[str, str]]: ...
    def cluster(self) -> tuple[Cluster, LatencyModel]: ...


def complete(
    log: Trace | OpenedLog | ImportedLog | pd.DataFrame | str | Path,
    hardware: StatedHardware | SimulationConfig | OwnTimes,
    stated: Assumptions | None = None,
    *,
    steps: Collection[int] | None = None,
    simulated: Mapping[str, Trace] | None = None,
) -> tuple[Trace, ...]:
    """Return the full traces of a run: its own if it was executed, else one for each dispatch that it may have used.

    Args:
        log: of one run: what ``rlhfless.load`` takes.
        hardware: its GPUs and latency profile, which is scaled to the logged times; or a whole setting; or the result of
            ``own_times``, whose profile is scaled already.
        stated: facts that the user states about a logged run. steps: step numbers; all when None.
        simulated: simulated generation by policy, if every dispatch that a logged run may have used has been simulated already.

    Returns:
        In the order of ``setup.candidates`` of the times, the likeliest first. ``meta["completed"]`` names the dispatch and the
        source of the seconds outside generation; an executed trace is returned as it is, or its chosen steps.

    Raises:
        TraceError: the log holds several runs, a response above the limit, or lacks one of the steps.
        LogWithoutResponses: it has none.
        PlanningError: the responses fit on no actor.
        InputError: the log, the hardware, ``steps`` or an assumption makes no sense, or the number of GPUs is not stated.

    Example:
        >>> import pandas as pd, rlhfless as rl
        >>> from rlhfless.analysis import account, complete
        >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": range(100, 740, 10)})
        >>> traces = complete(log, rl.Hardware(gpus=16, profile="l40s-qwen2.5-3b-tp2"))
        >>> [trace.meta["completed"]["dispatch"] for trace in traces]
        ['static', 'least-loaded']
        >>> account(traces[0]).lines["kind"].unique().tolist()
        ['work', 'empty slots', 'idle']
    """
    opened = opened_log(log)
    if isinstance(opened, ImportedLog):
        raise LogWithoutResponses(opened)
    chosen = checked_steps(steps, opened.trace.steps)
    times = hardware if isinstance(hardware, OwnTimes) else own_times(opened, _setting(opened, hardware), stated)
    if times.executed:
        return (opened.trace if chosen is None else _of_steps(opened.trace, chosen),)
    setup, shuffled = times.setup, times.setup.shuffled
    if simulated is None:
        known = [name for name in setup.candidates if name not in {policy.name for policy in shuffled}]
        simulated = simulate(opened.trace.rollouts, times.setting, [*known, *shuffled], steps=chosen).traces
    return tuple(completed(simulated[name], setup, times.setting.cluster, times.phases) for name in setup.candidates)


def _setting(log: OpenedLog, hardware: StatedHardware | SimulationConfig) -> SimulationConfig:
    """Return the setting; what hardware leaves open is as the trace recorded it."""
    if isinstance(hardware, SimulationConfig):
        return hardware
    if not callable(getattr(hardware, "completed", None)) or isinstance(hardware, type):
        raise InputError(f"hardware is {as_given(hardware)}; Hardware(gpus=...) or a SimulationConfig is needed")
    source = log.trace.source or "the log"
    completed, _ = hardware.completed(log.trace.meta, str(source))
    if completed.gpus is None:
        raise InputError(f"{source}: does not say how many GPUs the run had; Hardware(gpus=...) is needed")
    return SimulationConfig(*completed.cluster())


def _of_steps(trace: Trace, steps: Collection[int]) -> Trace:
    """Return some steps of an executed trace."""
    rows = {name: table[table["step"].isin(steps)] for name in TABLES for table in [getattr(trace, name)]}
    return replace(trace.with_rows(**rows), plans=[plan for plan in trace.plans if plan.get("step") in steps])


def completed(generation: Trace, setup: RunSetup, cluster: Cluster, phases: PhaseSeconds | None = None) -> Trace:
    """Extend a simulated trace of generation to whole steps, with all GPUs that a logged run held and its phases outside
    generation.

    Args:
        generation: simulated under the run's own dispatch, with allocations of actors only.
        setup: which GPUs are shared, and whether learning waits for a step's last response; otherwise learning is not part of a
            step.
        cluster: the reserved GPUs. phases: seconds of a step outside generation.
    """
    phases = PhaseSeconds() if phases is None or not setup.synchronous else phases
    learner = list(range(cluster.gpus, cluster.gpus + setup.counted_learner_gpus))
    of_holder = foreground_of_holders(generation)
    actors = generation.allocations[generation.allocations["role"].isin(GENERATES)]
    held: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    late_s: dict[int, float] = {}
    for number, (step, of_step) in enumerate(actors.groupby("step", sort=True)):
        found = generation_of(of_step, of_holder)
        assert found is not None  # these are allocations of actors
        late_s[int(step)] = number * phases.seconds  # earlier steps learned before this one began
        begin, end = found.begin + late_s[int(step)], found.end + late_s[int(step)]
        until = end if setup.colocated else end + phases.seconds
        one = of_step.iloc[0].to_dict()
        rows, used = [], set[int]()
        for holder, of_actor in of_step.groupby("holder", sort=False):
            gpus = set().union(*of_actor["gpu_ids"])
            used |= gpus
            rows.append({**of_actor.iloc[0].to_dict(), "holder": holder, "gpu_ids": sorted(gpus)})
        if free := sorted(set(range(cluster.gpus)) - used):
            rows.append({**one, "holder": NO_ACTOR, "node": None, "gpu_ids": free})
        held += [{**row, "start_s": begin, "end_s": until} for row in rows]
        own = {**one, "holder": LEARNER, "role": "learner", "node": None, "end_s": end + phases.seconds}
        if setup.colocated and phases.seconds:
            held.append({**own, "gpu_ids": list(range(cluster.gpus)), "start_s": end})
        elif learner:
            held.append({**own, "gpu_ids": learner, "start_s": begin})
        if learner or setup.colocated:
            spans += _after(phases, {"run": one["run"], "step": step, "holder": LEARNER}, Generation(begin, end))
    later = [_later(getattr(generation, name), late_s) for name in ("rollouts", "spans", "events")]
    rollouts, of_generation, events = later
    return Trace(
        rollouts,
        pd.DataFrame(held, columns=generation.allocations.columns),
        pd.concat([of_generation, pd.DataFrame(spans)], ignore_index=True) if spans else of_generation,
        events,
        generation.plans,
        {**generation.meta, COMPLETED: {"dispatch": generation.meta.get("policy", ""), "phases": phases.basis}},
    )


def _after(phases: PhaseSeconds, of_learner: Mapping[str, Any], generation: Generation) -> Sequence[dict[str, Any]]:
    """Return the spans of a step after its generation, one after the other."""
    spans, begin = [], generation.end
    for name, phase in REST.items():
        if seconds := float(getattr(phases, name)):
            spans.append({**of_learner, "phase": phase, "start_s": begin, "end_s": begin + seconds, "background": False})
            begin += seconds
    return spans


def _later(table: pd.DataFrame, late_s: Mapping[int, float]) -> pd.DataFrame:
    """Return a table whose times are later by the seconds of its step."""
    times = [name for name in ("start_s", "first_token_s", "end_s", "time_s") if name in table.columns]
    late = table["step"].map(late_s).to_numpy(dtype=float)
    return table.assign(**{name: table[name].astype(float) + late for name in times})
