"""The verdict on a run in a few sentences: what its GPUs did, what to do about it, and what this would have saved.

Quick: a few steps, and three schedules that any framework could run. ``Run.report`` has all schedules and sources. Both take
the run's own numbers, the steps and the advised schedule from the same functions of ``rlhfless.report``, so they agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go

from rlhfless.analysis import ExecutedTimes, LoggedTimes, RunCost, billed_uses, generation_s, savings, savings_of_executed
from rlhfless.plots import plot_overview
from rlhfless.plots.style import counted, number
from rlhfless.report.amounts import Amounts, amounts
from rlhfless.report.executed_study import compared_steps, replicas_of
from rlhfless.report.first_screen import uses_of_run
from rlhfless.report.not_stated import PRICE
from rlhfless.report.savings import at_most, percent_range, saved, time_in_words
from rlhfless.report.schedules import replicas, simulated_steps, to_do, with_history
from rlhfless.report.study import ADVISED, TIE, Assumptions, is_advised, own_run, tied, weighed
from rlhfless.run.whole_step_saving import whole_step_sentence
from rlhfless.simulate import logged_steps, simulate_steps
from rlhfless.trace import OpenedLog, Trace, allocation_metrics, decode_capacity
from solver.model.cluster import Cluster
from solver.model.objective import NonGenerationPhases

IF_RELEASED = "if the released GPUs are not paid for or are used by others"
SLOT = "A slot is room for one response in a replica's batch."
CLOCKS = {"wall": "measured", "virtual": "on the virtual clock"}
ASSIGNED = {"static": "in equal chunks", "least-loaded": "to the replica with the fewest in flight"}  # by dispatch


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the GPUs of a run did, what to do about it, and what this would have saved by a simulation of a few schedules.

    Attributes:
        gpus: the GPUs in words. steps: all of the run.
        amounts: what the whole run cost; dollars and GPU-hours only where they are known.
        idle_share: of the GPU-seconds of the whole run, in which a GPU was held and idle; NaN where the run learns while it
            generates. idle_shares: the low and the high one, which differ where the order of dispatch is not known.
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
        replicas: that the run itself started, as text (``report.schedules.replicas``). policy: that it ran, where it says so.
    """

    gpus: str
    steps: tuple[int, ...]
    amounts: Amounts
    idle_share: float
    idle_shares: tuple[float, float]
    empty_share: float
    savings: pd.DataFrame
    time_weight: float
    basis: str
    uses: pd.DataFrame
    ranges: str = ""
    assumed: tuple[str, ...] = ()
    whole_step: str = ""
    replicas: str = ""
    policy: str = ""

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds of the whole run."""
        return 3600.0 * self.amounts.gpu_hours

    @property
    def usd(self) -> float:
        """Dollars of the whole run; NaN where nobody stated a price."""
        return self.amounts.usd

    @property
    def best(self) -> pd.Series | None:
        """The row of ``savings`` with the least ``T^w C^(1-w)``; None without rows."""
        return None if self.savings.empty else self.savings.loc[weighed(self.savings, self.time_weight).idxmin()]

    @property
    def tied(self) -> pd.DataFrame:
        """The rows of ``savings`` with at most 0.5 % more than the least ``T^w C^(1-w)``, the simplest schedule first."""
        return tied(self.savings, self.time_weight)

    @property
    def advised(self) -> pd.Series | None:
        """The first of ``tied``; None where it is not certain to save anything, or the run had it or one that ties with it."""
        if self.savings.empty or self.policy in set(self.tied["policy"]):
            return None
        row = self.tied.iloc[0]
        return row if is_advised(row) else None

    def plot(self) -> go.Figure:
        """Return the overview: where GPU-seconds and dollars went, and what the advised schedule would save."""
        return plot_overview(self.uses, self.advised)

    def __str__(self) -> str:
        empty = "" if math.isnan(self.empty_share) else f", and {self.empty_share:.0%} of the paid decode slots stood empty"
        did = f"On {self.gpus}, {self._idle()}{empty} ({counted(len(self.steps), 'step')}, {self.basis})."
        said = [did, *([SLOT] if empty else []), self._would_save(), *([self.whole_step] if self.whole_step else [])]
        return " ".join([*said, *(f"Assumed: {text}." for text in self.assumed)])

    def _idle(self) -> str:
        of, were = "the GPU time", "was"
        if self.amounts.is_known:
            cost = f" ({number(self.usd, 'USD')})" if self.amounts.is_priced else ""
            of, were = f"{number(self.gpu_seconds, digits=4)} GPU-seconds{cost}", "were"
        if math.isnan(self.idle_share):
            return f"what was idle of {of} is not known, because the run learns while it generates"
        return f"{percent_range(*self.idle_shares)} of {of} {were} idle"

    def _would_save(self) -> str:
        best = self.best
        if best is None:
            return "No step generated a response, so there is nothing to save."
        row = self.advised
        if row is None:
            had = f" more than the run's own policy {self.policy}" if self.policy in set(self.tied["policy"]) else ""
            return (
                f"No simulated schedule of {', '.join(ADVISED)} is certain to save anything{had}; "
                f"{at_most(best, 'GPU-seconds')} of the GPU-seconds is possible."
            )
        policy = str(row["policy"])
        released = f" ({IF_RELEASED})" if row["GPU-seconds mean"] > max(0.0, row["time mean"]) + TIE else ""
        savings = f"{self._dollars(row)}{saved(row, 'GPU-seconds')} of the GPU-seconds{released} {time_in_words(row)}"
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
        """The saving in dollars, before that in GPU-seconds; the empty text where there is no price."""
        if not (self.amounts.is_priced and self.amounts.is_known):
            return ""
        return f"{self.amounts.between(float(row['GPU-seconds low']), float(row['GPU-seconds high']))}, "


def _ranges(steps: int, dispatches: int = 1) -> str:
    """Return what the ranges of savings cover (``analysis.savings.compared``), in words."""
    over = [f"5th to 95th percentile over {steps} resampled steps"] if steps > 1 else []
    over += [f"over the {dispatches} possible dispatches of the run"] if dispatches > 1 else []
    return f"ranges: {', and '.join(over)}" if over else ""


def verdict_of(log: OpenedLog, times: LoggedTimes | ExecutedTimes, stated: Assumptions) -> Verdict:
    """Return the verdict on a logged run, or on the trace of an executed one.

    Args:
        log: of one run. times: its own, with its GPUs, their profile and the objective (``report.study.times_of_run``).
        stated: what the user assumes about a logged run.

    Raises:
        TraceError: the log holds several runs, or a response above the limit.
        PlanningError: the responses fit on no actor.
        InputError: an assumption makes no sense.
    """
    return _of_executed(log.trace, times, stated) if isinstance(times, ExecutedTimes) else _of_logged(log, times, stated)


def _of_logged(log: OpenedLog, times: LoggedTimes, stated: Assumptions) -> Verdict:
    setting, setup, phases = times.setting, times.setup, times.phases
    chosen = simulated_steps(log.trace.rollouts)
    logged = list(logged_steps(log.trace.rollouts, None, setting.max_response_tokens, steps=chosen))
    shuffled = {order.name for order in setup.shuffled}
    theirs = [policy for policy in setup.candidates if policy not in shuffled]
    simulation = simulate_steps(logged, setting, [*{*theirs, setup.dispatch}, *setup.shuffled])
    generated_s = generation_s(simulation, setup.candidates)
    own = own_run(log, simulation, generated_s, setting, setup, phases)
    compared = with_history(logged)
    schedules = simulate_steps(compared, setting, ADVISED)
    table = savings(schedules, generated_s, setup, setting.cluster, ADVISED, phases)
    last = logged[-1]
    return Verdict(
        _in_words(setting.cluster),
        tuple(int(step) for step in log.trace.steps),
        amounts(own.cost, stated.not_stated),
        own.cost.idle_share if setup.synchronous else math.nan,
        own.idle_of_run,
        decode_capacity(allocation_metrics(simulation.traces[setup.dispatch])).empty_share,
        table,
        setting.objective.time_weight,
        _basis(own.cost, len(logged), setup.dispatch),
        uses_of_run(own),
        _ranges(len(compared), len(setup.candidates)),
        _assumed(stated),
        whole_step_sentence(last, setting, setup, phases, generated_s[setup.dispatch][int(last.step)]),
        replicas(setting.cluster.max_actors, setting.cluster.max_actors),
    )


def _basis(cost: RunCost, simulated: int, dispatch: str) -> str:
    """Return where the times of a logged run come from, in words."""
    assigned = f"prompts assigned {ASSIGNED[dispatch]}"
    which = "" if simulated == cost.steps else f"{counted(simulated, 'step')} of them "
    if not cost.logged_steps:
        return f"{which}simulated, {assigned}"
    times = "with logged times" if cost.all_logged else f"{cost.logged_steps:,} with logged times"
    return f"{times}; what was idle is simulated{f' in {simulated:,} of them' if which else ''}, {assigned}"


def _assumed(stated: Assumptions) -> tuple[str, ...]:
    """Return what was assumed about the GPUs, one sentence each; their price is with the amounts."""
    return tuple(sentence for name, sentence in stated.not_stated.items() if name != PRICE)


def _of_executed(trace: Trace, times: ExecutedTimes, stated: Assumptions) -> Verdict:
    took = times.took
    alone = replace(times.setting, phases=NonGenerationPhases())
    chosen = simulated_steps(trace.rollouts) if len(trace.rollouts) else []
    logged = list(logged_steps(trace.rollouts, None, alone.max_response_tokens, steps=chosen)) if chosen else []
    compared = compared_steps(took, logged)
    steps = [step.step for step in compared]
    table = pd.DataFrame()
    if compared:
        table = savings_of_executed(simulate_steps(compared, alone, ADVISED), took, ADVISED, steps)
    held = allocation_metrics(trace)
    gpu_s, usd = float(held["gpu_seconds"].sum()), float(held["cost_usd"].sum(skipna=False))
    idle = float(held["idle_gpu_seconds"].sum()) / gpu_s if gpu_s else 0.0
    return Verdict(
        _in_words(times.setting.cluster),
        tuple(sorted(int(step) for step in held["step"].unique())),
        Amounts(gpu_s / 3600.0, usd),
        idle,
        (idle, idle),
        decode_capacity(held).empty_share,
        table,
        times.setting.objective.time_weight,
        CLOCKS.get(str(trace.meta.get("clock")), "on a clock that the trace does not name"),
        billed_uses(trace),
        _ranges(len(steps)),
        _assumed(stated),
        replicas=replicas_of(trace, steps) if steps else "",
        policy=str(trace.meta.get("policy") or ""),
    )


def _in_words(cluster: Cluster) -> str:
    kind = "emulated GPU" if cluster.kind == "cpu" else f"{cluster.kind.upper()} GPU"
    return (
        f"{counted(cluster.gpus, kind)} ({counted(cluster.max_actors, 'replica')} of {counted(cluster.gpus_per_actor, 'GPU')})"
    )
