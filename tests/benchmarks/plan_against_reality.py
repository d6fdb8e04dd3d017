"""What a plan promises and what its execution takes: makespan and GPU-seconds of steps on the torch engine.

The tiny Qwen2 model on the CPU, 16 emulated GPUs, 16 prompts x 8 samples a step, lengths of another spread in every step. The
profile of up to 32 slots is measured by `rlhfless profile` in a process of its own; then every step is planned by the solver
and executed with measured charging: every actor's iterations are replayed alone on this machine. Start-up, weight sync and
transfers are charged as the profile says on both sides.

(a) Known lengths: what is compared is the latency model alone, as the planner uses it (the affine fit), and by its whole table.
    Aims: median error of 10 % or less, 90th percentile of 20 % or less.
(b) Predicted lengths: each prompt's mean at another visit; the same errors, reported only.

A machine that others use is not always as fast as it was when the profile was measured. So a few points of the profile are
timed again between all replays of actors; "drift" is how much slower they were. Errors are given once more
without drift: the same step retold with the seconds of every replay divided by its drift. On a quiet machine both say the same.

Parts: iterations around a change of the batch, an actor's first ones included, and those of an unchanged batch: what was
planned for them with the table, less what was executed without drift, of all seconds of all actors.

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
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.benchmark import engine_timers
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel, one_thread
from rlhfless.executor import StepRecord, run_step
from rlhfless.latency import load_profile, read_profile
from rlhfless.latency.batch_changes import AFTER
from rlhfless.latency.measure import TINY, CausalLM, median_seconds
from solver import Cluster, LatencyModel, Objective, Plan, Workload, plan_generation
from solver.model.admission import Admission
from solver.model.problem import PlanningProblem
from solver.timing.evaluate import evaluate

PROMPTS, SAMPLES, LIMIT, LONGEST_PROMPT = 16, 8, 320, 48
CLUSTER = Cluster(2, 8, 1, kind="cpu")
POINTS, ROUNDS = [(4, 64), (16, 64), (16, 128)], 2  # (batch, context) of the profile that are timed again
SLOTS = 32
PARTS = ("around changes", "unchanged")
SIDES = ("planned", "executed", "without_drift")
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
    return Step(prompts, *(Workload.grid(tokens, lengths, max_response_tokens=LIMIT) for lengths in (now, means)))


class Drift:
    """How much slower than the profile says the machine is just now."""

    def __init__(self, latency: LatencyModel) -> None:
        assert latency.table is not None
        self._decode, _ = engine_timers(CausalLM(TINY).model, max(context for _, context in POINTS))
        self._expected = [float(latency.table(batch, batch * context)) for batch, context in POINTS]

    def __call__(self) -> float:
        """Mean over the points, measured as for the profile, relative to the profile."""
        return float((median_seconds(self._decode, POINTS, ROUNDS, "cpu") / self._expected).mean())


@dataclass
class Beside:
    """Engines of ``factory``; beside every replay, how much slower than its profile the machine was.

    Attributes:
        replays: of every replay, in order: what was replayed, and the drift.
        after: the drift at the end of the last one, right before the next.
    """

    factory: TorchEngineFactory
    drift: Drift
    replays: list[tuple[EngineJournal, Replayed, float]] = field(default_factory=list)
    after: float | None = None

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> TorchEngine:
        return self.factory(latency, admission, start_s)

    def replay(self, journal: EngineJournal) -> Replayed:
        before = self.drift() if self.after is None else self.after
        replayed = self.factory.replay(journal)
        self.after = self.drift()
        self.replays.append((journal, replayed, (before + self.after) / 2))
        return replayed


@dataclass
class Again:
    """The same engines, of which every replay takes what it took before, but for the drift."""

    factory: TorchEngineFactory
    replays: list[tuple[EngineJournal, Replayed, float]]
    told: int = 0

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> TorchEngine:
        return self.factory(latency, admission, start_s)

    def replay(self, journal: EngineJournal) -> Replayed:
        before, replayed, drift = self.replays[self.told]
        assert len(before) == len(journal), "another step is retold"
        self.told += 1
        return replayed._replace(seconds=replayed.seconds / drift)


def planned_seconds(journal: EngineJournal, latency: LatencyModel) -> tuple[np.ndarray, np.ndarray]:
    """(iterations,) what ``latency`` charges for the iterations of a journal, and which of ``PARTS`` they are of.

    What a response takes when it ends is charged when it joins, so all changes make one part.
    """
    seconds, part = np.zeros(len(journal)), np.full(len(journal), PARTS.index("unchanged"))
    for change, until in journal.intervals():
        k = np.arange(change.iteration, until)
        seconds[k] = latency.iteration_s(change.batch, change.kv_tokens + change.batch * (k - change.iteration))
        tokens = change.prefill_tokens
        seconds[change.iteration] += latency.join_s * len(change.joined) + (float(latency.prefill_s(tokens)) if tokens else 0.0)
        part[[*k[:AFTER], k[-1]]] = PARTS.index("around changes")
    return seconds, part


def parts_of(replays: Sequence[tuple[EngineJournal, Replayed, float]], latency: LatencyModel) -> dict[str, dict[str, float]]:
    """Seconds of ``PARTS`` over all replays: planned (by the table) and executed, without drift."""
    sums = {part: {"planned": 0.0, "executed": 0.0} for part in PARTS}
    for journal, replayed, drift in replays:
        planned, part = planned_seconds(journal, latency)
        executed = replayed.seconds.sum(axis=1) / drift
        for i, name in enumerate(PARTS):
            sums[name]["planned"] += float(planned[part == i].sum())
            sums[name]["executed"] += float(executed[part == i].sum())
    return sums


def taken_by(record: StepRecord) -> tuple[float, float]:
    """Makespan and GPU-seconds."""
    return record.makespan_s, sum((a["end_s"] - a["start_s"]) * len(a["gpu_ids"]) for a in record.allocations)


def compared(
    plan: Plan, executed: StepRecord, retold: StepRecord, by_table: tuple[float, float], drift: float
) -> dict[str, Any]:
    """One row of the report: planned (affine, and by the whole table) beside executed, with drift and without."""
    planned = plan.makespan_s, plan.gpu_seconds
    sides = {"planned": planned, "by_table": by_table, "executed": taken_by(executed), "without_drift": taken_by(retold)}
    makespan, gpu = ({side: both[i] for side, both in sides.items()} for i in (0, 1))
    return {"actors": len(plan.actors), "drift": drift, "makespan_s": makespan, "gpu_seconds": gpu}


def errors(rows: Sequence[dict[str, Any]], what: str, side: str = "planned", against: str = "executed") -> dict[str, float]:
    """Of the relative errors |planned / executed - 1|: median, 90th percentile and worst; and the mean with its sign."""
    signed = np.array([row[what][side] / row[what][against] for row in rows]) - 1
    absolute = np.abs(signed)
    return {
        "median": float(np.median(absolute)), "p90": float(np.quantile(absolute, 0.9)), "worst": float(absolute.max()),
        "mean_signed": float(signed.mean()),
    }  # fmt: skip


def report(known: Sequence[dict[str, Any]], predicted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Errors by what is compared; of the whole table only where lengths were known."""
    return {
        what: {
            "known lengths": errors(known, what),
            "known lengths, without drift": errors(known, what, against="without_drift"),
            "known lengths, by the table, without drift": errors(known, what, "by_table", "without_drift"),
            "predicted lengths": errors(predicted, what),
        }
        for what in ("makespan_s", "gpu_seconds")
    }


def shares(known: Sequence[dict[str, Any]]) -> dict[str, float]:
    """By part: planned less executed, of all that was executed."""
    whole = sum(row["parts"][part]["executed"] for row in known for part in PARTS)
    return {
        part: sum(row["parts"][part]["planned"] - row["parts"][part]["executed"] for row in known) / whole for part in PARTS
    }


def measure_profile(folder: Path, fast: bool) -> Path:
    """`rlhfless profile` in a process of its own."""
    out = folder / "here.json"
    command = [sys.executable, "-m", "rlhfless", "profile", "--model", TINY, "--device", "cpu", "-o", str(out)]
    command += ["--max-batch", str(SLOTS)]
    subprocess.run([*command, *(["--fast"] if fast else [])], check=True)
    return out


def run(latency: LatencyModel, steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows with known and with predicted lengths, step by step."""
    factory = TorchEngineFactory(DecoderModel(CausalLM(TINY).model, LONGEST_PROMPT + LIMIT), eos_id=0)
    rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    drift = Drift(latency)
    with one_thread(factory.model.device):
        for seed in range(steps):
            step = step_of(seed)
            for known in (True, False):
                workload = step.truth if known else step.predicted
                plan = plan_generation(PlanningProblem(workload, CLUSTER, latency, Objective(0.7)), time_limit_s=0.3, seed=seed)
                table = evaluate(plan, PlanningProblem(workload, CLUSTER, latency), table=True)
                beside = Beside(factory, drift)
                executed = run_step(plan, step.requests(), beside, latency, CLUSTER, charging="measured")
                again = Again(factory, beside.replays)
                retold = run_step(plan, step.requests(), again, latency, CLUSTER, charging="measured")
                slower = float(np.mean([one for *_, one in beside.replays]))
                row = compared(plan, executed, retold, (table.makespan_s, table.gpu_seconds), slower)
                rows[known].append(row | {"parts": parts_of(beside.replays, latency)})
                print_row(seed, "known" if known else "predicted", rows[known][-1])
    return rows[True], rows[False]


def print_row(step: int, lengths: str, row: dict[str, Any]) -> None:
    times = [f"{row[what][side]:8.3f}" for what in ("makespan_s", "gpu_seconds") for side in SIDES]
    print(f"{step:>4} {lengths:<10} {row['actors']:>6} {row['drift']:>5.2f} {' '.join(times)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fast", action="store_true", help="a profile of few points")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = measure_profile(Path(folder), options.fast)
        latency, profile = load_profile(path), read_profile(path)
    heads = " ".join(f"{side:>8}" for side in ("planned", "executed", "no drift") * 2)
    print(f"{'step':>4} {'lengths':<10} {'actors':>6} {'drift':>5} {heads}   (makespan in s, GPU-seconds)")
    known, predicted = run(latency, options.steps)
    found, by_part, load = report(known, predicted), shares(known), os.getloadavg()[0]
    for what, by_side in found.items():
        for side, x in by_side.items():
            absolute = f"median {x['median']:.1%}, 90th percentile {x['p90']:.1%}, worst {x['worst']:.1%}"
            print(f"{what}, {side}: error {absolute}, mean with sign {x['mean_signed']:+.1%}")
    told = ", ".join(f"{part} {share:+.1%}" for part, share in by_part.items())
    print(f"known lengths, by the table, without drift, of all seconds: {told}")
    print(f"load of the machine over the last minute: {load:.1f} on {os.cpu_count()} cores")
    if options.json is not None:
        versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
        machine = {"processor": platform.machine(), "cores": os.cpu_count(), "load": load}
        fits = {"fit": profile["fit"], "prefill": profile["prefill"]}
        rows = {"parts": by_part, "known": known, "predicted": predicted}
        result = {"versions": versions, "machine": machine, **fits, "errors": found, **rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
