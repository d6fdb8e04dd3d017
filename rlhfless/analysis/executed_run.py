"""Splits the steps of an executed run into generation and other phases, and computes what other schedules would have saved.

Input is a trace with allocations and spans. Generation is what decode and prefill actors do, from the first GPU that one of
them was allocated to the last span of any. Everything else is as measured: the seconds of a step outside generation, and the
GPU-seconds of all other holders. One part of those depends on the schedule: GPUs of other holders that are allocated during
generation without a span wait for it. Their GPU-seconds change with the duration of generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rlhfless.analysis.savings import StepTotals, compared
from rlhfless.scheduling import PlanningOptions
from rlhfless.simulate import Simulation, SimulationConfig, execute_steps, logged_steps
from rlhfless.trace import Trace
from rlhfless.trace.metrics.step_metrics import interval_union_s
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.timing.build_plan import assemble

GENERATES = ("decode", "prefill")  # roles
AFTERWARDS = ("prepare", "learn")  # phases of a generating actor that are no generation
CHANGES = ("cut", "move", "lost")  # events after which a response did not stay where it was dealt to


def executed_steps(trace: Trace) -> pd.DataFrame:
    """Return what every step with generation took, from the trace.

    Returns:
        One row per step: ``step, time_s, gpu_s`` (billed), ``generation_s, generation_gpu_s`` (billed to actors), ``working_s``
        (the longest time of an actor from its first prefill or decode span to its last), ``fixed_s`` (the step without
        generation), ``fixed_gpu_s`` (other holders, without the waiting GPUs), ``waiting_gpus`` (GPUs of other holders that
        were allocated but idle during generation, averaged over it).
    """
    spans = trace.spans[~trace.spans["background"].to_numpy(dtype=bool)]
    by_holder = dict(list(spans.groupby(["step", "holder"], sort=False))) if len(spans) else {}
    rows = []
    for step, of_step in trace.allocations.groupby("step", sort=True):
        generating = of_step["role"].isin(GENERATES).to_numpy()
        if not generating.any():
            continue
        seconds = (of_step["end_s"] - of_step["start_s"]).to_numpy(dtype=float)
        gpus = np.array([len(ids) for ids in of_step["gpu_ids"]])
        actors = of_step[generating]
        theirs = [by_holder[step, name] for name in actors["holder"].unique() if (step, name) in by_holder]
        theirs = [kept for s in theirs if len(kept := s[~s["phase"].isin(AFTERWARDS)])]
        begin = float(actors["start_s"].min())
        end = max((float(s["end_s"].max()) for s in theirs), default=float(actors["end_s"].max()))
        waiting = 0.0
        for allocation in of_step[~generating].itertuples():
            since, until = max(begin, allocation.start_s), min(end, allocation.end_s)
            if until > since:
                its = by_holder.get((step, allocation.holder), spans.iloc[:0])
                busy = interval_union_s(np.maximum(its["start_s"], since), np.minimum(its["end_s"], until))
                waiting += len(allocation.gpu_ids) * (until - since - busy)
        time_s = float(of_step["end_s"].max() - of_step["start_s"].min())
        rows.append(
            {
                "step": int(step), "time_s": time_s, "gpu_s": float(gpus @ seconds), "generation_s": end - begin,
                "generation_gpu_s": float((gpus * seconds)[generating].sum()), "working_s": _working_s(theirs),
                "fixed_s": time_s - (end - begin), "fixed_gpu_s": float((gpus * seconds)[~generating].sum()) - waiting,
                "waiting_gpus": waiting / (end - begin) if end > begin else 0.0,
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=STEP_COLUMNS)


STEP_COLUMNS = ["step", "time_s", "gpu_s", "generation_s", "generation_gpu_s", "working_s", "fixed_s", "fixed_gpu_s",
                "waiting_gpus"]  # fmt: skip


def _working_s(actors: Sequence[pd.DataFrame]) -> float:
    works = [s[s["phase"].isin(["prefill", "decode"])] for s in actors]
    return max((float(s["end_s"].max() - s["start_s"].min()) for s in works if len(s)), default=float("nan"))


def savings_of_executed(
    simulation: Simulation, took: pd.DataFrame, policies: Sequence[str], steps: Sequence[int]
) -> pd.DataFrame:
    """Return what each policy would have saved of the run's time and billed GPU-seconds.

    Args:
        simulation: generation alone (no ``NonGenerationPhases``) under ``policies``. took: ``executed_steps``. steps: the steps
            that are compared.

    Returns:
        See ``compared``.
    """
    rows = took.set_index("step").loc[list(steps)]
    fixed_s, fixed_gpu_s, waiting = (rows[name].to_numpy(dtype=float) for name in ("fixed_s", "fixed_gpu_s", "waiting_gpus"))

    def whole(generation_s: np.ndarray, gpu_s: np.ndarray) -> StepTotals:
        return StepTotals(generation_s + fixed_s, gpu_s + fixed_gpu_s + waiting * generation_s)

    executed = StepTotals(rows["time_s"].to_numpy(dtype=float), rows["gpu_s"].to_numpy(dtype=float))
    return compared(simulation, policies, steps, {"as executed": executed}, whole)


@dataclass(frozen=True)
class AsExecuted:
    """A policy that assigns every response, from the start, to the actor that generated it in the executed run.

    Attributes:
        actor_of: (R,) names of actors, in the workload's order.
    """

    actor_of: tuple[str, ...]
    name: str = "as executed"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        names, owner = np.unique(np.array(self.actor_of), return_inverse=True)
        groups = [np.flatnonzero(owner == i) for i in range(len(names))]
        return assemble(self.name, groups, problem)


def working_s_by_profile(trace: Trace, setting: SimulationConfig, steps: Sequence[int]) -> pd.Series:
    """Return by step how long an actor works on its responses by the profile, the longest one: ``working_s`` of the trace.

    Args:
        steps: the steps that are used. Steps in which responses moved or an actor was lost are ignored, as the trace does not
            say what each actor decoded of a response. So are steps with more actors than fit, and those without work.
    """
    changed = set(trace.events.loc[trace.events["name"].isin(CHANGES), "step"])
    actors = trace.rollouts.get("actor")
    with_actors = set() if actors is None else set(trace.rollouts["step"]) - set(trace.rollouts.loc[actors.isna(), "step"])
    work_only = replace(setting, latency=replace(setting.latency, start_s=0.0, sync_s=0.0))
    usable = [step for step in steps if step in with_actors and step not in changed]
    simulated = {}
    for logged in logged_steps(trace.rollouts, max_response_tokens=setting.max_response_tokens, steps=usable):
        names = tuple(logged.rows["actor"].astype(str))
        if len(set(names)) <= setting.cluster.max_actors:
            ((record, _),) = next(iter(execute_steps([logged], work_only, [AsExecuted(names)]).values()))
            simulated[logged.step] = record.end_s - record.start_s
    return pd.Series({step: time_s for step, time_s in simulated.items() if time_s > 0}, dtype=float)


def measured_start_and_sync(trace: Trace) -> tuple[float | None, float | None]:
    """Return the medians of the trace's spans of starting and of syncing an actor; None where it has none."""
    return _median_s(trace, "start"), _median_s(trace, "sync")


def _median_s(trace: Trace, phase: str) -> float | None:
    rows = trace.spans[trace.spans["phase"] == phase]
    return float((rows["end_s"] - rows["start_s"]).median()) if len(rows) else None
