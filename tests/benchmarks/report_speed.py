"""Seconds from a log of a million responses to its report: import, a plan of every step, the page.

A parquet table of lognormal lengths (512 prompts x 8 samples a step, 8,192 prompts), written beforehand, not counted; 64 GPUs.
Each stage is one call of the functions that ``rlhfless report`` calls, in a process of its own, whose peak memory is told.

Run: ``python tests/benchmarks/report_speed.py [--rows 1000000] [--json FILE] [--tiny]``
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.analysis import plan_every_step
from rlhfless.latency import load_profile
from rlhfless.report.write import write_report
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import open_log
from solver.model.cluster import Cluster

PROMPTS, SAMPLES, POOL, LIMIT = 512, 8, 8_192, 4_096


def write_log(path: Path, rows: int, prompts: int = PROMPTS) -> int:
    """A log of about so many rows in whole steps; how many it has."""
    rng = np.random.default_rng(0)
    steps = max(2, rows // (prompts * SAMPLES))
    prompt = np.concatenate([np.repeat((np.arange(prompts) + prompts * (s % 16)) % POOL, SAMPLES) for s in range(steps)])
    means = rng.lognormal(6.0, 0.6, POOL)
    tokens = np.clip(rng.lognormal(np.log(means[prompt]), 0.4), 1, LIMIT).astype(int)
    pd.DataFrame(
        {
            "step": np.repeat(np.arange(steps), prompts * SAMPLES), "prompt_id": prompt.astype(str),
            "sample": np.tile(np.arange(SAMPLES), steps * prompts), "prompt_tokens": 200, "response_tokens": tokens,
            "finish_reason": np.where(tokens >= LIMIT, "length", "stop"),
        }
    ).to_parquet(path)  # fmt: skip
    return steps * prompts * SAMPLES


def stage(name: str, log: Path, out: Path, answers: Any) -> None:
    """One stage in a process of its own: seconds, seconds of its cores, peak memory, bytes written."""
    latency = load_profile("l40s-qwen2.5-3b-tp2")
    setting = SimulationConfig(Cluster(8, 8, latency.gpus_per_actor, latency.kind, 3.77), latency, max_response_tokens=LIMIT)
    opened = None if name in ("import", "all") else open_log(log)
    began, used = time.perf_counter(), time.process_time()
    if name in ("import", "all"):
        opened = open_log(log)
    if name == "plan every step":
        plan_every_step(opened.trace.rollouts, setting)
    if name in ("report", "all"):
        write_report(opened, out, setting)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answers.put(
        {"stage": name, "s": seconds, "cpu_s": cpu, "peak_mib": peak, "bytes": out.stat().st_size if out.exists() else 0}
    )


def main() -> None:
    """Time the stages and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="few rows: tries the script, its numbers say nothing")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder) / "log.parquet", Path(folder) / "report.html"
        count = write_log(log, 256, 16) if options.tiny else write_log(log, options.rows)
        for name in ("import", "plan every step", "report", "all"):
            out.unlink(missing_ok=True)
            answers = spawn.SimpleQueue()
            process = spawn.Process(target=stage, args=(name, log, out, answers))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"the stage {name!r} ended with {process.exitcode}")
            rows.append(answers.get())
    print(f"{count:,} responses, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; 'report' plans every step too")
    for row in rows:
        print(f"  {row['stage']:>16} {row['s']:7.1f} s {row['cpu_s']:7.1f} s of a core {row['peak_mib']:7.0f} MiB")
    if options.json:
        options.json.write_text(
            json.dumps({"responses": count, "cores": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows})
        )


if __name__ == "__main__":
    main()
