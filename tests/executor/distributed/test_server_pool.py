"""A plan on servers that run already: one actor each, from processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from busy_machine import PATIENT
from error_messages import refused
from small_server import SmallServer, requests_of, small_server, tokens_of

import rlhfless as rl
from rlhfless.engine import ServerEngineFactory, SimulatedEngineFactory
from rlhfless.errors import InputError
from rlhfless.executor import Gpus, ProcessPool, StepFailed, StepRecord, WorkItem, run_step
from rlhfless.trace.schema.validation import validate
from solver import Cluster, LatencyModel, Plan, PlanningError
from solver.model.plan import ActorPlan
from solver.model.runtime_rules import ActorView, Decision, RuntimeRule, StepState, Trigger

LATENCY = LatencyModel("small", 1, 2e-3, 40e-6, max_batch=4, kv_capacity_tokens=1 << 20)
LENGTHS = [12, 30, 1, 0, 25, 7, 18, 5, 40, 9]
HALVES = [range(0, len(LENGTHS), 2), range(1, len(LENGTHS), 2)]


class Moves(RuntimeRule):
    """A rule that may move responses."""

    def next_trigger(self, actor: ActorView) -> Trigger | None:
        return None

    def decide(self, now_s: float, state: StepState) -> Sequence[Decision]:
        return ()


def plan_of(groups: Sequence[Sequence[int]], gpus: int = 1, rule: RuntimeRule | None = None) -> Plan:
    actors = [ActorPlan("gpu", tuple(range(i * gpus, (i + 1) * gpus)), 0, tuple(g), (), 4) for i, g in enumerate(groups)]
    return Plan(tuple(actors), "by hand", 0.0, 0.0, 0.0, rule=rule)


@pytest.fixture
def servers() -> Iterator[tuple[SmallServer, SmallServer]]:
    with small_server() as one, small_server() as other:
        yield one, other


def run(plan: Plan, urls: Sequence[str], gpus: int = 2, factory: ServerEngineFactory = ServerEngineFactory()) -> StepRecord:  # noqa: B008
    with ProcessPool(urls, faults=PATIENT) as pool:
        return pool.run_step(plan, requests_of(LENGTHS), factory, LATENCY, Cluster(1, gpus, len(plan.actors[0].gpu_ids)))


def assert_complete(record: StepRecord) -> None:
    for request in requests_of(LENGTHS):
        ids = record.completions[request.response].token_ids
        assert ids is not None
        assert ids.tolist() == tokens_of(request, request.target_tokens or 0)
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))


def test_every_actor_is_a_server_and_the_trace_has_what_it_did(servers: tuple[SmallServer, SmallServer]) -> None:
    record = run(plan_of(HALVES), [one.url for one in servers])
    assert_complete(record)
    assert [len(one.bodies) for one in servers] == [5, 4], "a response of no tokens is not sent"
    assert servers[0].url in record.meta["device"]
    decoded = sum(span["tokens"] for span in record.spans if span["phase"] == "decode")
    assert decoded == sum(LENGTHS)


def test_a_server_of_several_gpus_is_named_for_each_of_them(servers: tuple[SmallServer, SmallServer]) -> None:
    one, other = servers
    assert_complete(run(plan_of(HALVES, gpus=2), [one.url, one.url, other.url, other.url], gpus=4))
    assert [len(server.bodies) for server in servers] == [5, 4]


@pytest.mark.parametrize("how", ["close", "hang"])
def test_responses_of_a_lost_server_start_anew_at_another(servers: tuple[SmallServer, SmallServer], how: str) -> None:
    servers[1].stops_after, servers[1].at_stop = 15, how
    record = run(plan_of(HALVES), [one.url for one in servers], factory=ServerEngineFactory(timeout_s=1.0))
    assert_complete(record)
    (lost,) = [event for event in record.events if event["name"] == "lost"]
    assert lost["holder"] == "actor-1"
    assert servers[1].url in lost["detail"]
    assert len(servers[0].bodies) > 5


def test_a_server_that_goes_away_before_its_actor_starts_is_lost(servers: tuple[SmallServer, SmallServer]) -> None:
    servers[1].model_answers = 1
    record = run(plan_of(HALVES), [one.url for one in servers])
    assert_complete(record)
    lost = [event for event in record.events if event["name"] == "lost"]
    assert {event["holder"] for event in lost} == {"actor-1"}
    assert not servers[1].bodies


def test_without_another_server_the_step_fails_and_says_which_was_lost(servers: tuple[SmallServer, SmallServer]) -> None:
    servers[0].stops_after, servers[0].at_stop = 15, "close"
    with pytest.raises(StepFailed) as failed:
        run(plan_of([range(len(LENGTHS))]), [servers[0].url], gpus=1)
    assert servers[0].url in str(failed.value)
    assert "actor-0" in str(failed.value)


def test_what_a_server_cannot_do_is_refused_before_anything_is_sent(servers: tuple[SmallServer, SmallServer]) -> None:
    urls, requests, factory = [one.url for one in servers], requests_of(LENGTHS), ServerEngineFactory()

    def refuses(plan: Plan, devices: Sequence[str], *named: object, engines: object = factory, **given: object) -> None:
        with refused(PlanningError, *named), ProcessPool(devices) as pool:
            pool.run_step(plan, requests, engines, LATENCY, Cluster(1, 4, 1), **given)  # type: ignore[arg-type]

    refuses(plan_of(HALVES, rule=Moves()), urls, "'by hand'", "move", "'solver'")
    refuses(plan_of([[*range(4)], [*range(4, 8)], [8, 9]]), urls, "GPU 2", "2 devices")
    refuses(plan_of(HALVES), [urls[0]] * 2, "actors 0 and 1", urls[0], "one actor")
    refuses(plan_of(HALVES), [urls[0], urls[0] + "/v1/"], "actors 0 and 1", urls[0], "one actor")
    refuses(plan_of(HALVES), ["cpu", "cpu"], "actor 0", "cpu", "http://localhost:8000")
    refuses(plan_of(HALVES), urls, "actor 0", urls[0], "SimulatedEngineFactory", engines=SimulatedEngineFactory())
    prefixes = replace(plan_of(HALVES).actors[1], prefixes=(0,), prefix_tokens=(2,))
    refuses(replace(plan_of(HALVES), actors=(plan_of(HALVES).actors[0], prefixes)), urls, "actor 1", "prefixes")
    beside = [WorkItem("learn", run=time.sleep, gpus=Gpus("learner", (1,)), responses=(0,))]
    refuses(plan_of(HALVES), urls, "'learner'", "GPU 1", work=beside)
    with refused(PlanningError, "ServerEngineFactory", "virtual clock", "actor_pool"):
        run_step(plan_of(HALVES), requests, factory, LATENCY, Cluster(1, 2, 1))
    assert not any(one.bodies for one in servers)


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_password_in_a_url_is_refused_and_never_printed(scheme: str) -> None:
    with refused(InputError, "VLLM_API_KEY") as error:
        ProcessPool([f"{scheme}me:secret@localhost:8000"])
    assert "secret" not in str(error.value)


def test_a_server_that_is_not_there_ends_nothing_that_has_begun(servers: tuple[SmallServer, SmallServer]) -> None:
    with small_server() as gone:
        pass
    with refused(InputError, gone.url, "vllm serve"):
        run(plan_of(HALVES), [servers[0].url, gone.url])
    assert not servers[0].bodies


def test_a_slow_server_keeps_its_responses(servers: tuple[SmallServer, SmallServer]) -> None:
    servers[1].token_s = 0.02
    with ProcessPool([one.url for one in servers], faults=replace(PATIENT, slow_factor=1.5)) as pool:
        record = pool.run_step(plan_of(HALVES), requests_of(LENGTHS), ServerEngineFactory(), LATENCY, Cluster(1, 2, 1))
    assert_complete(record)
    assert record.moves == 0


def test_an_executor_plans_and_runs_prompts_on_servers(servers: tuple[SmallServer, SmallServer]) -> None:
    cluster, latency = rl.Hardware(gpus=2, profile="cpu-tiny-qwen2").cluster()
    requests = rl.requests([[5, 6, 7], [8, 9]], samples_per_prompt=4, max_response_tokens=20)
    pool = ProcessPool([one.url for one in servers])
    with rl.Executor(ServerEngineFactory(), cluster, latency=latency, actor_pool=pool) as executor:
        record = executor.run(executor.plan(requests), requests)
    assert record.trace.rollouts["response_tokens"].tolist() == [5] * 8
