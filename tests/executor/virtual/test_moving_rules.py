"""Every rule that moves responses, on steps where it does: the tokens are those of the run that nothing cut short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from busy_machine import PATIENT
from torch_wall_samples import CLUSTER, LATENCY, PROMPTS, SAMPLES, actor_plan, factory_of, requests, token_bytes

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.executor import ProcessPool, StepRecord, run_step
from rlhfless.scheduling import PlanningOptions, SchedulingPolicy, make_policy
from rlhfless.scheduling.replan import SolverReplan
from rlhfless.scheduling.rlhfuse import RLHFuse
from solver import Objective, Plan, Workload
from solver.model.problem import PlanningProblem
from solver.replanning.replan import Replan

LONGEST = 300
RULES: dict[str, tuple[SchedulingPolicy, int]] = {  # with slots with which they find something to move
    "solver+replan": (SolverReplan(looks_ahead=False), 8),
    "fold": (make_policy("fold"), 8),
    "rlhfuse": (RLHFuse(threshold_share=0.6), 8),
    "rlhfless": (make_policy("rlhfless", tau=0.5), 24),
}
OWNER = np.repeat(np.arange(PROMPTS), SAMPLES)
pytestmark = pytest.mark.parametrize(
    ("policy", "migration"), [(policy, migration) for policy in RULES for migration in ("move", "recompute")]
)


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    return factory_of(longest=LONGEST + 30)


@pytest.fixture(scope="module")
def pool(factory: TorchEngineFactory) -> Iterator[ProcessPool]:
    """Processes that have started: a rule has nothing to move while none decodes."""
    with ProcessPool(["cpu"] * 4, faults=PATIENT) as shared:
        shared.run_step(actor_plan("static"), requests(), factory, LATENCY, CLUSTER)
        yield shared


def lengths(seed: int, *shape: int) -> np.ndarray:
    """A long tail, as of real responses."""
    return np.random.default_rng(seed).geometric(1 / 90, (*shape, PROMPTS * SAMPLES)).clip(1, LONGEST)


def forced() -> list[Request]:
    return [replace(r, target_tokens=int(n), max_tokens=LONGEST) for r, n in zip(requests(), lengths(1), strict=True)]


def plan_of(policy: str) -> Plan:
    """From four forecasts of the lengths, which are not the true ones."""
    chosen, slots = RULES[policy]
    workload = Workload([r.prompt_tokens for r in requests()[::SAMPLES]], OWNER, lengths(2, 4), max_response_tokens=LONGEST)
    return chosen.plan(PlanningProblem(workload, CLUSTER, replace(LATENCY, max_batch=slots), Objective(0.9)), PlanningOptions())


@pytest.fixture(scope="module")
def uncut(factory: TorchEngineFactory) -> StepRecord:
    record = run_step(actor_plan("static"), forced(), factory, LATENCY, CLUSTER)
    assert record.moves == 0
    return record


def assert_moved(record: StepRecord, uncut: StepRecord, policy: str, migration: str) -> None:
    assert record.moves > 0, "the rule moved nothing, so this run shows nothing"
    assert isinstance(record.rule, Replan) == (policy == "solver+replan")
    received = [s for s in record.spans if s["phase"] == "transfer"]
    assert bool(received) == (migration == "move")
    assert token_bytes(record) == token_bytes(uncut)


def test_tokens_on_the_virtual_clock(policy: str, migration: str, factory: TorchEngineFactory, uncut: StepRecord) -> None:
    latency = replace(LATENCY, max_batch=RULES[policy][1])
    record = run_step(plan_of(policy), forced(), factory, latency, CLUSTER, migration=migration)
    assert_moved(record, uncut, policy, migration)


@pytest.mark.full
def test_tokens_with_real_processes(
    policy: str, migration: str, pool: ProcessPool, factory: TorchEngineFactory, uncut: StepRecord
) -> None:
    latency = replace(LATENCY, max_batch=RULES[policy][1])
    record = pool.run_step(plan_of(policy), forced(), factory, latency, CLUSTER, migration=migration)
    assert_moved(record, uncut, policy, migration)
