"""A training run that is watched and driven by buttons: it shows what its steps do, and stopped, it stands at its last complete
step, on the disk too."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from training_samples import config

from rlhfless.executor.distributed import backend
from rlhfless.executor.step.progress import StepProgress
from rlhfless.trace import read_trace, step_metrics
from rlhfless.trace.metrics.growing_step import StepSoFar
from rlhfless.training.algorithms import policy_gradient
from rlhfless.training.algorithms.passes import Passes
from rlhfless.training.callbacks import Callback
from rlhfless.training.loop import Trainer
from rlhfless.widgets import LiveRun, live, live_view, steps_of
from rlhfless.widgets import live_run as live_run_module

STEP = ["starting", "weight sync", "generating", "rewards", "learning", "saving"]
STREAMED = ["starting", "weight sync", "generating", "learning", "saving"]
LOCAL = {"executor": "local", "policy": "static"}


def test_a_stopped_run_stands_at_its_last_step_and_goes_on_to_the_same_end(model: Path, tmp_path: Path) -> None:
    with Trainer(config(), tmp_path / "whole", model=model, progress=False) as trainer:
        whole = trainer.train()
    with Trainer(config(), tmp_path / "stopped", model=model, progress=False) as trainer:
        live_run = LiveRun(steps_of(trainer))
        inner, reached, opened = trainer.on_progress, threading.Event(), threading.Event()
        assert inner is not None

        def on_progress(progress: StepProgress) -> None:
            if progress.record.step == 1 and progress.completed > 3 and not opened.is_set():
                reached.set()
                assert opened.wait(300)
            inner(progress)

        trainer.on_progress = on_progress
        live_run.run()
        assert reached.wait(300)

        def open_for_a_stop() -> None:
            while not live_run._stops:
                time.sleep(0.002)
            opened.set()

        threading.Thread(target=open_for_a_stop, daemon=True).start()
        live_run.stop(300)
        assert (live_run.state, trainer.next_step) == ("stopped", 1)
        assert read_trace(tmp_path / "stopped").steps == [0]
        live_run.run()
        assert live_run.wait(300)
    assert live_run.state == "done"
    assert live_run.table["step"].tolist() == [0, 1, 2]
    assert live_run.table["reward_mean"].notna().all()
    assert whole is not None
    ended = read_trace(tmp_path / "stopped").rollouts
    assert ended["response_tokens"].tolist() == whole.rollouts["response_tokens"].tolist()
    assert ended["reward"].tolist() == whole.rollouts["reward"].tolist()


def hold_learner(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let the learner wait for the second event when it begins, which sets the first one."""
    learn, learns, opened = trainer.state.learner.learn, threading.Event(), threading.Event()

    def held(*given: Any, **named: Any) -> Any:
        learns.set()
        assert opened.wait(300)
        return learn(*given, **named)

    monkeypatch.setattr(trainer.state.learner, "learn", held)
    return learns, opened


@pytest.mark.parametrize(("steps", "state"), [(2, "stopped"), (1, "done")])
def test_a_step_that_learns_stands_before_the_run_is_stopped(
    steps: int, state: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trainer(config(steps=steps), tmp_path / "run", model=model, progress=False) as trainer:
        learns, opened = hold_learner(trainer, monkeypatch)
        live_run = LiveRun(steps_of(trainer))
        live_run.run()
        assert learns.wait(300)
        with refused(TimeoutError):
            live_run.stop(0.05)
        opened.set()
        assert live_run.wait(300)
        assert (live_run.state, trainer.next_step, len(live_run.traces)) == (state, 1, 1)
    assert read_trace(tmp_path / "run").steps == [0]


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        pytest.param({}, STEP, id="virtual"),
        pytest.param({"learning": "stream"}, STREAMED, id="virtual, in a stream"),
        pytest.param({**LOCAL, "gpus": 1, "gpus_per_node": 1}, STEP, id="local"),
        pytest.param(
            {**LOCAL, "gpus": 2, "gpus_per_node": 2, "learning": "stream"}, STREAMED, id="local, in a stream",
            marks=pytest.mark.full,
        ),
    ],
)  # fmt: skip
def test_a_step_goes_through_its_phases_in_order(options: dict[str, Any], phases: list[str], model: Path) -> None:
    seen: list[tuple[int, str]] = []
    with Trainer(config(steps=2, **options), model=model, progress=False) as trainer:
        trainer.on_phase = lambda step, phase: seen.append((step, phase))
        trainer.train()
    assert seen == [(step, phase) for step in (0, 1) for phase in phases]


def test_an_evaluation_is_a_phase_where_one_is_due(model: Path) -> None:
    seen: list[tuple[int, str]] = []
    with Trainer(config(steps=2, eval_every=2, eval_prompts=2), model=model, progress=False) as trainer:
        trainer.on_phase = lambda step, phase: seen.append((step, phase))
        trainer.train()
    last = [*STEP[:-1], "evaluating", "saving"]
    assert seen == [(0, "evaluating"), *((0, phase) for phase in STEP), *((1, phase) for phase in last)]


def test_a_view_of_a_run_with_an_evaluation_before_it_has_each_steps_own_numbers(model: Path) -> None:
    with Trainer(config(steps=2, eval_every=2, eval_prompts=2), model=model, progress=False) as trainer:
        live_run = LiveRun(steps_of(trainer))
        live_run.run()
        live_run.wait()
    assert live_run.table["step"].tolist() == [0, 1]
    assert live_run.table["learn_mismatch_mean"].notna().all()
    assert live_run.table["eval_reward_mean"].notna().tolist() == [False, True], "the evaluation before the run is of no step"


def test_what_a_callback_for_phases_raises_undoes_the_step(model: Path) -> None:
    def interrupt(step: int, phase: str) -> None:
        if phase == "learning" and not seen:
            seen.append(phase)
            raise KeyboardInterrupt

    seen: list[str] = []
    with Trainer(config(steps=1), model=model, progress=False) as trainer:
        trainer.on_phase = interrupt
        with pytest.raises(KeyboardInterrupt):
            trainer.step()
        assert trainer.next_step == 0
        trainer.step()
        assert trainer.next_step == 1


def test_the_view_is_alive_while_the_learner_computes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is generated then, so no progress is reported that could update it."""
    monkeypatch.setattr(live_view, "BEAT_S", 0.01)
    with Trainer(config(steps=1), model=model, progress=False) as trainer:
        learns, opened = hold_learner(trainer, monkeypatch)
        view = live(trainer)
        view.run.run()
        assert learns.wait(300)
        shown: set[str] = set()
        beats = view.panes.beat
        until = time.monotonic() + 300
        while len(shown) < 3:  # its seconds go on
            assert time.monotonic() < until
            if view.panes.beat > beats:
                shown.add(view.panes.pane_phase)
            time.sleep(0.01)
        assert all("<b>learning</b>" in text and "<b>12 of 12</b>" in text for text in shown)
        snapshot = view.run.snapshot
        assert snapshot is not None
        assert snapshot.completed == 12, "the end of generation"
        while f"{snapshot.cost.gpu_seconds!r}" not in view.panes.pane_cost:  # is drawn while the learner computes
            assert time.monotonic() < until
            time.sleep(0.01)
        opened.set()
        assert view.run.wait(300)
    assert "<b>done</b>" in view.panes.pane_phase


@pytest.mark.parametrize("profile", ["cpu-tiny-qwen2", "h100-qwen2.5-3b-tp1"])
def test_the_cost_of_training_is_the_traces_or_unknown(profile: str, model: Path) -> None:
    """Emulated GPUs of the machine at hand have no price."""
    with Trainer(config(steps=2, profile=profile), model=model, progress=False) as trainer:
        live_run = LiveRun(steps_of(trainer))
        live_run.run()
        assert live_run.wait(300)
    assert live_run.error is None
    assert live_run.trace is not None
    sums = step_metrics(live_run.trace)
    assert [cost.gpu_seconds for cost in live_run.costs] == pytest.approx(sums["gpu_seconds"].tolist())
    assert [cost.idle_gpu_seconds for cost in live_run.costs] == pytest.approx(sums["idle_gpu_seconds"].tolist())
    if profile.startswith("cpu"):
        assert live_run.table["cost_usd"].isna().all()
    else:
        assert live_run.table["cost_usd"].tolist() == pytest.approx(sums["cost_usd"].tolist())
        assert (live_run.table["cost_usd"] > 0).all()


# --- while the learner works ----------------------------------------------------------------------------------------------


def hold_update(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let the optimizer's step wait for the second event, after all passes, and set the first one when it begins."""
    update, begins, opened = policy_gradient.clip_and_step, threading.Event(), threading.Event()

    def held(*given: Any) -> float:
        begins.set()
        assert opened.wait(300)
        return update(*given)

    monkeypatch.setattr(policy_gradient, "clip_and_step", held)
    return begins, opened


def card(view: Any, name: str) -> str:
    """What a card beside the phase says."""
    return str(view.panes.pane_phase.split(f"<span>{name}</span><b>")[1].split("</b>")[0])


def wait_until(so: Callable[[], object]) -> None:
    """Wait until that is so."""
    until = time.monotonic() + 300
    while not so():
        assert time.monotonic() < until
        time.sleep(0.005)


def draw_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a view draw whenever it looks at the run, however short ago and however long that takes."""
    monkeypatch.setattr(live_run_module, "OFTEN_S", 0.0)
    monkeypatch.setattr(live_run_module, "SHARE", 1e9)


def learner_s(snapshot: StepSoFar | None) -> float:
    """Seconds for which the learner has had its GPUs."""
    return 0.0 if snapshot is None else sum(held.end_s - held.start_s for held in snapshot.held if held.role == "learner")


def wait_until_learner_grows(view: Any) -> None:
    """Wait until a view shows that the learner has had its GPUs for longer than now."""
    since_s = learner_s(view.run.snapshot)
    wait_until(lambda: learner_s(view.run.snapshot) > since_s)


@pytest.mark.parametrize(
    "options",
    [{}, {"kl_coef": 0.1}, {"preparation": "released"}, {"num_mini_batches": 2}],
    ids=["grpo", "reference", "released", "parts"],
)
def test_timeline_and_cost_grow_with_the_passes_of_the_learner(
    options: dict[str, Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the virtual clock a pass is charged when it has ended, so what is shown after the last one is what the trace gets."""
    monkeypatch.setattr(live_view, "BEAT_S", 0.01)
    draw_every_look(monkeypatch)
    with Trainer(config(steps=1, max_tokens_per_micro_batch=64, **options), model=model, progress=False) as trainer:
        begins, opened = hold_update(monkeypatch)
        count, shown = Passes._count, []

        def counted(self: Passes, *given: Any, **named: Any) -> None:
            count(self, *given, **named)
            view.run.catch_up()
            shown.append(view.run.status().costs[-1])

        monkeypatch.setattr(Passes, "_count", counted)
        view = trainer.live()
        view.run.run()
        assert begins.wait(300)
        first = len(shown)
        assert first > 2
        for name in ("gpu_seconds", "end_s"):
            values = [getattr(cost, name) for cost in shown]
            assert values == sorted(set(values)), "every pass is more"
        assert card(view, "phase") == "learning"
        assert '"name":"learn"' in view.panes.pane_timeline
        assert f"{shown[-1].gpu_seconds!r}" in view.panes.pane_cost
        opened.set()
        assert view.run.wait(300)
    assert view.run.error is None
    assert view.run.trace is not None
    table = step_metrics(view.run.trace).iloc[0]
    last, whole = shown[-1], view.run.costs[-1]
    assert (whole.gpu_seconds, whole.idle_gpu_seconds) == (table["gpu_seconds"], table["idle_gpu_seconds"])
    assert (last.gpu_seconds, last.idle_gpu_seconds) == pytest.approx((whole.gpu_seconds, whole.idle_gpu_seconds), rel=1e-9)


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"algorithm": "ppo", "kl_coef": 0.1}], ids=["grpo", "ppo"])
def test_a_learner_in_processes_is_drawn_with_the_passes_that_they_report(
    options: dict[str, Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is shown after their last pass, while the step still learns, is what the trace gets."""
    draw_every_look(monkeypatch)
    given = config(steps=2, learner_processes=2, max_tokens_per_micro_batch=64, **options)
    with Trainer(given, model=model, progress=False) as trainer:
        learn, shown = trainer.state.learner.learn, []

        def learns(*given: Any) -> Any:
            numbers = learn(*given)
            view.run.catch_up()
            assert '"name":"learn"' in view.panes.pane_timeline
            shown.append((view.run.status().costs[-1], card(view, "phase")))
            return numbers

        monkeypatch.setattr(trainer.state.learner, "learn", learns)
        view = trainer.live()
        trainer.train()
    assert view.run.view_error is None
    for (last, phase), whole in zip(shown, view.run.costs, strict=True):
        assert phase == "learning"
        assert not last.complete
        assert (last.gpu_seconds, last.idle_gpu_seconds) == pytest.approx((whole.gpu_seconds, whole.idle_gpu_seconds), rel=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"kl_coef": 0.1},
        {"num_mini_batches": 2, "learner_gpus": 2, "learner_grows": True},
        {"algorithm": "ppo", "critic": "model"},
        {"charging": "measured"},
    ],
    ids=["reference", "parts", "ppo", "measured"],
)
def test_a_learner_in_a_stream_is_drawn_group_by_group(
    options: dict[str, Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the virtual clock its groups are placed beside the decoding, and the last picture has what the trace gets."""
    draw_every_look(monkeypatch)
    given = config(steps=1, learning="stream", reward_s_per_response=1e-3, **options)
    with Trainer(given, model=model, progress=False) as trainer:
        learner, shown = trainer.state.learner, []

        def looked(call: Callable[..., Any]) -> Callable[..., Any]:
            def calls(*given: Any) -> Any:
                view.run.catch_up()
                snapshot = view.run.snapshot
                assert snapshot is not None
                shown.append((snapshot.cost, sum(bar.busy_s for bar in snapshot.bars if bar.phase == "learn")))
                return call(*given)

            return calls

        for name in ("add", "finish"):
            monkeypatch.setattr(learner, name, looked(getattr(learner, name)))
        view = trainer.live()
        trainer.train()
    assert (view.run.error, view.run.view_error) == (None, None)
    assert view.run.trace is not None
    spans = view.run.trace.spans.query("phase == 'learn'")
    (*during, (last, busy_s)), whole = shown, view.run.costs[-1]
    learned = [seconds for _, seconds in during] + [busy_s]
    assert learned == sorted(set(learned)), "every group is more"
    assert learned[0] == 0.0
    costs = [cost.gpu_seconds for cost, _ in shown]
    assert costs == sorted(costs)
    assert not last.complete
    if "charging" in options:
        assert 0 < busy_s < (spans["end_s"] - spans["start_s"]).sum(), "without the optimizer"
    else:
        assert busy_s == pytest.approx((spans["end_s"] - spans["start_s"]).sum(), rel=1e-9)
        assert (last.gpu_seconds, last.idle_gpu_seconds) == pytest.approx((whole.gpu_seconds, whole.idle_gpu_seconds), rel=1e-9)


def test_timeline_and_cost_grow_with_the_seconds_of_the_learner_on_the_wall_clock(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "BEAT_S", 0.01)
    draw_every_look(monkeypatch)
    with Trainer(config(steps=1, **LOCAL, gpus=1, gpus_per_node=1), model=model, progress=False) as trainer:
        begins, opened = hold_update(monkeypatch)
        view = trainer.live()
        view.run.run()
        assert begins.wait(300)
        wait_until_learner_grows(view)
        before = view.run.status().costs[-1]
        wait_until_learner_grows(view)
        assert view.run.status().costs[-1].end_s > before.end_s, "a learner on the CPU has no GPU-seconds"
        assert "wall clock" in view.panes.pane_timeline
        seen = learner_s(view.run.snapshot)
        opened.set()
        assert view.run.wait(300)
    assert view.run.trace is not None
    learned = view.run.trace.allocations.query("role == 'learner'")
    assert (learned["end_s"] - learned["start_s"]).sum() >= seen
    table = step_metrics(view.run.trace).iloc[0]
    assert view.run.costs[-1].idle_gpu_seconds == table["idle_gpu_seconds"]


def test_a_learner_in_a_stream_grows_on_the_wall_clock_while_it_has_a_group(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is generated any more when the last groups are learned from, and the picture grows on."""
    monkeypatch.setattr(backend, "OFTEN_S", 0.0)
    draw_every_look(monkeypatch)
    given = config(steps=2, learning="stream", **LOCAL, gpus=1, gpus_per_node=1)
    with Trainer(given, model=model, progress=False) as trainer:
        add, added, opened = trainer.state.learner.add, list[int](), threading.Event()

        def held(*given: Any) -> Any:
            added.append(1)
            if len(added) == 3:
                assert opened.wait(300)
            return add(*given)

        monkeypatch.setattr(trainer.state.learner, "add", held)
        view = trainer.live()
        view.run.run()
        wait_until(lambda: len(added) == 3 and card(view, "phase") == "learning")
        wait_until_learner_grows(view)
        wait_until_learner_grows(view)  # from what is shown on
        snapshot = view.run.snapshot
        assert snapshot is not None
        learns = [bar for bar in snapshot.bars if bar.phase == "learn"]
        assert {bar.holder for bar in learns} == {"learner"}
        assert len(learns) == 3, "two groups and one that it has"
        assert (snapshot.completed, '"name":"learn"' in view.panes.pane_timeline) == (12, True)
        opened.set()
        assert view.run.wait(300)
    assert (view.run.error, view.run.view_error) == (None, None)
    assert view.run.trace is not None
    sums = step_metrics(view.run.trace)
    assert [cost.gpu_seconds for cost in view.run.costs] == pytest.approx(sums["gpu_seconds"].tolist())
    assert snapshot.cost.end_s <= view.run.costs[0].end_s


def test_a_cell_that_trains_is_watched_while_its_learner_blocks_the_main_thread(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner waits in this thread until three more messages were sent, which only another thread can do."""
    monkeypatch.setattr(live_view, "BEAT_S", 0.01)
    with Trainer(config(steps=2), model=model, progress=False) as trainer:
        learn, shown = trainer.state.learner.learn, []

        def blocks(*given: Any) -> Any:
            assert threading.current_thread() is threading.main_thread()
            beats = view.panes.beat
            wait_until(lambda: view.panes.beat > beats + 3)
            shown.append((card(view, "phase"), card(view, "step"), card(view, "complete responses"), view.run.elsewhere))
            return learn(*given)

        monkeypatch.setattr(trainer.state.learner, "learn", blocks)
        view = trainer.live()
        trainer.train()
    assert shown == [("learning", str(step), "12 of 12", True) for step in (0, 1)]
    assert (view.run.state, view.run.elsewhere, view.panes.beat) == ("done", False, 0)
    assert view.run.table["step"].tolist() == [0, 1]
    assert [cost.complete for cost in view.run.costs] == [True, True]


@pytest.mark.parametrize("ends", [None, KeyboardInterrupt()], ids=["to the end", "interrupted between steps"])
def test_a_cell_that_trains_is_running_between_its_steps_until_it_ends(
    ends: BaseException | None, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Between(Callback):
        def on_step(self, trainer: Any, step: Any) -> None:
            states.append((view.run.state, view.run.elsewhere, view._buttons["run"].disabled))
            shown.append(view.panes.pane_facts)
            if ends is not None and len(states) == 2:
                raise ends

    states: list[tuple[str, bool, bool]] = []
    shown: list[str] = []
    with Trainer(config(steps=3), model=model, progress=False, callbacks=Between()) as trainer:
        view = trainer.live()
        view.panes.observe(lambda change: shown.append(change["new"]), "pane_facts")
        with contextlib.suppress(KeyboardInterrupt):
            trainer.train()
        during = shown[: shown.index(view.panes.pane_facts)]
        assert states == [("running", True, True)] * (3 if ends is None else 2)
        assert during
        assert not any("<b>ready</b>" in text for text in during), "the run is under way until the cell ends"
        assert (view.run.state, view.run.elsewhere) == ("done" if ends is None else "ready", False)
        assert view._buttons["run"].disabled == (ends is None)
        if ends is not None:
            view.run.run()
            assert view.run.wait(300)
            assert (view.run.state, len(view.run.traces)) == ("done", 3)


def test_a_learner_that_fails_in_a_cell_is_shown_and_the_run_can_go_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Trainer(config(steps=1), model=model, progress=False) as trainer:
        learn = trainer.state.learner.learn

        def fails(*_: Any) -> Any:
            monkeypatch.setattr(trainer.state.learner, "learn", learn)
            raise ZeroDivisionError("no learner today")

        monkeypatch.setattr(trainer.state.learner, "learn", fails)
        view = trainer.live()
        with pytest.raises(ZeroDivisionError):
            trainer.step()
        assert (view.run.state, card(view, "phase")) == ("failed", "failed")
        assert "no learner today" in view.panes.pane_facts
        assert view.run.costs == (), "the step has not happened"
        view._buttons["run"].click()
        assert view.run.wait(300)
        assert (view.run.state, view.run.error, len(view.run.traces)) == ("done", None, 1)


@pytest.mark.parametrize("ends", ["to the end", "break", "error"])
def test_a_loop_over_the_trainer_is_shown_to_have_the_run_between_its_steps(ends: str, model: Path) -> None:
    shown: list[tuple[str, str, bool]] = []
    with Trainer(config(steps=3), model=model, progress=False) as trainer:
        view = trainer.live()
        with contextlib.suppress(ZeroDivisionError):
            for done in trainer:
                wait_until(lambda step=done.step: f"step {step + 1} of 3 done" in view.panes.pane_phase)
                shown.append((card(view, "phase"), view.run.state, view._buttons["run"].disabled))
                if done.step == 1 and ends == "break":
                    break
                if done.step == 1 and ends == "error":
                    raise ZeroDivisionError("in the loop's own code")
        steps = 3 if ends == "to the end" else 2
        assert shown == [(f"step {step} of 3 done; waits for your loop", "running", True) for step in range(1, steps + 1)]
        assert (view.run.state, view.run.elsewhere) == ("done" if steps == 3 else "ready", False)
        assert card(view, "phase") == view.run.state
        if steps == 2:
            view._buttons["run"].click()
            assert view.run.wait(300)
            assert (view.run.state, len(view.run.traces)) == ("done", 3)


def test_a_step_that_is_run_alone_leaves_the_run_ready(model: Path) -> None:
    with Trainer(config(steps=2), model=model, progress=False) as trainer:
        view = trainer.live()
        trainer.step()
        assert (view.run.state, card(view, "phase")) == ("ready", "ready")
