"""What becomes of a step whose actors die, hang or are slow, one behaviour after the other.

Pools of processes and of Ray actors run in a scripted world; real ones are in ``test_real_processes.py`` and
``test_real_ray.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from error_messages import refused
from executor_samples import plan_of
from scripted_engine import requests_of
from scripted_steps import SOON, events, stage
from scripted_strikes import (
    EVERY_POOL_KIND,
    LONG,
    TWO,
    Looker,
    at,
    decodes,
    has_weights,
    starts,
)
from scripted_world import Actor, Punctual

from rlhfless.executor import StepFailed
from rlhfless.executor.distributed.failure_handling import GRACE_S
from solver.model.runtime_rules import ActorView, Decision, StepState, Trigger


@EVERY_POOL_KIND
@pytest.mark.parametrize("when", [starts, has_weights, decodes(), decodes(20)])
def test_an_actor_that_is_killed_is_replaced(when: Callable[[Actor], bool], pool_kind: str) -> None:
    """While it starts, before it prefills, early and late: what it had is begun again, once."""
    with stage(pool_kind, Punctual(0)) as on:
        at(on, lambda a: a.suffer("kill"), when, 1)
        record = on.run(plan_of(TWO), lengths=LONG)
        (lost,) = events(record, "lost")
        assert lost["holder"] == "actor-1"
        said = "(process 1001 on cpu) was killed by SIGKILL" if pool_kind == "local" else "worker process was killed by SIGKILL"
        assert said in lost["why"]
        assert lost["responses"] == sum(len(e["responses"]) for e in events(record, "retry")) == 6
        assert all(e["times"] == 1 for e in events(record, "retry"))
        if when is not has_weights:  # that one is killed at the moment when it was last heard of
            tail = [s for s in record.spans if s["holder"] == "actor-1"][-1]
            assert (tail["call"], tail["tokens"] or 0, tail["end_s"]) == ("lost", 0, pytest.approx(lost["time_s"]))
            assert (tail["phase"] == "start") == (when is starts)
        on.trace()


@EVERY_POOL_KIND
def test_nothing_is_known_of_a_response_that_begins_again(pool_kind: str) -> None:
    """No tokens, until its next actor reports some."""
    with stage(pool_kind, Punctual(0)) as on:
        at(on, lambda a: a.suffer("kill"), decodes(20), 1)
        record = on.run(plan_of(TWO, Looker()), lengths=LONG)
        (lost,) = events(record, "lost")
        again = sorted(r for e in events(record, "retry") for r in e["responses"])
        seen: list[StepState] = record.rule.rule.seen
        before = next(state for state in reversed(seen) if state.now_s < lost["time_s"])
        after = next(state for state in seen if state.now_s >= lost["time_s"])
        assert before.generated_tokens[again].min() > 0
        assert after.generated_tokens[again].tolist() == [0] * len(again)


def test_a_new_actor_is_not_started_where_starting_takes_longer_than_waiting() -> None:
    """Processes start more slowly than the latency model says, which the pool has measured: what was lost waits for slots."""
    with stage(seed=Punctual(0), start_s=lambda number: 5.0, faults=replace(SOON, min_start_timeout_s=20.0)) as on:
        on.run(plan_of(TWO))
        assert on.pool.history.start_s == pytest.approx(5.0)
        at(on, lambda a: a.suffer("kill"), decodes(), 1)
        record = on.run(plan_of(TWO, slots=6), lengths=LONG)
        assert [e["holder"] for e in events(record, "retry")] == ["actor-0"]
    with stage(seed=Punctual(0)) as on:
        at(on, lambda a: a.suffer("kill"), decodes(), 1)
        record = on.run(plan_of(TWO, slots=1), lengths=LONG)
        assert "actor-0" not in [e["holder"] for e in events(record, "retry")], "where it starts fast, one is"


@EVERY_POOL_KIND
@pytest.mark.parametrize("kind", ["stop", "zombie"])
def test_an_actor_that_hangs_is_given_up_and_what_it_says_later_counts_for_nothing(kind: str, pool_kind: str) -> None:
    """Stopped, declared lost, and killed, or continued as if it could not be ended: it decodes on and reports all it has."""
    with stage(pool_kind, Punctual(0)) as on:
        late: list[int] = []
        on.world.hears.append(lambda a, r: late.extend(c.response for c in r.completions if a.killed))
        at(on, lambda a: a.suffer(kind), decodes(), 0)
        record = on.run(plan_of(TWO), lengths=LONG)
        (lost,) = events(record, "lost")
        assert lost["holder"] == "actor-0"
        assert lost["why"].startswith("has not reported since ")
        heard_s = max(s["end_s"] for s in record.spans if s["holder"] == "actor-0" and s["call"] != "lost")
        quiet_s = lost["time_s"] - heard_s
        assert SOON.silence_floor_s + GRACE_S <= quiet_s <= SOON.silence_floor_s + GRACE_S + 0.1, (
            "in time, not before, not late"
        )
        assert on.world.actors[0].killed
        if kind == "zombie" and pool_kind == "local":
            on.world.sleep(5.0)
            on.pool.inbox._speaking()  # type: ignore[attr-defined]
            while any(a.heard for a in on.world.actors):
                next(a for a in on.world.actors if a.heard).take()
            assert late, "it did finish responses after it was given up"


@EVERY_POOL_KIND
def test_an_actor_that_never_starts_is_not_waited_for_for_ever(pool_kind: str) -> None:
    """Others may hold its GPUs, for example."""
    with stage(pool_kind, Punctual(0), start_s=lambda number: math.inf if number == 0 else 0.01) as on:
        record = on.run(plan_of(TWO))
        (lost,) = events(record, "lost")
        assert lost["holder"] == "actor-0"
        assert "since it was started" in lost["why"]
        assert "min_start_timeout_s" in lost["why"]
        assert lost["time_s"] == pytest.approx(record.start_s + SOON.min_start_timeout_s + GRACE_S, abs=0.05)
    with (
        refused(StepFailed, "actor-0", "12 responses"),
        stage(pool_kind, Punctual(0), faults=replace(SOON, restarts=0), start_s=lambda number: math.inf) as on,
    ):
        on.run(plan_of([range(12)]))


def test_one_that_comes_late_but_in_time_is_not_lost() -> None:
    """Just before the limit and the second look; a moment after it, it is."""
    limit_s = SOON.min_start_timeout_s + GRACE_S
    for start_s, count in ((limit_s - 0.1, 0), (limit_s + 0.1, 1)):
        with stage(seed=Punctual(0), start_s=lambda number, s=start_s: s if number == 0 else 0.01) as on:
            assert len(events(on.run(plan_of(TWO)), "lost")) == count


@EVERY_POOL_KIND
def test_a_slow_actor_is_relieved(pool_kind: str) -> None:
    """Its iterations take many times as long as the others': what it has goes on elsewhere, with its tokens."""
    lengths = [400] * 3 + [100] * 6
    with stage(pool_kind, Punctual(0), faults=replace(SOON, slow_factor=4.0, silence_floor_s=60.0)) as on:
        at(on, lambda a: a.suffer("slow"), decodes(1), 0)
        asked = requests_of(lengths, limit=400)
        record = on.run(plan_of([range(3), range(3, 9)]), requests=asked)
        (slow,) = events(record, "slow")
        assert slow["holder"] == "actor-0"
        assert slow["times_planned"] > 4
        assert not events(record, "lost")
        assert record.moves == slow["responses"] == 3
        assert {record.actor_of[r] for r in range(3)}.isdisjoint({"actor-0"})
        started = {a["holder"]: a["gpu_ids"] for a in record.allocations}
        assert all(gpus != [0] for holder, gpus in started.items() if holder != "actor-0"), "nothing more is started there"
        never = on.run(plan_of([range(3), range(3, 9)]), requests=asked)
        assert not events(never, "lost")
    with stage(pool_kind, Punctual(0), faults=replace(SOON, silence_floor_s=60.0)) as on:
        at(on, lambda a: a.suffer("slow"), decodes(1), 0)
        assert not events(on.run(plan_of([range(3), range(3, 9)]), requests=asked), "slow"), "infinite: never"


class Asked:
    """A rule that waits for nothing, and notes what each actor has when it is asked."""

    name = "asked"

    def __init__(self) -> None:
        self.seen: list[tuple[int, tuple[int, ...]]] = []

    def next_trigger(self, view: ActorView) -> Trigger | None:
        self.seen.append((view.actor, (*view.unfinished, *view.arriving)))
        return None

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        return []


@EVERY_POOL_KIND
def test_a_rule_is_asked_anew_when_a_slow_actor_was_relieved(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0), faults=replace(SOON, slow_factor=4.0, silence_floor_s=60.0)) as on:
        at(on, lambda a: a.suffer("slow"), decodes(1), 0)
        record = on.run(plan_of([range(3), range(3, 9)], Asked()), requests=requests_of([400] * 3 + [100] * 6, limit=400))
        assert len(events(record, "slow")) == 1
        asked: Asked = record.rule.rule
        assert any(actor != 0 and response < 3 for actor, responses in asked.seen for response in responses)
