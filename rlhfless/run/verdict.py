"""The verdict on a run in a few sentences: what its GPUs did, what to do about it, and what this would have saved.

Quick: a few steps, and three schedules that any framework could run. ``Run.report`` has all steps, schedules and sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.analysis import (
    account,
    billed_uses,
    calibrated_by_spans,
    evenly,
    executed_steps,
    generation_s,
    savings,
    savings_of_executed,
    uses_of_account,
)
from rlhfless.plots import plot_overview
from rlhfless.plots.style import counted, number
from rlhfless.report.amounts import Amounts
from rlhfless.report.executed_study import replicas_of
from rlhfless.report.not_stated import PRICE
from rlhfless.report.savings import at_most, more, saved
from rlhfless.report.schedules import replicas, to_do
from rlhfless.report.study import Assumptions, calibrate_log
from rlhfless.run.whole_step_saving import whole_step_sentence
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import OpenedLog, Trace, allocation_metrics, decode_capacity
from solver.model.cluster import Cluster
from solver.model.objective import NonGenerationPhases

SCHEDULES = ("random", "fold", "solver")
TOLD = 0.0005  # share of the time that is not rounded to 0.0%
TIE = 0.005  # of T^w C^(1-w), below which no schedule is named as the better one
IF_RELEASED = "if the released GPUs are not paid for or are used by others"
SLOT = "A slot is room for one response in a replica's batch."
ASSIGNED = {"static": "in equal chunks", "least-loaded": "to the replica with the fewest in flight"}  # by dispatch
MAX_STEPS = 4
MAX_RESPONSES = 4_000


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the GPUs of a run did, what to do about it, and what this would have saved by a simulation of a few schedules.

    Attributes:
        gpus: the GPUs in words. steps: those that are counted.
        gpu_seconds: billed in these steps. usd: what they cost; 0 where nobody stated a price.
        idle_share: of the GPU-seconds, in which a GPU was held and idle.
        empty_share: of the decode slots that were paid for, the share without a response: slots of idle GPUs, and the empty
            ones of batches. NaN where nothing decoded.
        savings: one row per schedule (``analysis.savings.compared``), without rows where no step generated.
        time_weight: of the objective that ranks the schedules.
        basis: the source of the run's own times, in words.
        uses: where the GPU-seconds and dollars went (``analysis.billed_uses``).
        ranges: what the ranges of savings are, in words; the empty text where they have no width.
        assumed: what was assumed about the GPUs, one sentence each.
        whole_step: what a plan of a whole step would have saved, a sentence (``whole_step_sentence``); empty where the log does
            not say what preparation and learning take.
        replicas: that the run itself started, as text (``report.schedules.replicas``).
    """

    gpus: str
    steps: tuple[int, ...]
    gpu_seconds: float
    usd: float
    idle_share: float
    empty_share: float
    savings: pd.DataFrame
    time_weight: float
    basis: str
    uses: pd.DataFrame
    ranges: str = ""
    assumed: tuple[str, ...] = ()
    whole_step: str = ""
    replicas: str = ""

    @property
    def best(self) -> pd.Series | None:
        """The row of ``savings`` with the least ``T^w C^(1-w)``; None without rows."""
        return None if self.savings.empty else self.savings.loc[self._log_values.idxmin()]

    @property
    def tied(self) -> pd.DataFrame:
        """The rows of ``savings`` with at most 0.5 % more than the least ``T^w C^(1-w)``, the simplest schedule first."""
        return self.savings if self.savings.empty else self.savings[self._log_values <= self._log_values.min() + np.log1p(TIE)]

    @property
    def _log_values(self) -> pd.Series:
        time, cost = (1 - self.savings[f"{kind} mean"] for kind in ("time", "GPU-seconds"))
        return self.time_weight * np.log(time) + (1 - self.time_weight) * np.log(cost)

    def plot(self) -> go.Figure:
        """Return the overview: where GPU-seconds and dollars went, and what the best schedule would save."""
        return plot_overview(self.uses, self.best)

    def __str__(self) -> str:
        cost = f" ({number(self.usd, 'USD')})" if self.usd > 0 else ""
        empty = "" if math.isnan(self.empty_share) else f", and {self.empty_share:.0%} of the paid decode slots stood empty"
        steps = counted(len(self.steps), "step")
        did = (
            f"On {self.gpus}, {self.idle_share:.0%} of {number(self.gpu_seconds, digits=4)} GPU-seconds{cost} were idle{empty} "
            f"({steps}, {self.basis})."
        )
        said = [did, *([SLOT] if empty else []), self._would_save(), *([self.whole_step] if self.whole_step else [])]
        return " ".join([*said, *(f"Assumed: {text}." for text in self.assumed)])

    def _would_save(self) -> str:
        best = self.best
        if best is None:
            return "No step generated a response, so there is nothing to save."
        if best["GPU-seconds mean"] <= 0 and best["time mean"] <= 0:
            most = at_most(best, "GPU-seconds")
            return f"No simulated schedule of {', '.join(SCHEDULES)} saves anything; {most} of the GPU-seconds is possible."
        row = self.tied.iloc[0]
        policy = str(row["policy"])
        released = f" ({IF_RELEASED})" if row["GPU-seconds mean"] > max(0.0, row["time mean"]) + TIE else ""
        savings = f"{self._dollars(row)}{saved(row, 'GPU-seconds')} of the GPU-seconds{released} {_time(row)}"
        details = [self.ranges] if self.ranges and " to " in savings else []
        also = self.tied["policy"].iloc[1:].tolist()
        details.append(
            f"simulated as policy {policy}"
            + (f"; {' and '.join(also)} {'tie' if len(also) > 1 else 'ties'} with it" if also else "")
        )
        what = to_do(row, self.replicas) or f"generate as policy {policy} does"
        return (
            f"What to do: {what}. This saves {savings}; any schedule that takes as long saves {at_most(row, 'GPU-seconds')} "
            f"({'; '.join(details)})."
        )

    def _dollars(self, row: pd.Series) -> str:
        """The saving in dollars, before that in GPU-seconds; the empty text where there is no price, or nothing is saved."""
        low, high = float(row["GPU-seconds low"]), float(row["GPU-seconds high"])
        if self.usd <= 0 or low <= 0:
            return ""
        return f"{Amounts(self.gpu_seconds / 3600.0, self.usd).between(low, high)}, "


def _time(row: pd.Series) -> str:
    """Return the time that is saved, or that a schedule takes more, in words."""
    return f"and {saved(row, 'time')} of the time" if row["time high"] >= TOLD else f"for {more(row, 'time')} time"


def _ranges(steps: int, dispatches: int = 1) -> str:
    """Return what the ranges of savings cover (``analysis.savings.compared``), in words."""
    over = [f"5th to 95th percentile over {steps} resampled steps"] if steps > 1 else []
    over += [f"over the {dispatches} possible dispatches of the run"] if dispatches > 1 else []
    return f"ranges: {', and '.join(over)}" if over else ""


def verdict_of(log: OpenedLog, setting: SimulationConfig, stated: Assumptions) -> Verdict:
    """Return the verdict on a logged run, or on the trace of an executed one.

    Args:
        log: of one run. setting: its GPUs, their profile and the objective. stated: what the user assumes about a logged run.

    Raises:
        TraceError: the log holds several runs, or a response above the limit.
        PlanningError: the responses fit on no actor.
        InputError: an assumption makes no sense.
    """
    return _of_executed(log.trace, setting) if len(log.trace.allocations) else _of_logged(log, setting, stated)


def _of_logged(log: OpenedLog, setting: SimulationConfig, stated: Assumptions) -> Verdict:
    setting, setup, phases, _, _ = calibrate_log(log, setting, stated)
    steps = _some_steps(log.trace)
    theirs = [policy for policy in setup.candidates if policy not in {order.name for order in setup.shuffled}]
    simulation = simulate(log.trace.rollouts, setting, [*{*theirs, setup.dispatch}, *setup.shuffled, *SCHEDULES], steps=steps)
    own = generation_s(simulation, setup.candidates)
    table = savings(simulation, own, setup, setting.cluster, SCHEDULES, phases)
    trace, last = simulation.traces[setup.dispatch], simulation.logged[-1]
    used = account(trace, setup, setting.cluster, phases)
    is_priced = PRICE not in stated.not_stated
    return Verdict(
        _in_words(setting.cluster), tuple(steps), used.gpu_s, is_priced * float(used.lines["usd"].sum()), used.idle_share,
        decode_capacity(allocation_metrics(trace)).empty_share, table, setting.objective.time_weight,
        f"simulated, prompts assigned {ASSIGNED[setup.dispatch]}", uses_of_account(used),
        _ranges(len(steps), len(setup.candidates)),
        tuple(sentence for name, sentence in stated.not_stated.items() if name != PRICE),
        whole_step_sentence(last, setting, setup, phases, own[setup.dispatch][int(last.step)]),
        replicas(setting.cluster.max_actors, setting.cluster.max_actors),
    )  # fmt: skip


def _of_executed(trace: Trace, setting: SimulationConfig) -> Verdict:
    took = executed_steps(trace)
    took = took[(took["generation_s"] > 0) & (took["gpu_s"] > 0)]
    steps = evenly(took["step"].tolist(), MAX_STEPS)
    table = pd.DataFrame()
    if steps:
        latency, _, _ = calibrated_by_spans(trace, setting, took, steps)
        alone = replace(setting, latency=latency, phases=NonGenerationPhases())
        table = savings_of_executed(simulate(trace.rollouts, alone, SCHEDULES, steps=steps), took, SCHEDULES, steps)
    held = allocation_metrics(trace)
    gpu_s, usd = float(held["gpu_seconds"].sum()), float(held["cost_usd"].sum())
    idle = float(held["idle_gpu_seconds"].sum()) / gpu_s if gpu_s else 0.0
    every = tuple(sorted(int(step) for step in held["step"].unique()))
    return Verdict(
        _in_words(setting.cluster), every, gpu_s, usd, idle, decode_capacity(held).empty_share, table,
        setting.objective.time_weight, "measured" if trace.meta.get("clock") == "wall" else "on the virtual clock",
        billed_uses(trace), _ranges(len(steps)), replicas=replicas_of(trace, steps) if steps else "",
    )  # fmt: skip


def _some_steps(trace: Trace) -> list[int]:
    """Evenly chosen steps with about ``MAX_RESPONSES`` responses in all, at least one."""
    steps = [int(step) for step in trace.steps]
    each = max(1, len(trace.rollouts) // len(steps))
    return sorted(evenly(steps, max(1, min(MAX_STEPS, MAX_RESPONSES // each))))


def _in_words(cluster: Cluster) -> str:
    kind = "emulated GPU" if cluster.kind == "cpu" else f"{cluster.kind.upper()} GPU"
    return (
        f"{counted(cluster.gpus, kind)} ({counted(cluster.max_actors, 'replica')} of {counted(cluster.gpus_per_actor, 'GPU')})"
    )
