"""Whether GRPO and PPO learn arithmetic on two cores: held-out accuracy before and after, and what every step was like.

    python tests/benchmarks/learning_curves.py --algorithms grpo ppo --seeds 3 --warm out/warm --json data/learning/curves.json

A seed decides the task, the weights, the warm-up and every draw; both algorithms begin with the same warmed-up model. Accuracy
is that of one sampled response to each held-out problem, none of which was trained on. The aim is twice the accuracy after the
warm-up, which has to lie in 15 to 35 %, with intervals that do not touch, within ten minutes of training on one core. Steps
are planned for 32 emulated GPUs, so that the plans of a run whose lengths drift are recorded too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
from task_dynamics import HELD_OUT, REQUIRED, answers

from rlhfless.engine.torch.model import one_thread
from rlhfless.engine.torch.pretrained import load_model
from rlhfless.errors import InputError
from rlhfless.gone_options import in_sections
from rlhfless.training.config import TrainConfig
from rlhfless.training.loop import Trainer
from rlhfless.training.models.tiny_model import save_model
from rlhfless.training.run_start import make_model

SIZE: dict[str, Any] = {
    "steps": 44, "prompts": 512, "prompts_per_step": 32, "samples_per_prompt": 8, "lr_scheduler_type": "linear",
    "gpus": 32, "time_weight": 0.5,  # neither end of the front, so that plans stay below the cluster's size as lengths grow
}  # fmt: skip
TINY: dict[str, Any] = {"steps": 2, "prompts": 8, "prompts_per_step": 4, "samples_per_prompt": 2, "max_response_tokens": 40}
OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"learning_rate": 4e-4, "num_updates": 2, "warmup_steps": 4},
    "ppo": {"learning_rate": 3e-4, "critic_learning_rate": 5e-3, "num_updates": 2, "warmup_steps": 4},
}
KEPT = ("reward_mean", "response_tokens_mean", "actors", "planned_makespan_s", "makespan_s", "gpu_seconds")
AIM, MINUTES = 2.0, 10.0
SHIPPED = Path(__file__).parents[2] / "data" / "models" / "arithmetic-grpo"


def interval(right: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share (1927), which is inside 0..1 where few or all are right."""
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return middle - half, middle + half


def measured_accuracy(model: Any, tokenizer: Any, count: int, limit: int, seed: int) -> dict[str, float]:
    """Accuracy on held-out problems with its interval, and the mean length of the answers."""
    with one_thread(model.device):
        found = answers(model, tokenizer, seed, count, limit)
    low, high = interval(int(found["right"].sum()), len(found))
    mean = {"accuracy": float(found["right"].mean()), "response_tokens_mean": float(found["response_tokens"].mean())}
    return {**mean, "low": low, "high": high, "problems": len(found)}


def options_of(algorithm: str, size: dict[str, Any]) -> dict[str, Any]:
    """The options of a run that are not defaults."""
    return {**size, **OPTIONS[algorithm]}


def refuse_others(runs: list[dict[str, Any]], size: dict[str, Any], problems: int, file: Path) -> None:
    """Runs of one file are compared with each other, so all have the same options.

    Raises:
        InputError: a run of ``file`` has others.
    """
    for run in runs:
        wanted = {"problems": problems, **options_of(run["algorithm"], size)}
        there = {"problems": run["start"]["problems"], **run["options"]}
        differs = [
            f"{name} {there.get(name)!r} instead of {wanted.get(name)!r}"
            for name in dict.fromkeys([*wanted, *there])
            if there.get(name) != wanted.get(name)
        ]
        if differs:
            raise InputError(
                f"{file}: its {run['algorithm']} of seed {run['seed']} has {', '.join(differs)}; name another file, or give it "
                "the same options"
            )


def warm_model(seed: int, folder: Path | None) -> tuple[Any, Any]:
    """The warmed-up model of a seed, read from ``folder`` where it is there, else made (and kept there)."""
    own = None if folder is None else folder / f"seed-{seed}"
    if own is not None and (own / "model.safetensors").is_file():
        return load_model(own)
    model, tokenizer = make_model(seed, progress=False)
    if own is not None:
        save_model(model, tokenizer, own)
    return model, tokenizer


def learned(algorithm: str, seed: int, size: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """One run: accuracy before and after, and a row per step. Evaluations are not counted as training time."""
    model, tokenizer = load_model(SHIPPED) if given.tiny else warm_model(seed, given.warm)
    options = options_of(algorithm, size)
    config = TrainConfig(preset="demo", seed=seed, **in_sections({"algorithm": algorithm, **options}))
    limit = config.rollout.max_response_tokens
    start = measured_accuracy(model, tokenizer, given.problems, limit, seed)
    rows: list[dict[str, float]] = []
    began, began_cpu = time.perf_counter(), time.process_time()
    with Trainer(config, model=(model, tokenizer), progress=False) as trainer:
        for step in trainer:
            seconds = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu}
            numbers = step.metrics
            epoch = int(step.rollouts["epoch"].iloc[0])
            rows.append({"step": step.step, "epoch": epoch, **{name: numbers[name] for name in KEPT}, **seconds})
            if step.step % 8 == 7:
                print(f"{algorithm} seed {seed}, step {step.step}: {rows[-1]}", file=sys.stderr, flush=True)
    end = measured_accuracy(model, tokenizer, given.problems, limit, seed)
    load = dict(zip(("load_1min", "load_5min", "load_15min"), os.getloadavg(), strict=True))
    return {"algorithm": algorithm, "seed": seed, "options": options, "start": start, "end": end, "steps": rows, **load}


def verdict(run: dict[str, Any]) -> str:
    """Whether the aim is met, with what it is judged by."""
    start, end, last = run["start"], run["end"], run["steps"][-1]
    times = end["accuracy"] / max(start["accuracy"], 1e-9)
    low, high = REQUIRED["warm-up accuracy"]
    met = low <= start["accuracy"] <= high and times >= AIM and end["low"] > start["high"]
    return (
        f"{run['algorithm']:5s} seed {run['seed']}: {start['accuracy']:.3f} ({start['low']:.3f} to {start['high']:.3f}) -> "
        f"{end['accuracy']:.3f} ({end['low']:.3f} to {end['high']:.3f}), x{times:.2f}, "
        f"{len(run['steps'])} steps in {last['cpu_s'] / 60:.1f} min of one core, {last['wall_s'] / 60:.1f} min by the clock: "
        f"{'met' if met and last['cpu_s'] <= 60 * MINUTES else 'NOT MET'}"
    )


def main() -> None:
    """Run, print a line per run, write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=tuple(OPTIONS), default=tuple(OPTIONS))
    parser.add_argument("--seeds", type=int, default=3, help="how many, counted from 0")
    parser.add_argument("--steps", type=int, default=SIZE["steps"], help="of a run")
    parser.add_argument("--problems", type=int, default=HELD_OUT, help="held-out problems that accuracy is measured on")
    parser.add_argument("--warm", type=Path, help="folder of warmed-up models; what is missing there is made and kept")
    parser.add_argument("--tiny", action="store_true", help="the smallest size, from the shipped weights, which says nothing")
    parser.add_argument(
        "--json",
        type=Path,
        help="file of the results; runs that it has are not done again, and need the same options",
    )
    given = parser.parse_args()
    size = TINY if given.tiny else {**SIZE, "steps": given.steps}
    device = f"{platform.machine()} CPU, torch {torch.__version__}"
    results: dict[str, Any] = {"device": device, "runs": []}
    if given.json is not None and given.json.is_file():
        results = json.loads(given.json.read_text(encoding="utf-8"))
        try:
            refuse_others(results["runs"], size, given.problems, given.json)
        except InputError as error:
            parser.error(str(error))
    done = [(run["algorithm"], run["seed"]) for run in results["runs"]]
    for algorithm, seed in itertools.product(given.algorithms, range(given.seeds)):
        if (algorithm, seed) not in done:
            run = learned(algorithm, seed, size, given)
            results["runs"].append(run)
            print(verdict(run), flush=True)
            if given.json is not None:
                given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
