"""What whole steps cost: elastic, as executed, against all GPUs held from start to end; PPO and GRPO, by phase, from the trace.

    python tests/benchmarks/step_costs.py [--steps 4] [--charging profile|measured] [--json FILE]

Trains the shipped model of the arithmetic task on with both algorithms, with preparation after generation and overlapping it,
on 16 emulated GPUs. Charged by the profile, all but the last column is a function of tokens; ``measured``, every second is this
device's. The first step is left out: it calls kernels for the first time.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rlhfless.trace import STEP_PHASES, Trace, step_costs
from rlhfless.training.config import TrainConfig
from rlhfless.training.loop import Trainer

MODEL = Path(__file__).parents[2] / "data" / "models" / "arithmetic-grpo"
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": "grpo"},
    "grpo, reference": {"algorithm": "grpo", "kl_coef": 0.02},
    "ppo, reference, critic of its own": {"algorithm": "ppo", "kl_coef": 0.02, "critic": "model"},
}


def trained(steps: int, model: Path, options: dict[str, Any]) -> Trace:
    """The trace of a run without its first step."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Trainer(TrainConfig.from_options(steps=steps + 1, **options), folder, model=model, progress=False) as trainer,
    ):
        trace = trainer.run()
    assert trace is not None
    own = {name: getattr(trace, name) for name in ("rollouts", "allocations", "spans", "events")}
    return Trace(**{name: rows[rows["step"] > 0] for name, rows in own.items()}, plans=trace.plans[1:], meta=trace.meta)


def row_of(trace: Trace, cluster_gpus: int) -> dict[str, Any]:
    """Sums over the steps."""
    costs = (
        step_costs(trace, gpus=cluster_gpus)
        .groupby("phase")[["time_s", "elastic_gpu_s", "elastic_usd", "serverful_gpu_s"]]
        .sum()
    )
    total = costs.sum()
    learned = trace.spans[trace.spans["phase"] == "learn"]
    here = [json.loads(detail)["learning"] for detail in learned["detail"]]
    here_s = sum(one["seconds"] - one["prepare_seconds"] for one in here)
    return {
        "responses": len(trace.rollouts),
        "step_s": float(total["time_s"] / len(trace.steps)),
        "phases": {name: {what: float(costs.loc[name, what]) for what in costs.columns} for name in STEP_PHASES},
        "elastic_gpu_s": float(total["elastic_gpu_s"]),
        "serverful_gpu_s": float(total["serverful_gpu_s"]),
        "elastic_over_serverful": float(total["elastic_gpu_s"] / total["serverful_gpu_s"]),
        "elastic_usd": float(total["elastic_usd"]),
        "learning_charged_over_measured": float((learned["end_s"] - learned["start_s"]).sum() / here_s),
    }


def main() -> None:
    """Run, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="that count; another one comes before them")
    parser.add_argument("--charging", choices=("profile", "measured"), default="profile")
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--tiny", action="store_true", help="the smallest size, which says nothing")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of the model that training begins with")
    parser.add_argument("--json", type=Path, help="file of the results")
    given = parser.parse_args()
    size = {"steps": 1, "prompts_per_step": 4, "samples_per_prompt": 2, "prompts": 8} if given.tiny else {"steps": given.steps}
    steps = size.pop("steps")
    rows, lines = [], []
    for algorithm, options in ALGORITHMS.items():
        for when in ("after", "overlap"):
            how = {"charging": given.charging, "preparation": when, "gpus": given.gpus}
            trace = trained(steps, given.model, {**options, **how, **size})
            row = {"algorithm": algorithm, "preparation": when, **row_of(trace, given.gpus + (when == "overlap"))}
            rows.append(row)
            phases = {f"{name} GPU-s": row["phases"][name]["elastic_gpu_s"] for name in STEP_PHASES}
            lines.append(
                {
                    "algorithm": algorithm, "preparation": when, "s/step": row["step_s"], **phases,
                    "elastic GPU-s": row["elastic_gpu_s"], "held GPU-s": row["serverful_gpu_s"],
                    "elastic/held": row["elastic_over_serverful"],
                    "learning charged/here": row["learning_charged_over_measured"],
                }
            )  # fmt: skip
    with pd.option_context("display.width", 250, "display.max_columns", None):
        print(pd.DataFrame(lines).round(3).to_string(index=False))
    if given.json is not None:
        device = f"{platform.machine()} CPU, torch {torch.__version__}"
        about = {"device": device, "charging": given.charging, "steps": steps, "gpus": given.gpus}
        given.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
