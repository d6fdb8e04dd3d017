"""Runs steps in a thread with run, pause and stop, and keeps the progress. ``live`` without its widgets.

Steps that a cell runs, as with ``Trainer.train`` or a loop over a trainer, are watched, too: its thread is not held, and no
button ends it.

A stop takes effect when the step next hears from its actors, like an interrupt: earlier steps are kept, and of the current
training step nothing has happened. A training step whose responses are all complete learns from them first, and is kept. A
pause holds a step on the virtual clock where it is. Actors of a pool continue to decode, so there a pause takes effect between
steps.

``on_change`` comes from one thread at a time. Watching has a budget: snapshots, the numbers of complete steps, drawing and the
phase together take at most ``SHARE`` of a processor, and ``AHEAD_S`` once. A view that has used its budget waits with the next
drawing until the budget covers what was used, also when a step is complete; what it has left out is in the next drawing. The
end of a run and the change of a state are always drawn: no step waits for the former, which counts, too, and a button is
pressed for the latter. A snapshot takes in the spans since the one before, hence it takes as long late in a step as early.
While the learner works, ``catch_up`` makes them, in the thread of a view. To note a phase takes no time, and ``on_phase`` must
not take any.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.step.progress import StepProgress
from rlhfless.scheduling import make_policy
from rlhfless.simulate import SimulationConfig, logged_steps
from rlhfless.trace import Trace, learning_numbers, step_metrics
from rlhfless.trace.clock import clock_of
from rlhfless.trace.metrics.growing_step import GrowingStep, Row, StepCost, StepSoFar, complete_step
from rlhfless.widgets.kernel_messages import handle_widget_messages
from rlhfless.widgets.live_steps import Steps
from solver.model.cluster import MixedCluster
from solver.model.errors import PlanningError

MOST_SNAPSHOTS = 100
SHARE, AHEAD_S, OFTEN_S = 0.015, 0.1, 0.5
"""The budget of a view as a share of a processor, and seconds that it may use in advance, as the first drawing makes layouts.
What its threads compute counts; most of the seconds around them are a busy learner's. A step shall take at most 2 % longer than
one that nobody watches; the rest is for what is not counted, such as reporting progress. Two drawings are at least ``OFTEN_S``
apart."""
AWAIT_S = 0.05  # between two looks of a cell that waits whether a button was pressed
GENERATES = ("decode", "prefill")
UNDER_WAY = ("running", "paused", "stopping")
STATES = ("ready", *UNDER_WAY, "stopped", "done", "failed")
WHEN_IT_STOPS = "it stops when it next hears from its actors, or after learning if all responses are complete"


class RunStopped(KeyboardInterrupt):
    """Raised in a run whose stop button was pressed; the current step ends as at an interrupt."""


@dataclass(frozen=True)
class CurrentPhase:
    """What a running step does.

    Attributes:
        step: its number. name: one of ``PHASES``, or ``BETWEEN_STEPS``. began_s: since when, by ``time.monotonic``.
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


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment, for a view: number of ``complete`` steps and of those ``left``, and what ``LiveRun`` has.

    Attributes:
        gpus: of the cluster.
        shown: the running step until now; between steps the last one, or what is kept of a stopped one; None before any.
    """

    state: str
    phase: CurrentPhase | None
    elsewhere: bool
    complete: int
    left: int
    shown: StepSoFar | None
    table: pd.DataFrame
    costs: Sequence[StepCost]
    error: BaseException | None
    gpus: int


class LiveRun:
    """Runs steps in a thread of its own; ``run``, ``pause`` and ``stop`` control it.

    Args:
        steps: the steps to run (``steps_of`` makes them from a trainer or an executor).

    Attributes:
        state: one of ``STATES``.
        phase: of the running step; None where nothing runs.
        traces: of every step that is complete.
        interrupted: what was done of a stopped step of an executor, until it is run again.
        table: one row per complete step: ``step, time_s, gpu_seconds, idle_gpu_seconds, cost_usd, actors, reward_mean,
            response_tokens_mean``, and of generation alone ``generation_gpu_seconds, static_gpu_seconds, static_cost_usd``, the
            last two NaN where there is no static schedule. Dollars are NaN where a GPU has no price. Then the columns of
            ``learning_numbers``. ``attrs["clock"]`` is the clock of its times.
        costs: what every complete step was billed, then the running step at its snapshots, evenly and at most
            ``MOST_SNAPSHOTS`` of them, or what is kept of a stopped one.
        snapshot: the running step until now, or None. error: the error that ended the run, or None.
        elsewhere: whether another thread runs the steps, such as a cell that calls ``Trainer.train``.
        on_change: called after every change, by one thread at a time; it may draw. It is set to None once it fails.
        view_error: why a callback failed, or the numbers that it shows; None before that.
        on_phase: called when the phase has changed, by the run's thread, which waits for it. It is set to None once it fails.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps, self.state = steps, "ready"
        self._gpus = steps.setting().cluster.gpus
        self.phase: CurrentPhase | None = None
        self.traces: list[Trace] = []
        self.costs: tuple[StepCost, ...] = ()
        self.interrupted: Trace | None = None
        self.table = pd.DataFrame()
        self.snapshot: StepSoFar | None = None
        self.elsewhere = False
        self.error: BaseException | None = None
        self.view_error: Exception | None = None
        self.on_change: Callable[[], object] | None = None
        self.on_phase: Callable[[], object] | None = None
        self._goes = threading.Event()
        self._stops = False
        self._thread: threading.Thread | None = None
        # All locks can be taken again: a loop's generator may be collected, and so end the run, while its thread holds one.
        self._changing = threading.RLock()  # buttons and the run's thread change what ``status`` reads one after the other
        self._telling = threading.RLock()  # and tell of it so, hence the last one that is told shows the newest
        self._charging = threading.RLock()
        self._next_snapshot_s = 0.0  # from when on a look may be made
        self._charged_s, self._owed_s = time.monotonic(), 0.0  # when the view was last charged; what it took beyond its share
        self._growing: GrowingStep | None = None  # of the running step
        self._working: GrowingStep | None = None  # of the same step, its work beside decoding
        self._record: StepRecord | None = None  # of which it is
        self._generated: StepRecord | None = None  # of which it has all of generation
        self._ended: StepSoFar | None = None  # the last step that is complete or was ended
        self._unshown: StepProgress | None = None  # the newest, where it came too soon after a look
        self._behind = False  # something has changed since the last look
        steps.on_progress, steps.on_phase, steps.on_step_end = self._watch, self._enter, self._step_ended
        steps.on_end = self._call_ended

    # --- buttons ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start, or continue after a pause or a stop. Does nothing where it runs or stops already, or no step is left."""
        with self._changing:
            if self.state == "paused":
                self.state = "running"
            elif self.state not in UNDER_WAY and self.steps.left():
                self._stops, self.error, self.interrupted = False, None, None  # a step that was ended is run again, whole
                self.elsewhere = False
                self._next_snapshot_s = max(self._next_snapshot_s, time.monotonic() + OFTEN_S)
                self.state = "running"
                self._thread = threading.Thread(target=self._run, args=(self._thread,), name="rlhfless-live", daemon=True)
                self._thread.start()
            else:
                return
            self._goes.set()
        self._notify()

    def pause(self) -> None:
        """Pause the run; ``run`` continues it. Does nothing where it does not run, or another thread runs the steps."""
        with self._changing:
            if self.state != "running" or self.elsewhere:
                return
            self._goes.clear()
            self.state = "paused"
        self._notify()

    def request_stop(self) -> None:
        """Let the run end, and return at once; until then the state is ``stopping``. Does nothing where nothing runs, or where
        another thread runs the steps.
        """
        with self._changing:
            if self.state not in ("running", "paused") or self.elsewhere:
                return
            self._stops = True
            self.state = "stopping"
            self._goes.set()
        self._notify()

    def stop(self, timeout_s: float | None = 60.0) -> None:
        """End the run and wait until it has ended: during the current step, or after it where only learning is left. After the
        last step the state is ``done``, not ``stopped``.

        Raises:
            TimeoutError: it has not ended in time; it ends when it next hears from its actors, or when the step is done.
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
        thread of its own, because the run's thread looks only when it hears of the actors. While the learner works, this takes
        the snapshots of it.
        """
        with self._telling:
            if time.monotonic() < self._next_snapshot_s:
                return
            began = time.thread_time()
            learns = self.on_change is not None and self._take_learning()
            if self._behind or learns:
                self._look(began=began)

    def charge(self, seconds: float) -> None:
        """Count seconds that watching has computed: the next drawing waits until the view's share of the time covers them."""
        with self._charging:
            now_s = time.monotonic()
            self._owed_s = max(0.0, self._owed_s - SHARE * (now_s - self._charged_s)) + seconds
            self._charged_s = now_s
            self._next_snapshot_s = max(self._next_snapshot_s, now_s + (self._owed_s - AHEAD_S) / SHARE)

    @contextmanager
    def _charged(self) -> Iterator[None]:
        """Charge what this thread computes in the context."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.charge(time.thread_time() - began)

    @property
    def trace(self) -> Trace | None:
        """All complete steps and the kept part of a stopped step as one trace; None before anything is complete."""
        with self._changing:
            whole = [*self.traces, *([] if self.interrupted is None else [self.interrupted])]
        return joined(whole) if whole else None

    def status(self) -> RunStatus:
        """Return all that a view shows, of one moment: the thread of the run changes it meanwhile."""
        with self._changing:
            shown = self._ended if self.snapshot is None else self.snapshot
            seen = (shown, self.table, self.costs, self.error, self._gpus)
            return RunStatus(self.state, self.phase, self.elsewhere, len(self.traces), self.steps.left(), *seen)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # it computes in this process: its state has ended, and it may still be drawing that
        try:
            while self.steps.left():
                self._enter(self.steps.next_step(), "starting")
                self._hold()
                self.steps.next()
            self._end("done")
        except RunStopped as error:
            self._end("stopped", self.steps.interrupted(error))
        except BaseException as error:  # shown where the run is looked at, as no cell waits for this thread
            self._end("failed", self.steps.interrupted(error), error)

    def _step_ended(self, result: Any) -> None:
        """Note that a step is complete. How a run of this thread ends is noted where it ends, that of another thread here."""
        try:
            if not isinstance(result, BaseException):
                with self._charged():
                    self._complete(result.trace)
                self._look_if_due()
        except Exception as error:
            self._failed("on_change", error)
        try:
            if self._in_own_thread() or (not isinstance(result, BaseException) and self.steps.goes_on()):
                return
            self.elsewhere = False
            if not isinstance(result, BaseException):
                self._end("ready" if self.steps.left() else "done")
            elif isinstance(result, KeyboardInterrupt):
                self._end("stopped", self.steps.interrupted(result))
            else:
                self._end("failed", self.steps.interrupted(result), result)
        except Exception as error:
            self._failed("on_change", error)

    def _call_ended(self) -> None:
        """Note that a cell runs no further step."""
        if self.elsewhere:  # else a step has ended the run, and was told of
            self.elsewhere = False
            self._end("ready" if self.steps.left() else "done")

    def _complete(self, done: Trace) -> None:
        try:
            sums = step_metrics(done)
            row, ended = row_of(done, sums, self.steps.setting()), complete_step(done, sums)
        except Exception:
            with self._changing:
                self.traces.append(done)  # the step is kept, whatever its view meets
            raise
        with self._changing:
            self.traces.append(done)
            self.table = pd.concat([self.table, row], ignore_index=True)
            self.table.attrs["clock"] = clock_of(done.meta)
            self.costs, self.snapshot, self._ended = (*self._complete_costs(), ended.cost), None, ended
            self._growing = None
        self._unshown, self._behind = None, True

    def _in_own_thread(self) -> bool:
        return self._thread is threading.current_thread()

    def _hold(self) -> None:
        """Wait while the run is paused; raise where it is stopped."""
        self._goes.wait()  # for the person who paused it, however long; ``stop`` wakes it, too
        if self._stops:
            raise RunStopped("stopped by the stop button")

    def _enter(self, step: int, name: str) -> None:
        """Note the phase, unless the step is in it already."""
        if self.phase is not None and (self.phase.step, self.phase.name) == (step, name):
            return
        if self.on_change is not None:
            with self._charged():
                if self._unshown is not None:  # generation is over, and its end is not drawn yet
                    self._take(self._unshown)
                self._take_generated()
        same = self.phase is not None and self.phase.step == step
        responses = (self.phase.completed, self.phase.of) if self.phase is not None and same else (0, 0)
        began = self.phase is None and not self._in_own_thread()
        with self._changing:
            self.phase = CurrentPhase(step, name, time.monotonic(), *responses)
            if not same:
                self._growing = self.snapshot = None
            if began:
                self.state, self.elsewhere, self.error, self.interrupted = "running", True, None, None
        if began:
            self._notify()
        self._call("on_phase")

    def _watch(self, progress: StepProgress) -> None:
        if self.phase is None or self.phase.step != progress.record.step or self.phase.name == "starting":
            self._enter(progress.record.step, "generating")
        if self.phase is not None:
            self.phase = replace(self.phase, completed=progress.completed, of=progress.of)
        self._show(progress)
        if self._in_own_thread() and (self._stops or not self.steps.decodes_on):
            self._hold()

    def _show(self, progress: StepProgress) -> None:
        """Take a snapshot and call ``on_change``, unless the last call is too recent or the budget is used."""
        self._unshown, self._behind = progress, True
        self._look_if_due(progress)

    def _look_if_due(self, progress: StepProgress | None = None) -> None:
        if self.on_change is not None and time.monotonic() >= self._next_snapshot_s:  # waits for no drawing of others otherwise
            self._look(progress)

    def _look(self, progress: StepProgress | None = None, began: float | None = None) -> None:
        with self._telling:
            began = time.thread_time() if began is None else began
            self._notify(progress)
            self.charge(time.thread_time() - began)
            with self._charging:
                self._next_snapshot_s = max(self._next_snapshot_s, time.monotonic() + OFTEN_S)

    def _end(self, state: str, interrupted: Trace | None = None, error: BaseException | None = None) -> None:
        with self._charged():
            kept = None if interrupted is None else complete_step(interrupted, complete=False)
            self._unshown = None
            with self._changing:
                self.state, self.phase, self.interrupted, self.error, self.snapshot = state, None, interrupted, error, None
                self._growing = None
                self.costs = (*self._complete_costs(), *([] if kept is None else [kept.cost]))
                self._ended = kept or self._ended
            self._notify()

    def _notify(self, progress: StepProgress | None = None) -> None:
        """Call ``on_change``. A callback that fails is not called again, so it cannot break the run."""
        with self._telling:
            self._behind = False
            if progress is not None:
                self._take(progress)
            self._call("on_change")

    def _take(self, progress: StepProgress) -> None:
        """Take a snapshot; the thread that reports the progress does, as the record grows in it."""
        self._unshown = None
        try:
            record, grown = progress.record, self._growing
            if grown is None:
                grown = GrowingStep(record.start_s, record.plan.to_dict())
            grown.take(record.spans)
            if self._growing is None or self._working is None:
                self._working = GrowingStep(record.start_s)
            self._working.take(progress.work.spans)
            self._record = record
            responses = (progress.completed, progress.of)
            self._keep(grown, record, progress.allocations(), responses, progress.now_s, self._working)
        except Exception as error:
            self._failed("on_change", error)

    def _take_generated(self) -> None:
        """Take in the spans with which generation ended; their times are new where they were measured afterwards."""
        try:
            record, grown = self.steps.generated(), self._growing
            if record is None or record is self._generated or self.snapshot is None or grown is None:
                return
            if record is not self._record:
                grown = GrowingStep(record.start_s, record.plan.to_dict())
            grown.take(record.spans)
            self._generated = record
            self._keep(grown, record, record.allocations, (self.snapshot.completed, self.snapshot.of), record.end_s)
        except Exception as error:
            self._failed("on_change", error)

    def _take_learning(self) -> bool:
        """Take a snapshot of a step that learns; returns whether it does."""
        try:
            grown, before, record = self._growing, self.snapshot, self.steps.learning()
            if grown is None or before is None or record is None:
                return False
            further = GrowingStep(record.start_s)
            further.take(record.spans)
            self._keep(grown, record, record.allocations, (before.completed, before.of), record.end_s, further)
        except Exception as error:
            self._failed("on_change", error)
        return True

    def _keep(
        self,
        grown: GrowingStep,
        record: StepRecord,
        allocations: Sequence[Row],
        responses: tuple[int, int],
        now_s: float,
        further: GrowingStep | None = None,
    ) -> None:
        """Keep a snapshot of the step; see ``GrowingStep.so_far``."""
        now = grown.so_far(
            record.step, allocations, responses=responses, now_s=now_s, events=record.events, meta=record.meta, further=further
        )
        with self._changing:
            if self.phase is None or self.phase.step != now.step:  # the step has ended meanwhile
                return
            whole, running = self._complete_costs(), [cost for cost in self.costs if not cost.complete]
            if len(running) >= MOST_SNAPSHOTS:
                running = running[1::2]
            self._growing, self.snapshot, self.costs = grown, now, (*whole, *running, now.cost)
            self._behind = True

    def _call(self, name: str) -> None:
        """Call a callback, if there is one."""
        try:
            if (callback := getattr(self, name)) is not None:
                callback()
        except Exception as error:
            self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        setattr(self, name, None)
        self.view_error = error
        logging.getLogger(__name__).exception("the live view failed and is no longer updated; the run continues")

    def _complete_costs(self) -> tuple[StepCost, ...]:
        return tuple(cost for cost in self.costs if cost.complete)


def row_of(done: Trace, sums: pd.DataFrame, setting: SimulationConfig) -> pd.DataFrame:
    """Return a complete step as one row of ``LiveRun.table``; the static schedule is simulated with the true lengths.

    Args:
        sums: the step's row of ``step_metrics``.
    """
    generating = done.allocations[done.allocations["role"].isin(GENERATES)]
    gpu_s = (generating["end_s"] - generating["start_s"]) * generating["gpu_ids"].map(len)
    static_gpu_s, static_usd = static_costs(done, setting)
    kept = ["step", "time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd", "actors", "reward_mean", "response_tokens_mean"]
    learned = learning_numbers(done).set_index("step").loc[int(sums["step"].iloc[0])].to_dict()
    generation = {
        "generation_gpu_seconds": float(gpu_s.sum()),
        "static_gpu_seconds": static_gpu_s,
        "static_cost_usd": static_usd,
    }
    return sums[kept].assign(**generation, **learned)


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
