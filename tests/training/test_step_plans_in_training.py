"""Training with a step plan: weights and responses are those without it, and the virtual clock charges the plan's seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from training_samples import config, same_weights

from rlhfless.trace import read_trace, step_metrics
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.loop import Trainer, train
from rlhfless.training.models.tiny_model import save_model
from solver import Cluster
from solver.layouts import Call, CallMemory, Layout, StepPlan, dpo, grpo, plan_step, ppo
from solver.model.errors import PlanningError

GPUS = {"gpus": 4, "gpus_per_node": 4}
DECODED = ["step", "prompt_id", "sample", "response", "response_tokens", "reward"]
SECONDS = {"generate": 0.4, "reward": 0.1, "reference": 0.2, "values": 0.2, "train_critic": 0.7, "train_actor": 0.9}


class Costs:
    """Calls of given seconds on any GPUs; generation on actors of one GPU, and on two at most."""

    def __init__(self, generate_gpus: int = 2) -> None:
        self.generate_gpus = generate_gpus

    def seconds(self, call: Call, layout: Layout) -> float:
        s = layout.strategy
        if call.kind == "generate" and (s.tp > 1 or s.pp > 1 or layout.mesh.gpus > self.generate_gpus):
            return float("inf")
        return SECONDS[call.name] / layout.mesh.gpus**0.5

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        return CallMemory(0.0, 0.0)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        return (0.0, 0.0) if source == destination else (0.05, 1000.0)


def planned(graph: Any = grpo, cluster: Cluster | None = None, costs: Costs | None = None) -> StepPlan:
    return plan_step(graph(), cluster or Cluster(1, 4, 1), costs or Costs(), work=3_000)


def trained(given: TrainConfig, folder: Path, model: Path, **more: Any) -> None:
    with Trainer(given, folder, model=model, progress=False, **more) as trainer:
        trainer.train()
        save_model(trainer.model, trainer.tokenizer, folder / "model")


@pytest.mark.parametrize(
    ("graph", "options"),
    [(grpo, {"kl_coef": 0.05}), (ppo, {"algorithm": "ppo", "critic": "model", "kl_coef": 0.05})],
    ids=["grpo", "ppo"],
)
def test_a_step_plan_changes_times_and_no_bit_of_weights(
    tmp_path: Path, model: Path, graph: Any, options: dict[str, Any]
) -> None:
    given = config(**GPUS, **options)
    plan = planned(graph)
    trained(given, tmp_path / "without", model)
    trained(given, tmp_path / "with", model, step_plan=plan)
    assert same_weights(tmp_path / "without", tmp_path / "with")
    without, with_plan = read_trace(tmp_path / "without"), read_trace(tmp_path / "with")
    assert without.rollouts[DECODED].equals(with_plan.rollouts[DECODED])

    generate = next(call for call in plan.calls if call.kind == "generate")
    mesh = set(range(generate.layout.mesh.first, generate.layout.mesh.last))
    decoded = with_plan.allocations[with_plan.allocations["role"] == "decode"]
    assert {gpu for ids in decoded[decoded["holder"] != "generate"]["gpu_ids"] for gpu in ids} <= mesh
    spans = with_plan.spans
    for call in plan.calls:
        if call.kind == "generate":
            continue
        own = spans[(spans["call"] == call.name) & (spans["phase"] != "transfer")]
        assert len(own) == 3
        assert (own["end_s"] - own["start_s"]).to_numpy() == pytest.approx([call.seconds] * 3)
    sent = spans[spans["phase"] == "transfer"]
    assert sent["bytes"].sum() == 3 * sum(call.reallocate_bytes for call in plan.calls)
    learned = spans[(spans["call"] == "train_actor") & (spans["phase"] == "learn")]["detail"]
    assert all("learning" in json.loads(detail) for detail in learned)
    assert with_plan.meta["step_plan"]["period_s"] == plan.period_s


def test_a_step_of_grpo_takes_its_generation_and_the_rest_of_the_plan(tmp_path: Path, model: Path) -> None:
    plan = planned()
    trained(config(kl_coef=0.05, **GPUS), tmp_path, model, step_plan=plan)
    trace = read_trace(tmp_path)
    decoded = trace.allocations[(trace.allocations["role"] == "decode") & (trace.allocations["holder"] != "generate")]
    by_step = decoded.groupby("step")
    generated_s = by_step["end_s"].max() - by_step["start_s"].min()
    assert step_metrics(trace)["time_s"].to_numpy() == pytest.approx(generated_s.to_numpy() + plan.phases().seconds)


def test_a_run_that_drafts_takes_what_its_own_generation_takes_and_the_rest_of_the_plan(tmp_path: Path, model: Path) -> None:
    plan = planned()
    trained(config(kl_coef=0.05, drafts=True, **GPUS), tmp_path, model, step_plan=plan)
    trace = read_trace(tmp_path)
    decoded = trace.allocations[(trace.allocations["role"] == "decode") & (trace.allocations["holder"] != "generate")]
    generated_s = decoded.groupby("step")["end_s"].max() - decoded.groupby("step")["start_s"].min()
    assert step_metrics(trace)["time_s"].to_numpy() == pytest.approx(generated_s.to_numpy() + plan.phases().seconds)


def test_a_run_may_be_resumed_with_a_step_plan(tmp_path: Path, model: Path) -> None:
    train(config(steps=2, **GPUS), tmp_path / "run", model=model)
    with Trainer(config(steps=3, **GPUS), tmp_path / "run", resume=True, step_plan=planned(), progress=False) as trainer:
        trainer.train()
        save_model(trainer.model, trainer.tokenizer, tmp_path / "run" / "model")
    train(config(steps=3, **GPUS), tmp_path / "whole", model=model)
    assert same_weights(tmp_path / "run", tmp_path / "whole")


def test_step_plans_that_do_not_charge_a_run_are_refused(model: Path) -> None:
    class TwoGpus(Costs):
        def seconds(self, call: Call, layout: Layout) -> float:
            generates = call.kind == "generate"
            return 1.0 if not generates or layout.strategy.tp == 2 == layout.mesh.gpus else float("inf")

    for plan, options, error, named in (
        (7, {}, PlanningError, "plan is 7"),
        (planned(cluster=Cluster(2, 2, 1)), {}, PlanningError, "4 GPUs in nodes of 2"),
        (planned(ppo), {}, TrainError, "'ppo'"),
        (planned(dpo), {"algorithm": "grpo"}, TrainError, "'dpo'"),
        (planned(costs=TwoGpus()), {}, TrainError, "tp 2"),
        (planned(), {"preparation": "overlap"}, TrainError, "'overlap'"),
        (planned(), {"learning": "stream"}, TrainError, "'stream'"),
        (planned(), {"charging": "measured"}, TrainError, "'measured'"),
    ):
        with refused(error, named):
            Trainer(config(**GPUS, **options), model=model, step_plan=plan, progress=False)
