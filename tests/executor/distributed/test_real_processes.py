"""What only real processes show: they start, decode with the weights they were sent, hand KV states over, and are killed.

What the event loop makes of it is tested in a scripted world (``test_scripted_*.py``).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_work
from benchmark_scripts import chaos, counting_engine
from busy_machine import PATIENT, Gate, Gated, has_sent_kv
from error_messages import refused
from executor_samples import Restless, plan_of
from prefill_samples import CLUSTER as PREFILL_CLUSTER
from prefill_samples import LATENCY as PREFILL_LATENCY
from prefill_samples import PROMPTS, SAMPLES, prompts, round_robin, workload
from prefill_samples import requests as prefill_requests
from scripted_drafters import FailingDrafter
from torch_wall_samples import (
    CLUSTER,
    LATENCY,
    actor_plan,
    assert_noticed_in_time,
    factory_of,
    forced,
    requests,
    shared_memory,
    token_bytes,
    until,
)

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.executor import (
    Gpus,
    Lifecycle,
    ProcessPool,
    ShortestStep,
    StepRecord,
    WorkItem,
    run_step,
)
from rlhfless.executor.distributed.messages import ActorLost, ActorReport
from rlhfless.executor.distributed.step_actors import StepActors
from rlhfless.trace.schema.validation import validate
from solver import Cluster, GpuPool, MixedCluster, PlanningError
from solver.model.drafting import Drafting
from solver.model.problem import PlanningProblem
from solver.prefix_sharing.deduplicate import deduplicate

GROUPS = [range(12), range(12, 24)]
Strike = Callable[[Any, int, "ActorReport | ActorLost"], None]


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    return factory_of(longest=140)


@pytest.fixture(scope="module")
def whole(factory: TorchEngineFactory) -> StepRecord:
    return run_step(plan_of([range(24)]), forced(), factory, LATENCY, CLUSTER)


@pytest.fixture(scope="module")
def undisturbed(whole: StepRecord) -> dict[int, bytes]:
    return token_bytes(whole)


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary folder of these processes' own, as other tests make some in the machine's."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="module")
def shared(factory: TorchEngineFactory, temporary: None) -> Iterator[ProcessPool]:
    """Two processes that have started; afterwards nothing is left, not even a temporary folder."""
    before = folders()
    with ProcessPool(["cpu"] * 4, faults=PATIENT) as pool:
        pool.run_step(plan_of(GROUPS), requests(), factory, LATENCY, CLUSTER)
        assert repr(pool) == "ProcessPool: 2 idle of 2 processes on cpu, cpu, cpu, cpu"
        yield pool
    assert not multiprocessing.active_children()
    assert folders() <= before


def folders() -> set[str]:
    """Temporary ones that could be ours."""
    return {path.name for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith(("pymp", "torch", "rlhfless"))}


@pytest.fixture
def pool(shared: ProcessPool) -> Iterator[ProcessPool]:
    """Nothing but idle processes is there after a step, whatever became of it."""
    shared.faults = PATIENT
    yield shared
    assert {p.pid for p in multiprocessing.active_children()} == {process.pid for process in shared.idle.values()}
    assert not shared_memory(os.getpid())


def events(record: StepRecord, name: str) -> list[dict[str, Any]]:
    return [e | json.loads(e["detail"] or "{}") for e in record.events if e["name"] == name]


def striking(monkeypatch: pytest.MonkeyPatch, strike: Strike) -> None:
    """``strike`` hears of every report before the loop does."""
    reports = StepActors.reports

    def heard(self: Any, timeout_s: float | None) -> list[tuple[int, ActorReport | ActorLost]]:
        found = reports(self, timeout_s)
        for index, said in found:
            strike(self, index, said)
        return found

    monkeypatch.setattr(StepActors, "reports", heard)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Closed at first."""
    return Gate(tmp_path / "gate")


def gated(factory: TorchEngineFactory, gate: Gate) -> Gated:
    """Engines of two actors that each complete one response, and the others once the gate was opened."""
    return Gated(factory, gate, last=len(GROUPS[0]) - 1)


def once(index: int, how: signal.Signals, gate: Gate) -> Strike:
    """Signals an actor once it decodes, and opens the gate."""
    done: list[int] = []

    def strike(crew: Any, sender: int, said: ActorReport | ActorLost) -> None:
        if sender == index and not done and isinstance(said, ActorReport) and said.running and sum(said.tokens[1]) > 60:
            done.append(1)
            os.kill(next(actor.pid for actor, order in crew._members.items() if order.index == index), how)
        if done or sender >= len(GROUPS):  # that one is there in another's place
            gate.open()

    return strike


def assert_valid(record: StepRecord) -> None:
    """Its rows keep the schema's rules."""
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))


def test_processes_run_actors_of_several_sizes(
    pool: ProcessPool, factory: TorchEngineFactory, undisturbed: dict[int, bytes]
) -> None:
    cluster, two = MixedCluster([GpuPool("gpu", 1, 4)]), replace(LATENCY, gpus_per_actor=2)
    small, large = plan_of(GROUPS).actors
    plan = replace(plan_of(GROUPS), actors=(small, replace(large, gpu_ids=(2, 3), node=0)))
    record = pool.run_step(plan, forced(), factory, {("gpu", 1): LATENCY, ("gpu", 2): two}, cluster)
    assert token_bytes(record) == undisturbed
    sizes = {held["holder"]: len(held["gpu_ids"]) for held in record.allocations}
    assert (sizes["actor-0"], sizes["actor-1"]) == (1, 2)


@pytest.mark.full
def test_processes_decode_and_hand_over_what_the_virtual_clock_decodes(
    pool: ProcessPool, factory: TorchEngineFactory, undisturbed: dict[int, bytes], gate: Gate
) -> None:
    """Moves at odd moments, so that orders, completions and KV states cross in real pipes and shared memory."""
    plan = plan_of(GROUPS, Restless(1, period_s=0.004, late=True))
    with gate.opened(lambda: has_sent_kv(pool)):
        record = pool.run_step(plan, forced(), gated(factory, gate), LATENCY, CLUSTER, migration="move", start_s=1e3)
    assert token_bytes(record) == undisturbed
    assert_valid(record)
    assert record.moves > 0
    sent, received = ([s for s in record.spans if s["phase"] == phase] for phase in ("migrate", "transfer"))
    assert sum(s["bytes"] for s in sent) == sum(s["bytes"] for s in received) > 0
    assert record.start_s >= 1e3
    for c in record.completions.values():
        assert record.start_s < c.start_s < c.first_token_s <= c.time_s <= record.end_s, "all processes have one clock"


@pytest.mark.full
def test_weights_of_a_step_are_sent(pool: ProcessPool) -> None:
    """Those of this step, not those that the processes had before."""
    other = factory_of(seed=11)
    expected = run_step(actor_plan("static"), requests(), other, LATENCY, CLUSTER)
    record = pool.run_step(actor_plan("rlhfless"), requests(), other, LATENCY, CLUSTER, migration="move")
    assert token_bytes(record) == token_bytes(expected)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_actor_that_is_killed_or_stopped_is_replaced(
    how: signal.Signals, pool: ProcessPool, factory: TorchEngineFactory, undisturbed: dict[int, bytes],
    monkeypatch: pytest.MonkeyPatch, gate: Gate,
) -> None:  # fmt: skip
    """Killed, the end of its pipe says so; stopped, its silence does, and it is killed then."""
    pool.run_step(plan_of(GROUPS), requests(), factory, LATENCY, CLUSTER)  # both have started
    if how == signal.SIGSTOP:
        pool.faults = replace(PATIENT, silence_floor_s=1.0, silence_factor=1.0, retries=100, restarts=100)
    striking(monkeypatch, once(1, how, gate))
    record = pool.run_step(plan_of(GROUPS), forced(), gated(factory, gate), LATENCY, CLUSTER, migration="move")
    assert token_bytes(record) == undisturbed
    assert_valid(record)
    lost = events(record, "lost")
    if how == signal.SIGSTOP:  # a busy machine may be silent, too
        assert "actor-1" in [e["holder"] for e in lost]
        assert_noticed_in_time(record, "actor-1", pool.faults)
        return
    assert [e["holder"] for e in lost] == ["actor-1"]
    assert "on cpu) was killed by SIGKILL" in lost[0]["why"]
    assert lost[0]["responses"] == sum(len(e["responses"]) for e in events(record, "retry")) > 0


@pytest.mark.full
def test_work_items_run_in_processes_that_have_decoded_and_beside_them(
    pool: ProcessPool, factory: TorchEngineFactory, undisturbed: dict[int, bytes], tmp_path: Path
) -> None:
    """An item whose process is killed is run once more, in another process."""
    learner = Gpus("learner", (2,))
    prepare = [WorkItem("prepare", run=real_work.count, responses=(r,)) for r in range(24)]
    learn = WorkItem("learn", run=partial(real_work.die_first, str(tmp_path / "mark")), gpus=learner, items=tuple(range(24)))
    record = pool.run_step(plan_of(GROUPS), forced(), factory, LATENCY, CLUSTER, work=[*prepare, learn])
    assert token_bytes(record) == undisturbed
    assert_valid(record)
    tokens = [len(record.completions[r].token_ids) for r in range(24)]  # type: ignore[arg-type]
    assert [ran.result[1] for ran in record.work] == [*tokens, sum(tokens)]
    (lost,) = events(record, "work lost")
    assert (lost["holder"], lost["item"]) == ("learner", 24)
    assert "was killed by SIGKILL" in lost["why"]
    decoding = {process.pid for process in pool.idle.values()}
    assert {ran.result[0] for ran in record.work} <= decoding, "all processes are kept, the learner's too"
    assert {ran.holder for ran in record.work[:-1]} <= {"released-0", "released-1"}
    for ran in record.work[:-1]:
        assert record.completions[ran.item.responses[0]].time_s <= ran.start_s <= ran.end_s <= record.work[-1].start_s


def test_a_prefill_actor_is_a_process_that_hands_prefixes_over(pool: ProcessPool) -> None:
    """With real prefixes, to one of two receivers that starts later."""
    engines, lengths = factory_of(longest=120), np.full(PROMPTS * SAMPLES, 9)
    asked = prefill_requests(lengths)
    expected = run_step(round_robin(2), asked, engines, PREFILL_LATENCY, PREFILL_CLUSTER)
    ids = [p.tolist() for p in prompts()]
    plan = deduplicate(round_robin(2), PlanningProblem(workload(lengths), PREFILL_CLUSTER, PREFILL_LATENCY), ids).plan
    late = next(i for i, a in enumerate(plan.actors) if a.prefixes)
    plan = replace(plan, actors=tuple(replace(a, start_s=0.3) if i == late else a for i, a in enumerate(plan.actors)))
    record = pool.run_step(plan, asked, engines, PREFILL_LATENCY, PREFILL_CLUSTER)
    assert token_bytes(record) == token_bytes(expected)
    received = [s for s in record.spans if s["phase"] == "transfer"]
    assert {s["from_actor"] for s in received} == {f"actor-{plan.prefill_actor}"}
    computed = sum(c.prefill_tokens_computed for c in record.completions.values())
    alone = sum(c.prefill_tokens_computed for c in expected.completions.values())
    assert computed < alone, "samples of a prompt on one actor share it in any case"
    assert min(s["start_s"] for s in record.spans if s["holder"] == f"actor-{late}") >= record.start_s + 0.3


@pytest.mark.full
def test_processes_that_wait_end_by_themselves_and_start_ahead_of_their_step() -> None:
    """The pool's thread does both, on the machine's clock."""
    records: list[StepRecord] = []
    asked = [Request(i, 3, 40, prompt_ids=np.arange(3), seed=i, target_tokens=30) for i in range(4)]

    def step() -> None:
        engines, model = counting_engine.CountingEngines(), replace(LATENCY, max_batch=16)
        plan = plan_of([[0, 1], [2, 3]])
        records.append(pool.run_step(plan, asked, engines, model, Cluster(1, 2, 1), step=len(records)))
        assert len(records[-1].completions) == len(asked)

    others = {p.pid for p in multiprocessing.active_children()}
    nobody = lambda: {p.pid for p in multiprocessing.active_children()} <= others  # noqa: E731
    with ProcessPool(["cpu"] * 2, lifecycle=Lifecycle(idle_timeout_s=0.0, prewarm=ShortestStep(4.0), patience_s=600.0)) as pool:
        step()
        assert nobody(), "nothing waits without a forecast"
        step()
        until(lambda: [p.up_s is not None for p in pool.idle.values()] == [True, True], "prewarmed")
        pool.finalise_allocations(records[-1])
        step()
    with ProcessPool(["cpu"] * 2, lifecycle=Lifecycle(idle_timeout_s=1.0)) as pool:
        step()
        until(nobody, "scaled to zero")
        pool.finalise_allocations(records[-1])
        assert [e["name"] for e in records[-1].events] == ["kill", "kill"]


@pytest.mark.full
def test_kills_at_random_moments_lose_double_and_leave_nothing() -> None:
    """A few, while prompts are learned from; hundreds in ``test_chaos.py``."""
    found = chaos.chaos(6, actors=3, stops=0.0, limit=300, learning="stream").summary()
    assert (found["kills"], found["lost_actors"] > 0) == (6, True)
    assert (found["lost"], found["doubled"], found["different"], found["given_up"]) == (0, 0, 0, 0)
    assert (found["not_learned"], found["learned_again"], found["other_gradients"]) == (0, 0, 0)
    assert found["learned_early"] > 0
    assert found["left_behind"] == []


@pytest.mark.full
def test_a_drafter_that_fails_in_a_process_is_an_event_and_changes_no_token(factory: TorchEngineFactory) -> None:
    drafting = Drafting(FailingDrafter(), length=2)
    with ProcessPool(["cpu"]) as pool:
        plain, drafted = (
            pool.run_step(plan_of([range(4)]), requests()[:4], engines, LATENCY, Cluster(1, 1, 1))
            for engines in (factory, replace(factory, drafting=drafting))
        )
    (event,) = [e for e in drafted.events if e["name"] == "drafts_off"]
    assert "FailingDrafter failed in draft()" in json.loads(event["detail"])["why"]
    assert token_bytes(drafted) == token_bytes(plain)
    assert not [e for e in plain.events if e["name"] == "drafts_off"]


def test_an_actor_of_several_gpus_is_refused_before_anything_starts(factory: TorchEngineFactory) -> None:
    plan = plan_of([range(24)])
    plan = replace(plan, actors=(replace(plan.actors[0], gpu_ids=(0, 1)),))
    with ProcessPool(["cuda:0", "cuda:1"]) as nobody:
        with refused(PlanningError, "actor 0", "2 GPUs", "'vllm'"):
            nobody.run_step(plan, requests(), factory, replace(LATENCY, gpus_per_actor=2), Cluster(1, 2, 2))
        assert not nobody._all
