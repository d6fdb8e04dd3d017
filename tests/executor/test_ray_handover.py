"""KV states that do not arrive on a Ray cluster: their sender is killed, or the object store has no room for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import chaos_counts, counting_engine

from rlhfless.engine.protocol import Request
from rlhfless.executor import Lifecycle, RayPool, StepRecord
from rlhfless.trace.checks import validate
from solver import Cluster, LatencyModel, Plan
from solver.rules import ActorView, Decision, Move, RuntimeRule, StepState, Trigger

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
from executor_samples import plan_of
from ray_samples import details, running, two_nodes, until

from rlhfless.executor import ray_member

pytestmark = pytest.mark.full
LATENCY = LatencyModel("tiny", 1, 2e-3, 0.0, max_batch=16, kv_capacity_tokens=1 << 20)
CLUSTER = Cluster(2, 1, 1)
REQUESTS = [Request(i, 3, 600, prompt_ids=np.arange(3), seed=i, target_tokens=300 + 20 * i if i else 20) for i in range(8)]
GROUPS = ([0, 1, 2, 3], [4, 5, 6, 7])
MOVED = 2
TOO_LARGE = 160 * 2**20  # bytes: more than the object store of a node


class MoveOne:
    """Moves one response of actor 0 to actor 1, at the first completion, when both decode."""

    name = "move one"

    def __init__(self) -> None:
        self.moved = False

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return None if self.moved else Trigger(completions=view.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.moved = True
        return [Move(MOVED, 1)]


@pytest.fixture(scope="module")
def pool() -> Iterator[RayPool]:
    """Two nodes, which put nothing on the disk that their memory has no room for; actors that live from step to step."""
    with (
        two_nodes(local_fs_capacity_threshold=0.0) as nodes,
        RayPool(nodes.address, runtime_env={}, lifecycle=Lifecycle.serverful()) as joined,
    ):
        yield joined


def step(pool: RayPool, rule: RuntimeRule | None = None, kv_bytes: int = 8) -> StepRecord:
    """With both actors up before. Every response is entered once."""
    plan = plan_of(GROUPS, rule)
    plan = replace(plan, actors=tuple(replace(a, node=i) for i, a in enumerate(plan.actors)))

    def run(plan: Plan, wanted: list[Request]) -> StepRecord:
        engines = counting_engine.CountingEngines(kv_bytes=kv_bytes)
        return pool.run_step(plan, wanted, engines, LATENCY, CLUSTER, migration="move")

    while len(pool._idle) < len(plan.actors):
        run(replace(plan, rule=None), [replace(r, target_tokens=1) for r in REQUESTS])
    with chaos_counts.counted() as entered:
        record = run(plan, REQUESTS)
    assert dict(entered) == dict.fromkeys(range(len(REQUESTS)), 1)
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    return record


@pytest.fixture(scope="module")
def undisturbed(pool: RayPool) -> dict[int, bytes]:
    """The tokens of every response."""
    return chaos_counts.token_bytes(step(pool))


def received(record: StepRecord) -> int:
    """How many KV states were read by the actors that they were meant for."""
    return len([s for s in record.spans if s["phase"] == "transfer"])


def test_a_sender_that_dies_before_its_kv_state_is_fetched_costs_that_one_only(
    pool: RayPool, undisturbed: dict[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moved response goes on with its tokens, of which the receiver computes the context again; what the sender had left is
    begun anew."""
    export, killed = ray_member.Member.export, []

    def dead(self: Any, name: str) -> Any:
        """It has said what it hands over, and is asked for it too late."""
        killed.append(self.up.pid)
        os.kill(self.up.pid, signal.SIGKILL)
        until(lambda: not running({self.up.pid}), "it has ended")
        return export(self, name)

    monkeypatch.setattr(ray_member.Member, "export", dead)
    record = step(pool, MoveOne())
    assert chaos_counts.token_bytes(record) == undisturbed
    assert len(killed) == 1
    ((sender, lost),) = details(record, "lost").items()
    assert (sender, lost["responses"]) == ("actor-0", 2)
    assert [again.response for again in record.recomputes] == [MOVED]
    assert received(record) == 0
    assert sorted(r for one in details(record, "retry").values() for r in one["responses"]) == [1, 3]
    tokens = {i: c.prefill_tokens_computed for i, c in record.completions.items()}
    assert tokens[MOVED] > 2 * REQUESTS[MOVED].prompt_tokens, "it went on where it was"


def test_a_kv_state_for_which_the_object_store_has_no_room_is_computed_again(
    pool: RayPool, undisturbed: dict[int, bytes]
) -> None:
    roomy, full = step(pool, MoveOne()), step(pool, MoveOne(), kv_bytes=TOO_LARGE)
    for record in (roomy, full):
        assert chaos_counts.token_bytes(record) == undisturbed
        assert record.moves == 1
        assert not details(record, "lost"), "nobody is lost for it"
    assert (received(roomy), received(full)) == (1, 0)
    assert roomy.recomputes == []
    assert [again.response for again in full.recomputes] == [MOVED]
