"""A run that is driven by buttons: it pauses, goes on and stops where it should, and its trace is whole at any moment."""

from __future__ import annotations

import io
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from error_messages import refused
from executor_samples import plan_of, run, uniform_step
from many_spans import many_spans

import solver
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.errors import InputTypeError
from rlhfless.executor import Executor, StepFailed, StepRecord, requests
from rlhfless.executor.step.actor_state import Actor
from rlhfless.executor.step.progress import StepProgress
from rlhfless.latency import load_profile
from rlhfless.plots import cost_over_time
from rlhfless.trace import step_metrics
from rlhfless.widgets import LiveRun, live, live_view, print_phases, steps_of
from rlhfless.widgets import live_run as live_run_module
from solver import GpuPool, LatencyModel, MixedCluster
from solver.model.errors import PlanningError
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem

STEP = uniform_step([2, 5, 9, 14, 20])
PLAN = plan_of([[0, 1], [2, 3], [4]])
WORK: list[tuple[Plan, list[Request]]] = [(PLAN, STEP.requests()) for _ in range(3)]


def executor(**cluster: Any) -> Executor:
    return Executor(SimulatedEngine, replace(STEP.cluster, **cluster), latency=STEP.latency)


def wait_until(so: Callable[[], object]) -> None:
    """Wait until that is so."""
    until = time.monotonic() + 300
    while not so():
        assert time.monotonic() < until
        time.sleep(0.005)


def card(panes: Any, name: str, pane: str = "facts") -> str:
    """What a card says."""
    html = getattr(panes, f"pane_{pane}")
    assert f"<span>{name}</span><b>" in html, html
    return str(html.split(f"<span>{name}</span><b>")[1].split("</b>")[0])


class Gate:
    """Holds a run at its n-th look with completions until it is opened."""

    def __init__(self, run: LiveRun, at: int) -> None:
        self.run, self.left, self.reached, self.opened = run, at, threading.Event(), threading.Event()
        inner = run.steps.on_progress
        assert inner is not None

        def on_progress(progress: StepProgress) -> None:
            self.left -= bool(progress.completed)
            if self.left == 0 and not self.reached.is_set():
                self.reached.set()
                assert self.opened.wait(300)
            inner(progress)

        run.steps.on_progress = on_progress

    def open_for_a_stop(self) -> None:
        """Open it once the run was told to stop."""

        def watch() -> None:
            while not self.run._stops:
                time.sleep(0.002)
            self.opened.set()

        threading.Thread(target=watch, daemon=True).start()


def test_all_steps_run_and_are_one_trace_with_their_numbers() -> None:
    live_run = LiveRun(steps_of(executor(), WORK))
    live_run.run()
    assert live_run.wait(300)
    assert (live_run.state, live_run.error) == ("done", None)
    assert live_run.trace is not None
    assert live_run.trace.steps == [0, 1, 2]
    assert len(live_run.trace.rollouts) == 15
    assert live_run.table["step"].tolist() == [0, 1, 2]
    alone = run(STEP, PLAN)
    held = sum(row["end_s"] - row["start_s"] for row in alone.allocations)
    assert live_run.table["generation_gpu_seconds"].tolist() == pytest.approx([held] * 3)
    assert (live_run.table["static_gpu_seconds"] > 0).all()


def test_a_run_that_is_watched_leaves_the_trace_of_one_that_is_not() -> None:
    looks: list[tuple[int, int]] = []

    def on_progress(progress: StepProgress) -> None:
        progress.allocations()
        assert progress.record.spans or not progress.completed
        looks.append((progress.completed, progress.of))

    with executor() as watched:
        watched.on_progress = on_progress
        seen = watched.run(PLAN, STEP.requests())
    alone = run(STEP, PLAN)
    assert looks[-1] == (5, 5)
    assert [one[0] for one in looks] == sorted(one[0] for one in looks)
    assert seen.allocations == alone.allocations
    spans = [pd.DataFrame(one.spans).drop(columns=["detail", "kv_tokens"]) for one in (seen, alone)]
    pd.testing.assert_frame_equal(*(one.sort_values(["holder", "start_s"], ignore_index=True) for one in spans))


def test_what_is_seen_of_a_step_ends_now_and_grows() -> None:
    live_run = LiveRun(steps_of(executor(), WORK[:1]))
    seen: list[Any] = []
    live_run.on_change = lambda: seen.append(live_run.snapshot)
    inner = live_run.steps.on_progress
    assert inner is not None

    def every(progress: StepProgress) -> None:
        live_run._next_snapshot_s = 0.0
        inner(progress)

    live_run.steps.on_progress = every
    live_run.run()
    assert live_run.wait(300)
    looks = [one for one in seen if one is not None]
    assert [one.completed for one in looks] == [0, 1, 2, 3, 4, 5]
    for one in looks:
        assert one.of == 5
        assert max(held.end_s for held in one.held) == pytest.approx(one.now_s)
        assert max([bar.start_s + bar.busy_s for bar in one.bars], default=0.0) <= one.now_s + 1e-9
    for name in ("gpu_seconds", "idle_gpu_seconds", "end_s"):
        values = [getattr(one.cost, name) for one in looks]
        assert values == sorted(values)
    (whole,) = live_run.costs
    last = looks[-1].cost
    assert (last.gpu_seconds, last.idle_gpu_seconds) == pytest.approx((whole.gpu_seconds, whole.idle_gpu_seconds), rel=1e-12)
    assert live_run.snapshot is None


def test_a_pause_holds_the_step_and_a_run_goes_on() -> None:
    live_run = LiveRun(steps_of(executor(), WORK[:2]))
    gate = Gate(live_run, at=2)
    live_run.run()
    assert gate.reached.wait(300)
    live_run.pause()
    gate.opened.set()
    assert live_run.state == "paused"
    assert not live_run.wait(0.3)
    assert live_run.traces == []
    live_run.run()
    assert live_run.wait(300)
    assert live_run.state == "done"
    assert len(live_run.traces) == 2


def test_a_stop_ends_the_step_leaves_a_whole_trace_and_a_run_takes_the_step_up_anew() -> None:
    live_run = LiveRun(steps_of(executor(), WORK[:2]))
    gate = Gate(live_run, at=7)  # the second completion of the second step
    live_run.run()
    assert gate.reached.wait(300)
    gate.open_for_a_stop()
    live_run.stop(300)
    assert live_run.state == "stopped"
    stopped = live_run.trace
    assert stopped is not None
    assert stopped.steps == [0, 1]
    assert len(stopped.rollouts) == 5 + 2, "what was complete stands"
    assert live_run.steps.left() == 1
    live_run.run()
    assert live_run.wait(300)
    assert live_run.state == "done"
    assert live_run.table["step"].tolist() == [0, 1]
    whole = live_run.trace
    assert whole is not None
    assert len(whole.rollouts) == 10, "the step that was stopped is there once, and whole"


def test_a_step_that_no_static_schedule_fits_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise PlanningError("too few GPUs")

    monkeypatch.setattr("rlhfless.widgets.live_run.make_policy", refuses)
    view = live(executor(), WORK[:2])
    live_run = view.run
    assert "<b>after the first step</b>" in view.panes.pane_facts
    live_run.run()
    assert live_run.wait(300)
    assert live_run.state == "done"
    assert live_run.table["static_cost_usd"].isna().all()
    assert "<span>generation GPU-seconds relative to static</span><b>unknown</b>" in view.panes.pane_facts
    assert (live_run.table["gpu_seconds"] > 0).all()


def test_a_run_on_a_mixed_cluster_has_no_static_schedule_to_compare_with() -> None:
    latency = LatencyModel("mixed", 1, 0.1, 0.0)
    cluster = MixedCluster([GpuPool("slow", 1, 2), GpuPool("fast", 1, 2)])
    plan = solver.plan(PlanningProblem(STEP.truth, cluster, {("slow", 1): latency, ("fast", 1): latency}))
    view = live(
        Executor(SimulatedEngine, cluster, latency={("slow", 1): latency, ("fast", 1): latency}), [(plan, STEP.requests())] * 2
    )
    view.run.run()
    assert view.run.wait(300)
    assert (view.run.state, view.run.error) == ("done", None)
    assert view.run.table[["static_gpu_seconds", "static_cost_usd"]].isna().all(axis=None)
    assert (view.run.table["generation_gpu_seconds"] > 0).all()
    assert "<span>generation GPU-seconds relative to static</span><b>unknown</b>" in view.panes.pane_facts


def test_a_paused_run_can_be_stopped() -> None:
    live_run = LiveRun(steps_of(executor(), WORK))
    gate = Gate(live_run, at=1)
    live_run.run()
    assert gate.reached.wait(300)
    live_run.pause()
    gate.opened.set()
    live_run.stop(300)
    assert live_run.state == "stopped"


def test_a_failure_is_reported_and_what_was_done_stands() -> None:
    def broken() -> Any:
        raise RuntimeError("no engine today")

    live_run = LiveRun(steps_of(executor(), WORK))
    live_run.steps.next = broken  # type: ignore[method-assign]
    live_run.run()
    assert live_run.wait(300)
    assert live_run.state == "failed"
    assert str(live_run.error) == "no engine today"


def test_a_run_that_is_taken_up_while_its_end_is_drawn_runs() -> None:
    def fails_once() -> Any:
        live_run.steps.next = following  # type: ignore[method-assign]
        raise RuntimeError("no engine today")

    def press() -> None:
        live_run.run()
        pressed.set()

    def draw() -> None:  # in the thread that failed: it ends only after the button was pressed
        seen.append(live_run.state)
        if live_run.state == "failed":
            button.start()
            while live_run.state == "failed":
                assert not pressed.wait(0.01), "the button is told of the new state"

    live_run = LiveRun(steps_of(executor(), WORK[:2]))
    following, live_run.steps.next = live_run.steps.next, fails_once  # type: ignore[method-assign]
    live_run.on_change = draw
    seen: list[str] = []
    pressed, button = threading.Event(), threading.Thread(target=press)
    live_run.run()
    assert pressed.wait(300)
    assert live_run.wait(300)
    assert (live_run.state, live_run.error, len(live_run.traces)) == ("done", None, 2)
    assert seen[-1] == "done"
    live_run.pause()
    assert live_run.state == "done", "nothing runs that could be held"


class Clocks:
    """Both clocks that looks are paced by: of the wall, and of what a thread has computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.computed_s = 0.0
        monkeypatch.setattr("rlhfless.widgets.live_run.time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("rlhfless.widgets.live_run.time.thread_time", lambda: self.computed_s)


def drawn_at(clocks: Clocks, computed_s: float, waited_s: float = 0.0) -> list[float]:
    """When a step of 60 s is drawn that reports every 0.1 s; a drawing computes and waits for so long."""
    live_run = LiveRun(steps_of(executor(), WORK[:1]))
    drawn: list[float] = []

    def draw() -> None:
        if live_run.snapshot is not None:
            drawn.append(clocks.now_s)
            clocks.now_s += computed_s + waited_s
            clocks.computed_s += computed_s

    live_run.on_change = draw
    inner = live_run.steps.on_progress
    assert inner is not None

    def on_progress(progress: StepProgress) -> None:
        for _ in range(100):
            inner(progress)
            clocks.now_s += 0.1

    live_run.steps.on_progress = on_progress
    live_run.run()
    assert live_run.wait(300)
    return drawn


def test_looks_are_so_seldom_that_they_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = drawn_at(Clocks(monkeypatch), computed_s=0.025)
    budget_s = live_run_module.AHEAD_S + live_run_module.SHARE * (60 + len(drawn) * 0.025)
    assert 12 < len(drawn) <= 1 + budget_s / 0.025, "60 s, of which looks of 0.025 s get a share, and some seconds ahead"


def test_what_others_compute_during_a_look_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that keeps the processors busy makes looks wait."""
    drawn = drawn_at(Clocks(monkeypatch), computed_s=0.001, waited_s=0.5)
    assert max(after - before for before, after in itertools.pairwise(drawn)) < 1.2


def test_a_drawing_that_costs_much_is_paid_for_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = drawn_at(Clocks(monkeypatch), computed_s=0.3)
    gaps = [after - before for before, after in itertools.pairwise(drawn)]
    assert 1 < len(drawn) <= 1 + (live_run_module.AHEAD_S + live_run_module.SHARE * 63) / 0.3
    assert min(gaps) >= (0.3 - live_run_module.AHEAD_S) / live_run_module.SHARE - 1e-9


class Watched:
    """A run of many steps whose every drawing computes for so long, on clocks that only this test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: int, step_s: float, computed_s: float) -> None:
        self.clocks, self.drawn = Clocks(monkeypatch), list[tuple[str, int]]()
        self.view = live(executor(), WORK[:1] * steps)
        refresh, inner = self.view.refresh, self.view.run.steps.on_progress
        assert inner is not None

        def draw() -> None:
            refresh()
            self.clocks.computed_s += computed_s
            timeline = json.loads(self.view.panes.pane_timeline)["layout"]["title"]["text"]
            step = int(timeline.split("of step ")[1].split("<")[0]) if "of step" in timeline else -1
            self.drawn.append((card(self.view.panes, "complete steps"), step))

        def on_progress(progress: StepProgress) -> None:
            self.clocks.now_s += step_s / (len(STEP.requests()) + 1)
            inner(progress)

        self.view.run.on_change, self.view.run.steps.on_progress = draw, on_progress
        self.view.run.run()
        assert self.view.run.wait(300)


def test_a_view_that_has_used_its_budget_waits_also_when_steps_are_complete_but_shows_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch, steps=40, step_s=5.0, computed_s=0.3)
    run_s = 40 * 5.0
    between = [one for one in watched.drawn if not one[0].endswith(", 0 left")]
    assert 3 < len(between) < 40, "some steps are complete without a drawing"
    assert 0.3 * (len(between) - 2) <= live_run_module.AHEAD_S + live_run_module.SHARE * run_s
    assert watched.drawn[-1] == ("40, 0 left", 39)
    assert len(json.loads(watched.view.panes.pane_curves)["data"][0]["x"]) == 40, "steps that were not drawn are in the next"


def test_a_view_within_its_budget_draws_every_complete_step_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, steps=10, step_s=5.0, computed_s=0.005)
    shown = [int(cards.split(",")[0]) for cards, _ in watched.drawn]
    assert set(shown) == set(range(11))


def test_what_a_view_computes_besides_drawing_is_charged_to_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    live_run = LiveRun(steps_of(executor(), WORK[:2]))
    seen: list[int] = []
    live_run.on_change = lambda: seen.append(live_run.status().complete)
    gate = Gate(live_run, at=6)
    live_run.run()
    assert gate.reached.wait(300)
    waits_s = 3.0
    live_run.charge(live_run_module.AHEAD_S + live_run_module.SHARE * waits_s)
    clocks.now_s += waits_s - 0.1
    live_run.catch_up()
    assert seen == [0], "not yet covered"
    clocks.now_s += 0.2
    live_run.catch_up()
    assert seen == [0, 1]
    gate.opened.set()
    assert live_run.wait(300)


def test_a_view_that_fails_does_not_break_the_run(caplog: pytest.LogCaptureFixture) -> None:
    live_run = LiveRun(steps_of(executor(), WORK[:2]))
    live_run.on_change = lambda: 1 // 0
    live_run.run()
    assert live_run.wait(300)
    assert (live_run.state, len(live_run.traces)) == ("done", 2)
    assert caplog.text.count("is no longer updated") == 1


class Bytes:
    """Every byte is a token."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Decodes(SimulatedEngine):
    """Engines that encode texts themselves, and know how long each response will be."""

    tokenizer = Bytes()

    def add(self, requests: Sequence[Request]) -> None:
        super().add([replace(request, target_tokens=3 + request.response) for request in requests])


def test_texts_that_the_engine_encodes_are_watched_to_the_end() -> None:
    """The documented recipe for a model of one's own: prompts are texts, and their token ids are known in the step alone."""
    asked = requests([f"say {number}" for number in range(3)], samples_per_prompt=2, max_response_tokens=40)
    runner = Executor(Decodes, STEP.cluster, latency=STEP.latency)
    plan = plan_of([[0, 1], [2, 3], [4, 5]])
    view = live(runner, [(plan, asked)] * 2)
    assert view.run.steps.setting().max_response_tokens == 40
    view.run.run()
    assert view.run.wait(300)
    assert (view.run.state, view.run.error, view.run.view_error) == ("done", None, None)
    assert [trace.steps for trace in view.run.traces] == [[0], [1]]
    assert card(view.panes, "complete steps") == "2, 0 left"
    assert "GPU timeline of step 1" in view.panes.pane_timeline


@pytest.mark.parametrize("by_button", [True, False], ids=["its own run", "a cell"])
def test_a_step_whose_numbers_cannot_be_made_is_kept_and_the_page_says_why(
    by_button: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> Any:
        raise InputTypeError("the fourth column is odd")

    monkeypatch.setattr(live_run_module, "static_costs", refuses)
    runner = executor()
    view = live(runner, WORK[:1] if by_button else ())
    if by_button:
        view.run.run()
    else:
        runner.run(PLAN, STEP.requests())
    assert view.run.wait(300)
    assert (view.run.state, view.run.error, len(view.run.traces)) == ("done", None, 1)
    wait_until(lambda: "the fourth column is odd" in view.panes.pane_phase)
    assert view.panes.beat == 0


def test_what_cannot_be_run_is_refused() -> None:
    with refused(InputTypeError):
        steps_of("a trace")
    with refused(InputTypeError):
        steps_of(executor(), PLAN)  # type: ignore[arg-type]
    for work in ([PLAN], list(WORK[0]), [(STEP.requests(), PLAN)]):
        with refused(InputTypeError):
            live(executor(), work)  # type: ignore[arg-type]


def test_a_cell_that_is_run_again_shows_the_same_run() -> None:
    runner = executor()
    first = live(runner, WORK[:1])
    assert "ready" in first.panes.pane_facts
    first._buttons["run"].click()
    assert first.run.wait(300)
    again = live(runner)
    assert again.run is first.run
    for view in (first, again):
        assert "done" in view.panes.pane_facts
    assert "GPU timeline of step 0" in again.panes.pane_timeline
    assert "mean length" in again.panes.pane_curves
    assert again._buttons["run"].disabled
    assert live(runner, WORK).run is not first.run, "new work is a new run"


def test_other_work_is_a_new_run_unless_one_is_under_way() -> None:
    runner = executor()
    first = live(runner, WORK[:2])
    assert live(runner, WORK[:2]).run is first.run, "the same cell again"
    for under_way in ("running", "paused"):
        first.run.state = under_way
        assert live(runner, WORK[:1]).run is first.run, "it is under way"
    first.run.state = "stopped"
    assert live(runner, WORK[:2]).run is first.run, "it has steps left"
    assert live(runner, WORK[:1]).run is not first.run, "it is of other work"


def test_the_buttons_drive_the_run() -> None:
    view = live(executor(), WORK[:2])
    gate = Gate(view.run, at=2)
    assert view._buttons["stop"].disabled
    view._buttons["run"].click()
    assert gate.reached.wait(300)
    view._buttons["pause"].click()
    gate.opened.set()
    assert "paused" in view.panes.pane_facts
    view._buttons["stop"].click()
    assert view.run.wait(300)
    assert view.run.state == "stopped"
    assert "stopped" in view.panes.pane_facts
    assert not view._buttons["run"].disabled


def test_a_stop_that_takes_long_says_so_until_it_has_stopped() -> None:
    """The button does not wait, hence what it says never comes after what the end says. No other button undoes it."""
    view = live(executor(), WORK[:2])
    gate = Gate(view.run, at=2)
    view._buttons["run"].click()
    assert gate.reached.wait(300)
    view._buttons["stop"].click()
    assert "<b>stopping</b>" in view.panes.pane_facts
    assert "it stops when" in view.panes.pane_facts
    assert all(button.disabled for button in view._buttons.values())
    view.run.pause()
    view.run.run()
    assert view.run.state == "stopping", "nothing undoes a stop"
    gate.opened.set()
    assert view.run.wait(300)
    assert "<b>stopped</b>" in view.panes.pane_facts
    assert "it stops when" not in view.panes.pane_facts


def test_a_step_that_ends_while_a_button_draws_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a view shows is of one moment: the snapshot of the step goes while the thread of the button works with it."""
    monkeypatch.setattr(live_run_module, "OFTEN_S", 0.0)
    monkeypatch.setattr(live_run_module, "SHARE", math.inf)  # every look is drawn
    view = live(executor(), WORK[:2])
    live_run, meters = view.run, live_view.facts
    gate = Gate(live_run, at=3)
    view._buttons["run"].click()
    assert gate.reached.wait(300)
    view._buttons["pause"].click()
    assert live_run.snapshot is not None
    live_run._next_snapshot_s = math.inf  # from here on only buttons draw

    def slow_meters(run: Any) -> Any:
        gate.opened.set()
        until = time.monotonic() + 30
        while live_run.snapshot is not None and threading.current_thread() is threading.main_thread():
            assert time.monotonic() < until
            time.sleep(0.01)
        return meters(run)

    monkeypatch.setattr(live_view, "facts", slow_meters)
    view._buttons["run"].click()
    assert live_run.wait(300)
    assert "<b>done</b>" in view.panes.pane_facts


def test_a_view_that_is_made_while_the_run_ends_shows_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cell that is run again draws first does not come after what the thread of the run draws."""
    runner = executor()
    live_run, made = live(runner, WORK[:1]).run, live_view.message_figure

    def runs_meanwhile(*words: str) -> Any:
        live_run.run()
        assert live_run.wait(300)
        return made(*words)

    monkeypatch.setattr(live_view, "message_figure", runs_meanwhile)
    again = live(runner)
    assert "<b>done</b>" in again.panes.pane_facts
    assert "GPU timeline of step 0" in again.panes.pane_timeline


def test_every_step_starts_and_then_generates() -> None:
    live_run = LiveRun(steps_of(executor(), WORK[:2]))
    seen: list[tuple[int, str]] = []

    def note() -> None:
        assert live_run.phase is not None
        assert live_run.phase.elapsed_s >= 0
        seen.append((live_run.phase.step, live_run.phase.name))

    live_run.on_phase = note
    assert live_run.phase is None
    gate = Gate(live_run, at=2)
    live_run.run()
    assert gate.reached.wait(300)
    now = live_run.status().phase
    assert now is not None
    assert (now.step, now.name, now.completed, now.of) == (0, "generating", 1, 5), "of the look before"
    gate.opened.set()
    assert live_run.wait(300)
    assert seen == [(0, "starting"), (0, "generating"), (1, "starting"), (1, "generating")]
    assert live_run.phase is None


def test_a_view_shows_the_phase_and_that_the_kernel_is_alive_while_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_view, "BEAT_S", 0.01)
    monkeypatch.setattr(live_view, "LEAST_BEAT_S", 0.0)
    view = live(executor(), WORK[:1])
    assert (card(view.panes, "phase", "phase"), view.panes.beat) == ("ready", 0)
    gate = Gate(view.run, at=2)
    view._buttons["run"].click()
    assert gate.reached.wait(300)
    beats = view.panes.beat
    wait_until(lambda: view.panes.beat > beats + 3)
    assert card(view.panes, "phase", "phase") == "generating"
    assert card(view.panes, "step", "phase") == "0"
    assert card(view.panes, "complete responses", "phase") == "1 of 5"
    first = card(view.panes, "phase lasts", "phase")
    wait_until(lambda: card(view.panes, "phase lasts", "phase") != first)
    view._buttons["pause"].click()
    assert card(view.panes, "phase", "phase") == "generating, paused"
    beats = view.panes.beat
    wait_until(lambda: view.panes.beat > beats)
    view._buttons["run"].click()
    gate.opened.set()
    assert view.run.wait(300)
    assert (card(view.panes, "phase", "phase"), view.panes.beat) == ("done", 0)


def test_a_run_that_is_taken_up_again_is_shown_to_be_alive_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "BEAT_S", 0.01)
    view = live(executor(), WORK[:2])
    for again in (False, True):
        gate = Gate(view.run, at=2)
        view._buttons["run"].click()
        assert gate.reached.wait(300)
        beats = view.panes.beat
        wait_until(lambda beats=beats: view.panes.beat > beats)
        if not again:
            gate.open_for_a_stop()
            view._buttons["stop"].click()
        gate.opened.set()
        assert view.run.wait(300)
        assert view.panes.beat == 0
    assert view.run.state == "done"


def test_a_view_that_is_no_longer_updated_says_so() -> None:
    runner = executor()
    first = live(runner, WORK[:1])
    second = live(runner, WORK[:1])
    assert "newer view" in first.panes.pane_phase
    gate = Gate(second.run, at=2)
    second._buttons["run"].click()
    assert gate.reached.wait(300)
    second.run.on_change = None  # as where drawing has failed
    wait_until(lambda: "failed" in second.panes.pane_phase)
    assert (first.panes.beat, second.panes.beat) == (0, 0), "no page waits for a sign of life that does not come"
    gate.opened.set()
    assert second.run.wait(300)


def drawn_cost(view: Any) -> tuple[str, float]:
    """The axis with its unit, and the last value of the cost that a view has drawn."""
    spec = json.loads(view.panes.pane_cost)
    (line,) = [trace for trace in spec["data"] if trace.get("name") == "cost so far"]
    return spec["layout"]["yaxis"]["title"]["text"], line["y"][-1]


@pytest.mark.parametrize("price", [3.6, 0.0])
def test_the_cost_that_is_shown_is_the_traces_and_an_unknown_price_is_no_cost_of_0(price: float) -> None:
    work = [(plan_of([[0, 1], [2, 3], [4]]), STEP.requests()) for _ in range(2)]
    runner = executor(usd_per_gpu_hour=price)
    if price:
        work = [
            (replace(plan, actors=tuple(replace(a, usd_per_gpu_s=price / 3600) for a in plan.actors)), asked)
            for plan, asked in work
        ]
    view = live(runner, work)
    assert card(view.panes, "cost") == "none yet"
    view.run.run()
    assert view.run.wait(300)
    assert view.run.trace is not None
    sums = step_metrics(view.run.trace)
    unit, cost = drawn_cost(view)
    if price:
        assert sums["cost_usd"].sum() > 0
        assert (unit, cost) == ("cost (USD)", pytest.approx(sums["cost_usd"].sum()))
        assert view.run.table["cost_usd"].tolist() == pytest.approx(sums["cost_usd"].tolist())
        assert "USD" in card(view.panes, "cost") or "cents" in card(view.panes, "cost")
    else:
        assert (unit, cost) == ("cost (GPU-seconds)", pytest.approx(sums["gpu_seconds"].sum()))
        assert view.run.table[["cost_usd", "static_cost_usd"]].isna().all(axis=None)
        assert "unknown" in card(view.panes, "cost")
        assert " USD<" not in view.panes.pane_facts
    idle = sums["idle_gpu_seconds"].sum() / sums["gpu_seconds"].sum()
    assert card(view.panes, "idle share") == f"{idle:.1%}"


def test_the_cost_of_a_running_step_grows_with_its_snapshots_and_a_complete_step_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_run_module, "OFTEN_S", 0.0)
    monkeypatch.setattr(live_run_module, "SHARE", math.inf)
    view = live(executor(), WORK[:2])
    gate = Gate(view.run, at=9)
    view._buttons["run"].click()
    assert gate.reached.wait(300)
    costs = view.run.status().costs
    assert [(cost.step, cost.complete) for cost in costs] == [(0, True)] + [(1, False)] * 4
    assert [cost.gpu_seconds for cost in costs[1:]] == sorted(cost.gpu_seconds for cost in costs[1:])
    assert all(0 <= cost.idle_gpu_seconds <= cost.gpu_seconds for cost in costs)
    shown = costs[0].gpu_seconds + costs[-1].gpu_seconds
    assert drawn_cost(view) == ("cost (GPU-seconds)", pytest.approx(shown))
    gate.opened.set()
    assert view.run.wait(300)
    assert [(cost.step, cost.complete) for cost in view.run.costs] == [(0, True), (1, True)]


def test_what_is_kept_of_a_stopped_step_is_part_of_the_cost() -> None:
    view = live(executor(), WORK[:2])
    gate = Gate(view.run, at=7)
    view._buttons["run"].click()
    assert gate.reached.wait(300)
    gate.open_for_a_stop()
    view._buttons["stop"].click()
    assert view.run.wait(300)
    assert view.run.trace is not None
    assert [cost.complete for cost in view.run.costs] == [True, False]
    assert drawn_cost(view)[1] == pytest.approx(step_metrics(view.run.trace)["gpu_seconds"].sum())


def test_the_same_in_text_is_a_line_for_each_phase_step_and_state() -> None:
    printed = io.StringIO()
    live_run = print_phases(LiveRun(steps_of(executor(), WORK[:2])), printed)
    gate = Gate(live_run, at=2)
    live_run.run()
    assert gate.reached.wait(300)
    live_run.pause()
    live_run.run()
    gate.opened.set()
    assert live_run.wait(300)
    lines = printed.getvalue().splitlines()
    complete = [line for line in lines if "complete" in line]
    states = ("running", "paused", "done")
    assert sorted(line for line in lines if line in states) == sorted(["running", "paused", "running", "done"])
    assert [line for line in lines if line not in (*complete, *states)] == [
        "step 0: starting", "step 0: generating", "step 1: starting", "step 1: generating",
    ]  # fmt: skip
    assert [line.split(":")[0] for line in complete] == ["step 0", "step 1"]
    for line, cost in zip(complete, live_run.costs, strict=True):
        assert f"{cost.gpu_seconds:,.1f} GPU-seconds" in line
        assert "cost unknown" in line
    assert lines[-1] == "done"


def test_a_run_that_fails_says_why_in_text() -> None:
    def broken() -> Any:
        raise RuntimeError("no engine today")

    printed = io.StringIO()
    live_run = print_phases(LiveRun(steps_of(executor(), WORK)), printed)
    live_run.steps.next = broken  # type: ignore[method-assign]
    live_run.run()
    assert live_run.wait(300)
    last = printed.getvalue().splitlines()[-1]
    assert last.startswith("failed")
    assert "no engine today" in last


def test_what_came_too_soon_after_a_look_is_shown_once_that_is_long_enough_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is complete right after a look, and the next one computes for long before it reports anything."""
    clocks = Clocks(monkeypatch)
    live_run = LiveRun(steps_of(executor(), WORK[:2]))
    seen: list[int] = []
    live_run.on_change = lambda: seen.append(live_run.status().complete)
    gate = Gate(live_run, at=6)
    live_run.run()
    assert gate.reached.wait(300)
    live_run.catch_up()
    assert seen == [0], "too soon"
    clocks.now_s += 60.0
    live_run.catch_up()
    live_run.catch_up()
    assert seen == [0, 1], "once"
    gate.opened.set()
    assert live_run.wait(300)
    assert seen[-1] == 2


# --- steps that a cell runs -----------------------------------------------------------------------------------------------


def test_steps_that_a_cell_runs_are_watched_and_no_button_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell's thread is the kernel's own: a button's message would wait for it, and it for the button."""
    monkeypatch.setattr(live_run_module, "OFTEN_S", 0.0)
    monkeypatch.setattr(live_run_module, "SHARE", math.inf)
    with executor() as runner:
        view = runner.live()
        assert "No step has run yet" in view.panes.pane_timeline
        states, drawn = set[tuple[str, bool]](), list[str]()
        view.panes.observe(lambda change: states.add((card(view.panes, "state"), "A cell runs" in change["new"])), "pane_facts")
        view.panes.observe(lambda change: drawn.append(change["new"]), "pane_timeline")
        for step in (0, 1):
            states.clear()
            record = runner.run(PLAN, STEP.requests())
            assert ("running", True) in states
            assert (view.run.state, view.run.elsewhere, card(view.panes, "phase", "phase")) == ("done", False, "done")
            assert len(view.run.traces) == step + 1
            assert f"GPU timeline of step {step}" in drawn[-1]
        assert len(drawn) >= 2 * 6, "the timeline grows while the step runs"
    held = sum(row["end_s"] - row["start_s"] for row in record.allocations)
    assert view.run.costs[-1].gpu_seconds == pytest.approx(held)
    assert drawn_cost(view)[1] == pytest.approx(sum(cost.gpu_seconds for cost in view.run.costs))


@pytest.mark.parametrize(
    ("error", "state"), [(ZeroDivisionError("at step 0"), "failed"), (KeyboardInterrupt(), "stopped")], ids=["fails", "stops"]
)
def test_how_a_step_that_a_cell_runs_ends_is_shown_and_what_was_done_of_it(error: BaseException, state: str) -> None:
    runner = executor()
    view = live(runner)
    inner = runner.on_progress
    assert inner is not None

    def on_progress(progress: StepProgress) -> None:
        inner(progress)
        if progress.completed == 3:
            assert (view._buttons["pause"].disabled, view._buttons["stop"].disabled) == (True, True)
            view.run.pause()
            view.run.request_stop()
            assert view.run.state == "running"
            raise error

    runner.on_progress = on_progress
    with pytest.raises((StepFailed, KeyboardInterrupt)):
        runner.run(PLAN, STEP.requests())
    assert (view.run.state, view.run.phase, view.panes.beat) == (state, None, 0)
    assert ("at step 0" in view.panes.pane_facts) == (state == "failed")
    assert view.run.trace is not None
    assert len(view.run.trace.rollouts) == 3
    assert drawn_cost(view)[1] == pytest.approx(step_metrics(view.run.trace)["gpu_seconds"].sum())
    runner.on_progress = inner
    runner.run(PLAN, STEP.requests())
    assert (view.run.state, view.run.error, len(view.run.traces)) == ("done", None, 1)


def test_what_a_view_sends_at_30000_spans_is_no_more_than_at_a_few_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the steps, an update takes in what is new, and sends a bounded drawing."""
    monkeypatch.setattr(live_run_module, "OFTEN_S", 0.0)
    monkeypatch.setattr(live_run_module, "SHARE", math.inf)
    view = live(executor())
    sent: list[int] = []
    view.panes.observe(
        lambda change: sent.append(len(change["new"])), ["pane_timeline", "pane_cost", "pane_facts", "pane_phase"]
    )
    trace = many_spans(30_000)
    rows = sorted(trace.spans.assign(from_actor=None).to_dict("records"), key=lambda row: row["start_s"])
    record, bytes_at = StepRecord("run", 0, PLAN, 0.0), dict[int, int]()
    record.allocations = trace.allocations.to_dict("records")
    monkeypatch.setattr(StepProgress, "allocations", lambda self: self.record.allocations)
    for until in (300, 3_000, 15_000, 30_000):
        record._spans.extend(rows[len(record.spans) : until])
        sent.clear()
        assert view.run.steps.on_progress is not None
        view.run.steps.on_progress(StepProgress(until // 10_000, 5, rows[until - 1]["end_s"], record, [], []))
        bytes_at[until] = sum(sent)
    assert all(bytes_at.values()), bytes_at
    assert max(bytes_at.values()) < 200_000, bytes_at
    assert bytes_at[30_000] < 2 * bytes_at[3_000], bytes_at
    snapshot = view.run.snapshot
    assert snapshot is not None
    table = step_metrics(trace).iloc[0]
    assert snapshot.spans == 30_000
    assert snapshot.cost.idle_gpu_seconds == pytest.approx(table["idle_gpu_seconds"], rel=1e-9)


def test_the_points_of_a_long_step_are_thinned_evenly_and_the_last_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run_module, "OFTEN_S", 0.0)
    monkeypatch.setattr(live_run_module, "SHARE", math.inf)
    view = live(executor())
    record = StepRecord("run", 0, PLAN, 0.0)
    actors = [Actor(0, PLAN.actors[0], STEP.latency, 0.0, 5)]
    texts, hover = list[int](), cost_over_time.hover
    monkeypatch.setattr(cost_over_time, "hover", lambda *given: (texts.append(1), hover(*given))[1])
    for n in range(1, 301):
        record.span("actor-0", "decode", n - 1.0, n - 0.5)
        assert view.run.steps.on_progress is not None
        texts.clear()
        view.run.steps.on_progress(StepProgress(0, 5, float(n), record, actors, []))
        assert len(texts) <= 2, "the texts of earlier points are not made again"
    costs = view.run.status().costs
    assert len(costs) <= live_run_module.MOST_SNAPSHOTS
    assert costs[-1].end_s == 300.0
    assert costs[-1].idle_gpu_seconds == pytest.approx(150.0)
    gaps = [right.end_s - left.end_s for left, right in itertools.pairwise(costs)]
    assert max(gaps) < 300 / 10


def test_the_clock_and_the_profile_are_said_on_the_drawings_of_a_view() -> None:
    profile = load_profile("cpu-tiny-qwen2")
    runner = Executor(SimulatedEngine, solver.Cluster(1, 3, 1, "cpu"), latency=profile)
    view = live(runner)
    runner.run(PLAN, STEP.requests())
    for pane in ("timeline", "cost", "curves"):
        title = json.loads(getattr(view.panes, f"pane_{pane}"))["layout"]["title"]["text"]
        assert f"virtual clock, profile {profile.name}" in title
