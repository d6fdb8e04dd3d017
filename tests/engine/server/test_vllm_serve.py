"""Plans on real vLLM servers: their greedy tokens are those of the torch engine, also where a server dies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from busy_machine import PATIENT
from error_messages import refused
from vllm_samples import needs_vllm
from vllm_servers import MODEL, VllmServer, vllm_servers

import rlhfless as rl
from rlhfless.engine import Request, Sampling, ServerEngineFactory
from rlhfless.errors import InputError
from rlhfless.executor import ProcessPool, StepFailed, StepRecord
from rlhfless.executor.step.progress import OnProgress, StepProgress
from solver import Cluster, LatencyModel, Plan
from solver.model.admission import Admission
from solver.model.plan import ActorPlan

pytestmark = [needs_vllm, pytest.mark.full]
COUNT, LIMIT = 12, 80
LATENCY = LatencyModel("tiny", 1, 2e-3, 40e-6, max_batch=8, kv_capacity_tokens=1 << 20)
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VllmServer]]:
    with vllm_servers(2, tmp_path_factory.mktemp("servers")) as started:
        yield started


def requests() -> list[Request]:
    rng = np.random.default_rng(2)
    prompts = [rng.integers(2, 37, size=int(rng.integers(3, 40))).astype(np.int64) for _ in range(COUNT)]
    return [Request(i, len(ids), LIMIT, prompt_ids=ids, seed=i, prompt=i) for i, ids in enumerate(prompts)]


def run(
    servers: Sequence[VllmServer], wanted: Sequence[Request], on_progress: OnProgress | None = None, **given: object
) -> StepRecord:
    groups = [tuple(range(i, len(wanted), len(servers))) for i in range(len(servers))]
    plan = Plan(tuple(ActorPlan("gpu", (i,), 0, g, (), 8) for i, g in enumerate(groups)), "by hand", 0.0, 0.0, 0.0)
    factory = ServerEngineFactory(**{"sampling": GREEDY, **given})  # type: ignore[arg-type]
    with ProcessPool([server.url for server in servers], faults=PATIENT) as pool:
        return pool.run_step(plan, wanted, factory, LATENCY, Cluster(1, len(servers), 1), on_progress=on_progress)


def by_torch(wanted: Sequence[Request]) -> dict[int, tuple[list[int], str]]:
    engine = rl.TorchEngine.from_pretrained(MODEL, sampling=GREEDY)(LATENCY, Admission(8, 1 << 20))
    engine.add(wanted)
    done = engine.advance(math.inf).completions
    return {c.response: (np.asarray(c.token_ids).tolist(), c.finish_reason) for c in done}


def of(record: StepRecord) -> dict[int, tuple[list[int], str]]:
    return {i: (np.asarray(c.token_ids).tolist(), c.finish_reason) for i, c in record.completions.items()}


def test_greedy_tokens_and_ends_are_those_of_the_torch_engine(servers: list[VllmServer]) -> None:
    record = run(servers, requests())
    assert of(record) == by_torch(requests())
    assert all(c.logprobs is not None and (c.logprobs <= 0).all() for c in record.completions.values())


def test_lengths_can_be_forced_and_seeds_repeat(servers: list[VllmServer]) -> None:
    forced = [replace(r, target_tokens=5 + 6 * r.response, target_finish="length") for r in requests()]
    first, second = (run(servers[:1], forced, sampling=Sampling(0.9, top_p=0.95, top_k=12)) for _ in range(2))
    assert [c.response_tokens for _, c in sorted(first.completions.items())] == [r.target_tokens for r in forced]
    assert of(first) == of(second)


def test_what_a_server_does_not_have_is_refused(servers: list[VllmServer]) -> None:
    with refused(InputError, servers[0].url, "'mine'", "'arithmetic'"):
        run(servers, requests(), model="mine")
    with refused(StepFailed, servers[0].url, "response 0", "512"):
        run(servers, [replace(requests()[0], response=0, max_tokens=600)])


def test_a_server_that_is_killed_costs_no_response(servers: list[VllmServer]) -> None:
    """The last test: one of the servers is gone then."""
    wanted = [replace(r, target_tokens=400 if r.response != 1 else 10, max_tokens=400) for r in requests()]

    def kill_once_it_has_completed_one(progress: StepProgress) -> None:
        if 1 in progress.record.completions:
            servers[1].kill()

    record = run(servers, wanted, on_progress=kill_once_it_has_completed_one)
    assert of(record) == by_torch(wanted)
    (lost,) = [event for event in record.events if event["name"] == "lost"]
    assert lost["holder"] == "actor-1"
