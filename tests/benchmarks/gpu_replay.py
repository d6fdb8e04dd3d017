"""The part `replay` of `gpu_engine.py`: one step on 16 emulated GPUs under several plans, planned and executed.

Knows plans, engines and a fitted profile; nothing of the result file, of how plans are made, nor of where lengths come from.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_plans import cluster_of, made_here, prompts_of, read, read_file
from gpu_workload import LIMIT, LONGEST_PROMPT, Step, attempted, step_of

from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.executor import StepRecord, run_step
from rlhfless.latency import load_profile, save_profile
from rlhfless.latency.measure import CausalLM
from solver import Cluster, LatencyModel, Plan
from solver.model.admission import Admission

WIDTHS = 4  # graph widths that a context passes through
SCRATCH_BYTES = 40  # per row and token of the vocabulary, of an iteration's logits and what is made of them


@dataclass(frozen=True)
class ReplayedOnce(TorchEngineFactory):
    """Replays every journal once, however many medians are asked for: time on a GPU is short, and it is quiet."""

    known: dict[int, tuple[EngineJournal, Replayed]] = field(default_factory=dict)

    def replay(self, journal: EngineJournal) -> Replayed:
        if id(journal) not in self.known:
            self.known[id(journal)] = journal, super().replay(journal)
        return self.known[id(journal)][1]


def replayed(
    lm: CausalLM,
    profile: dict[str, Any],
    lengths: np.ndarray,
    where: str,
    prepared: Path | None,
    policies: Sequence[str],
    until: float,
) -> dict[str, Any]:
    """A step under the plan of each of ``policies``, executed; where no time is left, one is skipped. It has as many of the
    prompts as time and memory suffice for.

    Args:
        where: the lengths come from. prepared: the file of plans; None: they are made here, by the fitted ``profile``.
        until: when to be done, by ``time.monotonic``.

    Raises:
        FileNotFoundError, ValueError: there are no plans for this step.
    """
    plans_of = None if prepared is None else read_file(prepared, lengths, where, policies)
    with tempfile.TemporaryDirectory() as folder:
        latency = load_profile(save_profile(Path(folder, "fitted.json"), profile))
    cluster = cluster_of(latency.kind)
    rows = DecoderModel(lm.model, LONGEST_PROMPT + LIMIT)
    capture_s = seconds_of_a_capture(rows, latency)
    for prompts in prompts_of(lengths):
        step = step_of(lengths[:prompts], rows.vocabulary)
        if plans_of is None:
            plans, lacking = made_here(policies, step.workload, latency)
        else:
            written, lacking = plans_of["plans"][str(prompts)], dict[str, str]()
            plans = {name: read(written[name], step.workload, latency) for name in policies}
        expected = {name: expected_s(plan, latency, capture_s) for name, plan in plans.items()}
        short = sum(expected.values()) > until - time.monotonic() or not fits(plans, rows, latency)
        if not short:
            break
    found: dict[str, Any] = {
        "lengths": where,
        "prompts": len(step.prompts),
        "samples": lengths.shape[1],
        "capture_s": capture_s,
    }
    made_with = {name: profile[name] for name in ("name", "origin", "date")} if plans_of is None else plans_of["profile"]
    found |= {"plans_made_with": made_with, "policies": {name: {"skipped": why} for name, why in lacking.items()}}
    for name, why in lacking.items():
        print(f"{name:>9} skipped: {why}")
    print(f"{len(step.prompts)} x {lengths.shape[1]} responses; makespan in s and GPU-seconds: planned, simulated, executed")
    slower = 1.0
    for name, plan in plans.items():
        left = until - time.monotonic()
        if slower * expected[name] > left:
            found["policies"][name] = {"skipped": f"about {slower * expected[name]:.0f} s are needed, {left:.0f} s are left"}
            print(f"{name:>9} skipped: {found['policies'][name]['skipped']}")
            continue
        begin = time.monotonic()
        row = attempted(partial(executed, plan, step, rows, latency, cluster))
        found["policies"][name] = row
        if "failed" in row:
            continue
        slower = (time.monotonic() - begin) / expected[name]
        times = [f"{row[what][side]:9.3f}" for what in ("makespan_s", "gpu_seconds") for side in row[what]]
        print(f"{name:>9} {row['actors']:>3} actors {' '.join(times)}", flush=True)
    return found


def executed(plan: Plan, step: Step, rows: DecoderModel, latency: LatencyModel, cluster: Cluster) -> dict[str, Any]:
    """Planned, simulated (charged by the profile, with the plan's rule) and executed numbers of a plan, and their errors."""
    asked = step.requests()
    simulated = run_step(plan, asked, SimulatedEngine, latency, cluster)
    record = run_step(plan, asked, ReplayedOnce(rows, eos_id=0), latency, cluster, charging="measured")
    sums = {"makespan_s": makespan_s, "gpu_seconds": gpu_seconds}
    found: dict[str, Any] = {"actors": len(plan.actors), "rule": str(plan.rule), "moves": record.moves}
    for what, of in sums.items():
        found[what] = {"planned": getattr(plan, what), "simulated": of(simulated), "executed": of(record)}
        for side in ("planned", "simulated"):
            found[f"{what}: {side} / executed - 1"] = found[what][side] / found[what]["executed"] - 1
    return found


def makespan_s(record: StepRecord) -> float:
    return record.makespan_s


def gpu_seconds(record: StepRecord) -> float:
    return float(sum((a["end_s"] - a["start_s"]) * len(a["gpu_ids"]) for a in record.allocations))


def seconds_of_a_capture(rows: DecoderModel, latency: LatencyModel) -> float:
    """What preparing one shape takes, that of a full batch, the second time; 0 where nothing has to be prepared."""
    ids = np.ones(2, np.int64)
    for _ in range(2):
        engine = TorchEngine(rows, Admission(latency.max_batch, 1 << 40), MEASURED, eos_id=0)
        engine.add([Request(i, 2, 1, target_tokens=1, prompt_ids=ids, seed=i) for i in range(latency.max_batch)])
        engine.advance(math.inf)
        engine.close()
    return engine.journal.prepare_s


def expected_s(plan: Plan, latency: LatencyModel, capture_s: float) -> float:
    """Seconds that executing a plan may take here: each actor decodes its responses and is replayed, and captures its graphs
    both times, and once more to warm up."""
    batches = [min(len(actor.responses), latency.max_batch) for actor in plan.actors]
    graphs = sum(4 + batch / 16 + WIDTHS for batch in batches)
    return 2 * 1.3 * plan.gpu_seconds + 2.2 * graphs * capture_s


def fits(plans: dict[str, Plan], rows: DecoderModel, latency: LatencyModel) -> bool:
    """Whether the caches of all actors, which live side by side in this emulation, fit into the device's memory."""
    if rows.device.type != "cuda":
        return True
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(rows.device)[0]
    a_row = rows.cells * rows.kv_bytes_per_token + rows.vocabulary * SCRATCH_BYTES
    batches = [sum(min(len(actor.responses), latency.max_batch) for actor in plan.actors) for plan in plans.values()]
    return max(batches) * a_row < 0.85 * free
