"""Runs steps in a thread with run, pause and stop, and keeps the progress. ``live`` without its widgets.

A stop takes effect at the next completed responses, like an interrupt: earlier steps are kept, and of the current training step
nothing has happened. A training step whose responses are all complete learns from them first, and is kept. A pause holds a
step on the virtual clock where it is. Actors of a pool continue to decode, so there a pause takes effect between steps.

``on_change`` comes from one thread at a time. During a step its rate is limited, so that snapshots and drawing take about
``SHARE`` of the time between them. The row of ``table`` and the snapshot after a change of state are not limited, as they come
once per step or button. Nor are phases: to note one takes no time, and ``on_phase`` must not take any.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.step.progress import StepProgress
from rlhfless.executor.step.step_trace import rollout_rows
from rlhfless.scheduling import make_policy
from rlhfless.simulate import SimulationConfig, logged_steps
from rlhfless.trace import Trace, learning_numbers, step_metrics
from rlhfless.trace.metrics.step_metrics import billed_steps
from rlhfless.widgets.kernel_messages import handle_widget_messages
from rlhfless.widgets.live_steps import Steps
from solver.model.cluster import MixedCluster
from solver.model.errors import PlanningError

SHARE, OFTEN_S = 0.01, 0.5
"""After a look that took t seconds the next one comes no sooner than t / SHARE, and OFTEN_S, later."""
AWAIT_S = 0.05  # between two looks of a cell that waits whether a button was pressed
GENERATES = ("decode", "prefill")
UNDER_WAY = ("running", "paused", "stopping")
STATES = ("ready", *UNDER_WAY, "stopped", "done", "failed")
WHEN_IT_STOPS = (
    "it stops when its first actor is ready or its next responses are complete, or after learning if all responses are complete"
)


class RunStopped(KeyboardInterrupt):
    """Raised in a run whose stop button was pressed; the current step ends as at an interrupt."""


@dataclass(frozen=True)
class CurrentPhase:
    """What a running step does.

    Attributes:
        step: its number. name: one of ``PHASES``. began_s: since when, by ``time.monotonic``.
        completed, of: number of complete and of all responses; 0 of 0 before its first actor is ready.
    """

    step: int
    name: str
    began_s: float
    completed: int = 0
    of: int = 0

    @property
    def elapsed_s(self) -> float:
        """Return for how many seconds the step has been in this phase."""
        return time.monotonic() - self.began_s


class StepCost(NamedTuple):
    """What a step was billed, or a running step until now: a row of ``plot_cost_over_time``.

    Attributes:
        start_s, end_s: of its allocations, in seconds since the run's start.
        idle_gpu_seconds: of the allocated ``gpu_seconds``. cost_usd: NaN where a GPU has no price.
        complete: whether the step is.
    """

    step: int
    start_s: float
    end_s: float
    gpu_seconds: float
    idle_gpu_seconds: float
    cost_usd: float
    actors: int
    complete: bool


@dataclass(frozen=True)
class ProgressSnapshot:
    """A running step: how many responses are complete, and its trace and cost as if the step ended now."""

    step: int
    completed: int
    of: int
    now_s: float
    trace: Trace
    cost: StepCost


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment, for a view: ``complete`` steps, those ``left``, the ``last`` one, and what ``LiveRun`` has."""

    state: str
    phase: CurrentPhase | None
    complete: int
    left: int
    last: Trace | None
    interrupted: Trace | None
    table: pd.DataFrame
    costs: Sequence[StepCost]
    snapshot: ProgressSnapshot | None
    error: BaseException | None


class LiveRun:
    """Runs steps in a thread of its own; ``run``, ``pause`` and ``stop`` control it.

    Args:
        steps: the steps to run (``steps_of`` makes them from a trainer or an executor).

    Attributes:
        state: one of ``STATES``.
        phase: of the running step; None where nothing runs.
        traces: of every step that is complete.
        interrupted: what was done of a stopped step of an executor, until it is run again.
        table: one row per complete step: ``step, time_s, gpu_seconds, idle_gpu_seconds, cost_usd, actors, mean_reward,
            mean_response_tokens``, and of generation alone ``generation_gpu_seconds, static_gpu_seconds, static_cost_usd``, the
            last two NaN where there is no static schedule. Dollars are NaN where a GPU has no price. Then the columns of
            ``learning_numbers``.
        costs: what every complete step was billed, then the running step at each of its snapshots, or what is kept of a
            stopped one.
        snapshot: snapshot of the running step, or None. error: the error that ended the run, or None.
        on_change: called after every change, by one thread at a time; it may draw. It is set to None once it fails.
        on_phase: called when the phase has changed, by the run's thread, which waits for it. It is set to None once it fails.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps, self.state = steps, "ready"
        self.phase: CurrentPhase | None = None
        self.traces: list[Trace] = []
        self.costs: tuple[StepCost, ...] = ()
        self.interrupted: Trace | None = None
        self.table = pd.DataFrame()
        self.snapshot: ProgressSnapshot | None = None
        self.error: BaseException | None = None
        self.on_change: Callable[[], object] | None = None
        self.on_phase: Callable[[], object] | None = None
        self._goes = threading.Event()
        self._stops = False
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()  # buttons and the run's thread change what ``status`` reads one after the other
        self._telling = threading.RLock()  # and tell of it so, hence the last one that is told shows the newest
        self._next_snapshot_s = 0.0
        self._unshown: StepProgress | None = None  # the newest, where it came too soon after a look
        self._behind = False  # something has changed since the last look
        steps.on_progress, steps.on_phase = self._watch, self._enter

    # --- buttons ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start, or continue after a pause or a stop. Does nothing where it runs or stops already, or no step is left."""
        with self._changing:
            if self.state == "paused":
                self.state = "running"
            elif self.state not in UNDER_WAY and self.steps.left():
                self._stops, self.error, self.interrupted = False, None, None  # a step that was ended is run again, whole
                self._next_snapshot_s = time.monotonic() + OFTEN_S
                self.state = "running"
                self._thread = threading.Thread(target=self._run, args=(self._thread,), name="rlhfless-live", daemon=True)
                self._thread.start()
            else:
                return
            self._goes.set()
        self._notify()

    def pause(self) -> None:
        """Pause the run; ``run`` continues it. Does nothing where it does not run."""
        with self._changing:
            if self.state != "running":
                return
            self._goes.clear()
            self.state = "paused"
        self._notify()

    def request_stop(self) -> None:
        """Let the run end, and return at once; until then the state is ``stopping``. Does nothing where nothing runs."""
        with self._changing:
            if self.state not in ("running", "paused"):
                return
            self._stops = True
            self.state = "stopping"
            self._goes.set()
        self._notify()

    def stop(self, timeout_s: float | None = 60.0) -> None:
        """End the run and wait until it has ended: during the current step, or after it where only learning is left. After the
        last step the state is ``done``, not ``stopped``.

        Raises:
            TimeoutError: it has not ended in time; it ends at the next completed responses, or when the step is done.
        """
        self.request_stop()
        if not self.wait(timeout_s):
            raise TimeoutError(f"the current step did not stop within {timeout_s} s; {WHEN_IT_STOPS}")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing runs; returns whether that happened within the timeout. A kernel that waits here handles no
        button: a cell of a notebook awaits ``finished()``.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    async def finished(self) -> None:
        """Wait until nothing runs, while the kernel handles the buttons of widgets: ``await live_run.finished()`` in a cell. An
        interrupt ends the waiting; the run continues.
        """
        while not self.wait(0.0):
            await handle_widget_messages()
            await asyncio.sleep(AWAIT_S)

    def catch_up(self) -> None:
        """Call ``on_change`` if something has changed since its last call, unless that is too recent. A view asks for it in a
        thread of its own, because the run's thread looks only when responses or steps are complete.
        """
        with self._telling:
            if self._behind and time.monotonic() >= self._next_snapshot_s:
                self._look()

    @property
    def trace(self) -> Trace | None:
        """All complete steps and the kept part of a stopped step as one trace; None before anything is complete."""
        with self._changing:
            whole = [*self.traces, *([] if self.interrupted is None else [self.interrupted])]
        return joined(whole) if whole else None

    def status(self) -> RunStatus:
        """Return all that a view shows, of one moment: the thread of the run changes it meanwhile."""
        with self._changing:
            last = self.traces[-1] if self.traces else None
            seen = (last, self.interrupted, self.table, self.costs, self.snapshot, self.error)
            return RunStatus(self.state, self.phase, len(self.traces), self.steps.left(), *seen)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # it computes in this process: its state has ended, and it may still be drawing that
        try:
            while self.steps.left():
                self._enter(self.steps.next_step(), "starting")
                self._hold()
                done = self.steps.next()
                row, cost = row_of(done, self.steps.setting()), cost_of(done.allocations, done.spans, complete=True)
                with self._changing:
                    self.traces.append(done)
                    self.table = pd.concat([self.table, row], ignore_index=True)
                    self.costs, self.snapshot = (*self._complete_costs(), cost), None
                self._show(None)
            self._end("done")
        except RunStopped as error:
            self._end("stopped", self.steps.interrupted(error))
        except BaseException as error:  # shown where the run is looked at, as no cell waits for this thread
            self._end("failed", self.steps.interrupted(error), error)

    def _hold(self) -> None:
        """Wait while the run is paused; raise where it is stopped."""
        self._goes.wait()  # for the person who paused it, however long; ``stop`` wakes it, too
        if self._stops:
            raise RunStopped("stopped by the stop button")

    def _enter(self, step: int, name: str) -> None:
        """Note the phase, unless the step is in it already."""
        if self.phase is not None and (self.phase.step, self.phase.name) == (step, name):
            return
        if self._unshown is not None and self.on_change is not None:  # generation is over, and its end is not drawn yet
            self._take(self._unshown)
            self._behind = True
        same = self.phase is not None and self.phase.step == step
        responses = (self.phase.completed, self.phase.of) if self.phase is not None and same else (0, 0)
        self.phase = CurrentPhase(step, name, time.monotonic(), *responses)
        self._call("on_phase")

    def _watch(self, progress: StepProgress) -> None:
        if self.phase is None or self.phase.name == "starting":
            self._enter(progress.record.step, "generating")
        if self.phase is not None:
            self.phase = replace(self.phase, completed=progress.completed, of=progress.of)
        if progress.completed:  # before, there is no row of a trace
            self._show(progress)
        if self._stops or not getattr(self.steps, "decodes_on", False):
            self._hold()

    def _show(self, progress: StepProgress | None) -> None:
        """Take a snapshot and call ``on_change``, unless the last call is too recent to keep to ``SHARE``."""
        self._unshown, self._behind = progress, True
        if self.on_change is not None and time.monotonic() >= self._next_snapshot_s:  # waits for no drawing of others otherwise
            self._look(progress)

    def _look(self, progress: StepProgress | None = None) -> None:
        began = time.monotonic()
        self._notify(progress)
        self._next_snapshot_s = time.monotonic() + max(OFTEN_S, (time.monotonic() - began) / SHARE)

    def _end(self, state: str, interrupted: Trace | None = None, error: BaseException | None = None) -> None:
        kept = () if interrupted is None else (cost_of(interrupted.allocations, interrupted.spans, complete=False),)
        self._unshown = None
        with self._changing:
            self.state, self.phase, self.interrupted, self.error, self.snapshot = state, None, interrupted, error, None
            self.costs = (*self._complete_costs(), *kept)
        self._notify()

    def _notify(self, progress: StepProgress | None = None) -> None:
        """Call ``on_change``. A callback that fails is not called again, so it cannot break the run."""
        with self._telling:
            self._behind = False
            if progress is not None:
                self._take(progress)
            self._call("on_change")

    def _take(self, progress: StepProgress) -> None:
        self._unshown = None
        try:
            snapshot = snapshot_of(progress)
        except Exception:
            return self._failed("on_change")
        with self._changing:
            self.snapshot, self.costs = snapshot, (*self.costs, snapshot.cost)

    def _call(self, name: str) -> None:
        """Call a callback, if there is one."""
        try:
            if (callback := getattr(self, name)) is not None:
                callback()
        except Exception:
            self._failed(name)

    def _failed(self, name: str) -> None:
        setattr(self, name, None)
        logging.getLogger(__name__).exception("the live view failed and is no longer updated; the run continues")

    def _complete_costs(self) -> tuple[StepCost, ...]:
        return tuple(cost for cost in self.costs if cost.complete)


def snapshot_of(progress: StepProgress) -> ProgressSnapshot:
    """Return a running step as a trace that ends now: open spans are cut at this moment."""
    record, now_s = progress.record, progress.now_s
    spans = [{**row, "end_s": min(row["end_s"], now_s)} for row in progress.spans() if row["start_s"] < now_s]
    trace = Trace(
        rollout_rows(record), pd.DataFrame(progress.allocations()), pd.DataFrame(spans), pd.DataFrame(record.events),
        [{"step": record.step, **record.plan.to_dict()}],
    )  # fmt: skip
    cost = cost_of(trace.allocations, trace.spans, complete=False)
    return ProgressSnapshot(record.step, progress.completed, progress.of, now_s, trace, cost)


def cost_of(allocations: pd.DataFrame, spans: pd.DataFrame, *, complete: bool) -> StepCost:
    """Return what one step was billed; allocations and spans are those of its trace."""
    (billed_step,) = billed_steps(allocations, spans).itertuples()
    return StepCost(
        int(billed_step.step), float(allocations["start_s"].min()), float(allocations["end_s"].max()),
        float(billed_step.gpu_seconds), float(billed_step.idle_gpu_seconds), float(billed_step.cost_usd),
        int(billed_step.actors), complete,
    )  # fmt: skip


def row_of(done: Trace, setting: SimulationConfig) -> pd.DataFrame:
    """Return a complete step as one row of ``LiveRun.table``; the static schedule is simulated with the true lengths."""
    sums = step_metrics(done)
    generating = done.allocations[done.allocations["role"].isin(GENERATES)]
    gpu_s = (generating["end_s"] - generating["start_s"]) * generating["gpu_ids"].map(len)
    static_gpu_s, static_usd = static_costs(done, setting)
    kept = ["step", "time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd", "actors", "mean_reward", "mean_response_tokens"]
    return (
        sums[kept]
        .assign(
            generation_gpu_seconds=float(gpu_s.sum()),
            static_gpu_seconds=static_gpu_s,
            static_cost_usd=static_usd,
        )
        .merge(learning_numbers(done), how="left", on="step")
    )


def static_costs(done: Trace, setting: SimulationConfig) -> tuple[float, float]:
    """Return GPU-seconds and USD of the static schedule of a complete step. They are NaN where there is no static schedule:
    on a mixed cluster, as its actors are all alike, or where none fits. The meter then has no comparison, and the run
    continues. USD are NaN without a price, too."""
    if isinstance(setting.cluster, MixedCluster):
        return math.nan, math.nan
    logged = next(logged_steps(done.rollouts, max_response_tokens=setting.max_response_tokens))
    try:
        plan = make_policy("static").plan(*logged.inputs(setting, clairvoyant=True))
        gpu_s, usd = billed(run_step(plan, logged.requests(), SimulatedEngine, setting.latency, setting.cluster))
        return gpu_s, usd if setting.cluster.usd_per_gpu_hour > 0 else math.nan
    except PlanningError:
        return math.nan, math.nan


def billed(record: StepRecord) -> tuple[float, float]:
    """Return GPU-seconds and dollars of a step's allocations."""
    held = [(len(row["gpu_ids"]) * (row["end_s"] - row["start_s"]), row["usd_per_gpu_s"]) for row in record.allocations]
    return sum(gpu_s for gpu_s, _ in held), sum(gpu_s * usd for gpu_s, usd in held)


def joined(traces: Sequence[Trace]) -> Trace:
    """Return one trace with all steps of one run."""
    tables = {
        name: pd.concat(
            [table for trace in traces if len(table := getattr(trace, name))] or [pd.DataFrame()], ignore_index=True
        )
        for name in ("rollouts", "allocations", "spans", "events")
    }
    return Trace(**tables, plans=[plan for trace in traces for plan in trace.plans], meta=dict(traces[-1].meta))
