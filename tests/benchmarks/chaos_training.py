"""Kills actors and learner replicas at random moments of training steps with all levers on, beside an undisturbed run.

    python tests/benchmarks/chaos_training.py --kills 200 -o tests/benchmarks/results/chaos_training.json

Two trainers with the same options and seeds go step by step: the undisturbed one first, then the other one with SIGKILL at
moments drawn uniformly over the undisturbed step's length. Steps are planned with re-planning, decode with drafts, and learn
while others decode, on the learner's GPUs and on given-back ones (a process with a replica each). Gradients are added in the
order of prompts (``stream_order canonical``). What counts, and must be 0 for each step:

- lost, doubled: responses that were not delivered, or entered twice; different: delivered with other tokens.
- not_learned, learned_again: responses whose gradient was added never, or more than once.
- weights_apart: steps after which the two trainers' weights differ by more than ``--tolerance``.
- given_up, left_behind: steps that ended in an error; processes and shared memory that outlived the run.

With ``--forked`` the pool's processes are forked from a server that has imported torch, and not spawned. Most of what a kill
costs a machine are the imports of the process that replaces the killed one.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import numpy as np
import torch
from chaos_counts import Counts, Striker, counted, left_behind, token_bytes, write_counts

from rlhfless.executor import Faults, StepFailed, StepRecord
from rlhfless.training import TrainConfig, Trainer

SHIPPED = Path(__file__).parents[2] / "data" / "models" / "arithmetic-grpo"
SIZE: dict[str, Any] = {
    "policy": "solver+replan", "drafts": True, "learning": "stream", "prewarm": "forecast", "learner_grows": True,
    "stream_order": "canonical", "executor": "local",
    "device": "cpu", "steps": 10_000, "prompts": 32, "samples_per_prompt": 4, "max_response_tokens": 200, "kl_coef": 0.05,
    "learning_rate": 1e-5,
}  # fmt: skip


def variety(completions: list[str], **_: Any) -> list[float]:
    """Reward the share of characters that differ."""
    return [len(set(text)) / max(1, len(text)) for text in completions]


def fork_from_server() -> None:
    """Let processes be forked from a server that has imported what they need, where this program would spawn them."""
    multiprocessing.set_forkserver_preload(["torch", "transformers", "rlhfless.training", "rlhfless.executor"])
    context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: context("forkserver" if method == "spawn" else method)  # type: ignore
    ensure_running()  # before anybody looks what is left behind


def trainer_of(actors: int, prompts: int, seed: int) -> Trainer:
    """A trainer whose pool is patient with kills."""
    size = {**SIZE, "gpus": actors, "gpus_per_node": actors, "prompts_per_step": prompts, "seed": seed}
    trainer = Trainer(TrainConfig.from_options(**size), model=SHIPPED, rewards=variety, progress=False)
    assert trainer.actor_pool is not None
    trainer.actor_pool.faults = Faults(retries=100, restarts=100, silence_factor=1.0, silence_floor_s=60.0)
    return trainer


def learned(record: StepRecord) -> Counter[int]:
    """How often each response's gradient was added to the step's sum, by work items that ended well."""
    groups = {n: ran.item.responses for n, ran in enumerate(record.work) if ran.item.kind == "learn" and ran.item.responses}
    added = [n for ran in record.work if ran.item.call == "add" for n in ran.item.items if n in groups]
    return Counter(one for n in added for one in groups[n])


def weights_apart(one: Trainer, other: Trainer) -> float:
    """Largest difference of two trainers' weights."""
    theirs = other.model.state_dict()
    return max(float((value - theirs[name]).abs().max()) for name, value in one.model.state_dict().items())


def chaos(kills: int, *, actors: int, per_step: int, prompts: int, seed: int, tolerance: float, watch: Any) -> dict[str, Any]:
    """Disturb steps until so many signals were sent; returns what came of them."""
    rng, counts = np.random.default_rng(seed), Counts(streams=True)
    apart: list[float] = []
    replicas = 0
    with left_behind(counts), contextlib.ExitStack() as open_ones:
        calm, loud = (open_ones.enter_context(trainer_of(actors, prompts, seed)) for _ in range(2))
        pool: Any = loud.actor_pool
        while counts.kills < kills:
            quiet = calm.step().record
            many = min(per_step, kills - counts.kills)
            at_s = rng.uniform(0, quiet.end_s - quiet.start_s, many).tolist()
            striker = Striker(pool, at_s, [signal.SIGKILL] * many, int(rng.integers(1 << 30)))
            with counted() as entered:
                striker.start()
                try:
                    disturbed = loud.step().record
                except StepFailed:
                    counts.given_up += 1
                    break
                finally:
                    striker.finish()
            counts.enter("solver+replan", quiet, disturbed, entered, striker.sent)
            once, ours = learned(quiet), learned(disturbed)
            counts.not_learned += len(once.keys() - ours.keys()) + len(token_bytes(quiet).keys() - once.keys())
            counts.learned_again += sum(n - 1 for n in ours.values())
            apart.append(weights_apart(calm, loud))
            replicas += sum(event["name"] == "work lost" for event in disturbed.events)
            watch(counts, apart, replicas)
    return summary(counts, apart, replicas, tolerance)


def summary(counts: Counts, apart: Sequence[float], replicas: int, tolerance: float) -> dict[str, Any]:
    """What came of the signals so far."""
    far = sum(one > tolerance for one in apart)
    found = counts.summary() | {
        "lost_replicas": replicas,
        "weights_apart": far,
        "largest_difference_of_weights": max(apart, default=0.0),
    }
    return {name: value for name, value in found.items() if name not in ("other_gradients", "learned_early")}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the script; the file is written after every step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per-step", type=int, default=4)
    parser.add_argument("--actors", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=8, help="of a step")
    parser.add_argument("--tolerance", type=float, default=0.0, help="difference of weights that counts as none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forked", action="store_true", help="fork processes from a server instead of spawning them")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    if options.forked:
        fork_from_server()

    def watch(counts: Counts, apart: list[float], replicas: int) -> None:
        print(f"\r{counts.kills} of {options.kills} signals, {counts.steps} steps", end="", file=sys.stderr, flush=True)
        found = summary(counts, apart, replicas, options.tolerance)
        write_counts(options, began, found, counts.rows, torch=torch.__version__)

    found = chaos(
        options.kills, actors=options.actors, per_step=options.per_step, prompts=options.prompts, seed=options.seed,
        tolerance=options.tolerance, watch=watch,
    )  # fmt: skip
    print(file=sys.stderr)
    for name, value in found.items():
        print(f"{name:>32}  {value if not isinstance(value, float) else f'{value:.3g}'}")
    wrong = (
        "lost", "doubled", "different", "given_up", "left_behind", "not_learned", "learned_again", "weights_apart",
    )  # fmt: skip
    if any(found.get(name) for name in wrong):
        sys.exit("responses were lost, doubled, different or not learned once, weights differ, or something was left behind")


if __name__ == "__main__":
    main()
