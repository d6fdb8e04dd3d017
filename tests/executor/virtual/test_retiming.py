"""Retiming a step: with the seconds of the first telling it is the first record; with others nothing precedes its cause."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from executor_samples import Restless, assert_sound, plan_of, uniform_step
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replay_samples import executed, factory, torch_requests, torch_step

from rlhfless.engine.common.journal import AdmittedResponse, EngineJournal, Replayed
from rlhfless.engine.common.spans import PrefillPart
from rlhfless.executor.step.actor_state import Allocation
from rlhfless.executor.step.allocations import bill
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.startup import ActorStartup
from rlhfless.executor.step.step_state import StepOptions
from rlhfless.executor.virtual.executor import VirtualStep
from rlhfless.executor.virtual.retiming import RetimingLog, retime
from solver.model.runtime_rules import Cut, Move, Trigger

seeds = st.integers(0, 10_000)


def own_seconds(journal: EngineJournal) -> Replayed:
    return Replayed(np.stack([journal.prefill_s, journal.decode_s], axis=1), 0.0)


def told(ran: VirtualStep, seconds: dict[int, Replayed], prefill: Replayed | None = None) -> StepRecord:
    record, held, startup = retime(ran.step.record, ran.log, ran.held, seconds, prefill)
    bill(record, startup.plan, held, ran.step.options.cluster, ran.step.options.phases)
    return record


def assert_same(again: StepRecord, first: StepRecord) -> None:
    """Completions, spans, events and allocations agree to a nanosecond."""
    assert (again.moves, again.actor_of) == (first.moves, first.actor_of)
    assert again.completions.keys() == first.completions.keys()
    for i, c in first.completions.items():
        assert again.completions[i].token_ids is c.token_ids
        for name in ("time_s", "start_s", "first_token_s"):
            assert getattr(again.completions[i], name) == pytest.approx(getattr(c, name), abs=1e-9)
    events = [row for row in again.events if row["name"] != "replay"]
    for rows, others in ((again.spans, first.spans), (again.allocations, first.allocations), (events, first.events)):
        ordered = [
            sorted(table, key=lambda r: [str(r[k]) for k in ("holder", "phase", "detail") if k in r] + [times(r)])
            for table in (rows, others)
        ]
        assert len(rows) == len(others)
        for a, b in zip(*ordered, strict=True):
            for name, value in b.items():
                if name in ("start_s", "end_s", "time_s", "batch_mean"):
                    assert a[name] == pytest.approx(value, abs=1e-9), (name, a, b)
                elif name == "kv_tokens":  # a mean, rounded
                    assert a[name] == value or abs(a[name] - value) <= 1
                else:
                    assert a[name] == value
    assert again.end_s == pytest.approx(first.end_s, abs=1e-9)


def times(row: dict) -> float:
    return row.get("time_s", row.get("start_s"))


@given(
    seeds,
    st.sampled_from(["restless", "static", "fold", "rlhfless", "rlhfuse", "least-loaded"]),
    st.sampled_from(["cheaper", "move", "recompute"]),
    st.sampled_from(["reserve", "preempt"]),
)
@settings(max_examples=25, deadline=None)
def test_with_the_seconds_of_the_first_telling_it_is_the_first_record(seed, policy, migration, admission):
    step = torch_step(seed)
    rule = Restless(seed) if policy == "restless" else None
    ran = executed(step, "static" if rule else policy, rule, migration=migration, admission=admission)
    assert_same(told(ran, {i: own_seconds(j) for i, j in ran.log.journals.items()}), ran.step.record)


@given(seeds, st.sampled_from(["restless", "fold"]), st.sampled_from(["move", "recompute"]), seeds)
@settings(max_examples=15, deadline=None)
@example(9999, "restless", "move", 2)
def test_with_other_seconds_nothing_happens_before_its_cause(seed, policy, migration, other):
    step, rng = torch_step(seed), np.random.default_rng(other)
    rule = Restless(seed) if policy == "restless" else None
    ran = executed(step, "static" if rule else policy, rule, migration=migration)
    factors = {i: rng.uniform(0.2, 3) for i in ran.log.journals}
    seconds = {
        i: Replayed(own_seconds(j).seconds * factors[i] * rng.uniform(0.5, 1.5, (len(j), 1)), 0.0)
        for i, j in ran.log.journals.items()
    }
    record = told(ran, seconds)
    lengths = [c.response_tokens for _, c in sorted(record.completions.items())]  # some ended by themselves
    assert_sound(record, step.with_truth(np.array(lengths)), "generation" if rule else "done", cuts_only=False)
    busy: dict[str, float] = {}
    for span in record.spans:
        if span["phase"] in ("prefill", "decode"):
            busy[span["holder"]] = busy.get(span["holder"], 0.0) + span["end_s"] - span["start_s"]
    for i, one in seconds.items():
        assert busy.get(f"actor-{i}", 0.0) == pytest.approx(one.seconds.sum())
    arrived = {}
    for span in sorted(record.spans, key=lambda s: s["end_s"]):
        if span["phase"] == "transfer":
            response = json.loads(span["detail"])["response"]
            arrived[response, span["holder"]] = span["end_s"]
            assert span["end_s"] - span["start_s"] > 0
    for i, c in record.completions.items():
        if (i, record.actor_of[i]) in arrived:
            assert c.time_s > arrived[i, record.actor_of[i]]


class Once:
    """Moves response 0 to actor 1 when actor 0 has completed a response."""

    name = "once"

    def __init__(self, cut: bool) -> None:
        self.cut, self.asked = cut, False

    def next_trigger(self, view):
        return Trigger(1) if view.actor == 0 and not self.asked else None

    def decide(self, now_s, state):
        self.asked = True
        return [Cut(0, (Move(0, 1),)) if self.cut else Move(0, 1)]


@pytest.mark.parametrize("cut", [False, True])
def test_a_moved_response_joins_the_same_iteration_which_waits_for_it(cut):
    """Actor 0 generates responses of 6 and 2 tokens, actor 1 one of 8; response 0 moves after 2 of its 6 iterations and joins
    actor 1's third. At twice the seconds on actor 0 that iteration waits."""
    step = uniform_step([6, 2, 8], transfer_base_s=0.03)
    plan = plan_of([(0, 1), (2,)], Once(cut))
    record = StepRecord("run", 0, plan, 0.0)
    ran = VirtualStep(
        plan, [replace(r, target_tokens=n) for r, n in zip(torch_requests(step), (6, 2, 8), strict=True)], factory(),
        record, StepOptions(step.latency, step.cluster, migration="move"),
    )  # fmt: skip
    ran.run()
    assert [c.joined[0].response for c in ran.log.journals[1].changes if c.joined] == [2, 0]
    joins_at = ran.log.journals[1].changes[1].iteration
    assert joins_at == 3  # the move arrives at 0.23 s, after the third iteration began
    seconds = {i: own_seconds(j) for i, j in ran.log.journals.items()}
    seconds[0] = Replayed(seconds[0].seconds * 2, 0.0)
    again = told(ran, seconds)
    assert again.completions[1].time_s == pytest.approx(0.4)  # 2 iterations of 0.2 s
    assert again.completions[0].time_s == pytest.approx(0.4 + 0.03 + 0.4)  # 4 more on actor 1
    assert again.completions[2].time_s == pytest.approx(0.4 + 0.03 + 0.5)  # 5 iterations after its third
    free_s = {a["holder"]: a["end_s"] for a in again.allocations}
    assert free_s == {"actor-0": pytest.approx(0.43), "actor-1": pytest.approx(0.93)}
    [event] = [e for e in again.events if e["name"] in ("move", "cut")]
    assert event["time_s"] == pytest.approx(0.4)


def test_an_actor_that_did_nothing_holds_what_it_held():
    step = torch_step(3)
    ran = executed(step, "static")
    nobody = [*ran.held, Allocation(99, "prefill", ran.step.plan.actors[0], 5.0, 6.5)]
    _, held, _ = retime(ran.step.record, ran.log, nobody, {i: own_seconds(j) for i, j in ran.log.journals.items()})
    assert held[-1].done_s == 6.5


def test_a_journal_tells_iterations_batch_by_batch():
    journal = EngineJournal(4, 1.0)
    journal.change(2, 18, [AdmittedResponse(0, 10, 0, True), AdmittedResponse(1, 8, 8, False)], rows=4, width=10)
    journal.commit(1.0, 0.5, [0.25], 1.75)
    journal.commit(1.75, 0.0, [0.25, 0.25], 2.25)
    journal.finish([1])
    journal.leave([1])
    journal.change(1, 13, rows=4, width=13)
    journal.commit(2.25, 0.0, [0.25], 2.5)
    assert (list(journal.prefill_s), list(journal.decode_s), journal.end_s) == ([0.5, 0.0, 0.0, 0.0], [0.25] * 4, 2.5)
    (first, until), (second, end) = journal.intervals()
    assert (first.iteration, until, second.iteration, end, second.left) == (0, 3, 3, 4, (1,))
    assert (first.prefill_tokens, first.prefill, journal.finished) == (10, PrefillPart(1, 9, [(0, 9)]), [(3, 1)])
    assert RetimingLog.of({}, ActorStartup.of(plan_of([]), [], 0.0)).journals == {}
