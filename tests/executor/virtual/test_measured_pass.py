"""Replaying journals: the same iterations, measured; and steps that are charged what was measured."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from executor_samples import Restless, assert_sound, plan_of
from replay_samples import executed, factory, torch_requests, torch_step

from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.torch import replay as torch_replay
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.replay import Replay
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.virtual.measured_pass import REPLAYS, measure
from solver import Cluster, PlanningError
from solver.model.admission import Admission
from solver.model.runtime_rules import RuntimeRule


def shapes(journal: EngineJournal) -> list[tuple[object, ...]]:
    """Everything but who left why."""
    return [(c.iteration, c.batch, c.rows, c.width, c.kv_tokens, c.joined) for c in journal.changes]


@pytest.mark.parametrize("admission", ["reserve", "preempt"])
@pytest.mark.parametrize("policy", ["restless", "fold", "rlhfless"])
def test_a_replay_goes_through_the_same_batches(policy, admission):
    """Moves, recomputed contexts and evictions included; lengths that were given and lengths that came out."""
    joined = evicted = 0
    for seed in range(5):
        rule = Restless(seed) if policy == "restless" else None
        ran = executed(torch_step(seed), "static" if rule else policy, rule, admission=admission, migration="cheaper")
        for journal in ran.log.journals.values():
            again = Replay(factory().model, journal, Sampling())
            seconds = again.run(len(journal))
            assert shapes(again.journal) == shapes(journal)
            assert [set(c.left) for c in again.journal.changes] == [set(c.left) for c in journal.changes]
            assert again.journal.finished == journal.finished
            computed = {c.iteration for c in journal.changes if c.prefill_tokens}
            assert set(np.flatnonzero(seconds[:, 0])) == computed
            assert (seconds[:, 1] > 0).all()
            joined += sum(len(c.joined) for c in journal.changes)
        evicted += joined - len(ran.step.requests)
    assert joined > 0
    if admission == "preempt" or policy != "rlhfless":
        assert evicted > 0, "nobody joined twice, so this shows nothing"


def test_a_prefix_that_was_there_is_there_again():
    model = factory().model
    engine = factory()(torch_step(0).latency, Admission(4, 1 << 20))
    prompt = np.arange(2, 14)
    shared = [Request(i, 12, 5, target_tokens=3 + i, prompt_ids=prompt, prompt=0, shares_prompt=True) for i in range(2)]
    engine.add(shared)
    engine.advance(np.inf)
    journal = engine.journal
    assert [new.cached_tokens for new in journal.changes[0].joined] == [0, 12]
    partly = replace(
        journal, changes=[c._replace(joined=tuple(n._replace(cached_tokens=7) for n in c.joined)) for c in journal.changes]
    )
    for asked, fed in ((journal, 11), (partly, 2 * (11 - 7))):
        counted: list[int] = []
        model.hooks.append(lambda phase, tokens, counted=counted: counted.append(len(tokens)) if phase == "prefill" else None)
        again = Replay(model, asked, Sampling())
        again.run(len(asked))
        model.hooks.clear()
        assert shapes(again.journal) == shapes(asked)
        assert sum(counted) == fed


def test_iterations_that_warm_up_are_not_charged(monkeypatch):
    ran: list[int] = []
    run = Replay.run
    monkeypatch.setattr(Replay, "run", lambda self, iterations: ran.append(iterations) or run(self, iterations))
    journal = executed(torch_step(1), "static").log.journals[0]
    replayed = torch_replay.replay(factory().model, journal, Sampling())
    assert ran == [min(torch_replay.WARM_UP_ITERATIONS, len(journal)), len(journal)]
    assert replayed.seconds.shape == (len(journal), 2)
    assert replayed.warm_up_s > 0


def test_another_schedule_is_noticed():
    journal = executed(torch_step(1), "static").log.journals[0]
    first = journal.changes[0]
    wrong = replace(journal, changes=[first._replace(rows=first.rows + 1), *journal.changes[1:]])
    with refused(AssertionError):
        torch_replay.replay(factory().model, wrong, Sampling())


def test_the_whole_time_of_the_host_is_charged(monkeypatch):
    """What a replay takes is what its iterations are charged, but for the made-up requests and giving memory back at the end.

    Seconds are those of the thread on both sides, so that a busy machine changes nothing."""
    left_out = [0.0]

    def aside(owner, name):
        inner = getattr(owner, name)

        def call(*args):
            begin = time.thread_time()
            made = inner(*args)
            left_out[0] += time.thread_time() - begin
            return made

        monkeypatch.setattr(owner, name, call)

    journal = executed(torch_step(2), "static").log.journals[0]
    again = Replay(factory().model, journal, Sampling())
    aside(Replay, "_request")
    aside(TorchEngine, "close")
    begin = time.thread_time()
    charged = again.run(len(journal)).sum()
    took = time.thread_time() - begin - left_out[0]
    assert 0.85 * took <= charged <= took


class Pretended:
    """Replays that take what the test says, one after another."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.asked = iter(seconds), []

    def replay(self, journal: EngineJournal) -> Replayed:
        self.asked.append(journal)
        return Replayed(np.full((len(journal), 2), next(self.seconds)), 0.5)


def test_actors_take_turns_and_the_median_counts():
    journals = {0: EngineJournal(4), 3: EngineJournal(4)}
    for n, journal in journals.items():
        for _ in range(n + 1):
            journal.commit(0.0, 0.0, [1.0], 1.0)
    pretended = Pretended([1, 10, 3, 30, 9, 20])
    replayed = measure(journals, pretended, 3)
    assert pretended.asked == [journals[0], journals[3]] * 3
    assert replayed[0].seconds.tolist() == [[3, 3]]
    assert replayed[3].seconds.tolist() == [[20, 20]] * 4
    assert replayed[0].warm_up_s == 1.5


def step_of(charging: str, rule: RuntimeRule | None = None) -> StepRecord:
    step = torch_step(4, transfer_base_s=1e-4, prefill_base_s=1e-3, max_batch=8)
    plan = plan_of([range(0, 6), range(6, 12), range(12, 18)], rule)
    return run_step(plan, torch_requests(step), factory(), step.latency, step.cluster, charging=charging, migration="move")


def test_a_measured_step_decides_and_draws_as_by_profile():
    """Only the times differ; what they add up to is what was measured."""
    by_profile, measured = step_of("profile", Restless(1)), step_of("measured", Restless(1))
    assert by_profile.moves == measured.moves > 0
    assert by_profile.actor_of == measured.actor_of
    for i, c in by_profile.completions.items():
        assert measured.completions[i].token_ids.tolist() == c.token_ids.tolist()
        assert measured.completions[i].time_s != c.time_s
    replays = [e for e in measured.events if e["name"] == "replay"]
    assert [e["holder"] for e in replays] == ["actor-0", "actor-1", "actor-2"]
    assert all('"warm_up_s": ' in e["detail"] for e in replays)
    lengths = np.array([c.response_tokens for _, c in sorted(measured.completions.items())])
    assert_sound(measured, torch_step(4, prefill_base_s=1e-3).with_truth(lengths), cuts_only=False)
    assert REPLAYS % 2  # so that medians are times that were measured


def test_mixed_actors_cannot_be_measured_and_nothing_starts():
    def never(*_: object) -> object:
        raise AssertionError("an engine was made")

    step = torch_step(4)
    plan = plan_of([range(0, 9), range(9, 18)])
    wider = replace(plan.actors[1], gpu_ids=(1, 2))
    other = replace(plan.actors[1], kind="abacus")
    for odd, named in ((wider, "1 x gpu and 2 x gpu"), (other, "1 x abacus and 1 x gpu")):
        mixed = replace(plan, actors=(plan.actors[0], odd))
        with refused(PlanningError, str(named)):
            run_step(mixed, torch_requests(step), never, step.latency, Cluster(2, 2, 1), charging="measured")


def test_actors_of_several_gpus_cannot_be_measured_and_nothing_starts():
    """One GPU would be timed and two would be billed."""

    def never(*_: object) -> object:
        raise AssertionError("an engine was made")

    step = torch_step(4)
    plan = plan_of([range(0, 9), range(9, 18)])
    wide = replace(plan, actors=tuple(replace(a, gpu_ids=(2 * i, 2 * i + 1)) for i, a in enumerate(plan.actors)))
    with refused(PlanningError, "2 GPUs", "1 GPU"):
        run_step(wide, torch_requests(step), never, step.latency, Cluster(1, 4, 2), charging="measured")
    assert run_step(wide, step.requests(), SimulatedEngine, step.latency, Cluster(1, 4, 2)).allocations[0]["gpu_ids"] == [0, 1]


def test_engines_that_decode_nothing_cannot_be_measured():
    step = torch_step(4)
    plan = plan_of([range(0, 18)])
    with refused(PlanningError, "SimulatedEngine"):
        run_step(plan, step.requests(), SimulatedEngine, step.latency, step.cluster, charging="measured")
    with refused(PlanningError, "'guessed'"):
        run_step(plan, step.requests(), SimulatedEngine, step.latency, step.cluster, charging="guessed")
