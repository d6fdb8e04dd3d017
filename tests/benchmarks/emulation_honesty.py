"""How honest the virtual clock is: an actor's batch alone, and the same actor inside an emulation of 16 GPUs.

The tiny Qwen2 model, 16 actors with 16 responses each of given, lognormal lengths, and a rule that is asked every few virtual
milliseconds, so that the actors take turns. Alone: an engine of its own decodes the actor's responses, nothing else runs in
the process, and two clocks are read after every iteration: the wall clock and the one that charges (the thread's own time on
the CPU, `rlhfless.latency.stopwatch`). Charged: what `run_step(charging="measured")` says that the actor took among the 15
others. The machine's speed drifts while others use it, so an actor runs alone right before or after each of its replays. For
comparison, "interleaved": what its iterations took while the actors took turns on the device, which is how they were charged
before (later than the rest, so the drift is in it).

The summary compares what was charged with medians of alone runs, iteration by iteration and of whole runs; then with the same
on the wall clock, which on a machine that others use counts their turns too (mind the load that is printed); and one half of
the alone runs with the other, which says what the machine can tell apart.

Run: ``python tests/benchmarks/emulation_honesty.py [--repeats N] [--json FILE] [--tiny]``
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.model import DecoderModel, one_thread
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.virtual.measured_pass import REPLAYS
from rlhfless.latency import load_profile
from rlhfless.latency.measure import TINY, CausalLM
from rlhfless.latency.stopwatch import stopwatch
from solver import Cluster, LatencyModel
from solver.model.admission import Admission
from solver.model.plan import ActorPlan, Plan
from solver.model.runtime_rules import ActorView, Decision, StepState, Trigger

LIMIT, SLOTS = 320, 64


@dataclass(frozen=True)
class Size:
    """Actors, responses of each, their median length; every third actor is also run alone."""

    actors: int = 16
    responses: int = 16
    median_tokens: float = 90.0

    @property
    def compared(self) -> range:
        return range(0, self.actors, 3)


TINY_SIZE = Size(4, 2, 10.0)


@dataclass
class Onlooker:
    """A rule that is asked often and changes nothing."""

    period_s: float = 5e-3
    now_s: float = 0.0
    name: str = "onlooker"

    def next_trigger(self, view: ActorView) -> Trigger:
        return Trigger(time_s=self.now_s + self.period_s)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.now_s = now_s
        return []


def requests(size: Size, seed: int) -> list[Request]:
    """Prompts of 8 to 40 tokens, lengths with a long tail."""
    rng = np.random.default_rng(seed)
    count = size.actors * size.responses
    lengths = np.clip(rng.lognormal(math.log(size.median_tokens), 0.6, count), 8, LIMIT).astype(int)
    prompts = [rng.integers(2, 30, rng.integers(8, 41)) for _ in range(count)]
    return [
        Request(i, len(ids), LIMIT, target_tokens=int(n), prompt_ids=ids, seed=i)
        for i, (ids, n) in enumerate(zip(prompts, lengths, strict=True))
    ]


def plan(size: Size) -> Plan:
    """One actor on each GPU; responses in the given order."""
    groups = [tuple(range(a * size.responses, (a + 1) * size.responses)) for a in range(size.actors)]
    actors = [ActorPlan("cpu", (a,), a // 8, own, (), SLOTS) for a, own in enumerate(groups)]
    return Plan(tuple(actors), "equal groups", 0.0, 0.0, 0.0, rule=Onlooker())


def engine_of(factory: TorchEngineFactory, admission: Admission, start_s: float = 0.0) -> TorchEngine:
    """An engine that asks no latency model, which would take time of its own."""
    return TorchEngine(factory.model, admission, MEASURED, eos_id=factory.eos_id, start_s=start_s)


def alone(factory: TorchEngineFactory, own: list[Request]) -> np.ndarray:
    """(2, iterations) seconds of an engine that nothing disturbs, by the charging clock and by the wall clock; taking its
    responses in counts for the first iteration."""
    now_s = stopwatch(factory.model.device.type)
    engine = engine_of(factory, Admission(SLOTS, 1 << 40))
    marks = [(now_s(), time.perf_counter())]
    engine.add(own)
    while engine.running() or engine.waiting():
        engine.commit_next()
        marks.append((now_s(), time.perf_counter()))
    return np.diff(np.array(marks).T)


@dataclass
class Paired:
    """Engines of ``factory``, and a run alone beside every replay of an actor that is compared."""

    factory: TorchEngineFactory
    asked: list[Request]
    size: Size
    runs: dict[int, list[np.ndarray]] = field(init=False)

    def __post_init__(self) -> None:
        self.runs = {a: [] for a in self.size.compared}

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> TorchEngine:
        return self.factory(latency, admission, start_s)

    def replay(self, journal: EngineJournal) -> Replayed:
        """Before the replay and after it in turns."""
        actor = journal.finished[0][1] // self.size.responses
        runs = self.runs.get(actor)
        before = runs is not None and len(runs) % 2 == 0
        if before:
            self._run_alone(actor)
        replayed = self.factory.replay(journal)
        if runs is not None and not before:
            self._run_alone(actor)
        return replayed

    def _run_alone(self, actor: int) -> None:
        own = self.asked[actor * self.size.responses : (actor + 1) * self.size.responses]
        alone(self.factory, own[:1])  # as a replay begins with a warm-up
        self.runs[actor].append(alone(self.factory, own))


def busy_s(record: StepRecord, actors: int) -> dict[int, float]:
    """Seconds of prefill and decoding of every actor."""
    taken = dict.fromkeys(range(actors), 0.0)
    for span in record.spans:
        if span["phase"] in ("prefill", "decode"):
            taken[int(span["holder"].removeprefix("actor-"))] += span["end_s"] - span["start_s"]
    return taken


def repeat(factory: TorchEngineFactory, latency: LatencyModel, size: Size, seed: int) -> list[dict[str, float]]:
    """One emulation, measured and with actors that take turns."""
    asked, cluster = requests(size, seed), Cluster(2, 8, 1)
    paired = Paired(factory, asked, size)

    def taking_turns(_: LatencyModel, admission: Admission, start_s: float) -> TorchEngine:
        return engine_of(factory, admission, start_s)

    charged = busy_s(run_step(plan(size), asked, paired, latency, cluster, charging="measured"), size.actors)
    turns = busy_s(run_step(plan(size), asked, taking_turns, latency, cluster), size.actors)
    rows = []
    for a, own in paired.runs.items():
        half = len(own) // 2
        first, second = np.median(own[:half], 0)[0].sum(), np.median(own[-half:], 0)[0].sum()
        (alone_s, wall_s), (whole_s, whole_wall_s) = np.median(own, 0).sum(1), np.median([x.sum(1) for x in own], 0)
        rows.append(
            {
                "actor": a, "iterations": own[0].shape[1], "charged_s": charged[a], "interleaved_s": turns[a],
                "alone_s": float(alone_s), "alone_whole_s": float(whole_s), "alone_wall_s": float(wall_s),
                "alone_whole_wall_s": float(whole_wall_s), "alone_first_s": float(first), "alone_last_s": float(second),
            }
        )  # fmt: skip
    return rows


def summary(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median and worst relative difference, by what is compared with what."""
    pairs = [("charged_s", of) for of in ("alone_s", "alone_whole_s", "alone_wall_s", "alone_whole_wall_s")]
    found = {}
    for ours, theirs in [*pairs, ("alone_last_s", "alone_first_s"), ("interleaved_s", "alone_s")]:
        differences = np.array([row[ours] / row[theirs] - 1 for row in rows])
        found[f"{ours} / {theirs}"] = {
            "median": float(np.median(np.abs(differences))),
            "worst": float(np.abs(differences).max()),
            "mean_signed": float(differences.mean()),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    size = TINY_SIZE if options.tiny else Size()
    latency = load_profile("cpu-tiny-qwen2")
    factory = TorchEngineFactory(DecoderModel(CausalLM(TINY).model, 40 + LIMIT), eos_id=0)
    rows: list[dict[str, float]] = []
    with one_thread(factory.model.device):
        alone(factory, requests(size, 0)[: size.responses])  # warms up
        for seed in range(options.repeats):
            rows += repeat(factory, latency, size, seed)
    print(f"{'actor':>5} {'iterations':>10} {'alone s':>8} {'charged':>8} {'interleaved':>11}")
    for row in rows:
        shares = [f"{row[name] / row['alone_s'] - 1:+.1%}" for name in ("charged_s", "interleaved_s")]
        print(f"{row['actor']:>5} {row['iterations']:>10} {row['alone_s']:>8.3f} {shares[0]:>8} {shares[1]:>11}")
    found, load = summary(rows), os.getloadavg()[0]
    for name, x in found.items():
        print(f"{name}: median {x['median']:.1%}, worst {x['worst']:.1%}, mean with sign {x['mean_signed']:+.1%}")
    print(f"load of the machine over the last minute: {load:.1f} on {os.cpu_count()} cores")
    if options.json is not None:
        versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
        machine = {"processor": platform.machine(), "cores": os.cpu_count(), "load": load}
        result = {"versions": versions, "machine": machine, "replays": REPLAYS, "summary": found, "rows": rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
