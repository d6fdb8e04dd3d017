"""The steps that the benchmark of predicting in flight is about, each with its forecasts.

Knows logs, the shipped model and predictors; nothing of what is measured. What the cases are is said in ``inflight.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.executor import run_step
from rlhfless.predict import InFlightPredictor
from rlhfless.predict.group_posterior import InFlightLengths
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.simulate import LoggedStep, logged_steps
from rlhfless.trace import read_trace
from solver import Cluster, Workload
from solver.lengths.remaining import RemainingLengths
from solver.lengths.survival import from_samples
from solver.model.problem import PlanningProblem

HERE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """A step to measure: what was known before it, and what is forecast."""

    name: str
    step: LoggedStep
    forecasts: dict[str, RemainingLengths]


def case_of(name: str, rollouts: pd.DataFrame, step: int, limit: int) -> Case:
    """The last step of rollouts, predicted from all before it."""
    (logged,) = logged_steps(rollouts, InFlightPredictor(), limit, steps=[step])
    siblings = logged.forecast.remaining
    assert isinstance(siblings, InFlightLengths)
    history = rollouts[rollouts["step"] < step]
    last = history[history["epoch"] == history.groupby("prompt_id")["epoch"].transform("max")]
    of = {str(name): own.to_numpy() for name, own in last.groupby("prompt_id")["response_tokens"]}
    names = logged.rows["prompt_id"].astype(str).to_numpy()
    first = np.unique(logged.truth.prompt_of, return_index=True)[1]
    forecasts: dict[str, RemainingLengths] = {
        "history": from_samples([of.get(n, np.zeros(0)) for n in names[first]], logged.truth),
        "tokens": alone(siblings), "siblings": siblings,
    }  # fmt: skip
    return Case(name, logged, forecasts)


def alone(forecast: InFlightLengths) -> InFlightLengths:
    """The same forecast for a step in which no response tells anything of another."""
    model, count = forecast.siblings, len(forecast.class_of)
    still = replace(model.scatter, drift=1e-6)
    own = replace(
        model, scatter=still, prompt_of=np.arange(count), has_history=model.has_history[model.prompt_of],
        centre=model.centre[model.prompt_of],
    )  # fmt: skip
    tokens = forecast.prompt_tokens[forecast.class_of]
    return replace(forecast, siblings=own, curve=forecast.curve[forecast.class_of], class_of=np.arange(count),
                   prompt_tokens=tokens, _all_prompt_tokens=tokens, _tails={})  # fmt: skip


def public(name: str, make: Callable[[], Any]) -> Case | None:
    """A case of a public log."""
    found = make()
    if found is None:
        return None
    table, steps, limit = found
    return case_of(name, table, steps[-1], limit)


def shipped(rounds: int = 4, prompts: int = 128) -> Case:
    """The shipped weights, decoded."""
    from rlhfless.engine.torch.factory import TorchEngineFactory
    from rlhfless.engine.torch.model import DecoderModel
    from rlhfless.engine.torch.pretrained import load_model
    from rlhfless.engine.torch.sampling import Sampling
    from rlhfless.latency import load_profile
    from rlhfless.scheduling import make_policy
    from rlhfless.training.responses import make_requests
    from rlhfless.training.tasks.arithmetic import ArithmeticTask

    trace = read_trace(HERE / "data" / "traces" / "arithmetic-grpo")
    limit, samples = int(trace.meta["config"]["max_response_tokens"]), int(trace.meta["config"]["samples_per_prompt"])
    model, tokenizer = load_model(HERE / "data" / "models" / "arithmetic-grpo")
    problems = ArithmeticTask(int(trace.meta["config"]["seed"]), 128).problems[:prompts]
    names = [p.prompt_id for p in problems]
    prompt_tokens = [len(tokenizer.encode(p.prompt)) for p in problems]
    longest = limit + max(prompt_tokens)
    factory = TorchEngineFactory(DecoderModel(model, longest), tokenizer.eos_token_id, Sampling())
    latency = replace(load_profile("cpu-tiny-qwen2"), max_batch=256)
    cluster = Cluster(1, 4, 1)
    table = trace.rollouts.assign(step=trace.rollouts["epoch"])
    table = table[table["prompt_id"].astype(str).isin(names)]
    for k in range(rounds):
        step = int(table["step"].max()) + 1
        requests = make_requests(problems, tokenizer, samples, limit, 1000 + k, step)
        owner = np.repeat(np.arange(len(names)), samples)
        work = Workload(prompt_tokens, owner, np.full(len(owner), 100), max_response_tokens=limit)
        plan = make_policy("static", static_actors=4).plan(PlanningProblem(work, cluster, latency), PlanningOptions())
        done = run_step(plan, requests, factory, latency, cluster).completions
        rows = pd.DataFrame(
            {
                "run": str(table["run"].iloc[0]), "step": step, "epoch": step, "prompt_id": np.repeat(names, samples),
                "sample": np.tile(np.arange(samples), len(names)), "prompt_tokens": np.repeat(prompt_tokens, samples),
                "response_tokens": [done[i].response_tokens for i in range(len(owner))],
                "finish_reason": [done[i].finish_reason for i in range(len(owner))],
            }
        )  # fmt: skip
        table = pd.concat([table, rows], ignore_index=True)
    return case_of("shipped", table, int(table["step"].max()), limit)


def made_up() -> Case:
    """Lengths whose prompts change together: tries the script."""
    rng = np.random.default_rng(0)
    level, parts = rng.normal(4.5, 0.4, 24), []
    for step in range(4):
        lengths = np.exp((level + rng.normal(0, 0.3, 24))[:, None] + rng.normal(0, 0.3, (24, 4))).clip(1, 400).astype(int)
        rows = pd.DataFrame(
            {
                "run": "r", "step": step, "epoch": step, "prompt_id": np.repeat([f"p{i}" for i in range(24)], 4),
                "sample": np.tile(np.arange(4), 24), "prompt_tokens": 10, "response_tokens": lengths.ravel(),
                "finish_reason": "stop",
            }
        )  # fmt: skip
        parts.append(rows)
    return case_of("made up", pd.concat(parts, ignore_index=True), 3, 400)
