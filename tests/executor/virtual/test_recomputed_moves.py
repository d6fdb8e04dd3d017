"""A response that moves without its KV cache is named by the prefill span in which its receiver computes it again."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from executor_samples import Restless, plan_of, run, uniform_step
from replay_samples import executed, factory, torch_requests, torch_step

from rlhfless.engine.common.journal import Replayed
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import StepRecord
from rlhfless.executor.step.step_state import StepOptions
from rlhfless.executor.virtual.executor import VirtualStep
from rlhfless.executor.virtual.retiming import retime
from solver import NonGenerationPhases
from solver.model.runtime_rules import Move, Trigger


class Once:
    """Moves response 0 to actor 1 when actor 0 has completed a response."""

    name = "once"

    def __init__(self) -> None:
        self.asked = False

    def next_trigger(self, view):
        return Trigger(1) if view.actor == 0 and not self.asked else None

    def decide(self, now_s, state):
        self.asked = True
        return [Move(0, 1)]


def again(record: StepRecord) -> list[tuple[dict, dict]]:
    """(span, what it says) of every response that was computed again."""
    rows = [s for s in record.spans if s["phase"] == "prefill" and s["detail"]]
    return [(s, one) for s in rows for one in json.loads(s["detail"])["recomputed"]]


@pytest.mark.parametrize("migration", ["recompute", "move"])
def test_the_span_says_who_came_from_where_with_how_many_tokens(migration):
    step = uniform_step([6, 2, 8], transfer_base_s=0.01, prefill_base_s=0.02, prefill_per_token_s=0.001)
    plan = plan_of([(0, 1), (2,)], Once())
    asked = [replace(r, target_tokens=n) for r, n in zip(torch_requests(step), (6, 2, 8), strict=True)]
    how = StepOptions(step.latency, step.cluster, migration=migration)
    ran = VirtualStep(plan, asked, factory(), StepRecord("run", 0, plan, 0.0), how)
    ran.run()
    assert ran.step.record.moves == 1
    if migration == "move":
        assert again(ran.step.record) == []
        return
    [(span, one)] = again(ran.step.record)
    context = asked[0].prompt_tokens + 2
    assert (one["response"], one["tokens"], one["from_actor"]) == (0, context - 1, "actor-0")
    assert one["seconds"] == pytest.approx(span["end_s"] - span["start_s"]) == pytest.approx(0.02 + 0.001 * context)
    assert (span["holder"], span["tokens"]) == ("actor-1", context - 1)
    slower = {
        i: Replayed(3 * np.stack([j.prefill_s, j.decode_s], axis=1), 0.0) for i, j in ran.log.journals.items()
    }  # fmt: skip
    told, _, _ = retime(ran.step.record, ran.log, ran.held, slower)
    [(_, later)] = again(told)
    assert later == {**one, "seconds": pytest.approx(3 * one["seconds"])}


@pytest.mark.parametrize("admission", ["reserve", "preempt"])
def test_the_simulated_engine_tells_what_the_torch_engine_tells(admission):
    told = 0
    for seed in range(2):
        step = torch_step(seed, prefill_base_s=1e-3)
        ran = executed(step, "static", Restless(seed), migration="recompute", admission=admission)
        simulated = StepRecord("run", 0, ran.step.plan, 5.0)
        done = ran.step.record.completions
        known = [replace(r, target_tokens=done[r.response].response_tokens) for r in torch_requests(step)]
        plan = replace(ran.step.plan, rule=Restless(seed, start_s=5.0))
        phases = NonGenerationPhases(prepare_s=0.3, learn_s=0.2, learner_gpus=1)
        how = StepOptions(step.latency, step.cluster, phases, admission, "recompute")
        VirtualStep(plan, known, SimulatedEngine, simulated, how).run()
        found, asked = (
            sorted(again(record), key=lambda told: (told[0]["holder"], told[0]["start_s"], told[1]["response"]))
            for record in (simulated, ran.step.record)
        )
        for (span, one), (expected_in, expected) in zip(found, asked, strict=True):
            assert (span["holder"], span["start_s"]) == (expected_in["holder"], pytest.approx(expected_in["start_s"]))
            assert one == {**expected, "seconds": pytest.approx(expected["seconds"], abs=2e-9)}
        told += len(found)
    assert told > 0


def test_a_simulated_response_that_waits_for_a_slot_is_named_when_it_is_computed():
    """Actor 1 has responses of 12, 5 and 8 tokens for two slots: the one that comes is fourth, and begins when 8 are done."""
    step = uniform_step([9, 2, 12, 5, 8], prefill_base_s=0.02, prefill_per_token_s=0.001)
    record = run(step, plan_of([(0, 1), (2, 3, 4)], Once(), slots=2), migration="recompute")
    [(span, one)] = again(record)
    assert (span["holder"], one["response"], one["tokens"], one["from_actor"]) == ("actor-1", 0, 11, "actor-0")
    assert (span["tokens"], span["batch_mean"]) == (11, 1.0)
    assert one["seconds"] == pytest.approx(span["end_s"] - span["start_s"])


@pytest.mark.parametrize("admission", ["reserve", "preempt"])
def test_whoever_is_named_was_moved_and_is_named_once(admission):
    """An eviction is no move, and a response that moved before it began has nothing to be computed again."""
    named = 0
    for seed in range(4):
        ran = executed(
            torch_step(seed, prefill_base_s=1e-3), "static", Restless(seed), migration="recompute", admission=admission
        )
        moves = [(one.response, one.sender, one.receiver) for one in ran.step.record.recomputes]
        found = [(one["response"], one["from_actor"], span["holder"]) for span, one in again(ran.step.record)]
        for one in set(found):
            assert found.count(one) <= moves.count(one)
        for span, one in again(ran.step.record):
            assert 0 < one["tokens"] <= span["tokens"]
            assert 0 < one["seconds"] <= span["end_s"] - span["start_s"] + 1e-9
        named += len(found)
    assert named > 0
