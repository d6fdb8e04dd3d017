"""Torch's own pipeline runtime executes exported orders of one chain; it is private: without it the tests are skipped."""

from __future__ import annotations

import csv
import multiprocessing
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
NEEDED = ("_PipelineScheduleRuntime", "_validate_schedule", "_Action")
if missing := [name for name in NEEDED if not hasattr(torch_schedules, name)]:
    pytest.skip(f"torch has no {missing[0]} any more", allow_module_level=True)

import torch_runtime  # noqa: E402
from error_messages import refused  # noqa: E402

from solver import PlanningError  # noqa: E402
from solver.pipeline import Chain, PipelinePlan, PipelineProblem, fused, schedule_pipeline  # noqa: E402

MICRO_BATCHES = 4


def plan_of(route: tuple[int, ...], split: bool) -> PipelinePlan:
    return schedule_pipeline(PipelineProblem([Chain("actor", route, MICRO_BATCHES, 1, 2)], split_backward=split))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("route", [(0, 1, 2, 3), (0, 1, 0, 1), (0, 1, 1, 0)], ids=["plain", "interleaved", "v"])
def test_torch_accepts_the_order_of_one_chain(route: tuple[int, ...], split: bool) -> None:
    """Also of a chain that shares its devices with another."""
    actions = plan_of(route, split).actions()
    rows = {rank: [torch_schedules._Action.from_str(text) for text in row] for rank, row in enumerate(actions)}
    assert [[str(action) for action in row] for row in rows.values()] == actions
    found = torch_schedules._validate_schedule(rows, 1 + max(route), len(route), MICRO_BATCHES)
    assert found == dict(enumerate(route))


def test_one_chain_of_several_is_exported_alone() -> None:
    plan = schedule_pipeline(fused((2, 2, 4), (1, 1, 2)))
    rows = {rank: [torch_schedules._Action.from_str(text) for text in row] for rank, row in enumerate(plan.actions("actor"))}
    assert torch_schedules._validate_schedule(rows, 2, 2, 4) == {0: 0, 1: 1}
    assert plan.actions("critic 1") == [[], [text for chain, text in plan.actions()[1] if chain == "critic 1"]]
    with refused(PlanningError, "'value'", "actor"):
        plan.actions("value")


@pytest.mark.full
def test_torch_runs_a_v_and_has_the_gradients_of_the_whole(tmp_path: Path) -> None:
    route = (0, 1, 1, 0)
    with (tmp_path / "order.csv").open("w", newline="") as file:
        csv.writer(file).writerows(plan_of(route, split=False).actions())
    context = multiprocessing.get_context("spawn")
    given = (str(tmp_path), str(tmp_path / "order.csv"), route, MICRO_BATCHES)
    processes = [context.Process(target=torch_runtime.main, args=(rank, *given)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    found = {stage: grads for rank in range(2) for stage, grads in torch.load(tmp_path / f"{rank}.pt").items()}
    stages, (x, y) = torch_runtime.blocks(len(route)), torch_runtime.data(MICRO_BATCHES)
    for part, target in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True):
        torch_runtime.loss(torch.nn.Sequential(*stages)(part), target).backward()
    for stage, module in enumerate(stages):
        for parameter, gradient in zip(module.parameters(), found[stage], strict=True):
            torch.testing.assert_close(gradient, parameter.grad, atol=0, rtol=1e-6)
