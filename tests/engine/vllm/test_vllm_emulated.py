"""vLLM on the virtual clock: one real process decodes for all emulated actors, one actor's pass at a time.

The tests share its start, and the last one kills it.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import stopping_replica
from error_messages import refused
from executor_samples import plan_of
from vllm_samples import (
    EOS,
    LATENCY,
    LONGEST,
    ROOMY,
    VOCABULARY,
    Shuffle,
    assert_handed_over,
    by_response,
    factory_of,
    model_of,
    needs_vllm,
    requests,
    scripted,
    torch_engine,
)

from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.vllm import emulation
from rlhfless.engine.vllm.actor_batches import QUEUES, ActorBatches
from rlhfless.engine.vllm.adapter import VllmError
from rlhfless.engine.vllm.emulation import VllmProcess, covers, shared_settings
from rlhfless.engine.vllm.engine import VllmEngine
from rlhfless.engine.vllm.replay import passes_of
from rlhfless.engine.vllm.start_up import VllmSettings
from rlhfless.engine.vllm.weight_folders import write_weights
from rlhfless.errors import InputError
from rlhfless.executor import StepFailed, StepRecord, run_step
from rlhfless.trace.schema.validation import validate
from solver import Cluster
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.runtime_rules import Decision, StepState

TWO, PASSES = Cluster(1, 2, 1), ("prefill", "decode")
MIXED = replace(LATENCY, transfer_base_s=1e-4, kv_bytes_per_token=1024.0).with_mixed_prefill(LONGEST)
HALVES = [range(8), range(8, 14)]


def forced(count: int) -> list[Request]:
    """Prompts without a common beginning, and given lengths."""
    rng = np.random.default_rng(2)
    prompts = [np.concatenate([[2 + i], rng.integers(2, 30, size=int(rng.integers(0, 60)))]) for i in range(count)]
    return [
        Request(i, len(ids), 40, prompt_ids=ids, seed=i, target_tokens=int(rng.integers(1, 40)))
        for i, ids in enumerate(prompts)
    ]


def tokens_of(completions: dict[int, Completion]) -> dict[int, list[int]]:
    return {i: np.asarray(c.token_ids).tolist() for i, c in completions.items()}


def by_torch(wanted: list[Request], seed: int = 3) -> dict[int, list[int]]:
    engine = torch_engine(seed)
    engine.add(wanted)
    return tokens_of(by_response(engine.advance(math.inf).completions))


# --- without vLLM -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency", [LATENCY, replace(LATENCY, join_s=1e-3), LATENCY.with_mixed_prefill(4096)])
def test_a_charged_pass_takes_what_the_planner_says(latency) -> None:
    engine, simulated = scripted(ROOMY), SimulatedEngine(latency, ROOMY)
    charged = VllmEngine(engine.replica, ROOMY, eos_id=EOS, latency=latency, charged=True)
    for one in (charged, simulated):
        one.add(forced(14))
    found, expected = (by_response(one.advance(math.inf).completions) for one in (charged, simulated))
    assert {i: (c.response_tokens, c.start_s, c.first_token_s, c.time_s) for i, c in found.items()} == {
        i: (c.response_tokens, *(pytest.approx(at_s) for at_s in (c.start_s, c.first_token_s, c.time_s)))
        for i, c in expected.items()
    }


def test_passes_are_replayed_as_they_were() -> None:
    """Who joins with which context, and who is gone; whoever is evicted comes back under another name."""
    engine = scripted(Admission(3, 150, "preempt"))
    engine.add(forced(8))
    engine.advance(math.inf)
    passes, here, seen = passes_of(engine.journal, LONGEST), set[str](), list[str]()
    assert len(passes) == len(engine.journal)
    for one, change in zip(passes, engine.journal.changes, strict=True):
        here -= set(one.left)
        for new in one.joined:
            assert len(new.ids) + new.tokens == LONGEST
            assert new.forced
        here |= {new.name for new in one.joined}
        seen += [new.name for new in one.joined]
        assert len(here) == change.batch
        assert set(one.charged) <= here
    assert len(seen) == len(set(seen)) > 8
    again = {name.split("-")[0] for name in seen}
    assert again == set(map(str, range(8)))


def test_the_scheduler_sees_one_actor_at_a_time() -> None:
    scheduler = SimpleNamespace(**{name: [] for name in QUEUES})
    batches = ActorBatches(scheduler)
    scheduler.running.append("a")
    batches.select(5)
    assert batches.others_wait
    scheduler.waiting.append("b")
    batches.select(0)
    assert (scheduler.running, scheduler.waiting, batches.others_wait) == (["a"], [], True)
    scheduler.running.clear()
    batches.select(5)
    assert (scheduler.running, scheduler.waiting, batches.others_wait) == ([], ["b"], False)


def test_a_process_is_kept_while_it_has_room(tmp_path: Path) -> None:
    one = factory_of(tmp_path, 0).compatibility_key(replace(LATENCY, kv_capacity_tokens=500))
    small, large, other = shared_settings([one], 4), shared_settings([one, one], 9), shared_settings([replace(one, gpus=2)], 4)
    assert (small.gpus, small.slots, small.kv_tokens, small.kept_responses) == (1, 6, 500, 4)
    assert (large.kv_tokens, large.kept_responses) == (1000, 9)
    assert small == other, "several GPUs are emulated on one device"
    assert covers(large, small)
    assert not covers(small, large)
    assert not covers(replace(large, dtype="bfloat16"), small)


def test_it_does_not_draft_for_emulated_actors(tmp_path: Path) -> None:
    engines = factory_of(tmp_path, 0, drafting=Drafting(max_draft_tokens=2))
    with refused(InputError, "ProcessPool", "drafting"):
        run_step(plan_of(HALVES), requests(14), engines, MIXED, TWO)


def test_a_process_that_hangs_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "main", stopping_replica.main)
    process = VllmProcess(VllmSettings(1, 4, 64, 64), "weights-0", 0, heartbeat_timeout_s=5.0)
    assert process.call("echo", "hello") == "hello"
    pid = process.pid
    with refused(VllmError, "vLLM", str(pid), "no heartbeat for 5 s", "'stop'", "heartbeat_timeout_s"):
        process.call("stop")
    assert not process.usable
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)
    with refused(VllmError, "stopped before"):
        process.call("echo", "hello")


@pytest.mark.full
def test_a_process_that_ends_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "main", stopping_replica.main)
    process = VllmProcess(VllmSettings(1, 4, 64, 64), "weights-0", 0)
    with refused(VllmError, "vLLM", "SIGKILL", "run the step again"):
        process.call("die")
    process.close()


# --- with vLLM --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_weights(model_of(3), tmp_path_factory.mktemp("emulated"), 0)
    emulation.close()


def seconds_of(record: StepRecord, holder: str) -> float:
    return sum(s["end_s"] - s["start_s"] for s in record.spans if s["holder"] == holder and s["phase"] in PASSES)


def assert_sound(record: StepRecord) -> None:
    """The schema's rules; an actor's passes follow one another, within its allocation; every token is in a span."""
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    for allocation in record.allocations:
        spans = [s for s in record.spans if s["holder"] == allocation["holder"] and s["phase"] in PASSES]
        own = sorted(spans, key=lambda s: s["start_s"])
        assert all(s["end_s"] <= t["start_s"] + 1e-9 for s, t in itertools.pairwise(own))
        assert allocation["start_s"] <= own[0]["start_s"] + 1e-9
        assert own[-1]["end_s"] <= allocation["end_s"] + 1e-9
    decoded = sum(s["tokens"] for s in record.spans if s["phase"] == "decode")
    assert decoded == sum(c.response_tokens for c in record.completions.values())
    assert all(c.start_s < c.first_token_s <= c.time_s for c in record.completions.values())


@needs_vllm
@pytest.mark.full
def test_a_step_by_profile_takes_what_the_planner_says(folder: Path) -> None:
    """Nothing of vLLM runs in this process."""
    environment, modules = dict(os.environ), set(sys.modules)
    wanted = forced(14)
    record, simulated = (
        run_step(plan_of(HALVES, slots=6), wanted, engines, MIXED, TWO) for engines in (factory_of(folder, 0), SimulatedEngine)
    )
    assert {i: (c.first_token_s, c.time_s) for i, c in record.completions.items()} == {
        i: (pytest.approx(c.first_token_s), pytest.approx(c.time_s)) for i, c in simulated.completions.items()
    }
    assert tokens_of(record.completions) == by_torch(wanted)
    assert_sound(record)
    assert not [name for name in set(sys.modules) - modules if name.split(".")[0] == "vllm"]
    assert dict(os.environ) == environment


@needs_vllm
@pytest.mark.full
def test_measured_passes_are_those_of_the_step(folder: Path) -> None:
    """Responses change places with their KV states, twice in the process that is there; greedy tokens are torch's."""
    wanted, pid = requests(14), emulation.pid()
    plan, engines = plan_of(HALVES, Shuffle(), slots=6), factory_of(folder, 0)
    by_profile, measured = (
        run_step(plan, wanted, engines, MIXED, TWO, charging=charging, migration="move") for charging in ("profile", "measured")
    )
    assert by_profile.moves == measured.moves > 0
    expected = by_torch(wanted)
    for record in (by_profile, measured):
        assert tokens_of(record.completions) == expected
        assert_sound(record)
        assert_handed_over(record)
    replays = {e["holder"]: json.loads(e["detail"]) for e in measured.events if e["name"] == "replay"}
    for holder in ("actor-0", "actor-1"):
        assert "differing" not in replays[holder], "a pass fed other tokens than the step's"
        assert 0 < seconds_of(measured, holder) != seconds_of(by_profile, holder)
    assert emulation.pid() == pid or pid is None


@needs_vllm
@pytest.mark.full
def test_other_weights_are_loaded_after_a_sleep(folder: Path, tmp_path: Path) -> None:
    wanted = requests(4)
    for version, seed in ((1, 4), (2, 5)):
        newer = write_weights(model_of(seed), tmp_path, version)
        record = run_step(plan_of([range(4)], slots=6), wanted, factory_of(newer, version), MIXED, TWO)
        assert tokens_of(record.completions) == by_torch(wanted, seed)
        emulation.sleep()
    with refused(ValueError, str(VOCABULARY), "response 0"):
        wrong = [replace(wanted[0], prompt_tokens=1, prompt_ids=np.array([VOCABULARY])), *wanted[1:]]
        run_step(plan_of([range(4)], slots=6), wrong, factory_of(newer, version), MIXED, TWO)


@dataclass
class Kills(Shuffle):
    """Kills vLLM's process when it is first asked."""

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        os.kill(emulation.pid() or 0, signal.SIGKILL)
        return super().decide(now_s, state)


@dataclass
class Stops(Shuffle):
    """Stops vLLM's process when it is first asked, as a machine that is stuck does."""

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        os.kill(emulation.pid() or 0, signal.SIGSTOP)
        return super().decide(now_s, state)


@needs_vllm
@pytest.mark.full
def test_a_stopped_process_ends_the_step(folder: Path) -> None:
    engines = replace(factory_of(folder, 0), heartbeat_timeout_s=5.0)
    with refused(StepFailed, "vLLM", "no heartbeat for 5 s", "run the step again", "heartbeat_timeout_s"):
        run_step(plan_of(HALVES, Stops(), slots=6), requests(14), engines, MIXED, TWO)


@needs_vllm
@pytest.mark.full
def test_a_killed_process_is_one_sentence(folder: Path) -> None:
    sentence = r"vLLM decodes for emulated actors was killed by SIGKILL; run the step again"
    with pytest.raises(StepFailed, match=sentence) as error:
        run_step(plan_of(HALVES, Kills(), slots=6), requests(14), factory_of(folder, 0), MIXED, TWO)
    assert "\n" not in str(error.value)
    assert error.value.record.completions
