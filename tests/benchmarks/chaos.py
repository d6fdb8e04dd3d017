"""Kills (and stops) actors at random moments of steps on the wall clock, and counts what that costs.

Steps with forced lengths of a long tail run on actors in real processes, in a pool of this machine or as Ray actors. Each plan
runs undisturbed first, and then with signals at moments drawn uniformly over its length. Signals are SIGKILL, and SIGSTOP for a
share of them, which is only noticed by silence. Policies take turns, so that signals also hit senders and receivers of KV
states, and actors that just start. Engines count tokens instead of computing them (``counting_engine.py``), so that a step is
as long as planned on a busy machine too. With ``--engine torch`` a tiny model decodes. What counts:

- lost: responses that a disturbed step did not deliver; doubled: entered twice; different: delivered with other tokens than the
  undisturbed step's. All of these must be 0, as must steps that were given up and what is left behind (processes, memory).
- with ``--learning stream`` a learner in this program takes each prompt's responses while others decode, and counts them
  (``chaos_learning.py``): responses not learned from, learned from again, and steps with another sum of gradients than the
  undisturbed step's must be 0, too.
- added seconds and GPU-seconds per kill: a disturbed step's minus its undisturbed one's, over the actors that were lost in it.
  A stopped actor costs the time until its silence counts (``--silence``) besides.

    python tests/benchmarks/chaos.py --kills 1000 -o tests/benchmarks/results/chaos.json
    python tests/benchmarks/chaos.py --learning stream --kills 1000 -o tests/benchmarks/results/chaos_streaming.json
    python tests/benchmarks/chaos.py --pool ray --kills 200 --actors 6 --per-step 5 -o tests/benchmarks/results/chaos_ray.json
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from chaos_counts import Counts, Striker, counted, left_behind, write_counts
from chaos_learning import CountingLearner
from counting_engine import CountingEngines

from rlhfless.engine.protocol import Request
from rlhfless.executor import Faults, Lifecycle, ProcessPool, RayPool, StepFailed, StepRecord
from rlhfless.scheduling import PlanningOptions, make_policy
from solver import Cluster, LatencyModel, Plan, Workload
from solver.model.problem import PlanningProblem

POLICIES = ("static", "fold", "static", "rlhfless")
SAMPLES = 3
# that an actor may take to start in a disturbed step: one that is stopped then is noticed by that only (in a Ray pool none is)
START_FLOOR_S = {"local": 10.0, "ray": 90.0}
LATENCY = LatencyModel(
    "tiny", 1, 2e-3, 40e-6, 100e-9, prefill_base_s=1e-3, prefill_per_token_s=1e-5, start_s=1.0,
    transfer_base_s=1e-4, transfer_per_kv_token_s=1e-6, max_batch=16, kv_capacity_tokens=1 << 20,
)  # fmt: skip


def engines_of(kind: str, limit: int) -> Any:
    """A factory: of engines that count, or of a tiny model's."""
    if kind == "counting":
        return CountingEngines()
    from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
    from rlhfless.engine.torch.factory import TorchEngineFactory
    from rlhfless.engine.torch.model import DecoderModel
    from rlhfless.training.models.tiny_model import tiny_qwen2

    tokenizer = CharTokenizer()
    model = DecoderModel(tiny_qwen2(tokenizer, seed=3, hidden=64, layers=2, intermediate=128), limit + 32)
    return TorchEngineFactory(model, tokenizer.eos_token_id)


@contextlib.contextmanager
def pool_of(kind: str, actors: int, faults: Faults) -> Iterator[ProcessPool | RayPool]:
    """A pool with so many GPUs whose actors live until they are killed."""
    if kind == "local":
        with ProcessPool(["cpu"] * actors, faults=faults) as pool:
            yield pool
        return
    here = str(Path(__file__).parent)  # where Ray's workers find the counting engine
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    with RayPool(gpus=actors, lifecycle=Lifecycle.serverful(), faults=faults) as ray_pool:
        yield ray_pool


def step_of(seed: int, limit: int, policy: str, actors: int) -> tuple[Plan, list[Request]]:
    """A plan on what is predicted, and requests with true lengths of a long tail, eight prompts for three actors."""
    rng, count = np.random.default_rng(seed), 8 * actors // 3
    prompts = [rng.integers(2, 30, size=int(rng.integers(4, 20))) for _ in range(count)]
    lengths = np.minimum(rng.geometric(3 / limit, (count, SAMPLES)) + limit // 8, limit)
    predicted = np.clip(lengths * rng.lognormal(0.0, 0.3, lengths.shape), 1, limit).round()
    workload = Workload.grid([len(p) for p in prompts], predicted, max_response_tokens=limit)
    given = (PlanningProblem(workload, Cluster(1, actors, 1), LATENCY), PlanningOptions(seed=seed))
    plan = make_policy(policy, tau=0.5, **({"static_actors": actors} if policy == "static" else {})).plan(*given)
    requests = [
        Request(i, len(prompts[i // SAMPLES]), limit, prompt_ids=prompts[i // SAMPLES].astype(np.int64), seed=i,
                target_tokens=int(n), prompt=i // SAMPLES)
        for i, n in enumerate(lengths.ravel())
    ]  # fmt: skip
    return plan, requests


def chaos(
    kills: int, *, pool: str = "local", engine: str = "counting", seed: int = 0, actors: int = 8, per_step: int = 6,
    stops: float = 0.03, limit: int = 500, silence_s: float = 2.0, learning: str = "none", watch: Any = None,
) -> Counts:  # fmt: skip
    """Disturb steps until so many signals were sent to actors at work.

    Args:
        pool, engine: ``local`` or ``ray``; ``counting`` or ``torch``.
        per_step: signals in a step, at most. stops: share of them that are SIGSTOP. limit: longest response, in tokens.
        silence_s: after which a stopped actor counts as lost. learning: ``stream``, or ``none``.
        watch: told the counts after every step.
    """
    rng, counts = np.random.default_rng(seed), Counts(streams=learning == "stream")
    engines, cluster = engines_of(engine, limit), Cluster(1, actors, 1)
    patient = Faults(retries=4 * per_step, restarts=4 * per_step, silence_factor=1.0, silence_floor_s=60.0)
    with left_behind(counts), pool_of(pool, actors, patient) as processes:

        def run(plan: Plan, requests: list[Request], learner: CountingLearner | None = None) -> StepRecord:
            work = [] if learner is None else learner.work(cluster, len(requests), SAMPLES)
            return processes.run_step(plan, requests, engines, LATENCY, cluster, migration="move", work=work)

        def quietly(plan: Plan, requests: list[Request], learner: CountingLearner | None) -> StepRecord:
            """With every process up before: what starts in a disturbed step is due to its signals."""
            everywhere, _ = step_of(0, limit, "static", actors)
            while len(processes.idle) < actors:
                run(everywhere, [replace(r, target_tokens=1) for r in step_of(0, limit, "static", actors)[1]])
            return run(plan, requests, learner)

        while counts.kills < kills:
            plan, requests = step_of(seed + counts.steps, limit, POLICIES[counts.steps % len(POLICIES)], actors)
            learners = [CountingLearner() if counts.streams else None for _ in range(2)]
            quiet = quietly(plan, requests, learners[0])
            many = min(per_step, kills - counts.kills)
            kinds = [signal.SIGSTOP if rng.random() < stops else signal.SIGKILL for _ in range(many)]
            striker = Striker(processes, rng.uniform(0, quiet.makespan_s, many).tolist(), kinds, int(rng.integers(1 << 30)))
            if signal.SIGSTOP in kinds:
                processes.faults = replace(patient, silence_floor_s=silence_s, min_start_timeout_s=START_FLOOR_S[pool])
            with counted() as entered:
                striker.start()
                try:
                    loud = run(plan, requests, learners[1])
                except StepFailed as error:
                    loud, counts.given_up = error.record, counts.given_up + 1
                finally:
                    striker.finish()
                    processes.faults = patient
            counts.enter(plan.policy, quiet, loud, entered, striker.sent)
            if learners[0] is not None and learners[1] is not None:
                counts.enter_learning(learners[0], learners[1], loud)
            if watch is not None:
                watch(counts)
    return counts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--pool", choices=("local", "ray"), default="local")
    parser.add_argument("--engine", choices=("counting", "torch"), default="counting")
    parser.add_argument("--learning", choices=("none", "stream"), default="none", help="stream: learn while others decode")
    parser.add_argument("--per-step", type=int, default=6)
    parser.add_argument("--stops", type=float, default=0.03, help="share of the signals that stop an actor")
    parser.add_argument("--actors", type=int, default=8)
    parser.add_argument("--limit", type=int, default=500, help="longest response")
    parser.add_argument("--silence", type=float, default=2.0, help="seconds of silence after which an actor is lost")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args(arguments)

    began = time.monotonic()

    def watch(counts: Counts) -> None:
        """Says where it is; what was counted is written after every step, for a run that is stopped."""
        print(f"\r{counts.kills} of {options.kills} signals, {counts.steps} steps", end="", file=sys.stderr, flush=True)
        write_counts(options, began, counts.summary(), counts.rows, numpy=np.__version__)

    counts = chaos(
        options.kills, pool=options.pool, engine=options.engine, seed=options.seed, actors=options.actors,
        per_step=options.per_step, stops=options.stops, limit=options.limit, silence_s=options.silence,
        learning=options.learning, watch=watch,
    )  # fmt: skip
    print(file=sys.stderr)
    found = counts.summary()
    for name, value in found.items():
        print(f"{name:>32}  {value if not isinstance(value, float) else f'{value:.3f}'}")
    watch(counts)
    wrong = ("lost", "doubled", "different", "given_up", "left_behind", "not_learned", "learned_again", "other_gradients")
    if any(found.get(name) for name in wrong):
        sys.exit("responses were lost, doubled, different or not learned once, a step was given up, or something was left")


if __name__ == "__main__":
    main()
