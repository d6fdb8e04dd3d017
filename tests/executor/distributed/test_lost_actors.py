"""Actors that die, hang, are slow or come back, in a crew without processes: nothing is lost or doubled, all is traced."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from executor_samples import Restless, plan_of, uniform_step
from remote_samples import ScriptedActor, ScriptedCrew

from rlhfless.engine.protocol import EngineSpan
from rlhfless.executor import Faults, StepFailed, StepRecord
from rlhfless.executor.distributed.executor import WallStep
from rlhfless.executor.distributed.failure_limits import Speed
from rlhfless.executor.distributed.messages import ActorLost, ActorReport, RemoteActor, StartActor
from rlhfless.executor.distributed.orders import WallOptions
from rlhfless.executor.distributed.recovery import RemainingWork, Survivor, resolve, what_is_left
from rlhfless.executor.step.step_state import StepOptions
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.trace import Trace
from solver import LatencyModel, Objective, Plan, PlanningError, Workload
from solver.lengths.survival import known_lengths
from solver.model.admission import Admission
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView

LENGTHS = [3, 9, 1, 14, 6, 22, 2, 17, 11, 5, 8, 30]
GROUPS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11]]
SOON = Faults(retries=50, restarts=50, silence_floor_s=0.3, min_start_timeout_s=0.3, silence_factor=1.0, slow_factor=math.inf)


def wall_step(plan: Plan, crew: ScriptedCrew, faults: Faults = SOON, cold_start_s: float = 0.0) -> WallStep:
    step = uniform_step(LENGTHS)
    record = StepRecord("run", 0, plan, 0.0)
    how = StepOptions(step.latency, step.cluster, migration="move")
    return WallStep(plan, step.requests(), crew, record, how, WallOptions(faults, cold_start_s=cold_start_s))


def run(plan: Plan, crew: ScriptedCrew, faults: Faults = SOON) -> StepRecord:
    step = wall_step(plan, crew, faults)
    step.run()
    return step.record


def events(record: StepRecord, name: str) -> list[dict]:
    return [e | json.loads(e["detail"] or "{}") for e in record.events if e["name"] == name]


def as_trace(record: StepRecord, lengths: list[int] = LENGTHS) -> Trace:
    """The record as a trace: refuses two holders of one GPU, spans out of order, and so on."""
    done = sorted(record.completions)
    rows = [{"step": 0, "prompt_id": i, "sample": 0, "run": record.run, **record.rollout_times(i)} for i in done]
    tables = {name: pd.DataFrame(getattr(record, name)) for name in ("allocations", "spans", "events")}
    return Trace(rollouts=pd.DataFrame(rows), **{name: table for name, table in tables.items() if len(table)})


def assert_whole(record: StepRecord) -> None:
    assert sorted(record.completions) == list(range(len(LENGTHS)))
    assert [record.completions[i].response_tokens for i in range(len(LENGTHS))] == LENGTHS
    as_trace(record)
    held = {a["holder"]: a for a in record.allocations}
    for lost in events(record, "lost"):
        own = [s["end_s"] for s in record.spans if s["holder"] == lost["holder"]]
        assert max(own, default=0.0) <= lost["time_s"] == held[lost["holder"]]["end_s"], (
            "it holds and does nothing after its loss"
        )
        finished = [i for i, who in record.actor_of.items() if who == lost["holder"]]
        assert all(record.completions[i].time_s <= lost["time_s"] for i in finished)


# --- whatever dies, whenever ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_every_response_is_delivered_once_whatever_dies_or_hangs_and_whenever(seed: int) -> None:
    """Deaths before the start, while orders, KV states and completions cross, of senders, receivers and those that close; and
    actors that hang, are given up, and then go on as if nothing had been."""
    rule = Restless(seed, period_s=0.003) if seed % 3 else None
    crew = ScriptedCrew(
        seed, 0.1 + 0.4 * (seed % 3), dies=0.05 * (seed % 2), hangs=0.05 * (seed % 4 > 1) + 1e-9, faults=seed % 7
    )
    record = run(plan_of(GROUPS, rule, slots=3, release=("done", "generation", "step")[seed % 3]), crew)
    assert_whole(record)
    lost = events(record, "lost")
    assert crew.abandoned == {int(e["holder"].removeprefix("actor-")) for e in lost}
    again = Counter(r for e in events(record, "retry") for r in e["responses"])
    assert max(again.values(), default=0) <= len(lost)
    if any(e["responses"] for e in lost):
        assert len(record.allocations) >= len(GROUPS)


@pytest.mark.parametrize("policy", ["static", "random", "fold", "rlhfuse", "rlhfless", "solver+replan"])
def test_rules_go_on_with_actors_that_were_not_in_the_plan(policy: str) -> None:
    step = uniform_step(LENGTHS)
    plan = make_policy(policy, tau=0.5).plan(
        PlanningProblem(step.predicted, step.cluster, step.latency, Objective(0.96)), PlanningOptions()
    )
    for seed in range(4):
        fresh = make_policy(policy, tau=0.5).plan(
            PlanningProblem(step.predicted, step.cluster, step.latency, Objective(0.96)), PlanningOptions()
        )
        crew = ScriptedCrew(seed, dies=0.03, hangs=0.01, faults=4)
        assert_whole(run(fresh if seed else plan, crew))


def test_a_given_up_actor_that_goes_on_doubles_nothing() -> None:
    """It decodes everything that it had to the end, and reports it: nobody believes it any more."""

    class Zombie(ScriptedCrew):
        def happens(self, actor: ScriptedActor) -> None:
            index = next(i for i, a in self.actors.items() if a is actor)
            if index == 0 and not self.abandoned and actor.responses and actor.responses[-1].generated_tokens:
                actor.hangs = True
                return
            super().happens(actor)

        late = 0

        def reports(self, timeout_s: float | None) -> list[tuple[int, ActorReport | ActorLost]]:
            found = super().reports(timeout_s)
            self.late += sum(
                len(said.completions) for i, said in found if i in self.abandoned and isinstance(said, ActorReport)
            )
            return found

    crew = Zombie(3)
    record = run(plan_of([[3, 5, 11], [0, 1, 2, 4, *range(6, 11)]], slots=12), crew)
    assert_whole(record)
    assert [e["holder"] for e in events(record, "lost")] == ["actor-0"]
    assert events(record, "lost")[0]["why"].startswith("has not reported since ")
    assert crew.late > 0, "it did report completions after it was given up"


class Mortal(ScriptedCrew):
    """Kills chosen actors (by index) once they have obeyed their first order; fails as it is told."""

    def __init__(self, dies: dict[int, ActorLost], seed: int = 0) -> None:
        super().__init__(seed)
        self.will = dies

    def happens(self, actor: ScriptedActor) -> None:
        index = next(i for i, a in self.actors.items() if a is actor)
        if index in self.will and (actor.responses or not actor.orders):
            actor.dead = True
            actor.wire.append(self.will.pop(index))
            return
        super().happens(actor)


def test_what_was_lost_is_traced() -> None:
    record = run(plan_of(GROUPS), Mortal({1: ActorLost("was killed by SIGKILL")}))
    assert_whole(record)
    (lost,) = events(record, "lost")
    assert (lost["holder"], lost["why"], lost["responses"]) == ("actor-1", "was killed by SIGKILL", 4)
    retried = events(record, "retry")
    assert sorted(r for e in retried for r in e["responses"]) == [4, 5, 6, 7]
    assert all(e["times"] == 1 for e in retried)
    tail = [s for s in record.spans if s["holder"] == "actor-1"][-1]
    assert (tail["call"], tail["tokens"]) == ("lost", 0)
    assert tail["end_s"] == lost["time_s"]


def test_several_that_die_together_are_replaced_together() -> None:
    record = run(plan_of(GROUPS), Mortal({i: ActorLost("died", gpus_gone=i < 2) for i in range(4)}))
    assert_whole(record)
    later = [a for a in record.allocations if int(a["holder"].removeprefix("actor-")) > 3]
    assert later
    assert not {0, 1}.intersection(g for a in later for g in a["gpu_ids"]), "nothing is started on GPUs that are gone"


def test_a_step_that_cannot_finish_says_why_and_keeps_what_was_finished() -> None:
    faults = replace(SOON, restarts=0)
    crew = ScriptedCrew(1, dies=0.04, faults=100)
    step = wall_step(plan_of(GROUPS), crew, faults)
    with refused(StepFailed) as error:
        step.run()
    record = error.value.record
    assert record is step.record
    assert 0 < len(record.completions) < len(LENGTHS)
    assert all(c.response_tokens == LENGTHS[i] for i, c in record.completions.items())
    trace = as_trace(record)
    assert len(trace.rollouts) == len(record.completions)
    assert len(events(record, "lost")) == len(GROUPS) == len(record.allocations)


def test_retries_of_a_response_are_bounded() -> None:
    """A response that kills whoever decodes it takes the step with it, after so many tries and no more."""

    class Poisoned(ScriptedCrew):
        def happens(self, actor: ScriptedActor) -> None:
            if any(r.response == 5 for r in actor.responses):
                actor.dead = True
                actor.wire.append(ActorLost("was killed by SIGSEGV"))
                return
            super().happens(actor)

    step = wall_step(plan_of(GROUPS), Poisoned(0), replace(SOON, retries=2))
    with refused(StepFailed, "actor 3"):
        step.run()
    assert len(events(step.record, "lost")) == 3


def test_what_no_actor_can_do_is_not_tried_again() -> None:
    step = wall_step(
        plan_of(GROUPS), Mortal({2: ActorLost("failed with ValueError: no ids", unrecoverable=True, trace="the trace")})
    )
    with refused(StepFailed, "ValueError") as error:
        step.run()
    assert error.value.__cause__.__notes__ == ["the trace"]


def test_where_memory_ran_out_the_next_actor_has_fewer_slots() -> None:
    class OutOfMemory(ScriptedCrew):
        orders: list[StartActor] = []  # noqa: RUF012

        def start(self, orders: list[StartActor]) -> list[RemoteActor]:  # type: ignore[override]
            self.orders = [*self.orders, *orders]
            return super().start(orders)

        def happens(self, actor: ScriptedActor) -> None:
            if actor.slots > 2 and len(actor.responses) > 2 and actor.responses[0].generated_tokens > 1:
                actor.dead = True
                actor.wire.append(ActorLost("failed with OutOfMemoryError", out_of_memory=True))
                return
            super().happens(actor)

    crew = OutOfMemory(0)
    record = run(plan_of([list(range(len(LENGTHS)))], slots=12), crew)
    assert_whole(record)
    slots = [order.admission.max_batch for order in crew.orders]
    assert slots[0] == 12
    assert slots[-1] <= 2
    assert slots == sorted(slots, reverse=True)
    assert [order.latency.max_batch for order in crew.orders[1:]] == slots[1:], (
        "engines that start with all memory start smaller"
    )
    assert [order.short_of_memory for order in crew.orders] == [False] + [True] * (len(slots) - 1)


def test_an_actor_with_other_weights_is_not_believed() -> None:
    class Stale(ScriptedCrew):
        def start(self, orders: list[StartActor]) -> list[RemoteActor]:  # type: ignore[override]
            return super().start([replace(o, weights_version=6) if o.index == 1 else o for o in orders])

    plan, step = plan_of(GROUPS), uniform_step(LENGTHS)
    record = StepRecord("run", 7, plan, 0.0)
    how = StepOptions(step.latency, step.cluster, migration="move")
    WallStep(plan, step.requests(), Stale(0), record, how, WallOptions(SOON, weights_version=7)).run()
    assert_whole(record)
    assert events(record, "lost")[0]["why"] == "has weights of version 6, not 7"
    assert "actor-1" not in record.actor_of.values()


def test_an_interrupted_step_has_its_record() -> None:
    class Interrupted(ScriptedCrew):
        def reports(self, timeout_s: float | None) -> list[tuple[int, ActorReport | ActorLost]]:
            if self.clock > 150:
                raise KeyboardInterrupt
            return super().reports(timeout_s)

    step = wall_step(plan_of(GROUPS), Interrupted(0))
    with pytest.raises(KeyboardInterrupt) as error:
        step.run()
    record = StepFailed.of(error.value).record
    assert 0 < len(record.completions) < len(LENGTHS)
    assert len(record.allocations) == len(GROUPS)


# --- actors that start later ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_an_actor_starts_at_its_time(seed: int) -> None:
    plan = plan_of(GROUPS, Restless(seed, period_s=0.003) if seed % 2 else None, slots=3)
    plan = replace(plan, actors=(*plan.actors[:3], replace(plan.actors[3], start_s=0.1)))
    record = run(plan, ScriptedCrew(seed, dies=0.02, hangs=0.01, faults=seed % 3))
    assert_whole(record)
    late = [a for a in record.allocations if a["holder"] == "actor-3"]
    assert all(a["start_s"] == 0.1 for a in late)
    assert late or seed % 2, "only where a rule took all its responses before its time it is never started"


# --- slow actors ------------------------------------------------------------------------------------------------------


LATENCY = LatencyModel("model", 1, 0.1, 0.001, start_s=1.0)


def test_speed_is_measured_by_what_is_planned() -> None:
    speed = Speed(LATENCY)
    assert math.isnan(speed.ratio)
    for _ in range(20):
        speed.observe(
            ActorReport(0.0, spans=[EngineSpan("decode", 0.0, 3.0, 4.0, 8, 40, 0.0), EngineSpan("prefill", 0, 9, 4, 8, 9, 9)])
        )
    assert speed.measured
    assert speed.ratio == pytest.approx(3.0 / (10 * 0.104))


def left(tokens: list[int], free: int, responses: list[list[int]], slowness: float = 1.0, **more: float) -> RemainingWork:
    workload = Workload(np.full(len(tokens), 10), range(len(tokens)), tokens, max_response_tokens=400)
    plan = plan_of([*responses, *[[]] * free])
    goes = [
        Survivor(
            ActorView(i, 1, len(r), 0, tuple(r), (), (), 64 - len(r)), plan.actors[i], LATENCY, Admission(64, 1 << 30), slowness
        )
        for i, r in enumerate(responses)
    ]
    return RemainingWork(
        workload, goes, plan.actors[len(responses) :], LATENCY, "reserve", Objective(more.pop("weight", 0.7)), **more
    )


def test_what_is_left_goes_to_where_it_is_planned_to_pay() -> None:
    """A few short ones join those that decode in any case; many long ones, nobody else at work, get actors of their own."""
    few = resolve([8, 9], left([300] * 8 + [5, 5], 2, [[0, 1, 2, 3], [4, 5, 6, 7]]))
    assert few is not None
    assert not few.starts
    assert few.moves.keys() == {8, 9}
    heavy = replace(LATENCY, per_response_s=0.05)
    alone = replace(left([300] * 40, 4, [], weight=0.99), latency=heavy)
    many = resolve(range(40), alone)
    assert many is not None
    assert not many.moves
    assert len(many.starts) > 1
    assert sorted(r for plan in many.starts for r in plan.responses) == list(range(40))
    assert resolve([0], left([5], 0, [])) is None, "nobody is left and nothing can be started"


def test_a_new_actor_is_planned_to_start_no_faster_than_any_has() -> None:
    """Two responses of ten: an actor of their own pays where it starts fast, as the latency model says, or waits already."""
    model = replace(LATENCY, per_response_s=0.01, start_s=0.007)
    now = left([300] * 8 + [200] * 2, 2, [[0, 1, 2, 3], [4, 5, 6, 7]], weight=0.9)
    now = replace(now, latency=model, survivors=[replace(g, latency=model) for g in now.survivors])
    cheap = resolve([8, 9], now)
    dear = resolve([8, 9], replace(now, cold_start_s=20.0))
    waits = replace(now, free=[now.free[0], replace(now.free[1], prewarmed=True)], cold_start_s=20.0)
    warm = resolve([8, 9], waits)
    assert cheap is not None
    assert dear is not None
    assert warm is not None
    assert [len(cheap.starts), len(dear.starts)] == [1, 0]
    assert dear.moves.keys() == {8, 9}
    assert [plan.gpu_ids for plan in warm.starts] == [now.free[1].gpu_ids], "the one that waits is taken"


def test_cold_starts_of_earlier_steps_and_of_this_one_count() -> None:
    step = wall_step(plan_of(GROUPS), ScriptedCrew(0), cold_start_s=7.0)
    assert step.failures._left(0.0, set()).cold_start_s == 7.0
    first = wall_step(plan_of(GROUPS), ScriptedCrew(0))
    first.run()
    starts_s = [s["end_s"] - s["start_s"] for s in first.record.spans if s["phase"] == "start"]
    assert 0 < max(starts_s) == first.failures._left(first.record.end_s, set()).cold_start_s


def test_a_slow_actor_is_relieved_only_where_that_pays() -> None:
    def slow(times: float, tokens: int) -> bool:
        now = left([tokens] * 4, 1, [[0, 1]], passed_s=1.0, spent=2.0, weight=0.99)
        stays = Survivor(
            ActorView(7, 1, 2, 0, (2, 3), (), (), 62), now.survivors[0].plan, LATENCY, Admission(64, 1 << 30), times
        )
        return resolve([2, 3], now, stays) is not None

    assert slow(10.0, 300)
    assert not slow(1.0, 300)


def test_a_slow_actor_loses_its_responses_to_others() -> None:
    """Its iterations take fifty times what the others' do: what it has goes on elsewhere, with what it has generated."""

    class Slow(ScriptedCrew):
        def happens(self, actor: ScriptedActor) -> None:
            tokens = len(actor.responses[: actor.slots])
            before, self.clock = self.clock, self.clock + 1
            super().happens(actor)
            index = next(i for i, a in self.actors.items() if a is actor)
            if tokens and actor.wire and isinstance(actor.wire[-1], ActorReport) and not actor.wire[-1].spans:
                seconds = 0.1 * (50 if index == 0 else 1)
                span = EngineSpan("decode", 0.0, seconds, float(tokens), 64, tokens, 0.0)
                actor.wire[-1] = replace(actor.wire[-1], spans=[span])
            assert before < self.clock

    lengths = [400, 400, 400, 100, 100, 100]
    step = uniform_step(lengths)
    step = step._replace(truth=step.truth.with_response_tokens(lengths))
    requests = [replace(r, max_tokens=400, target_tokens=n) for r, n in zip(step.requests(), lengths, strict=True)]
    plan = plan_of([[0, 1, 2], [3, 4, 5]])
    record = StepRecord("run", 0, plan, 0.0)
    faults = replace(SOON, slow_factor=4.0, silence_floor_s=1e3, min_start_timeout_s=1e3)
    how = StepOptions(step.latency, step.cluster, migration="move")
    WallStep(plan, requests, Slow(0), record, how, WallOptions(faults)).run()
    (slow,) = events(record, "slow")
    assert slow["holder"] == "actor-0"
    assert slow["times_planned"] > 4
    assert not events(record, "lost")
    assert {record.actor_of[r] for r in (0, 1, 2)}.isdisjoint({"actor-0"})
    assert [record.completions[r].response_tokens for r in range(6)] == lengths


# --- what is planned for ----------------------------------------------------------------------------------------------


def test_what_is_left_is_what_the_forecast_says() -> None:
    truth = Workload([4, 4, 4], range(3), [10, 20, 30], max_response_tokens=40)
    tokens = np.array([10, 5, 35])
    found = what_is_left(truth.prompt_tokens, tokens, np.array([True, False, False]), 40, known_lengths(truth))
    assert found.remaining_tokens.tolist() == [0, 15, 1]


def test_silence_is_measured_by_the_latency_model() -> None:
    faults = Faults(silence_factor=10.0, silence_floor_s=2.0, min_start_timeout_s=3.0)
    model = LatencyModel("slow", 1, 1.0, 0.1, 0.01, prefill_base_s=5.0, prefill_per_token_s=0.5, start_s=7.0, sync_s=1.0)
    assert faults.silence_s(model, 4, 2, 0, 100) == pytest.approx(10 * (1.0 + 0.2 + 0.01 * 200))
    assert faults.silence_s(model, 4, 9, 6, 100) == pytest.approx(10 * (1.0 + 0.4 + 0.01 * 400 + 5.0 + 0.5 * 400))
    assert faults.silence_s(LATENCY, 4, 2, 0, 100) == 2.0
    assert faults.start_s(model) == 80.0
    assert faults.start_s(replace(model, start_s=0.0, sync_s=0.0)) == 3.0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"retries": -1}, ()),
        ({"silence_factor": 0.5}, ("silence_factor", "0.5")),
        ({"slow_factor": 1.0}, ("slow_factor", "1.0")),
    ],
)
def test_limits_that_make_no_sense_are_refused(what: dict[str, float], message: tuple[str, ...]) -> None:
    with refused(PlanningError, *message):
        Faults(**what)  # type: ignore[arg-type]
