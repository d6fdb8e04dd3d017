"""A fused pipeline executed by processes beside the same one in series: planned and measured latency, and exact gradients.

    python tests/benchmarks/fused_pipeline.py [--json FILE] [--unit-s 0.05] [--repeats 5] [--tiny] [--plot FILE]

Actor and critic are tiny models on 4 CPU processes, and every pass sleeps until it has taken its planned time. So the schedule
and its messages are measured, not the speed of the models. The first step, which opens connections, is not counted. Both
schedules run in turn in the same processes. Gradients are compared with those of whole models in this process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhfless import plots
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.training.algorithms.batch import Part
from rlhfless.training.algorithms.critic import PolicyAndCritic, make_critic
from rlhfless.training.algorithms.passes import LossPart
from rlhfless.training.algorithms.ppo import Ppo, critic_loss, policy_loss
from rlhfless.training.config.learning import PpoOptions
from rlhfless.training.models.tiny_model import tiny_qwen2
from rlhfless.training.pipeline.fused import FusedTraining
from rlhfless.training.pipeline.passes import CriticEnd, PolicyEnd
from solver.pipeline import ExecutedPlan, PipelinePlan, fused, schedule_pipeline, serial

OPTIONS = PpoOptions(vf_coef=0.5)
LOSSES = [partial(policy_loss, OPTIONS), partial(critic_loss, OPTIONS)]
ENDS = {"actor": PolicyEnd(LOSSES[0], 1.0), "critic": CriticEnd(LOSSES[1])}
CASES = {"critic on 4 stages": ((4, 2, 16), (4, 1, 16)), "critic on 2 stages, 2 copies": ((4, 2, 16), (2, 1, 8))}
TINY = {"critic on 1 stage, 2 copies": ((2, 1, 4), (1, 1, 2))}


def models(layers: int) -> PolicyAndCritic:
    """An actor and its critic of so many blocks, too small to take time."""
    actor = tiny_qwen2(CharTokenizer(), 0, hidden=16, layers=layers, heads=2, kv_heads=1, intermediate=32)
    critic = make_critic(actor, "model")
    torch.nn.init.normal_(critic.head.weight, std=0.1, generator=torch.Generator().manual_seed(1))  # 0 has no gradient below
    return PolicyAndCritic(actor, critic)


def batch(count: int) -> list[LossPart]:
    """Micro-batches of noise, with what PPO's losses need."""
    generator, shape = torch.Generator().manual_seed(0), (2, 15)
    found = []
    for _ in range(count):
        ids = torch.randint(2, 20, (2, 16), generator=generator)
        drawn = {name: torch.randn(shape, generator=generator) for name in ("advantages", "values", "returns")}
        part = Part([0, 1], ids, torch.ones(shape, dtype=torch.bool), {**drawn, "old": drawn["values"] - 3})
        found.append(LossPart.of(part, {"weight": np.ones(2)}, loss=30.0 * count, value=30.0 * count))
    return found


def gradients(both: PolicyAndCritic) -> dict[str, Any]:
    """Gradients by name, which are cleared."""
    found = {name: parameter.grad for name, parameter in both.named_parameters()}
    both.zero_grad()
    return found


def differences(ours: dict[str, Any], both: PolicyAndCritic, parts: list[LossPart]) -> dict[str, Any]:
    """How far gradients are from those of whole models: tensors that are equal bit for bit, and the largest difference."""
    sums = dict.fromkeys(("loss", "value_loss", "clipped", "values_clipped", "kl"), 0.0)
    Ppo(both, None, OPTIONS).passes.accumulate(parts, LOSSES, sums)
    whole = gradients(both)
    apart = [float((ours[name] - whole[name]).abs().max() / whole[name].abs().max()) for name in whole]
    return {"tensors": len(apart), "equal": sum(x == 0 for x in apart), "largest_relative_difference": max(apart)}


def measure(name: str, case: Any, unit_s: float, repeats: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of both schedules of a case; and the plan of the fused one with its fastest execution."""
    problem = fused(*case, activations=(1, 1))
    plans: dict[str, PipelinePlan] = {"serial": serial(problem), "fused": schedule_pipeline(problem)}
    both = models(problem.chains[0].stages)
    parts = batch(problem.chains[0].micro_batches)
    rows = {
        label: {
            "case": name, "schedule": label, "planned": plan.latency, "bound": plan.latency_bound, "unit_s": unit_s,
            "measured": [], "in_flight": 0, "planned_in_flight": plan.peak_memory,
        }
        for label, plan in plans.items()
    }  # fmt: skip
    with FusedTraining(both.policy, both.critic, plans["serial"], ENDS, unit_s=unit_s) as training:
        training.step(parts, parts)
        for _ in range(repeats):
            for label, plan in plans.items():
                training.follow(plan)
                step, row = training.step(parts, parts), rows[label]
                if label == "fused" and step.latency_s / unit_s <= min(row["measured"], default=math.inf):
                    drawn = {"planned": plan, "measured": ExecutedPlan(plan, step.passes, unit_s)}
                row["measured"].append(round(step.latency_s / unit_s, 1))
                row["in_flight"] = max(row["in_flight"], *step.in_flight)
                if "gradients" not in row:
                    row["gradients"] = differences(gradients(both), both, parts)
    for row in rows.values():
        row["median"] = statistics.median(row["measured"])
        row["over_plan"] = row["median"] / row["planned"] - 1
    return list(rows.values()), drawn


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--unit-s", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--plot", type=Path, help="draw the first case: the plan above its fastest execution")
    options = parser.parse_args()
    rows, load = [], os.getloadavg()[0]
    for name, case in (TINY if options.tiny else CASES).items():
        found, drawn = measure(name, case, 0.002 if options.tiny else options.unit_s, 1 if options.tiny else options.repeats)
        for row in found:
            print(json.dumps(row), flush=True)
        print(f"{name}: fused takes {found[1]['median'] / found[0]['median']:.2f} of serial's time, measured")
        if options.plot and not rows:
            plots.save(plots.plot_pipeline(drawn), options.plot)
        rows += found
    if options.json:
        machine = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "load_before": load,
        }
        options.json.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
