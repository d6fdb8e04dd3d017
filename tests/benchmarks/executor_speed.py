"""How fast a step is simulated, and how much of a real iteration is neither forward pass nor sampling.

    python tests/benchmarks/executor_speed.py [--json FILE] [--rounds 5] [--tiny]

Simulated: 16,384 responses (2,048 prompts x 8, lognormal lengths, at most 2,048 tokens) on Qwen2.5-3B on two L40S, on 64 GPUs.
``engine`` is ``SimulatedEngine.add`` and ``advance``: all responses on one engine, and split over as many engines as the plan
has actors. With the tau rule the engines are driven by ``run_step``, so what is attributed to them is the time inside ``add``,
``advance``, ``cut`` and the views on them. ``run_step`` is the whole step. ``read`` adds reading what a trace is made of: every
completion, span and event; without it these wait as columns. Requests are made, and turned into rows, beforehand, as for all
policies of a simulated step; what that takes is a row of its own. Seconds are of this process on one core
(``time.process_time``), best of the rounds: other work on the machine is not counted, but slows caches down.

Torch: Qwen2 with random weights in float32 on the CPU, one thread, forced lengths, charged by a profile, so that no clock is
read inside. The time inside the ``DecodeStep`` call (forward pass and sampling) against that of all ``advance``, prefill's
iteration left out, medians over rounds: iterations of a batch that nobody joins or leaves.

Torch steps: see ``executor_steps.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executor_steps import PROMPTS as STEP_PROMPTS
from executor_steps import torch_steps
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.requests import Requests
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.executor import StepRecord, run_step
from rlhfless.latency import load_profile
from rlhfless.scheduling import PlanningOptions, make_policy
from solver import Cluster, LatencyModel, Plan, Workload
from solver.model.admission import Admission
from solver.model.problem import PlanningProblem

PROMPTS, SAMPLES, LIMIT = 2048, 8, 2048
CLUSTER = Cluster(8, 8, 2)
AIMS = {"random": 1_000_000, "rlhfless": 100_000}
BATCHES, ITERATIONS, WARM_UP = (8, 64), 200, 20
SIZES = {"0.5M": (128, 2, 4, 2), "17M": (512, 6, 8, 2)}  # hidden, layers, heads, KV heads
RESULTS = Path(__file__).parent / "results" / "executor_speed.json"
TIMED = ("add", "advance", "cut", "peek_next_event_s", "next_completions_s", "running", "waiting", "generated_arrays")


def best(rounds: int, once: Callable[[], object]) -> float:
    """Seconds of this process."""
    once()
    took = []
    for _ in range(rounds):
        began = time.process_time()
        once()
        took.append(time.process_time() - began)
    return min(took)


def workload(prompts: int) -> Workload:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.3, 0.8, (prompts, SAMPLES)).astype(int), 1, LIMIT)
    return Workload.grid(rng.integers(50, 200, prompts), lengths, max_response_tokens=LIMIT)


def requests_of(work: Workload) -> list[Request]:
    prompt = work.prompt_tokens[work.prompt_of].tolist()
    lengths = work.response_tokens.tolist()
    return [Request(i, p, LIMIT, target_tokens=n) for i, (p, n) in enumerate(zip(prompt, lengths, strict=True))]


def run_engines(parts: list[Requests], latency: LatencyModel) -> None:
    for part in parts:
        engine = SimulatedEngine(latency, Admission(latency.max_batch, latency.kv_capacity_tokens))
        engine.add(part)
        assert len(engine.advance(math.inf).completions) == len(part)


class Timed(SimulatedEngine):
    """Adds up the seconds inside of all engines."""

    seconds = 0.0


def _timed(name: str) -> Callable[..., Any]:
    inner = getattr(SimulatedEngine, name)

    def call(self: Timed, *args: Any) -> Any:
        began, before = time.process_time(), Timed.seconds
        found = inner(self, *args)
        Timed.seconds = before + time.process_time() - began  # what it calls of its own is in it once
        return found

    return call


for _name in TIMED:
    setattr(Timed, _name, _timed(_name))


def read(record: StepRecord) -> None:
    """What a trace takes from a record."""
    assert record.spans
    assert len(record.completions) == len(record.actor_of)


def simulated(rounds: int, prompts: int = PROMPTS) -> list[dict[str, Any]]:
    """Responses per second, at every level."""
    work, latency = workload(prompts), load_profile("l40s-qwen2.5-3b-tp2")
    listed = requests_of(work)
    requests, count, rows = Requests(listed), len(listed), []

    def note(policy: str, level: str, seconds: float) -> None:
        aim = AIMS.get(policy)
        rows.append({"policy": policy, "level": level, "seconds": seconds, "per_s": count / seconds, "aim_per_s": aim})

    note("-", "requests to rows", best(rounds, lambda: Requests(listed)))
    for policy in AIMS:
        plan: Plan = make_policy(policy).plan(PlanningProblem(work, CLUSTER, latency), PlanningOptions(time_limit_s=0.05))
        actors = len(plan.actors)

        def step(plan: Plan = plan, engine: type[SimulatedEngine] = SimulatedEngine) -> StepRecord:
            return run_step(plan, requests, engine, latency, CLUSTER)

        if plan.rule is None:
            parts = [requests.take(actor.responses) for actor in plan.actors]
            note(policy, "1 engine", best(rounds, lambda: run_engines([requests], latency)))
            note(policy, f"{actors} engines", best(rounds, lambda parts=parts: run_engines(parts, latency)))
        else:
            inside = []
            for _ in range(rounds):
                Timed.seconds = 0.0
                step(engine=Timed)
                inside.append(Timed.seconds)
            note(policy, f"{actors} engines", min(inside))
        note(policy, f"run_step, {actors} actors, {step().moves} moves", best(rounds, step))
        note(policy, "run_step, read", best(rounds, lambda step=step: read(step())))
    return rows


def torch_overhead(size: str, batch: int, rounds: int, iterations: int = ITERATIONS) -> dict[str, Any]:
    """Seconds of a decode iteration, inside the ``DecodeStep`` call and in all."""
    hidden, layers, heads, kv_heads = SIZES[size]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, intermediate_size=4 * hidden, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    model = DecoderModel(Qwen2ForCausalLM(config).eval())
    rng, length, prompt = np.random.default_rng(0), WARM_UP + iterations + 10, 32
    shares, totals = [], []
    for _ in range(rounds):
        engine = TorchEngine(model, Admission(batch, 1 << 30), LatencyModel("one", 1, 1.0, 0.0), eos_id=0)
        engine.add(
            [
                Request(i, prompt, length, target_tokens=length, prompt_ids=rng.integers(1, 512, prompt), seed=i)
                for i in range(batch)
            ]
        )
        engine.advance(float(WARM_UP))
        inner, inside = engine._loop.step, [0.0]

        class Watched:
            """The engine's step with a stopwatch around it."""

            prepare = inner.prepare

            def __call__(self, *args: Any, inner: Any = inner, inside: list[float] = inside) -> Any:
                began = time.perf_counter()
                drawn = inner(*args)
                inside[0] += time.perf_counter() - began
                return drawn

        engine._loop.step = Watched()  # type: ignore[assignment]
        began = time.perf_counter()
        engine.advance(float(WARM_UP + iterations))
        total = time.perf_counter() - began
        totals.append(total / iterations)
        shares.append(1 - inside[0] / total)
    return {"model": size, "batch": batch, "iteration_s": float(np.median(totals)), "outside": float(np.median(shares))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = simulated(options.rounds, 32 if options.tiny else PROMPTS)
    for row in rows:
        aim = "" if row["aim_per_s"] is None else f"{row['aim_per_s']:>10,}"
        print(f"{row['policy']:>9} {row['level']:<34} {1e3 * row['seconds']:>8.1f} ms {row['per_s']:>11,.0f}/s {aim}")
    iterations = [
        torch_overhead(size, batch, options.rounds, 10 if options.tiny else ITERATIONS)
        for size in (["0.5M"] if options.tiny else SIZES)
        for batch in BATCHES
    ]
    for one in iterations:
        name, ms = f"torch {one['model']}, batch {one['batch']}", 1e3 * one["iteration_s"]
        print(f"{name:>44} {ms:>8.2f} ms an iteration, {one['outside']:.1%} outside")
    steps = torch_steps(options.rounds, 2 if options.tiny else STEP_PROMPTS)
    for one in steps:
        name = f"torch step, {one['policy']}, {'given lengths' if one['forced'] else 'end of text'}, {one['moves']} moves"
        per_iteration = f"{one['iterations']} iterations on {one['actors']} actors"
        print(f"{name:>50} {1e3 * one['seconds']:>8.1f} ms, {per_iteration}, {one['outside']:.1%} outside")
    about = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__, "numpy": np.__version__}
    options.json.write_text(
        json.dumps({**about, "simulated": rows, "torch_iterations": iterations, "torch_steps": steps}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
