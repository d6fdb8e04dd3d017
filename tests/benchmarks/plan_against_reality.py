"""What a plan promises and what its execution takes: makespan and GPU-seconds of steps on the torch engine.

The tiny Qwen2 model on the CPU, 16 emulated GPUs, 16 prompts x 8 samples a step, lengths of another spread in every step. The
profile of up to 32 slots is measured by `rlhfless profile` in a process of its own; then every step is planned by the solver
and executed with measured charging: every actor's iterations are replayed alone on this machine. Start-up, weight sync and
transfers are charged as the profile says on both sides.

(a) Known lengths: what is compared is the latency model alone, as the planner uses it (the affine fit), and by its whole table.
    Aims: median error of 10 % or less, 90th percentile of 20 % or less.
(b) Predicted lengths: each prompt's mean at another visit; the same errors, reported only.

A machine that others use is not always as fast as it was when the profile was measured. So a few points of the profile are
timed again before and after every step; "drift" is how much slower they were, and errors are given once more with it taken out.

Run: ``python tests/benchmarks/plan_against_reality.py [--steps N] [--fast] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch_factory import TorchEngineFactory
from rlhfless.engine.torch_forward import RowModel, one_thread
from rlhfless.engine.torch_profile import engine_timers
from rlhfless.executor import StepRecord, run_step
from rlhfless.latency import load_profile, read_profile
from rlhfless.latency.measure import TINY, CausalLM, median_seconds
from solver import Cluster, LatencyModel, Objective, Plan, Workload, plan_generation
from solver.evaluate import evaluate

PROMPTS, SAMPLES, LIMIT, LONGEST_PROMPT = 16, 8, 320, 48
CLUSTER = Cluster(2, 8, 1, kind="cpu")
POINTS, ROUNDS = [(4, 64), (16, 64), (16, 128)], 5  # (batch, context) of the profile that are timed again
SLOTS = 32
PACKAGES = ("torch", "transformers", "numpy", "ortools")


class Step(NamedTuple):
    """A step: token ids of its prompts, true lengths, and predicted ones."""

    prompts: list[np.ndarray]
    truth: Workload
    predicted: Workload

    def requests(self) -> list[Request]:
        """One per response, of its true length."""
        owners, lengths = self.truth.prompt_of.tolist(), self.truth.response_tokens.astype(int).tolist()
        return [
            Request(i, len(self.prompts[p]), LIMIT, target_tokens=n, prompt_ids=self.prompts[p], seed=i, prompt=p)
            for i, (p, n) in enumerate(zip(owners, lengths, strict=True))
        ]


def step_of(seed: int) -> Step:
    """Lengths of a prompt lie around its own mean, those of two visits independently."""
    rng = np.random.default_rng(seed)
    median, spread, spread_within = rng.uniform(30, 110), rng.uniform(0.2, 0.7), rng.uniform(0.2, 0.6)
    of_prompt = rng.lognormal(math.log(median), spread, PROMPTS)

    def visit() -> np.ndarray:
        lengths = of_prompt[:, None] * rng.lognormal(0, spread_within, (PROMPTS, SAMPLES))
        return np.clip(lengths, 1, LIMIT).astype(int)

    before, now = visit(), visit()
    prompts = [rng.integers(2, 30, rng.integers(8, LONGEST_PROMPT + 1)) for _ in range(PROMPTS)]
    tokens = [len(ids) for ids in prompts]
    means = np.repeat(np.ceil(before.mean(1)), SAMPLES).reshape(PROMPTS, SAMPLES)
    return Step(prompts, *(Workload.grid(tokens, lengths, response_limit=LIMIT) for lengths in (now, means)))


def compared(plan: Plan, record: StepRecord, by_table: tuple[float, float], drift: float) -> dict[str, Any]:
    """One row of the report: planned (affine, and by the whole table) beside executed, which was ``drift`` times slower."""
    gpu_seconds = sum((a["end_s"] - a["start_s"]) * len(a["gpu_ids"]) for a in record.allocations)
    return {
        "actors": len(plan.actors),
        "drift": drift,
        "makespan_s": {"planned": plan.makespan_s, "by_table": by_table[0], "executed": record.makespan_s},
        "gpu_seconds": {"planned": plan.gpu_seconds, "by_table": by_table[1], "executed": gpu_seconds},
    }


def errors(rows: Sequence[dict[str, Any]], what: str, side: str = "planned", drift: bool = True) -> dict[str, float]:
    """Of the relative errors |planned / executed - 1|: median, 90th percentile and worst; and the mean with its sign.

    Without ``drift``, what was executed counts as if the machine had been as fast as when the profile was measured.
    """
    speed = np.array([1.0 if drift else row["drift"] for row in rows])
    signed = np.array([row[what][side] / row[what]["executed"] for row in rows]) * speed - 1
    absolute = np.abs(signed)
    return {
        "median": float(np.median(absolute)), "p90": float(np.quantile(absolute, 0.9)), "worst": float(absolute.max()),
        "mean_signed": float(signed.mean()),
    }  # fmt: skip


def report(known: Sequence[dict[str, Any]], predicted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Errors by what is compared; of the whole table only where lengths were known."""
    found: dict[str, Any] = {}
    for what in ("makespan_s", "gpu_seconds"):
        found[what] = {
            "known lengths": errors(known, what),
            "known lengths, without drift": errors(known, what, drift=False),
            "known lengths, by the table, without drift": errors(known, what, "by_table", drift=False),
            "predicted lengths": errors(predicted, what),
        }
    return found


class Drift:
    """How much slower than the profile says the machine is just now."""

    def __init__(self, latency: LatencyModel) -> None:
        assert latency.table is not None
        self._decode, _ = engine_timers(CausalLM(TINY).model, max(context for _, context in POINTS))
        self._expected = [float(latency.table(batch, batch * context)) for batch, context in POINTS]

    def __call__(self) -> float:
        """Mean over the points, measured as for the profile, relative to the profile."""
        return float((median_seconds(self._decode, POINTS, ROUNDS, "cpu") / self._expected).mean())


def measure_profile(folder: Path, fast: bool) -> Path:
    """`rlhfless profile` in a process of its own."""
    out = folder / "here.json"
    command = [sys.executable, "-m", "rlhfless", "profile", "--model", TINY, "--device", "cpu", "-o", str(out)]
    command += ["--max-batch", str(SLOTS)]
    subprocess.run([*command, *(["--fast"] if fast else [])], check=True)
    return out


def run(latency: LatencyModel, steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows with known and with predicted lengths, step by step."""
    factory = TorchEngineFactory(RowModel(CausalLM(TINY).model, LONGEST_PROMPT + LIMIT), eos_id=0)
    rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    drift = Drift(latency)
    with one_thread(factory.model.device):
        for seed in range(steps):
            step = step_of(seed)
            for known in (True, False):
                workload = step.truth if known else step.predicted
                plan = plan_generation(workload, CLUSTER, latency, Objective(0.7), time_limit_s=0.3, seed=seed)
                table = evaluate(plan, workload, latency, table=True)
                before = drift()
                record = run_step(plan, step.requests(), factory, latency, CLUSTER, charging="measured")
                slower = (before + drift()) / 2
                rows[known].append(compared(plan, record, (table.makespan_s, table.gpu_seconds), slower))
                print_row(seed, "known" if known else "predicted", rows[known][-1])
    return rows[True], rows[False]


def print_row(step: int, lengths: str, row: dict[str, Any]) -> None:
    times = [f"{row[what][side]:8.3f}" for what in ("makespan_s", "gpu_seconds") for side in ("planned", "executed")]
    print(f"{step:>4} {lengths:<10} {row['actors']:>6} {row['drift']:>5.2f} {' '.join(times)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fast", action="store_true", help="a profile of few points")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = measure_profile(Path(folder), options.fast)
        latency, fit = load_profile(path), read_profile(path)["fit"]
    heads = " ".join(f"{side:>8}" for side in ("planned", "executed") * 2)
    print(f"{'step':>4} {'lengths':<10} {'actors':>6} {'drift':>5} {heads}   (makespan in s, GPU-seconds)")
    known, predicted = run(latency, options.steps)
    found, load = report(known, predicted), os.getloadavg()[0]
    for what, by_side in found.items():
        for side, x in by_side.items():
            shares = f"median {x['median']:.1%}, 90th percentile {x['p90']:.1%}, worst {x['worst']:.1%}"
            print(f"{what}, {side}: error {shares}, mean with sign {x['mean_signed']:+.1%}")
    print(f"load of the machine over the last minute: {load:.1f} on {os.cpu_count()} cores")
    if options.json is not None:
        versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
        machine = {"processor": platform.machine(), "cores": os.cpu_count(), "load": load}
        result = {"versions": versions, "machine": machine, "fit": fit, "errors": found, "known": known, "predicted": predicted}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
