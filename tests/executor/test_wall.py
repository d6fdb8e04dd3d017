"""The wall clock: the loop with scripted actors, and real processes that decode with a tiny model."""

from __future__ import annotations

import itertools
import math
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from executor_samples import Restless, plan_of, uniform_step
from remote_samples import ScriptedCrew
from torch_wall_samples import CLUSTER, LATENCY, actor_plan, factory_of, requests, token_bytes

from rlhfless.engine.simulated import SimulatedEngine
from rlhfless.engine.torch_factory import TorchEngineFactory
from rlhfless.executor import ActorError, Faults, Lifecycle, ProcessPool, StepRecord, run_step
from rlhfless.executor.wall import WallStep
from rlhfless.trace.checks import validate
from solver import Cluster, Plan, PlanningError
from solver.objective import StepRest
from solver.rules import SIGNAL_TOKENS, ActorView, Cut, Decision, Move, RuntimeRule, StepState, Trigger

LENGTHS = [3, 9, 1, 14, 6, 22, 2, 17, 11, 5, 8, 30]
GROUPS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11]]


# --- the loop, with actors that report in any order -------------------------------------------------------------------


def scripted(rule: RuntimeRule | None, seed: int, groups: list[list[int]] = GROUPS, obeys: float = 0.5) -> StepRecord:
    step, plan = uniform_step(LENGTHS), plan_of(groups, rule, slots=3)
    record = StepRecord("run", 0, plan, 0.0)
    crew = ScriptedCrew(seed, obeys)
    WallStep(plan, step.requests(), crew, step.latency, step.cluster, record, StepRest(), "reserve", "move").run()
    assert all(actor.closed for actor in crew.actors.values())
    return record


@pytest.mark.parametrize("seed", range(60))
def test_no_response_is_lost_or_doubled_whatever_crosses_on_the_wire(seed: int) -> None:
    rule = Restless(seed, period_s=0.003)
    record = scripted(rule, seed, obeys=0.1 + 0.8 * (seed % 3) / 2)
    assert sorted(record.completions) == list(range(len(LENGTHS)))
    assert [record.completions[i].response_tokens for i in range(len(LENGTHS))] == LENGTHS
    assert len(record.allocations) == len(GROUPS)
    assert not rule.seen, "the plan is as it was"
    for state in record.rule.seen:
        shown = [r for view in state.actors for r in (*view.unfinished, *view.arriving)]
        assert sorted(shown) == [r for r in range(len(LENGTHS)) if not state.complete[r]], "each unfinished one is somewhere"
        assert all(v.completed <= v.assigned for v in state.actors)


@dataclass
class CutOnce:
    """Cuts actor 0 at its first completion, giving everything to actor 1."""

    name: str = "cut once"
    done: bool = False

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(completions=1) if view.actor == 0 and not self.done else None

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.done = True
        mine = next((a for a in state.actors if a.actor == 0), None)
        return [] if mine is None else [Cut(0, tuple(Move(r, 1) for r in mine.unfinished))]


def test_a_completion_that_crosses_a_cut_stays_with_its_actor() -> None:
    """The order takes so long that everything is complete before it arrives: nothing moves, and nobody waits for it."""
    record = scripted(CutOnce(), 0, [[0, 1, 2], list(range(3, len(LENGTHS)))], obeys=0.0)
    assert [e["name"] for e in record.events] == ["cut"]
    assert record.moves == 0
    assert {record.actor_of[r] for r in (0, 1, 2)} == {"actor-0"}


def test_a_cut_hands_over_what_is_left() -> None:
    record = scripted(CutOnce(), 0, [[2, 3, 5], [0, 1, 4, *range(6, len(LENGTHS))]], obeys=1.0)
    assert record.moves == 2
    assert record.actor_of == {2: "actor-0"} | {r: "actor-1" for r in range(len(LENGTHS)) if r != 2}


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    return factory_of()


@pytest.fixture(scope="module")
def pool(factory: TorchEngineFactory) -> Iterator[ProcessPool]:
    """Four processes that have started: rules have nothing to move while none decodes."""
    with ProcessPool(["cpu"] * 4, faults=Faults(slow_factor=math.inf)) as shared:  # a busy machine slows some down
        assert_sound(shared.run_step(actor_plan("static"), requests(), factory, LATENCY, CLUSTER), prewarmed=False)
        assert repr(shared) == "ProcessPool: 4 idle of 4 processes on cpu, cpu, cpu, cpu"
        yield shared
    assert not multiprocessing.active_children()


@pytest.fixture(scope="module")
def undisturbed(factory: TorchEngineFactory) -> StepRecord:
    return run_step(actor_plan("static"), requests(), factory, LATENCY, CLUSTER)


def assert_sound(record: StepRecord, prewarmed: bool) -> None:
    """The schema's rules, each actor's work within its allocation and one thing at a time, nothing generated twice."""
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    spans, tokens = record.spans, sum(c.response_tokens for c in record.completions.values())
    assert sum(s["tokens"] for s in spans if s["phase"] == "decode") == tokens
    worked = [a for a in record.allocations if a["role"] != "warm"]
    assert {a["holder"] for a in worked} == {f"actor-{i}" for i in range(len(record.plan.actors))}
    for a in worked:
        own = sorted((s for s in spans if s["holder"] == a["holder"]), key=lambda s: s["start_s"])
        assert [s["phase"] for s in own][:2] == ["sync", "prefill"] if prewarmed else ["start", "sync"]
        assert a["start_s"] <= own[0]["start_s"]
        assert all(s["end_s"] <= t["start_s"] + 1e-9 for s, t in itertools.pairwise(own))
        assert own[-1]["end_s"] <= a["end_s"] <= record.end_s
    for c in record.completions.values():
        assert record.start_s < c.start_s < c.first_token_s <= c.time_s
    sent, received = ([s for s in spans if s["phase"] == phase] for phase in ("migrate", "transfer"))
    assert sum(s["bytes"] for s in sent) == sum(s["bytes"] for s in received)
    assert all(r["from_actor"] != r["holder"] and r["kv_tokens"] > 0 for r in received)


@pytest.mark.parametrize("migration", ["move", "recompute"])
@pytest.mark.parametrize("policy", ["static", "random", "fold", "rlhfless"])
def test_tokens_are_those_of_the_virtual_clock(
    policy: str, migration: str, pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord
) -> None:
    record = pool.run_step(actor_plan(policy), requests(), factory, LATENCY, CLUSTER, start_s=1e3, migration=migration)
    assert token_bytes(record) == token_bytes(undisturbed)
    assert_sound(record, prewarmed=True)
    assert record.start_s >= 1e3
    moved_bytes = sum(s["bytes"] for s in record.spans if s["phase"] == "transfer")
    if migration == "recompute":
        assert moved_bytes == 0
    assert pool.meta["clock"] == "wall"


@pytest.mark.parametrize("seed", range(4))
def test_restless_moves_change_no_token(
    seed: int, pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord
) -> None:
    """Moves and whole cuts at odd moments, so that orders, completions and KV states cross."""
    rule = Restless(seed, period_s=0.004, late=True)
    record = pool.run_step(actor_plan("static", rule), requests(), factory, LATENCY, CLUSTER, migration="move")
    assert token_bytes(record) == token_bytes(undisturbed)


def test_a_rule_sees_signals_of_the_tokens_that_were_reported(pool: ProcessPool, factory: TorchEngineFactory) -> None:
    """Whatever moves meanwhile: what is told is the mean over the last of the tokens that the same state counts."""
    rule, telling = Restless(1, period_s=0.004, late=True), replace(factory, signals=("eos_logprob",))
    record = pool.run_step(actor_plan("static", rule), requests(), telling, LATENCY, CLUSTER, migration="move")
    seen = [state for state in record.rule.seen if state.signals is not None]
    assert seen, "the rule is asked while something runs"
    running = 0
    for state in seen:
        for response, told in enumerate(state.signals["eos_logprob"].tolist()):
            tokens = int(state.generated_tokens[response])
            if state.complete[response] or not tokens:
                assert math.isnan(told)
            else:
                values = record.completions[response].signals["eos_logprob"][max(0, tokens - SIGNAL_TOKENS) : tokens]
                assert told == pytest.approx(float(values.mean()), rel=1e-5)
                running += 1
    assert running > 10
    silent = pool.run_step(actor_plan("static", Restless(1)), requests(), factory, LATENCY, CLUSTER)
    assert all(state.signals is None for state in silent.rule.seen)


def test_forced_lengths_and_new_weights(pool: ProcessPool) -> None:
    """Long responses, so that many move, with the weights of this step, not those that the processes had before."""
    other = factory_of(seed=11, longest=350)
    lengths = np.random.default_rng(1).integers(1, 300, len(requests()))
    forced = [replace(r, target_tokens=int(n), limit_tokens=300) for r, n in zip(requests(), lengths, strict=True)]
    expected = run_step(actor_plan("static"), forced, other, LATENCY, CLUSTER)
    plan = actor_plan("static", Restless(1, period_s=0.004, late=True))
    record = pool.run_step(plan, forced, other, LATENCY, CLUSTER, migration="move")
    assert token_bytes(record) == token_bytes(expected)
    assert [record.completions[i].response_tokens for i in range(len(forced))] == lengths.tolist()
    assert record.moves > 0
    assert any(s["phase"] == "transfer" for s in record.spans)


def test_a_process_that_is_not_kept_ends_with_its_actor(factory: TorchEngineFactory, undisturbed: StepRecord) -> None:
    with ProcessPool(lifecycle=Lifecycle.cold()) as pool:
        before = set(multiprocessing.active_children())
        record = pool.run_step(plan_of([range(24)]), requests(), factory, LATENCY, CLUSTER)
        assert set(multiprocessing.active_children()) == before
    assert token_bytes(record) == token_bytes(undisturbed)
    assert_sound(record, prewarmed=False)


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_an_actor_that_fails_says_why(pool: ProcessPool, factory: TorchEngineFactory) -> None:
    wrong = [replace(r, prompt_ids=None) for r in requests()]
    said = r"^actor-0 \(process \d+ on cpu\) failed with ValueError: response 0 has no prompt_ids"
    with pytest.raises(ActorError, match=said):
        pool.run_step(plan_of([range(24)]), wrong, factory, LATENCY, CLUSTER)
    assert not multiprocessing.active_children()


def test_logits_that_are_no_numbers_stop_the_step_once(pool: ProcessPool) -> None:
    """With the response's id; no other actor is asked to compute the same again."""
    broken = factory_of()
    with torch.inference_mode():
        broken.model.weights.embedding[:] = math.nan
    with pytest.raises(ActorError, match=r"FloatingPointError: .*response \d+ are not numbers; .*every other") as error:
        pool.run_step(actor_plan("static"), requests(), broken, LATENCY, CLUSTER)
    assert not [e for e in error.value.record.events if e["name"] == "retry"]
    assert not multiprocessing.active_children()


def test_what_cannot_run_is_refused_before_anything_starts(factory: TorchEngineFactory) -> None:
    plan = plan_of([range(12), range(12, 24)])

    def refused(message: str, plan: Plan, engines: object = factory, error: type[Exception] = PlanningError) -> None:
        with ProcessPool(["cpu"] * 2) as pool:
            with pytest.raises(error, match=message):
                pool.run_step(plan, requests(), engines, LATENCY, CLUSTER)
            assert repr(pool) == "ProcessPool: 0 idle of 0 processes on cpu, cpu"

    def changed(**changes: object) -> Plan:
        return replace(plan, actors=(plan.actors[0], replace(plan.actors[1], **changes)))  # type: ignore[arg-type]

    refused("actor 1 of the plan uses GPU 3, but the pool has 2 devices", changed(gpu_ids=(3,)))
    refused("response 12 does not say its prompt", changed(shares_prompts=True))
    refused("a TorchEngineFactory or a VllmEngineFactory, not with SimulatedEngine", plan, SimulatedEngine, TypeError)
    two = replace(plan, actors=(replace(plan.actors[0], gpu_ids=(0, 1)),))
    with pytest.raises(PlanningError, match="actor 0 of the plan holds 2 GPUs; the torch engine decodes on one"):
        ProcessPool(["cuda:0", "cuda:1"]).run_step(two, requests(), factory, LATENCY, Cluster(1, 2, 2))


def test_what_processes_share_arrives_as_it_was() -> None:
    from rlhfless.engine import torch_process

    tensor = torch.randn(3, 5).to(torch.bfloat16)
    thing = {"a": tensor, "again": tensor, "none": torch.zeros(2, 0), "strided": torch.arange(6).view(2, 3).T, "n": 1}
    packed, tensors = torch_process.pack(thing)
    assert len(tensors) == 3
    buffer = memoryview(bytearray(packed.nbytes))
    torch_process.write(packed, tensors, buffer)
    there = torch_process.read(packed, buffer, "cpu")
    buffer[:] = bytes(len(buffer))
    assert there["a"] is there["again"]
    assert there["n"] == 1
    for name in ("a", "none", "strided"):
        assert there[name].dtype == thing[name].dtype
        assert torch.equal(there[name], thing[name])
