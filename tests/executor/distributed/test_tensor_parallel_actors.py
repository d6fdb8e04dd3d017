"""Actors that decode in two tensor-parallel parts, each in a process of its own: real processes and gloo on the CPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from busy_machine import PATIENT, Gate, Gated, has_moved
from error_messages import refused
from executor_samples import Restless, plan_of
from torch_wall_samples import CLUSTER, LATENCY, factory_of, forced, requests

from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.sampling import Sampling
from rlhfless.executor import ProcessPool, StepRecord, run_step
from rlhfless.trace.schema.validation import validate
from solver import Cluster, Plan, PlanningError

GROUPS = [range(12), range(12, 24)]
PAIRS = Cluster(1, 4, 2)
TWO = replace(LATENCY, gpus_per_actor=2)


def of_two_gpus(groups: Any, rule: Any = None) -> Plan:
    """A plan by hand whose actors have two GPUs each."""
    plan = plan_of(groups, rule)
    return replace(plan, actors=tuple(replace(a, gpu_ids=(2 * i, 2 * i + 1), node=0) for i, a in enumerate(plan.actors)))


def made(sampling: Sampling) -> TorchEngineFactory:
    return replace(factory_of(longest=140), sampling=sampling)


def tokens_of(record: StepRecord) -> Mapping[int, list[int]]:
    return {i: np.asarray(c.token_ids).tolist() for i, c in sorted(record.completions.items())}


def part_below(pid: int) -> int:
    """The process of the other part of an actor; it has helpers besides."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    below = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    (part,) = (child for child in below if b"multiprocessing.spawn" in Path(f"/proc/{child}/cmdline").read_bytes())
    return part


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(faults=PATIENT) as processes:
        yield processes


@pytest.mark.full
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling()], ids=["greedy", "sampled"])
def test_parts_decode_what_one_process_decodes(pool: ProcessPool, sampling: Sampling, tmp_path: Path) -> None:
    """Tokens are the same and log-probabilities within rounding, also of responses that move and are computed again."""
    engines = made(sampling)
    expected = run_step(plan_of([range(24)]), forced(), engines, LATENCY, CLUSTER)
    gate = Gate(tmp_path / "moved")
    two = Gated(replace(engines, tensor_parallel=2), gate, last=len(GROUPS[0]) - 1)
    plan = of_two_gpus(GROUPS, Restless(1, period_s=0.004, late=True))
    with gate.opened(lambda: has_moved(pool)):
        record = pool.run_step(plan, forced(), two, TWO, PAIRS, migration="move")
    assert tokens_of(record) == tokens_of(expected)
    for i, completion in record.completions.items():
        np.testing.assert_allclose(completion.logprobs, expected.completions[i].logprobs, rtol=0, atol=1e-5)
    assert record.moves > 0
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    synced = [span["bytes"] for span in record.spans if span["phase"] == "sync"]
    assert synced == [engines.weight_bytes] * 2


@pytest.mark.nightly
def test_an_actor_whose_part_is_killed_is_replaced(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = replace(made(Sampling()), tensor_parallel=2)
    expected = run_step(plan_of([range(24)]), forced(), made(Sampling()), LATENCY, CLUSTER)
    from rlhfless.executor.distributed.local import actors as local_actors

    reports, struck = local_actors.LocalStepActors.reports, list[int]()

    def heard(self: Any, timeout_s: float | None) -> Any:
        found = reports(self, timeout_s)
        decoding = [index for index, said in found if getattr(said, "running", ())]
        if decoding and not struck:
            struck.append(part_below(self._process[decoding[0]].pid))
            os.kill(struck[0], signal.SIGKILL)
        return found

    monkeypatch.setattr(local_actors.LocalStepActors, "reports", heard)
    record = pool.run_step(of_two_gpus(GROUPS), forced(), engines, TWO, PAIRS)
    lost = [event for event in record.events if event["name"] == "lost"]
    assert len(lost) == 1
    assert "part 1 of 2" in str(lost[0]["detail"])
    assert tokens_of(record) == tokens_of(expected)


def test_plans_for_other_numbers_of_gpus_are_refused_before_anything_starts() -> None:
    engines = made(Sampling())
    with ProcessPool() as nobody:
        with refused(PlanningError, "actor 0", "tensor_parallel"):
            nobody.run_step(plan_of(GROUPS), requests(), replace(engines, tensor_parallel=2), LATENCY, CLUSTER)
        assert not nobody._all
    with refused(Exception, "tensor_parallel is 2"):
        run_step(of_two_gpus(GROUPS), requests(), replace(engines, tensor_parallel=2), TWO, PAIRS)
