"""A run that is driven by buttons: run, pause, stop, and what is known of it at any moment. ``live`` without its widgets.

Knows steps under way and how to end them; nothing of widgets or figures. Steps run in a thread. A stop takes effect where
completed responses are told next, as an interrupt would: the steps before it stand, and of a training run nothing else has
happened. A training step whose responses are all complete learns from them first, and stands. A pause holds a step where it is
on the virtual clock; actors of a pool decode on, so there it takes effect between steps. Whoever
looks is told by one thread at a time: while it runs, so seldom that looks and drawings take about ``SHARE`` of the time between
them. Not limited, because they come once per step or button, are the row of ``table`` and the look after a change of state.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.executor.step.progress import StepProgress
from rlhfless.scheduling import make_policy
from rlhfless.simulate import SimulationConfig, logged_steps
from rlhfless.trace import Trace, step_metrics
from rlhfless.widgets.live_steps import Steps, rollout_rows_of
from rlhfless.widgets.what_if import billed
from solver.model.cluster import MixedCluster
from solver.model.errors import PlanningError

SHARE, OFTEN_S = 0.01, 0.5
"""After a look that took t seconds the next one comes no sooner than t / SHARE, and OFTEN_S, later."""
GENERATES = ("decode", "prefill")
UNDER_WAY = ("running", "paused")
STATES = ("ready", *UNDER_WAY, "stopped", "done", "failed")


class RunStopped(KeyboardInterrupt):
    """The run was stopped by its button; what was under way ends as at an interrupt."""


@dataclass(frozen=True)
class ProgressSnapshot:
    """A step under way: how many responses are complete, and its trace as if it ended now."""

    step: int
    completed: int
    of: int
    now_s: float
    trace: Trace


class LiveRun:
    """A run with a thread of its own.

    Args:
        steps: what is run (``steps_of`` makes one of a trainer or an executor).

    Attributes:
        state: one of ``STATES``.
        traces: of every step that is complete. rest: what was done of a stopped step of an executor, until it is run again.
        table: one row per complete step: ``step, time_s, gpu_seconds, idle_gpu_seconds, cost_usd, actors, mean_reward,
            mean_response_tokens``, and of generation alone ``generation_gpu_seconds, static_gpu_seconds, static_cost_usd``, the
            last two not a number where there is no static schedule.
        look: at the step under way, or None. error: what made it fail, or None.
        on_change: called whenever something changed, by one thread at a time; it may draw. Once it fails it is None.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps, self.state = steps, "ready"
        self.traces: list[Trace] = []
        self.rest: Trace | None = None
        self.table = pd.DataFrame()
        self.look: ProgressSnapshot | None = None
        self.error: BaseException | None = None
        self.on_change: Callable[[], object] | None = None
        self._goes = threading.Event()
        self._stops = False
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()  # buttons and the run's thread decide on the state one after the other
        self._telling = threading.RLock()  # and tell of it so, hence the last one that is told shows the newest
        self._next_look = 0.0
        steps.watch = self._watch

    # --- buttons ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start, or go on after a pause or a stop. Nothing happens where it runs already or no step is left."""
        with self._changing:
            if self.state in UNDER_WAY:
                self.state = "running"
            elif self.steps.left():
                self._stops, self.error, self.rest = False, None, None  # a step that was ended is run again, whole
                self._next_look = time.monotonic() + OFTEN_S
                self.state = "running"
                self._thread = threading.Thread(target=self._run, args=(self._thread,), name="rlhfless-live", daemon=True)
                self._thread.start()
            else:
                return
            self._goes.set()
        self._tell()

    def pause(self) -> None:
        """Hold the run; ``run`` goes on. Nothing happens where it does not run."""
        with self._changing:
            if self.state != "running":
                return
            self._goes.clear()
            self.state = "paused"
        self._tell()

    def stop(self, timeout_s: float | None = 60.0) -> None:
        """End the run and wait until it has ended: within the step under way, or after it where it only learns any more. After
        the last step it is ``done``, not ``stopped``.

        Raises:
            TimeoutError: it has not ended in time; it does where completed responses are told next, or when the step is done.
        """
        self._stops = True
        self._goes.set()
        if not self.wait(timeout_s):
            raise TimeoutError(
                f"the step under way did not end within {timeout_s} s; it ends when its next responses are complete, "
                "or once it has learned where all of them are"
            )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing runs; whether that was so in time."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    @property
    def trace(self) -> Trace | None:
        """Everything that stands, as one trace; None before any step is complete or was ended with something complete."""
        whole = [*self.traces, *([] if self.rest is None else [self.rest])]
        return joined(whole) if whole else None

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # its state has ended, and it may still be drawing that
        try:
            while self.steps.left():
                self._hold()
                done = self.steps.next()
                self.traces.append(done)
                self.table = pd.concat([self.table, row_of(done, self.steps.setting())], ignore_index=True)
                self.look = None
                self._show(None)
            self._end("done")
        except RunStopped as error:
            self._keep_rest(error)
            self._end("stopped")
        except BaseException as error:  # shown where the run is looked at, as no cell waits for this thread
            self.error = error
            self._keep_rest(error)
            self._end("failed")

    def _keep_rest(self, error: BaseException) -> None:
        self.rest = self.steps.interrupted(error)
        self.look = None

    def _hold(self) -> None:
        """Wait while the run is paused; raise where it is stopped."""
        self._goes.wait()
        if self._stops:
            raise RunStopped("stopped by its button")

    def _watch(self, progress: StepProgress) -> None:
        self._show(progress)
        if self._stops or not getattr(self.steps, "decodes_on", False):
            self._hold()

    def _show(self, progress: StepProgress | None) -> None:
        """Have the run looked at, unless that was so recently that it would cost too much."""
        now = time.monotonic()
        if self.on_change is not None and now >= self._next_look:
            self._tell(progress)
            self._next_look = time.monotonic() + max(OFTEN_S, (time.monotonic() - now) / SHARE)

    def _end(self, state: str) -> None:
        with self._changing:
            self.state = state
        self._tell()

    def _tell(self, progress: StepProgress | None = None) -> None:
        """Have the run looked at. A view that fails stands still from then on: it cannot break what it shows."""
        with self._telling:
            if self.on_change is None:
                return
            try:
                if progress is not None:
                    self.look = look_of(progress)
                self.on_change()
            except Exception:
                self.on_change = None
                logging.getLogger(__name__).exception("the view of a run failed and stands still; the run goes on")


def look_of(progress: StepProgress) -> ProgressSnapshot:
    """A step under way as a trace that could end now: spans are cut at that moment."""
    record, now_s = progress.record, progress.now_s
    spans = [{**row, "end_s": min(row["end_s"], now_s)} for row in progress.spans() if row["start_s"] < now_s]
    trace = Trace(
        rollout_rows_of(record), pd.DataFrame(progress.allocations()), pd.DataFrame(spans), pd.DataFrame(record.events),
        [{"step": record.step, **record.plan.to_dict()}],
    )  # fmt: skip
    return ProgressSnapshot(record.step, progress.completed, progress.of, now_s, trace)


def row_of(done: Trace, setting: SimulationConfig) -> pd.DataFrame:
    """A complete step in one row of ``LiveRun.table``; the static schedule is simulated with the lengths that came out."""
    sums = step_metrics(done)
    own = done.allocations[done.allocations["role"].isin(GENERATES)]
    gpu_s = (own["end_s"] - own["start_s"]) * own["gpu_ids"].map(len)
    static_gpu_s, static_usd = static_costs(done, setting)
    kept = ["step", "time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd", "actors", "mean_reward", "mean_response_tokens"]
    return sums[kept].assign(
        generation_gpu_seconds=float(gpu_s.sum()),
        static_gpu_seconds=static_gpu_s,
        static_cost_usd=static_usd,
    )


def static_costs(done: Trace, setting: SimulationConfig) -> tuple[float, float]:
    """GPU-seconds and USD of the static schedule of a complete step. Not a number where there is none, as its actors are all
    alike: on a mixed cluster, or where none fits. The meter has nothing to compare with then, and the run goes on."""
    if isinstance(setting.cluster, MixedCluster):
        return math.nan, math.nan
    logged = next(logged_steps(done.rollouts, response_limit=setting.response_limit))
    try:
        plan = make_policy("static").plan(logged.given(setting, clairvoyant=True))
        return billed(run_step(plan, logged.requests(), SimulatedEngine, setting.latency, setting.cluster))
    except PlanningError:
        return math.nan, math.nan


def joined(traces: Sequence[Trace]) -> Trace:
    """The steps of one run as one trace."""
    tables = {
        name: pd.concat([one for trace in traces if len(one := getattr(trace, name))] or [pd.DataFrame()], ignore_index=True)
        for name in ("rollouts", "allocations", "spans", "events")
    }
    return Trace(**tables, plans=[plan for trace in traces for plan in trace.plans], meta=dict(traces[-1].meta))
