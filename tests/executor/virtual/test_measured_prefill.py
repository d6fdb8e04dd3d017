"""What computing prefixes once takes is measured too: the prefill actor's span, and who waits for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st
from replay_samples import factory

from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.step.startup import ActorStartup
from rlhfless.executor.virtual.measured_pass import REPLAYS
from solver import Cluster, LatencyModel, NonGenerationPhases, Plan, PlanningError
from solver.model.admission import Admission
from solver.model.plan import ActorPlan, Prefill

TOKENS = 10
LATENCY = LatencyModel(
    "x", 1, 0.1, 0.01, 0.0, prefill_base_s=0.1, prefill_per_token_s=0.01, start_s=0.5, sync_s=0.25, max_batch=4,
    kv_capacity_tokens=4096,
)  # fmt: skip
CLUSTER = Cluster(2, 2, 1)
UP_S = 0.75


def plan(learner: bool = False) -> Plan:
    """The prefill actor is up after 0.75 s and computes until 1 s; its links bring prefixes to actor 0 in its node until
    1.2 s, to actor 1 beside it in another node until 1.5 s, and to actor 2 there, after actor 1, until 2 s."""
    waits = [0.45, 0.75, 1.25]
    actors = [
        ActorPlan(
            "gpu", (g,), g // 2, (i,), (0,), 4, prefixes=(0,), prefix_tokens=(TOKENS,), receive_s=waits[i], shares_prompts=True
        )
        for i, g in enumerate((1, 2, 3))
    ]  # fmt: skip
    if not learner:
        actors.append(ActorPlan("gpu", (0,), 0, (), (), 4, receive_s=1.25))
    return Plan(tuple(actors), "by hand", 0.0, 0.0, 0.0, prefill=Prefill((0,), (TOKENS,), TOKENS, 1.0))


def requests() -> list[Request]:
    ids = np.arange(2, 2 + TOKENS)
    return [Request(i, TOKENS, 8, prompt=0, prompt_ids=ids, seed=i, target_tokens=5) for i in range(3)]


class Timed:
    """Torch engines; every prefill of prefixes takes what the test says, every iteration what the latency model does."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.asked, self._engines = iter(seconds), [], factory()

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> object:
        return self._engines(latency, admission, start_s)

    def check(self, requests: Sequence[Request], admission: Admission) -> None:
        self._engines.check(requests, admission)

    def compute_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> object:
        return self._engines.compute_prefixes(prefixes)

    def replay(self, journal: EngineJournal) -> Replayed:
        return Replayed(np.stack([journal.prefill_s, journal.decode_s], axis=1), 0.0)

    def replay_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> Replayed:
        self.asked.append({p: ids.tolist() for p, ids in prefixes.items()})
        return Replayed(np.array([[next(self.seconds), 0.0]]), 0.125)


def spans(record: StepRecord, phase: str) -> dict[str, tuple[float, float]]:
    return {s["holder"]: pytest.approx((s["start_s"], s["end_s"])) for s in record.spans if s["phase"] == phase}


def executed(engines: object, charging: str, learner: bool = False, start_s: float = 0.0) -> StepRecord:
    phases = NonGenerationPhases(0.0, 1.0, 1 if learner else 0)
    return run_step(plan(learner), requests(), engines, LATENCY, CLUSTER, phases=phases, charging=charging, start_s=start_s)


def test_receivers_wait_for_the_prefill_that_was_measured():
    """The median of 9, 2.25 and 3 seconds is 3 instead of 0.25: everybody is ready 2.75 s later."""
    engines = Timed([9.0, 2.25, 3.0])
    before, record = executed(factory(), "profile"), executed(engines, "measured")
    assert len(engines.asked) == REPLAYS == 3
    assert engines.asked[0] == {0: list(range(2, 1 + TOKENS))}
    assert spans(before, "prefill")["actor-3"] == (UP_S, 1.0)
    assert spans(record, "prefill")["actor-3"] == (UP_S, 3.75)
    assert spans(record, "transfer") == {
        "actor-0": (UP_S, 3.95), "actor-1": (UP_S, 4.25), "actor-2": (UP_S, 4.75), "actor-3": (3.75, 4.75)
    }  # fmt: skip
    for i in range(3):
        assert record.completions[i].start_s == pytest.approx(before.completions[i].start_s + 2.75)
        assert record.completions[i].time_s == pytest.approx(before.completions[i].time_s + 2.75)
    held = {a["holder"]: a["end_s"] for a in record.allocations}
    assert held["actor-3"] == pytest.approx(4.75)
    [event] = [e for e in record.events if e["name"] == "replay prefixes"]
    assert (event["holder"], event["detail"]) == ("actor-3", '{"warm_up_s": 0.375}')


def test_the_learner_s_prefill_is_measured_where_it_computes_the_prefixes():
    record = executed(Timed([2.0] * 3), "measured", learner=True, start_s=10.0)
    assert spans(record, "prefill")["learner"] == (10.0, 12.0)
    # in another node than the learner's everybody takes the one link: 0.2 s, 0.3 s and 0.5 s
    assert spans(record, "transfer") == {
        "actor-0": (10.75, 12.2), "actor-1": (10.75, 12.5), "actor-2": (10.75, 13.0)
    }  # fmt: skip


@given(st.floats(0.0, 5.0), st.booleans(), st.floats(0.0, 3.0))
def test_no_prefix_arrives_before_it_is_computed_nor_before_its_receiver_is_up(seconds, learner, late_s):
    """And a link brings one after the other; what takes as long as planned changes nothing."""
    given_ = plan(learner)
    first = given_.actors[0]
    given_ = replace(given_, actors=(replace(first, start_s=late_s), *given_.actors[1:]))
    before = ActorStartup.of(given_, [LATENCY] * len(given_.actors), 7.0)
    begins_s, ends_s = before.computes_s
    after = before.with_prefill_s(seconds)
    assert after.computes_s == (begins_s, pytest.approx(begins_s + seconds))
    assert after.plan.prefill is not None
    assert after.plan.prefill.done_s == pytest.approx(begins_s + seconds - 7.0)
    for i, own in enumerate(after.actors[:3]):
        assert own.ready_s >= max(own.up_s, after.computes_s[1])
        assert (own.start_s, own.warm_s, own.up_s) == before.actors[i][:3]
    assert after.actors[2].ready_s >= after.actors[1].ready_s + 0.5 - 1e-9
    if not learner:
        assert after.actors[3].ready_s == max(after.computes_s[1], *(own.ready_s for own in after.actors[:3]))
    same = before.with_prefill_s(ends_s - begins_s)
    assert [own.ready_s for own in same.actors[:3]] == pytest.approx([own.ready_s for own in before.actors[:3]])


def test_real_prefixes_are_timed_and_given_back():
    engines = factory()
    timed = engines.replay_prefixes({0: np.arange(2, 12), 1: np.arange(2, 16)})
    assert timed.seconds.shape == (1, 2)
    assert timed.seconds[0, 0] > 0 == timed.seconds[0, 1]
    assert timed.warm_up_s > 0
    measured = executed(engines, "measured")
    [(_, end_s)] = [(s["start_s"], s["end_s"]) for s in measured.spans if s["phase"] == "prefill" and s["holder"] == "actor-3"]
    assert end_s not in (1.0, UP_S)


def test_engines_that_cannot_time_prefixes_are_refused():
    class Forgetful(TorchEngineFactory):
        replay_prefixes = None

    engines = Forgetful(factory().model, factory().eos_id)
    with refused(PlanningError):
        executed(engines, "measured")
