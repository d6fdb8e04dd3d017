"""Kills (and stops) actors at random moments of steps on the wall clock, and counts what that costs.

Steps of a tiny model with forced lengths of a long tail run in a pool of processes, each plan undisturbed first and then with
signals at moments drawn uniformly over its length: SIGKILL, and SIGSTOP for a share of them, which is only noticed by silence.
Policies take turns, so that signals also hit senders and receivers of KV caches. What counts:

- lost: responses that a disturbed step did not deliver; doubled: entered twice; different: delivered with other tokens than the
  undisturbed step's. All of these must be 0, as must steps that were given up.
- added seconds and GPU-seconds: a disturbed step's minus its undisturbed one's, over the actors that were lost in it. A stopped
  actor costs the time until its silence counts (``--silence``) besides.

    python tests/benchmarks/chaos.py --kills 1000 -o chaos.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch_factory import TorchEngineFactory
from rlhfless.engine.torch_forward import RowModel
from rlhfless.executor import ActorError, Faults, ProcessPool, StepRecord
from rlhfless.scheduling import PlanningInput, make_policy
from rlhfless.training.model import tiny_qwen2
from rlhfless.training.tokenizer import CharTokenizer
from solver import Cluster, LatencyModel, Plan, Workload

POLICIES = ("static", "fold", "rlhfless")
PROMPTS, SAMPLES = 8, 3
LATENCY = LatencyModel(
    "tiny", 1, 2e-3, 40e-6, 100e-9, prefill_base_s=1e-3, prefill_per_token_s=1e-5, start_s=2.0,
    transfer_base_s=1e-4, transfer_per_kv_token_s=1e-6, max_batch=16, kv_capacity_tokens=1 << 20,
)  # fmt: skip


@dataclass
class Counts:
    """What came of the signals so far."""

    signals: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    lost_actors: int = 0
    retries: int = 0
    moves: int = 0
    lost: int = 0
    doubled: int = 0
    different: int = 0
    given_up: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Signals sent to actors at work."""
        return self.signals.total()

    def summary(self) -> dict[str, Any]:
        """Sums, and what a lost actor adds."""
        felt = [r for r in self.rows if r["lost_actors"]]
        actors = sum(r["lost_actors"] for r in felt)
        added = {f"added_{what}_per_lost_actor": sum(r[f"added_{what}"] for r in felt) / actors if actors else None
                 for what in ("s", "gpu_s")}  # fmt: skip
        return {
            "kills": self.kills, "signals": dict(self.signals), "steps": self.steps, "lost_actors": self.lost_actors,
            "retries": self.retries, "moves": self.moves, "lost": self.lost, "doubled": self.doubled,
            "different": self.different, "given_up": self.given_up, **added,
            "undisturbed_s": float(np.mean([r["undisturbed_s"] for r in self.rows])) if self.rows else None,
            "undisturbed_gpu_s": float(np.mean([r["undisturbed_gpu_s"] for r in self.rows])) if self.rows else None,
        }  # fmt: skip


class Striker(threading.Thread):
    """Sends signals to actors at work, each at its time after ``at_s`` began to count."""

    def __init__(self, pool: ProcessPool, delays_s: Sequence[float], kinds: Sequence[signal.Signals], seed: int) -> None:
        super().__init__(daemon=True)
        self.pool, self.plan = pool, sorted(zip(delays_s, kinds, strict=True))
        self.rng, self.over = np.random.default_rng(seed), threading.Event()
        self.sent: list[signal.Signals] = []
        self.stopped: list[int] = []

    def run(self) -> None:
        began = time.monotonic()
        for delay_s, kind in self.plan:
            if self.over.wait(max(0.0, began + delay_s - time.monotonic())):
                return
            working = [pid for pid in self.pool.working if pid not in self.stopped]
            if working:
                pid = int(self.rng.choice(working))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, kind)
                    self.sent.append(kind)
                    if kind == signal.SIGSTOP:
                        self.stopped.append(pid)

    def finish(self) -> None:
        """No more signals; what was stopped and is still there goes on."""
        self.over.set()
        self.join()
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def counted() -> Iterator[Counter[int]]:
    """How often each response is entered into a record, whatever the record makes of it."""
    found: Counter[int] = Counter()
    enter = StepRecord.enter

    def entered(self: StepRecord, together: Any) -> None:
        found.update(r for _, completions in together for r in completions.responses.tolist())
        enter(self, together)

    StepRecord.enter = entered  # type: ignore[method-assign]
    try:
        yield found
    finally:
        StepRecord.enter = enter  # type: ignore[method-assign]


def step_of(seed: int, limit: int, policy: str, actors: int) -> tuple[Plan, list[Request]]:
    """A plan on what is predicted, and requests with true lengths of a long tail."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(2, 30, size=int(rng.integers(4, 20))) for _ in range(PROMPTS)]
    lengths = np.minimum(rng.geometric(3 / limit, (PROMPTS, SAMPLES)) + limit // 8, limit)
    predicted = np.clip(lengths * rng.lognormal(0.0, 0.3, lengths.shape), 1, limit).round()
    workload = Workload.grid([len(p) for p in prompts], predicted, response_limit=limit)
    given = PlanningInput(workload, Cluster(1, actors, 1), LATENCY, time_limit_s=0.05, seed=seed)
    plan = make_policy(policy, tau=0.5, **({"static_actors": actors} if policy == "static" else {})).plan(given)
    requests = [
        Request(i, len(prompts[i // SAMPLES]), limit, prompt_ids=prompts[i // SAMPLES].astype(np.int64), seed=i,
                target_tokens=int(n), prompt=i // SAMPLES)
        for i, n in enumerate(lengths.ravel())
    ]  # fmt: skip
    return plan, requests


def gpu_seconds(record: StepRecord) -> float:
    return float(sum((a["end_s"] - a["start_s"]) * len(a["gpu_ids"]) for a in record.allocations))


def token_bytes(record: StepRecord) -> dict[int, bytes]:
    return {i: np.asarray(c.token_ids, dtype=np.int64).tobytes() for i, c in record.completions.items()}


def chaos(
    kills: int, *, seed: int = 0, actors: int = 3, per_step: int = 2, stops: float = 0.1, limit: int = 300,
    silence_s: float = 2.0, watch: Any = None,
) -> Counts:  # fmt: skip
    """Disturb steps until so many signals were sent to actors at work.

    Args:
        per_step: signals in a step, at most. stops: share of them that are SIGSTOP. limit: longest response, in tokens.
        silence_s: after which a stopped actor counts as lost.
        watch: told the counts after every step.
    """
    rng, counts = np.random.default_rng(seed), Counts()
    tokenizer = CharTokenizer()
    model = RowModel(tiny_qwen2(tokenizer, seed=3, hidden=64, layers=2, intermediate=128), limit + 32)
    factory = TorchEngineFactory(model, tokenizer.eos_token_id)
    faults = Faults(retries=4 * per_step, restarts=4 * per_step, silence_factor=1.0, silence_floor_s=silence_s)
    cluster = Cluster(1, actors, 1)
    with ProcessPool(["cpu"] * actors, faults=faults) as pool:

        def run(plan: Plan, requests: list[Request]) -> StepRecord:
            return pool.run_step(plan, requests, factory, LATENCY, cluster, migration="move")

        while counts.kills < kills:
            policy = POLICIES[counts.steps % len(POLICIES)]
            plan, requests = step_of(seed + counts.steps, limit, policy, actors)
            fresh, _ = step_of(seed + counts.steps, limit, policy, actors)  # a rule serves one step
            pool.faults = replace(faults, silence_floor_s=60.0)
            quiet = run(plan, requests)
            if any(s["phase"] == "start" for s in quiet.spans):  # processes had to start: not what a disturbed step begins with
                quiet = run(step_of(seed + counts.steps, limit, policy, actors)[0], requests)
            pool.faults = faults
            many = min(per_step, kills - counts.kills)
            kinds = [signal.SIGSTOP if rng.random() < stops else signal.SIGKILL for _ in range(many)]
            striker = Striker(pool, rng.uniform(0, quiet.makespan_s, many).tolist(), kinds, int(rng.integers(1 << 30)))
            with counted() as entered:
                striker.start()
                try:
                    loud = run(fresh, requests)
                except ActorError as error:
                    loud, counts.given_up = error.record or StepRecord("run", 0, plan, 0.0), counts.given_up + 1
                finally:
                    striker.finish()
            enter(counts, plan, quiet, loud, entered, striker)
            if watch is not None:
                watch(counts)
    return counts


def enter(counts: Counts, plan: Plan, quiet: StepRecord, loud: StepRecord, entered: Counter[int], striker: Striker) -> None:
    """Add a disturbed step to the counts."""
    expected, found = token_bytes(quiet), token_bytes(loud)
    named = Counter(e["name"] for e in loud.events)
    counts.steps += 1
    counts.signals.update(kind.name for kind in striker.sent)
    counts.lost_actors += named["lost"]
    counts.retries += sum(len(json.loads(e["detail"])["responses"]) for e in loud.events if e["name"] == "retry")
    counts.moves += loud.moves
    counts.lost += len(expected.keys() - found.keys())
    counts.doubled += sum(n - 1 for n in entered.values())
    counts.different += sum(tokens != expected[i] for i, tokens in found.items())
    counts.rows.append(
        {
            "policy": plan.policy, "signals": [kind.name for kind in striker.sent], "lost_actors": named["lost"],
            "undisturbed_s": quiet.makespan_s, "undisturbed_gpu_s": gpu_seconds(quiet),
            "added_s": loud.makespan_s - quiet.makespan_s, "added_gpu_s": gpu_seconds(loud) - gpu_seconds(quiet),
        }
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--per-step", type=int, default=2)
    parser.add_argument("--stops", type=float, default=0.1, help="share of the signals that stop an actor")
    parser.add_argument("--actors", type=int, default=3)
    parser.add_argument("--limit", type=int, default=300, help="longest response")
    parser.add_argument("--silence", type=float, default=2.0, help="seconds of silence after which an actor is lost")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args(arguments)

    def watch(counts: Counts) -> None:
        print(f"\r{counts.kills} of {options.kills} signals, {counts.steps} steps", end="", file=sys.stderr, flush=True)

    began = time.monotonic()
    counts = chaos(
        options.kills, seed=options.seed, actors=options.actors, per_step=options.per_step, stops=options.stops,
        limit=options.limit, silence_s=options.silence, watch=watch,
    )  # fmt: skip
    print(file=sys.stderr)
    found = counts.summary()
    for name, value in found.items():
        print(f"{name:>32}  {value if not isinstance(value, float) else f'{value:.3f}'}")
    if options.out is not None:
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__, "numpy": np.__version__}
        asked = {name: value for name, value in vars(options).items() if name != "out"}
        whole = {**about, "options": asked, "took_s": time.monotonic() - began, **found, "rows": counts.rows}
        options.out.write_text(json.dumps(whole, indent=1) + "\n")
    if found["lost"] or found["doubled"] or found["different"] or found["given_up"]:
        sys.exit("responses were lost, doubled or different, or a step was given up")


if __name__ == "__main__":
    main()
