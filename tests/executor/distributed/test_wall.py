"""The wall clock: the loop with scripted actors, what a pool refuses, and what processes lay out for each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from error_messages import refused
from executor_samples import Restless, plan_of, uniform_step
from remote_samples import ScriptedCrew
from torch_wall_samples import CLUSTER, LATENCY, factory_of, requests

from rlhfless.engine.simulated.disturbances import FaultInjectingFactory
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.executor import ProcessPool, StepRecord
from rlhfless.executor.distributed.executor import WallStep
from rlhfless.executor.distributed.transport import ActorPlacement
from rlhfless.executor.step.step_state import StepOptions
from rlhfless.latency.effects import Effects
from solver import Cluster, Plan, PlanningError
from solver.model.runtime_rules import ActorView, Cut, Decision, Move, RuntimeRule, StepState, Trigger

LENGTHS = [3, 9, 1, 14, 6, 22, 2, 17, 11, 5, 8, 30]
GROUPS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11]]


# --- the loop, with actors that report in any order -------------------------------------------------------------------


def scripted(rule: RuntimeRule | None, seed: int, groups: list[list[int]] = GROUPS, obeys: float = 0.5) -> StepRecord:
    step, plan = uniform_step(LENGTHS), plan_of(groups, rule, slots=3)
    record = StepRecord("run", 0, plan, 0.0)
    crew = ScriptedCrew(seed, obeys)
    WallStep(plan, step.requests(), crew, record, StepOptions(step.latency, step.cluster, migration="move")).run()
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


# --- what needs no process --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    return factory_of()


def test_what_cannot_run_is_refused_before_anything_starts(factory: TorchEngineFactory) -> None:
    plan = plan_of([range(12), range(12, 24)])

    def refuses(named: str, plan: Plan, engines: object = factory, error: type[Exception] = PlanningError) -> None:
        with ProcessPool(["cpu"] * 2) as pool:
            with refused(error, named):
                pool.run_step(plan, requests(), engines, LATENCY, CLUSTER)
            assert repr(pool) == "ProcessPool: 0 idle of 0 processes on cpu, cpu"

    def changed(**changes: object) -> Plan:
        return replace(plan, actors=(plan.actors[0], replace(plan.actors[1], **changes)))  # type: ignore[arg-type]

    refuses("GPU 3", changed(gpu_ids=(3,)))
    refuses("response 12", changed(shares_prompts=True))
    refuses("FaultInjectingFactory", plan, FaultInjectingFactory(Effects()), TypeError)
    two = replace(plan, actors=(replace(plan.actors[0], gpu_ids=(0, 1)),))
    with refused(PlanningError, "actor 0"):
        ProcessPool(["cuda:0", "cuda:1"]).run_step(two, requests(), factory, LATENCY, Cluster(1, 2, 2))


def test_what_processes_share_arrives_as_it_was() -> None:
    from rlhfless.engine.torch import worker_backend as torch_backend

    tensor = torch.randn(3, 5).to(torch.bfloat16)
    thing = {"a": tensor, "again": tensor, "none": torch.zeros(2, 0), "strided": torch.arange(6).view(2, 3).T, "n": 1}
    thing |= {"array": np.arange(3), "device": torch.device("cuda", 5)}
    form, buffers = torch_backend.Backend().pack(thing)
    assert len(buffers) == 3
    stored = [bytearray(buffer) for buffer in buffers]
    there = torch_backend.Backend().unpack(form, stored, "cpu")
    for buffer in stored:
        buffer[:] = bytes(len(buffer))
    assert there["a"] is there["again"]
    assert (there["n"], there["device"]) == (1, torch.device("cpu"))
    assert there["array"].flags.writeable
    assert tensor.untyped_storage().resizable(), "its memory can be given back"
    for name in ("a", "none", "strided"):
        assert there[name].dtype == thing[name].dtype
        assert torch.equal(there[name], thing[name])


def test_an_actor_waits_for_places_with_its_devices_only() -> None:
    """GPU ids that share a device are names; others are not."""
    here, there = (ActorPlacement("gpu", 0, (i,)) for i in range(2))
    for devices, serves in {("cpu", "cpu"): True, (): True, ("cuda:0", "cuda:1"): False}.items():
        with ProcessPool(devices) as pool:
            assert pool.serves(here, there) is serves
            assert pool.serves(here, here)
