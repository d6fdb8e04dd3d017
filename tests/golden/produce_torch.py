"""Runs the project's torch engine through its public names, as ``produce.py`` does the simulated part.

``retimed_step`` holds no number that torch computed: lengths are given, and seconds are a made-up function of the batch, so it
is a part of the record in files. ``torch_steps`` holds tokens and log-probabilities: floats of torch are the same on one
machine only, so they are compared with those of the commit before, made on the same machine (``before.py``), and never kept.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from plain import plain
from produce import DATA, NAMES, rows_of, shipped_run

import solver
from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.scheduling import make_policy
from rlhfless.simulate import LoggedStep, SimulationConfig, logged_steps
from rlhfless.training import (
    ArithmeticTask,
    CharTokenizer,
    ClusterConfig,
    GrpoConfig,
    PlannerConfig,
    PpoConfig,
    RolloutConfig,
    TaskConfig,
    TrainConfig,
    load_model,
    tiny_qwen2,
)
from rlhfless.training.loop import train
from rlhfless.training.responses import make_requests
from solver import Cluster
from solver.prefix_sharing.deduplicate import deduplicate

POLICIES = ("rlhfuse", "rlhfless", "fold", "oracle+replan")
PROMPTS, SAMPLES, LIMIT = 4, 8, 320
MEASURED = frozenset({"prepare_seconds", "seconds", "judging_s"})
"""What the details of spans tell of learning in seconds of this machine."""


@dataclass(frozen=True)
class MadeUpSeconds(TorchEngineFactory):
    """Torch engines whose replays take what a formula says of every batch."""

    def replay(self, journal: EngineJournal) -> Replayed:
        """Seconds that grow with the batch, its KV tokens and what it prefills."""
        seconds = np.zeros((len(journal), 2))
        ends = [*(change.iteration for change in journal.changes[1:]), len(journal)]
        for change, end in zip(journal.changes, ends, strict=True):
            new = sum(one.computed_tokens for one in change.joined)
            seconds[change.iteration, 0] = 2e-3 + 1e-5 * new if new else 0.0
            passed = np.arange(end - change.iteration)
            seconds[change.iteration : end, 1] = 1e-3 + 1e-4 * change.rows + 1e-7 * (change.kv_tokens + change.batch * passed)
        return Replayed(seconds, 0.25)

    def replay_prefixes(self, prefixes: dict[int, np.ndarray]) -> Replayed:
        """Seconds that grow with the tokens."""
        return Replayed(np.array([[2e-3 + 1e-5 * sum(map(len, prefixes.values())), 0.0]]), 0.25)


def steps(*asked: int) -> Iterator[LoggedStep]:
    """Steps of the shipped run, each with its first four prompts alone, predicted from all that were before."""
    rollouts = shipped_run().rollouts
    for step in asked:
        own = rollouts[rollouts["step"] == step]
        first = own[own["prompt_id"].isin(own["prompt_id"].unique()[:PROMPTS])]
        log = pd.concat([rollouts[rollouts["step"] < step], first])
        yield from logged_steps(log, max_response_tokens=LIMIT, steps=[step])


def setting(slots: int) -> SimulationConfig:
    """Four emulated GPUs."""
    latency = replace(load_profile("cpu-tiny-qwen2"), max_batch=slots)
    return SimulationConfig(Cluster(2, 2, 1, latency.kind), latency, max_response_tokens=LIMIT)


def requests_of(one: LoggedStep, tokenizer: Any, *, forced: bool) -> list[Request]:
    """A step's requests with the problems' token ids, and with the logged lengths where they are ``forced``."""
    problems = {problem.prompt_id: problem for problem in ArithmeticTask(seed=0, prompts=128).problems}
    asked = [problems[name] for name in dict.fromkeys(one.rows["prompt_id"])]
    requests = make_requests(asked, tokenizer, SAMPLES, LIMIT, 0, one.step)
    tokens = one.truth.response_tokens.tolist()
    return [replace(r, target_tokens=tokens[r.response]) for r in requests] if forced else requests


def retimed_step() -> Any:
    """A step that is decided by the profile and charged what replays say, with given lengths: no number is torch's own."""
    tokenizer = CharTokenizer()
    model = tiny_qwen2(tokenizer, seed=0, hidden=32, layers=1, intermediate=32, heads=2, kv_heads=1)
    decoder = DecoderModel(model, LIMIT + 64)
    factory = MadeUpSeconds(decoder, tokenizer.eos_token_id)
    where = setting(4)
    found = {}
    for one in steps(30):
        requests = requests_of(one, tokenizer, forced=True)
        for name in (*POLICIES, "prefill"):
            policy = make_policy("static", static_actors=3) if name == "prefill" else make_policy(name)
            plan = policy.plan(*one.inputs(where, policy.clairvoyant))
            if name == "prefill":
                longer = replace(where.latency, prefill_per_token_s=0.01)
                plan = deduplicate(
                    plan, solver.PlanningProblem(one.predicted, where.cluster, longer), share_in_actors=False
                ).plan
            record = run_step(
                plan, requests, factory, where.latency, where.cluster, step=one.step, start_s=3.0, charging="measured",
                migration="cheaper",
            )  # fmt: skip
            found[f"step {one.step}, {name}"] = rows_of(record)
    return plain(found, NAMES)


def torch_steps() -> Any:
    """Steps on torch engines, charged by the profile, with every token and log-probability; then a short training run."""
    model, tokenizer = load_model(DATA / "models" / "arithmetic-grpo")
    factory = TorchEngineFactory(DecoderModel(model, LIMIT + 64), tokenizer.eos_token_id)
    where = setting(256)
    found: dict[str, Any] = {}
    for one in steps(7, 30):
        for name in POLICIES:
            policy = make_policy(name)
            plan = policy.plan(*one.inputs(where, policy.clairvoyant))
            record = run_step(
                plan, requests_of(one, tokenizer, forced=False), factory, where.latency, where.cluster, step=one.step,
                charging="profile",
            )  # fmt: skip
            done = [record.completions[i] for i in range(len(record.completions))]
            tokens = {"token_ids": [c.token_ids for c in done], "logprobs": [c.logprobs for c in done]}
            found[f"step {one.step}, {name}"] = {**rows_of(record), **tokens}
    for algorithm in ("grpo", "ppo"):
        found[f"training, {algorithm}"] = plain(trained(algorithm), replace(NAMES, left_out=NAMES.left_out | MEASURED))
    return plain(found, NAMES)


def trained(algorithm: str) -> dict[str, Any]:
    """Two steps of training: the trace, and the hash of the weights after them. No search that a clock ends plans them."""
    config = TrainConfig(
        preset="demo", steps=2, model=str(DATA / "models" / "arithmetic-grpo"), task=TaskConfig(prompts=8),
        rollout=RolloutConfig(prompts_per_step=PROMPTS, samples_per_prompt=SAMPLES),
        algorithm=GrpoConfig() if algorithm == "grpo" else PpoConfig(), planner=PlannerConfig(policy="fold"),
        cluster=ClusterConfig(gpus=4, gpus_per_node=2, device="cpu"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trace = train(config, Path(folder) / "run")
        weights = (Path(folder) / "run" / "model" / "model.safetensors").read_bytes()
    tables = {name: getattr(trace, name) for name in ("rollouts", "allocations", "spans", "events")}
    return {**tables, "plans": trace.plans, "weights": hashlib.sha256(weights).hexdigest()}


if __name__ == "__main__":
    if not Path(solver.__file__).is_relative_to(Path(__file__).parents[2]):
        raise SystemExit(f"{solver.__file__}: is another project's; set PYTHONPATH to the folder that {__file__} is in")
    Path(sys.argv[1]).write_text(json.dumps(torch_steps(), allow_nan=False))
