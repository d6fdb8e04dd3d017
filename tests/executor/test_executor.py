"""One object for the steps of a run: its clock, its bar, what an interrupt leaves, and that memory is given back."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from executor_samples import plan_of, random_step

from rlhfless.engine.protocol import Progress, Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.capacity import admission_within
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.kv_cache import KVCache
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.errors import ClosedError
from rlhfless.executor import Executor, StepFailed, StepRecord, run_step
from rlhfless.executor.step.progress import OnProgress, StepProgress
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver import Cluster, LatencyModel, Plan, PlanningError

LATENCY = LatencyModel("tiny", 1, 2e-3, 40e-6, 100e-9, prefill_base_s=1e-3, max_batch=16, kv_capacity_tokens=4096)
CLUSTER = Cluster(1, 2, 1)


def engines() -> TorchEngineFactory:
    tokenizer = CharTokenizer()
    return TorchEngineFactory(
        DecoderModel(tiny_qwen2(tokenizer, seed=3, hidden=64, layers=2, intermediate=128), 64), tokenizer.eos_token_id
    )


def requests() -> list[Request]:
    rng = np.random.default_rng(0)
    return [Request(i, 6, 30, prompt_ids=rng.integers(2, 30, 6), seed=i, target_tokens=5 + 3 * i) for i in range(8)]


def test_steps_follow_one_another() -> None:
    step = random_step(3)
    plan = plan_of([range(0, 9), range(9, 18)])
    with Executor(SimulatedEngine, step.cluster, latency=step.latency) as executor:
        executor.run_name = "two steps"
        first, second = (executor.run(plan, step.requests()) for _ in range(2))
    assert (first.step, second.step, first.run) == (0, 1, "two steps")
    assert second.start_s == first.end_s
    assert second.makespan_s == pytest.approx(first.makespan_s)
    assert executor.clock_s == second.end_s


def test_watching_changes_nothing_and_sees_every_completion() -> None:
    plan = plan_of([range(0, 4), range(4, 8)], slots=3)
    seen: list[tuple[int, float]] = []
    made = engines()
    watched = run_step(plan, requests(), made, LATENCY, CLUSTER, on_progress=lambda p: seen.append((p.completed, p.now_s)))
    plain = run_step(plan, requests(), made, LATENCY, CLUSTER)
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)
    assert seen[0] == (0, plain.start_s + LATENCY.start_s), "when the first actor is ready"
    assert seen[-1] == (8, pytest.approx(plain.makespan_s))
    assert len({n for n, _ in seen}) > 3
    for i, c in plain.completions.items():
        assert watched.completions[i].time_s == c.time_s
        np.testing.assert_array_equal(watched.completions[i].token_ids, c.token_ids)


@pytest.mark.parametrize("wall_s", [0.01, 1.0, 10.0, 60.0])
def test_progress_is_reported_every_half_second_of_the_wall_clock(wall_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Telling of every iteration, or of a fixed number of pieces, would keep engines from decoding many of them at once."""
    asked = [Request(i, 10, 2048, target_tokens=4 * (i + 1)) for i in range(512)]
    latency = LatencyModel("made up", 1, base_s=0.01, per_response_s=1e-4, start_s=20.0)
    by_hand = plan_of([range(0, 512, 2), range(1, 512, 2)], slots=256)
    alone = run_step(by_hand, asked, SimulatedEngine, latency, CLUSTER)
    plan = replace(by_hand, makespan_s=alone.makespan_s)
    decoding_s = sum(s["end_s"] - s["start_s"] for s in alone.spans if s["phase"] == "decode")
    now, pieces = [0.0], defaultdict[float, float](float)
    told: list[int] = []

    class Slow(SimulatedEngine):
        """Takes its share of ``wall_s``."""

        def advance(self, to_s: float) -> Progress:
            before_s = self.clock_s
            progress = super().advance(to_s)
            took_s = (self.clock_s - before_s) / decoding_s * wall_s
            now[0] += took_s
            pieces[to_s] += took_s
            return progress

    def on_progress(progress: StepProgress) -> None:
        told.append(progress.completed)
        now[0] += 60.0  # drawing, or a pause: not the step's

    monkeypatch.setattr("rlhfless.executor.virtual.progress_pacing.time.monotonic", lambda: now[0])
    watched = run_step(plan, asked, Slow, latency, CLUSTER, on_progress=on_progress)
    took = list(pieces.values())
    assert sum(took) == pytest.approx(wall_s)
    assert len(took) <= 3 + 2.2 * wall_s
    assert took[0] <= 0.1 * wall_s, "how fast it goes is not known yet"
    assert max(took[1:]) <= 1.0
    assert told == sorted(told)
    assert told[-1] == len(asked)
    assert watched.end_s == pytest.approx(alone.end_s)
    assert watched.allocations == alone.allocations
    assert {i: c.time_s for i, c in watched.completions.items()} == {i: c.time_s for i, c in alone.completions.items()}
    assert [(s["holder"], s["start_s"], s["tokens"]) for s in watched.spans] == [
        (s["holder"], s["start_s"], s["tokens"]) for s in alone.spans
    ]


def test_a_bar_counts_responses(capsys: pytest.CaptureFixture[str]) -> None:
    with Executor(engines(), CLUSTER, latency=LATENCY, progress=True) as executor:
        executor.run(plan_of([range(8)]), requests())
    shown = capsys.readouterr().err
    assert "step 0" in shown
    assert "8/8" in shown
    assert "virtual s" in shown


def test_replays_that_measure_a_step_have_a_bar_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with Executor(engines(), CLUSTER, latency=LATENCY, progress=True, charging="measured") as executor:
        record = executor.run(plan_of([range(0, 4), range(4, 8)]), requests())
    assert (record.trace.meta["clock"], record.trace.meta["charging"]) == ("virtual", "measured")
    shown = capsys.readouterr().err
    assert "8/8" in shown
    assert "step 0 measured" in shown
    assert "6/6" in shown  # two actors, three times


class Pool:
    """Stands in for a ``ProcessPool``: tells of three completions and remembers that it was closed."""

    closed = False

    def run_step(self, plan: Plan, requests: list[Request], *_: object, on_progress: OnProgress, **given: object) -> StepRecord:
        for n in (1, 2, 8):
            on_progress(StepProgress(n, 8, 0.5 * n, StepRecord("run", 0, plan, 0.0), [], []))
        return StepRecord("run", 0, plan, 0.0)

    def close(self) -> None:
        self.closed = True


def test_the_bar_counts_on_the_wall_clock_too_and_closing_ends_the_processes(capsys: pytest.CaptureFixture[str]) -> None:
    pool = Pool()
    with Executor(engines(), CLUSTER, latency=LATENCY, progress=True, actor_pool=pool) as executor:  # type: ignore[arg-type]
        executor.run(plan_of([range(8)]), requests())
        assert not pool.closed
    shown = capsys.readouterr().err
    assert "8/8" in shown
    assert "4.0 s" in shown
    assert pool.closed


@pytest.mark.parametrize("pool", [None, Pool()])
@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"charging": "nonsense"}, ("'nonsense'",)),
        ({"migration": "nonsense"}, ("'nonsense'",)),
        ({"admission": "nonsense"}, ("'nonsense'",)),
    ],
)
def test_options_are_checked_before_anything_runs(pool: Pool | None, option: dict[str, Any], sentence: tuple[str, ...]) -> None:
    with refused(PlanningError, *sentence):
        Executor(SimulatedEngine, CLUSTER, latency=LATENCY, actor_pool=pool, **option)  # type: ignore[arg-type]


def test_a_closed_executor_runs_nothing() -> None:
    step = random_step(3)
    executor = Executor(SimulatedEngine, step.cluster, latency=step.latency)
    executor.close()
    with refused(ClosedError):
        executor.run(plan_of([range(18)]), step.requests())


def test_an_interrupt_ends_the_step_and_nothing_else() -> None:
    """The interrupted step leaves no engine and no cache behind, the steps before it stand, and the next one works."""
    caches: list[weakref.ref[KVCache]] = []
    made = engines()
    new_cache = made.model.new_cache

    def noted(**options: Any) -> KVCache:
        cache = new_cache(**options)
        caches.append(weakref.ref(cache))
        return cache

    made.model.new_cache = noted  # type: ignore[method-assign]
    plan = plan_of([range(0, 4), range(4, 8)], slots=2)
    with Executor(made, CLUSTER, latency=LATENCY) as executor:
        before = executor.run(plan, requests())

        passes = iter(range(7))

        def interrupt(phase: str, tokens: object) -> None:
            if next(passes, None) is None:
                raise KeyboardInterrupt

        made.model.hooks.append(interrupt)
        caches.clear()
        with pytest.raises(KeyboardInterrupt):
            executor.run(plan, requests())
        made.model.hooks.clear()
        gc.collect()
        assert all(cache() is None or cache().data.shape[2] == 0 for cache in caches)  # type: ignore[union-attr]
        at, step = executor.clock_s, executor.next_step
        after = executor.run(plan, requests())
        assert (after.start_s, after.step) == (at, step)
        for i, c in before.completions.items():
            np.testing.assert_array_equal(after.completions[i].token_ids, c.token_ids)
    with refused(StepFailed, "ClosedError"):
        run_step(plan, requests(), made, LATENCY, CLUSTER)


def test_memory_decides_slots() -> None:
    model = engines().model
    a_row = model.cells * model.kv_bytes_per_token
    enough = int((model.weight_bytes + 5 * a_row) / 0.9) + 1
    admission = admission_within(model, enough, max_slots=16)
    assert (admission.max_batch, admission.kv_capacity_tokens) == (5, 5 * model.cells)
    assert admission_within(model, 1 << 40, max_slots=16).max_batch == 16
    with refused(MemoryError, "96"):
        admission_within(model, model.weight_bytes, max_slots=16)
