"""Actors that decode with real vLLM, each in a process of its own, on the wall clock."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from busy_machine import PATIENT, Gate, Gated, has_moved
from error_messages import refused
from torch_wall_samples import until
from vllm_samples import (
    AHEAD,
    LATENCY,
    Shuffle,
    assert_handed_over,
    factory_of,
    model_of,
    needs_vllm,
    requests,
    start_s,
    torch_engine,
)

from rlhfless.engine.vllm import adapter as vllm_adapter
from rlhfless.engine.vllm.weight_folders import write_weights
from rlhfless.errors import InputError
from rlhfless.executor import Faults, Lifecycle, ProcessPool, StepFailed, StepRecord
from rlhfless.executor.distributed.worker.worker import Worker
from rlhfless.system.child import Failed
from rlhfless.trace.schema.validation import validate
from solver import Cluster, Plan, PlanningError
from solver.model.drafting import Drafting
from solver.model.plan import ActorPlan
from solver.model.runtime_rules import ActorView, Decision, RuntimeRule, StepState, Trigger

pytestmark = needs_vllm
COUNT = 16
TWO = Cluster(1, 2, 1)


def plan_of(groups: Sequence[Sequence[int]], rule: RuntimeRule | None = None, gpus: int = 1) -> Plan:
    actors = [ActorPlan("gpu", tuple(range(i * gpus, (i + 1) * gpus)), 0, tuple(g), (), 6) for i, g in enumerate(groups)]
    return Plan(tuple(actors), "by hand", 0.0, 0.0, 0.0, rule=rule)


HALVES = [range(0, COUNT, 2), range(1, COUNT, 2)]


def by_torch(seed: int, wanted: Sequence[object]) -> dict[int, list[int]]:
    engine = torch_engine(seed)
    engine.add(wanted)  # type: ignore[arg-type]
    return {c.response: c.token_ids.tolist() for c in engine.advance(math.inf).completions}


def tokens_of(record: StepRecord) -> dict[int, list[int]]:
    return {i: np.asarray(c.token_ids).tolist() for i, c in record.completions.items()}


def synced_bytes(record: StepRecord) -> list[float]:
    return [span["bytes"] for span in record.spans if span["phase"] == "sync"]


def assert_sound(record: StepRecord, phases: Sequence[str]) -> None:
    """The schema's rules, one thing at a time within the allocation, every token in a span, and this before the first one."""
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    decoded = sum(s["tokens"] for s in record.spans if s["phase"] == "decode")
    assert decoded == sum(c.response_tokens for c in record.completions.values())
    for a in [a for a in record.allocations if a["role"] != "warm"]:
        own = sorted((s for s in record.spans if s["holder"] == a["holder"]), key=lambda s: s["start_s"])
        assert [s["phase"] for s in own][: len(phases)] == list(phases)
        assert a["start_s"] <= own[0]["start_s"]
        assert own[-1]["end_s"] <= a["end_s"]
        assert all(s["end_s"] <= t["start_s"] + 1e-9 for s, t in itertools.pairwise(own))


@pytest.mark.full
def test_a_run_of_steps(tmp_path: Path) -> None:
    """One start; moves change no greedy token; the next step has the next weights; at the end nothing is left."""
    wanted, gate = requests(COUNT), Gate(tmp_path / "something has moved")
    with ProcessPool(["cpu", "cpu"], faults=PATIENT) as pool:
        engines = factory_of(write_weights(model_of(3), tmp_path, 0), 0)
        still = pool.run_step(plan_of(HALVES), wanted, engines, LATENCY, TWO)
        assert tokens_of(still) == by_torch(3, wanted)
        assert_sound(still, ["start", "sync", "prefill", "decode"])
        assert synced_bytes(still) == [engines.weight_bytes] * 2

        forced = [replace(r, target_tokens=30 + r.response, max_tokens=60) for r in wanted]
        gated = Gated(engines, gate, last=COUNT // 4)
        with gate.opened(lambda: has_moved(pool)):
            moved = pool.run_step(plan_of(HALVES, Shuffle()), forced, gated, LATENCY, TWO, step=1, migration="move")
        assert moved.moves > 0
        assert tokens_of(moved) == by_torch(3, forced)
        assert_sound(moved, ["sync", "prefill", "decode"])
        assert_handed_over(moved)

        newer = replace(engines, weights=str(write_weights(model_of(4), tmp_path, 1)), weights_version=1)
        learned = pool.run_step(plan_of(HALVES), wanted, newer, LATENCY, TWO, step=2)
        assert tokens_of(learned) == by_torch(4, wanted)
        assert synced_bytes(learned) == [newer.weight_bytes] * 2
        assert repr(pool) == "ProcessPool: 2 idle of 2 processes on cpu, cpu"

        other = replace(LATENCY, max_batch=3)  # which asks for another vLLM, as drafts do
        told = [replace(r, history=[learned.completions[r.response].token_ids]) for r in wanted[:4]]
        drafts = replace(newer, drafting=Drafting(length=4, max_draft_tokens=4))
        drafted = pool.run_step(plan_of([range(4)]), told, drafts, other, TWO, step=3)
        assert tokens_of(drafted) == by_torch(4, wanted[:4])
        assert_sound(drafted, ["start", "sync", "prefill", "decode"])
        assert sum(c.passes for c in drafted.completions.values()) < sum(
            c.response_tokens for c in drafted.completions.values()
        )
        assert repr(pool) == "ProcessPool: 1 idle of 1 process on cpu, cpu"
    assert not multiprocessing.active_children()


@pytest.mark.nightly
def test_vllm_runs_before_the_step_of_an_actor_that_is_started_ahead(tmp_path: Path) -> None:
    """It starts with the last step's weights and decodes with the step's. Its start is charged once: before the step, and in it
    as far as it is not over then."""
    wanted, plan = requests(6), plan_of([range(6)])
    with ProcessPool(["cpu"], lifecycle=AHEAD) as pool:
        folder = write_weights(model_of(3), tmp_path, 0)
        cold = pool.run_step(plan, wanted, factory_of(folder, 0), LATENCY, TWO)
        until(lambda: [p.up_s is not None for p in pool.idle.values()] == [True], "vLLM runs", 300.0)
        pool.finalise_allocations(cold)

        folder = write_weights(model_of(4), tmp_path, 1, keep=folder)
        warm = pool.run_step(plan, wanted, factory_of(folder, 1), LATENCY, TWO, step=1)
        assert tokens_of(warm) == by_torch(4, wanted)
        assert_sound(warm, ["sync", "prefill", "decode"])
        assert start_s(warm, "actor-0") == 0.0
        assert start_s(cold, "warm-0") > start_s(cold, "actor-0") / 4, "vLLM's, and not the process's alone"

        folder = write_weights(model_of(5), tmp_path, 2, keep=folder)  # which the next actor, on its way up, still reads
        soon = pool.run_step(plan, wanted, factory_of(folder, 2), LATENCY, TWO, step=2)
        assert tokens_of(soon) == by_torch(5, wanted)
        assert_sound(soon, ["start", "sync", "prefill", "decode"])
        assert not [e for record in (cold, warm, soon) for e in record.events if e["name"] == "lost"]
    assert not multiprocessing.active_children()


@pytest.mark.nightly
def test_an_actor_that_cannot_be_started_ahead_is_started_in_its_step(tmp_path: Path) -> None:
    """The weights that it would start with are gone, which says nothing of the step's."""
    wanted, plan = requests(4), plan_of([range(4)])
    with ProcessPool(["cpu"], lifecycle=AHEAD) as pool:
        pool.run_step(plan, wanted, factory_of(write_weights(model_of(3), tmp_path, 0), 0), LATENCY, TWO)
        folder = write_weights(model_of(4), tmp_path, 1)
        learned = pool.run_step(plan, wanted, factory_of(folder, 1), LATENCY, TWO, step=1)
    assert tokens_of(learned) == by_torch(4, wanted)
    assert [e["name"] == "lost" or "lost" in str(e["detail"]) for e in learned.events].count(True) == 1, (
        "in the step, or before it"
    )


@pytest.mark.full
def test_a_start_ahead_of_a_step_without_weights_is_no_reason_to_give_up(tmp_path: Path) -> None:
    gone = factory_of(tmp_path / "gone", 0)
    with pytest.raises(
        RuntimeError, match=r"could not be started ahead of its step: InputError: .*has weights of an unknown version"
    ) as error:
        Worker(multiprocessing.Pipe()[0], queue.SimpleQueue(), "cpu", gone.capabilities.backend).prewarm(gone, LATENCY)
    assert not Failed.of(error.value).unrecoverable, "another process may start"


@dataclass
class Kill:
    """Kills an actor's process once something is complete."""

    name: str = "kill"
    killed: int = 0

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(completions=1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        if not self.killed:
            self.killed = next(p.pid for p in multiprocessing.active_children() if p.name.startswith("rlhfless"))
            os.kill(self.killed, signal.SIGKILL)
        return []


@pytest.mark.nightly
def test_actors_that_die_or_cannot_start(tmp_path: Path) -> None:
    """Another process goes on where one died; what never works is said."""
    folder = write_weights(model_of(3), tmp_path, 0)
    engines = factory_of(folder, 0)
    with ProcessPool(["cpu"], lifecycle=Lifecycle.cold()) as pool:
        long = [replace(r, target_tokens=60 if r.response else 1, max_tokens=60) for r in requests(4)]
        record = pool.run_step(plan_of([range(4)], Kill()), long, engines, LATENCY, TWO)
        assert record.rule.killed  # type: ignore[union-attr]  # the step's copy of the rule
        assert tokens_of(record) == by_torch(3, long)
        assert not multiprocessing.active_children(), "a process that is not kept ends with its actor"
    (folder / "model.safetensors").write_bytes(b"nothing that anybody could read")
    with ProcessPool(["cpu"], faults=Faults(restarts=0)) as pool:
        with pytest.raises(StepFailed, match=r"actor-0 \(process \d+ on cpu\) failed with \w+: .*[Ee]rror"):
            pool.run_step(plan_of([range(4)]), requests(4), engines, LATENCY, TWO)
        assert not multiprocessing.active_children()


@pytest.mark.full
def test_what_cannot_run_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = factory_of(write_weights(model_of(3), tmp_path, 0), 0)
    plan = plan_of([range(4)])
    receiving = replace(plan, actors=(replace(plan.actors[0], prefixes=(0,), prefix_tokens=(2,)),))
    with refused(PlanningError, "actor 0", "VllmEngineFactory"):
        ProcessPool(["cpu"]).run_step(receiving, requests(4), engines, LATENCY, TWO)
    monkeypatch.setattr(vllm_adapter, "SUPPORTED", ("0.1",))
    with ProcessPool(["cpu"]) as pool:
        with refused(InputError, "0.1"):
            pool.run_step(plan, requests(4), engines, LATENCY, TWO)
        assert repr(pool) == "ProcessPool: 0 idle of 0 processes on cpu"


@pytest.mark.nightly
def test_an_actor_of_two_gpus_is_two_ranks_of_vllm(tmp_path: Path) -> None:
    """On the CPU a rank is a process; all of them end with their actor."""
    wanted, engines = requests(6), factory_of(write_weights(model_of(3), tmp_path, 0), 0)
    latency = replace(LATENCY, gpus_per_actor=2)
    assert engines.compatibility_key(latency).gpus == 2
    with ProcessPool([]) as pool:
        record = pool.run_step(plan_of([range(6)], gpus=2), wanted, engines, latency, Cluster(1, 2, 2))
        assert tokens_of(record) == by_torch(3, wanted)
        newer = replace(engines, weights=str(write_weights(model_of(4), tmp_path, 1)), weights_version=1)
        learned = pool.run_step(plan_of([range(6)], gpus=2), wanted, newer, latency, Cluster(1, 2, 2), step=1)
        assert tokens_of(learned) == by_torch(4, wanted)
        (actor,) = (p.pid for p in multiprocessing.active_children())
        ranks = [int(p) for p in Path(f"/proc/{actor}/task/{actor}/children").read_text().split()]
        assert len(ranks) >= 2
    for pid in ranks:
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the ranks have ended with their actor")
