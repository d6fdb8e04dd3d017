"""What Ray adds in a scripted world: nodes that are lost, actors that are unavailable, other clocks, a full object store.

A real cluster is in ``test_real_ray.py``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from error_messages import refused
from executor_samples import plan_of
from scripted_steps import GROUPS, events, stage
from scripted_strikes import (
    LONG,
    TWO,
    at,
    decodes,
)
from scripted_world import Actor, Punctual

from rlhfless.executor import Faults, Lifecycle, StepFailed


@pytest.mark.parametrize("unavailable", [False, True])
def test_a_lost_node_is_named_and_nothing_is_started_there(unavailable: bool) -> None:
    """Ray may only say at first that an actor is unavailable."""
    with stage("ray", Punctual(0), faults=Faults(slow_factor=math.inf)) as on:
        ray = on.pool.cluster.ray  # type: ignore[attr-defined]

        def lose(actor: Actor) -> None:
            for one in on.world.actors if unavailable else []:
                one.doubt = one.node == 1  # type: ignore[attr-defined]
            ray.lose(1, 0.03 if unavailable else 0.0)

        at(on, lose, decodes(), 2)
        record = on.run(plan_of(GROUPS), lengths=LONG)
        lost = events(record, "lost")
        assert [e["holder"] for e in lost] == ["actor-2", "actor-3"]
        assert all(e["why"].endswith("was lost with its node 10.0.0.1") for e in lost)
        assert {a["node"] for a in record.allocations if a["holder"] not in ("actor-2", "actor-3")} == {0}


def test_where_all_gpus_are_on_a_lost_node_the_step_says_so() -> None:
    """However often an actor may be started again."""
    plan = plan_of(TWO)
    plan = replace(plan, actors=tuple(replace(a, gpu_ids=(2 + i,)) for i, a in enumerate(plan.actors)))
    with stage("ray", Punctual(0)) as on:
        at(on, lambda a: on.pool.cluster.ray.lose(1), decodes(), 1)  # type: ignore[attr-defined]
        with refused(StepFailed, "node 10.0.0.1", "12 responses"):
            on.run(plan, lengths=LONG)
        assert len(on.world.actors) == 2


def test_an_actor_that_was_unavailable_for_a_moment_is_ended_and_its_work_goes_on() -> None:
    with stage("ray", Punctual(0)) as on:
        at(on, lambda a: setattr(a, "doubt", True), decodes(), 0)
        record = on.run(plan_of(TWO), lengths=LONG)
        (lost,) = events(record, "lost")
        assert lost["holder"] == "actor-0"
        assert "unavailable" in lost["why"]
        assert on.world.actors[0].killed


def test_times_of_another_machine_are_put_on_this_clock() -> None:
    """Node 1's clock is 5000 s ahead, which ``Stage.check`` would see; the record says how surely that is known."""
    with stage("ray") as on:
        record = on.run(plan_of(GROUPS))
        ready = {e["holder"]: e for e in events(record, "ready")}
        assert set(ready) == {f"actor-{i}" for i in range(4)}
        assert {one["clock_error_s"] for one in ready.values()} == {0.0}
        assert [ready[f"actor-{i}"]["ray_node"][0] for i in range(4)] == ["a", "a", "b", "b"]
        assert {one["weights_version"] for one in ready.values()} == {0}


def test_weights_for_which_the_store_has_no_room_end_the_step_with_a_sentence() -> None:
    with stage("ray") as on:
        on.pool.cluster.ray.full = True  # type: ignore[attr-defined]
        with refused(StepFailed, "Ray's object store"):
            on.run(plan_of(TWO))
        on.pool.cluster.ray.full = False  # type: ignore[attr-defined]
        on.run(plan_of(TWO))


@pytest.mark.parametrize("lifecycle", [Lifecycle.cold(), Lifecycle(idle_timeout_s=5.0)])
def test_from_one_actor_to_four_and_back_to_zero(lifecycle: Lifecycle) -> None:
    with stage("ray", lifecycle=lifecycle) as on:
        for groups in ([range(12)], GROUPS, GROUPS):
            on.run(plan_of(groups))
        assert len(on.world.actors) == (9 if lifecycle == Lifecycle.cold() else 4), "who is kept is used again"
        on.world.sleep(6.0)
        assert not on.alive, "scaled to zero"
