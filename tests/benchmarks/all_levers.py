"""GRPO with all levers on, beside the same run with all of them off, on the wall clock and in turn.

    python tests/benchmarks/all_levers.py --seeds 3 --steps 24 --warm out/warm --json results/all_levers.json
    python tests/benchmarks/all_levers.py --executor ray --seeds 1 --steps 8 --warm out/warm --json results/all_levers_ray.json

Three runs of a seed train the same warmed-up model on the arithmetic task, with the same prompts and seeds of responses, in
processes of their own; only one of them works at a time. They are

- off: as many actors as GPUs, held until the last response, then learning (the policy ``static``);
- plain: a right-sized number of actors, released when they are done, then learning (``random``: the fair comparator);
- on: the solver's plan with re-planning, drafts from earlier responses, learning that streams on as many GPUs as the plan
  chooses, given-back ones included, and actors that start early.

Printed are seconds and GPU-seconds of all steps but the first, which starts processes, as ratios to ``off``, and the held-out
accuracy at the beginning and the end. Tokens do not depend on the schedule, so accuracy differs by rounding of sums only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from alternating import alternate
from learning_curves import interval, warm_model

from rlhfless.engine.torch.pretrained import load_model
from rlhfless.training import TrainConfig, Trainer

SHIPPED = Path(__file__).parents[2] / "data" / "models" / "arithmetic-grpo"
WAYS: dict[str, dict[str, Any]] = {
    "off": {"policy": "static"},
    "plain": {"policy": "random"},
    "on": {
        "policy": "solver+replan", "drafts": True, "learning": "stream", "learner_gpus": "auto", "prewarm": "forecast",
    },
}  # fmt: skip
SIZE: dict[str, Any] = {
    "prompts": 96, "prompts_per_step": 16, "samples_per_prompt": 8, "learning_rate": 4e-4, "warmup_steps": 4, "gpus": 2,
    "gpus_per_node": 2, "eval_prompts": 256,
}  # fmt: skip
TINY = {"prompts": 2, "prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": 20, "eval_prompts": 4}


def trainer_of(way: str, seed: int, folder: Path | None, options: dict[str, Any]) -> Trainer:
    """One of the runs of a seed, from the warmed-up model in ``folder``, or from the shipped one."""
    config = TrainConfig.from_options(seed=seed, device="cpu", **options, **WAYS[way])
    model, tokenizer = load_model(SHIPPED) if folder is None else warm_model(seed, folder)
    return Trainer(config, model=(model, tokenizer), progress=False)


def measured(seed: int, steps: int, executor: str, folder: Path | None, tiny: bool) -> dict[str, Any]:
    """Return what the three runs of a seed took and learned."""
    options = {**SIZE, **(TINY if tiny else {}), "executor": executor, "steps": steps, "eval_every": steps}
    makes = {way: partial(trainer_of, way, seed, folder, options) for way in WAYS}
    found = alternate(
        makes, steps, lambda done: print(f"seed {seed}: round {done + 1} of {steps}", file=sys.stderr, flush=True)
    )
    ways = {}
    for way in WAYS:
        rows = [each[way] for each in found.rounds]
        last, problems = rows[-1]["evaluation"], options["eval_prompts"]
        low, high = interval(round(last["accuracy"] * problems), problems)
        ways[way] = {
            **{name: sum(row[name] for row in rows[1:]) for name in ("step_s", "learn_s", "generate_s", "gpu_s", "moves")},
            "reward_last": rows[-1]["reward"], "accuracy": last["accuracy"], "low": low, "high": high,
        }  # fmt: skip
    return {"seed": seed, "ways": ways, "rounds": found.rounds, "options": {**options, "ways": WAYS}}


def main() -> None:
    """Run the script; written after every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--warm", type=Path, help="folder of warmed-up models; what is missing there is made and kept")
    parser.add_argument("--tiny", action="store_true", help="the smallest size, whose numbers say nothing")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    about = {"machine": f"{platform.machine()} CPU, torch {torch.__version__}", "cores": os.cpu_count()}
    results: dict[str, Any] = {**about, "executor": given.executor, "runs": []}
    for seed in range(1 if given.tiny else given.seeds):
        if given.warm is not None:
            warm_model(seed, given.warm)
        run = measured(seed, 2 if given.tiny else given.steps, given.executor, given.warm, given.tiny)
        results["runs"].append(run)
        off = run["ways"]["off"]
        for way, took in run["ways"].items():
            time, gpu = (took[name] / off[name] for name in ("step_s", "gpu_s"))
            print(
                f"seed {seed}, {way}: {took['step_s']:.1f} s ({time:.3f} of off), {took['gpu_s']:.1f} GPU-s ({gpu:.3f}), "
                f"held-out accuracy {took['accuracy']:.3f} ({took['low']:.3f} to {took['high']:.3f})",
                flush=True,
            )
        if given.json is not None:
            given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for way in WAYS:
        for name in ("step_s", "gpu_s"):
            ratios = [run["ways"][way][name] / run["ways"]["off"][name] for run in results["runs"]]
            print(f"{way} / off, {name}: median {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
