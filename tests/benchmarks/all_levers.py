"""GRPO with all levers on, beside the same run with all of them off, on the wall clock and in turn.

    python tests/benchmarks/all_levers.py --seeds 3 --steps 24 --warm out/warm --json results/all_levers.json
    python tests/benchmarks/all_levers.py --actors 1 --seeds 3 --steps 12 --warm out/warm --json results/all_levers_1.json
    python tests/benchmarks/all_levers.py --executor ray --seeds 1 --steps 8 --warm out/warm --json results/all_levers_ray.json

Three runs of a seed train the same warmed-up model on the arithmetic task, with the same prompts and seeds of responses, in
processes of their own; only one of them works at a time. They are

- off: as many actors as GPUs, held until the last response, then learning (the policy ``static``);
- plain: a right-sized number of actors, released when they are done, then learning (``random``: the fair comparator);
- on: the solver's plan with re-planning, drafts from earlier responses, learning in as many pieces and on as many given-back
  GPUs as pay by what they cost on this machine (one piece: none pays), and actors that start early.
  Each of these is used only where the run's own steps show that it pays (``levers`` ``measured``).

With ``--ways off replan drafts pieces`` each lever is on alone: re-planning, drafts, and learning in pieces.

Printed are wall-clock seconds, CPU seconds of all processes (not on Ray) and GPU-seconds, as ratios to ``off`` of the same
round. They are geometric means with 95 % intervals (bootstrap of rounds). The first two rounds, which start processes and
measure, are left out. A GPU here is an actor's or the learner's core. Held-out accuracy is that at the end. Tokens do not
depend on the schedule, so accuracy differs by rounding of sums only. Actors stay between steps in every way, because the turns
of the other runs would look like long rests.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
        "levers": "measured",
    },
    "replan": {"policy": "solver+replan"},
    "drafts": {"policy": "static", "drafts": True},
    "pieces": {"policy": "static", "learning": "stream", "learner_gpus": "auto"},
}  # fmt: skip
TOGETHER = ("off", "plain", "on")
SIZE: dict[str, Any] = {
    "prompts": 96, "prompts_per_step": 16, "samples_per_prompt": 8, "learning_rate": 4e-4, "warmup_steps": 4,
    "eval_prompts": 256, "idle_timeout_s": 3600.0,
}  # fmt: skip
MEASURED = {"local": ("step_s", "cpu_s", "gpu_s"), "ray": ("step_s", "gpu_s")}  # Ray's processes are not below the trainer's
FIRST = 2  # rounds that are left out: processes start, and costs are measured
TINY = {"prompts": 2, "prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": 20, "eval_prompts": 4}


def trainer_of(way: str, seed: int, folder: Path | None, options: dict[str, Any]) -> Trainer:
    """One of the runs of a seed, from the warmed-up model in ``folder``, or from the shipped one."""
    config = TrainConfig.from_options(seed=seed, device="cpu", **options, **WAYS[way])
    model, tokenizer = load_model(SHIPPED) if folder is None else warm_model(seed, folder)
    return Trainer(config, model=(model, tokenizer), progress=False)


def measured(seed: int, steps: int, given: argparse.Namespace, folder: Path | None) -> dict[str, Any]:
    """Return what the three runs of a seed took and learned."""
    size = {**SIZE, **(TINY if given.tiny else {}), "gpus": given.actors, "gpus_per_node": given.actors}
    options = {**size, "executor": given.executor, "steps": steps, "eval_every": steps}
    makes = {way: partial(trainer_of, way, seed, folder, options) for way in given.ways}
    found = alternate(
        makes, steps, lambda done: print(f"seed {seed}: round {done + 1} of {steps}", file=sys.stderr, flush=True)
    )
    ways = {}
    for way in given.ways:
        rows = [each[way] for each in found.rounds]
        last, problems = rows[-1]["evaluation"], options["eval_prompts"]
        low, high = interval(round(last["accuracy"] * problems), problems)
        sums = {
            name: sum(row[name] for row in rows[FIRST:])
            for name in (*MEASURED[given.executor], "learn_s", "generate_s", "moves")
        }
        said = [row["learner"] or {} for row in rows[FIRST:]]
        ways[way] = {
            **sums, "streamed": sum(one.get("learning") == "stream" for one in said), "steps": len(said),
            "reward_last": rows[-1]["reward"], "accuracy": last["accuracy"], "low": low, "high": high,
        }  # fmt: skip
    return {
        "seed": seed,
        "ways": ways,
        "rounds": found.rounds,
        "options": {**options, "ways": {way: WAYS[way] for way in given.ways}},
    }


def ratio_to_off(runs: Sequence[dict[str, Any]], way: str, name: str) -> tuple[float, float, float]:
    """Return the geometric mean over rounds of a way's number to that of ``off``, with its 95 % interval."""
    rounds = [each for run in runs for each in run["rounds"][FIRST:]]
    logs = np.log([each[way][name] / each["off"][name] for each in rounds])
    means = np.random.default_rng(0).choice(logs, (10_000, len(logs))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def ratios(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return all ratios, by way and number."""
    names = MEASURED[runs[0]["options"]["executor"]]
    return {way: {name: ratio_to_off(runs, way, name) for name in names} for way in runs[0]["ways"]}


def main() -> None:
    """Run the script; written after every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--actors", type=int, default=2, help="GPUs of generation; more than cores - 1 leave the learner none")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(TOGETHER), help="off has to be among them")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--warm", type=Path, help="folder of warmed-up models; what is missing there is made and kept")
    parser.add_argument("--tiny", action="store_true", help="the smallest size, whose numbers say nothing")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    about = {"machine": f"{platform.machine()} CPU, torch {torch.__version__}", "cores": os.cpu_count()}
    results: dict[str, Any] = {**about, "executor": given.executor, "actors": given.actors, "runs": []}
    began = time.monotonic()
    for seed in range(1 if given.tiny else given.seeds):
        if given.warm is not None:
            warm_model(seed, given.warm)
        run = measured(seed, 3 if given.tiny else given.steps, given, given.warm)
        results["runs"].append(run)
        for way, took in run["ways"].items():
            cpu = f"{took['cpu_s']:.1f} CPU-s, " if "cpu_s" in took else ""
            print(
                f"seed {seed}, {way}: {took['step_s']:.1f} s, {cpu}{took['gpu_s']:.1f} GPU-s, streamed in "
                f"{took['streamed']} of {took['steps']} steps, held-out accuracy {took['accuracy']:.3f} ({took['low']:.3f} "
                f"to {took['high']:.3f})",
                flush=True,
            )
        if given.json is not None:
            results |= {"ratios": ratios(results["runs"]), "took_s": time.monotonic() - began}
            given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for way, numbers in ratios(results["runs"]).items():
        said = ", ".join(f"{name} {mean:.3f} ({low:.3f} to {high:.3f})" for name, (mean, low, high) in numbers.items())
        print(f"{way} / off: {said}")


if __name__ == "__main__":
    main()
