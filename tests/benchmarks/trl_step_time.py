"""What a whole GRPO step takes here, without and with levers, and with TRL's GRPOTrainer, in turn on the same machine.

    python tests/benchmarks/trl_step_time.py [--steps 5] [--markdown] [--json FILE]      # TRL: pip install 'trl>=1.16'

The shipped model of the arithmetic task goes on learning: the same model, prompts, samples, options and rewards for everybody.
The responses to a prompt get the lengths that its last recorded ones had, forced, so all generate and learn from equally many
tokens. Rewards are drawn. Every way runs in a process of its own and takes a step per turn. One thread each:

- ``trl, one thread``: TRL with transformers' ``generate`` (a static batch of all responses);
- ``engine``: our trainer in one process, without levers;
- ``engine, all levers``: prompts of a group computed once, and drafts of adaptive length from the last visit's responses.

Two cores each:

- ``trl``: TRL with two threads;
- ``engine x 2``: two actors in processes of their own, learning afterwards on one core;
- ``engine x 2, all levers``: both levers, the solver's plan with re-planning, and a learner that takes each prompt's responses
  when they are complete, while others decode.

Before, a step is learned from by TRL and by us on the very same responses, and updates are compared (``trl_same_update.py``).
Ratios are geometric means over rounds of seconds in TRL's way with as many threads over seconds, with 95 % intervals: of the
clock, and of the CPU (all processes of a way). On a busy machine only CPU seconds on one thread say much: two threads wait for
each other by spinning. The first round is left out (kernels are called for the first time, processes start).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from step_stopwatch import Stopwatch
from turns import ratio, take_turns, told

from rlhfless.gone_options import in_sections
from rlhfless.trace import read_trace
from rlhfless.training.loop import Trainer
from rlhfless.training.rewards import FunctionReward, Rewards

DATA = Path(__file__).parents[2] / "data"
TRACE, MODEL = DATA / "traces" / "arithmetic-grpo", DATA / "models" / "arithmetic-grpo"
CLOCKS = ("step_s", "cpu_s")
PHASES = ("generation", "preparation", "learning", "rest")
THREADS_OF_TRL = {"trl, one thread": 1, "trl": 2}
COMMON = {"advantage_std": "sample"}  # as TRL has it
_ONE: dict[str, Any] = {"executor": "virtual", "gpus": 1, "gpus_per_node": 1, "policy": "static"}
_TWO: dict[str, Any] = {"executor": "local", "gpus": 2, "gpus_per_node": 2, "idle_timeout_s": 1e6}  # they wait for their turn
OURS: dict[str, dict[str, Any]] = {
    "engine": _ONE,
    "engine, all levers": {**_ONE, "drafts": True},
    "engine x 2": {**_TWO, "policy": "static"},
    "engine x 2, all levers": {**_TWO, "policy": "solver+replan", "drafts": True, "learning": "stream"},
}  # fmt: skip
CONTENDERS = ("trl, one thread", "engine", "engine, all levers", "trl", "engine x 2", "engine x 2, all levers")
TINY = {"prompts": 4, "prompts_per_step": 2, "samples_per_prompt": 2}


def last_lengths() -> pd.Series:
    """Tokens of the last recorded responses, by prompt and sample."""
    rows = read_trace(TRACE).rollouts.sort_values("step")
    return rows.groupby(["prompt_id", "sample"])["response_tokens"].last()


def drawn_rewards(step: int, responses: int) -> list[float]:
    """Rewards of 0 or 1, the same for everybody."""
    return np.random.default_rng(step).integers(0, 2, responses).astype(float).tolist()


class TimedRewards(Rewards):
    """The drawn rewards of a step, timed.

    Args:
        drawn: of all responses, prompt by prompt. prompts: the prompts' names, in order.
    """

    def __init__(self, drawn: Sequence[float], prompts: Sequence[str], watch: Stopwatch) -> None:
        each = len(drawn) // len(prompts)
        left = {name: iter(drawn[i * each : (i + 1) * each]) for i, name in enumerate(prompts)}
        super().__init__([(FunctionReward("drawn", lambda response: next(left[response.problem.prompt_id])), 1.0)])
        self.watch = watch

    def judge(self, responses: Any, state: Any = None) -> Any:
        """As ever, timed."""
        with self.watch.timed("preparation"):
            return super().judge(responses, state)


class TimedTrainer(Trainer):
    """A trainer whose generation is timed, and whose responses have the lengths and rewards that are given."""

    stopwatch: Stopwatch
    lengths: pd.Series
    shares: bool = False  # whether responses of a group share the prefill of their prompt

    def plan(self, *given: Any) -> Any:
        """As ever, with or without shared prefill."""
        plan = super().plan(*given)
        return replace(plan, actors=tuple(replace(actor, shares_prompts=self.shares) for actor in plan.actors))

    def requests(self, problems: Any, step: int) -> list[Any]:
        """As ever, with forced lengths."""
        samples = self.config.rollout.samples_per_prompt
        return [
            replace(r, target_tokens=int(self.lengths[problems[r.prompt].prompt_id, r.response % samples]))
            for r in super().requests(problems, step)
        ]

    def generate(self, *given: Any, **named: Any) -> Any:
        """As ever, timed."""
        with self.stopwatch.timed("generation"):
            return super().generate(*given, **named)


def draw_rewards(trainer: Trainer, number: int, watch: Stopwatch) -> None:
    """Let the trainer's next step get the rewards that are drawn for everybody's step of this number."""
    names = [problem.prompt_id for problem in trainer.problems_of(trainer.next_step)]
    drawn = drawn_rewards(number, len(names) * trainer.config.rollout.samples_per_prompt)
    trainer.rewards = TimedRewards(drawn, names, watch)


def ours(steps: int, lengths: Any, options: dict[str, Any], watch: Stopwatch, shares: bool = False) -> dict[str, Any]:
    """Train some steps with our trainer; returns the weights. Learning beside decoding is part of generation."""
    made = TimedTrainer.continue_from(read_trace(TRACE), MODEL, progress=False, steps=1000, **in_sections(options))
    made.stopwatch, made.lengths, made.shares = watch, lengths, shares
    with made as trainer:
        for number in range(steps):
            draw_rewards(trainer, number, watch)
            watch.begin()
            step = trainer.step()
            if trainer.config.cluster.learning == "batch":
                passes_s = float(step.learning["prepare_seconds"])
                watch.of_step["preparation"] += passes_s
                watch.of_step["learning"] = float(step.learning["seconds"]) - passes_s
            rows = step.rollouts
            more = {"passes": float(rows["passes"].sum())} if "passes" in rows else {}
            watch.end(tokens=float(rows["response_tokens"].sum()), actors=float(len(step.plan.actors)), **more)
        return {name: value.numpy().copy() for name, value in trainer.model.state_dict().items()}


def trl(steps: int, lengths: Any, changes: dict[str, Any], threads: int, watch: Stopwatch) -> None:
    """The same steps with TRL's trainer."""
    from trl_trainer import run, tokenizer_of

    with Trainer.continue_from(read_trace(TRACE), MODEL, progress=False, **in_sections(changes)) as trainer:
        first, config, model, tokenizer = trainer.next_step, trainer.config, trainer.model, trainer.tokenizer
        problems = [p for number in range(steps) for p in trainer.problems_of(first + number)]
    tokens = [[int(lengths[(p.prompt_id, sample)]) for sample in range(config.rollout.samples_per_prompt)] for p in problems]
    torch.set_num_threads(threads)
    run(model, tokenizer_of(tokenizer), [p.prompt for p in problems], tokens, config, drawn_rewards, steps, watch)


def contend(way: str, steps: int, tiny: bool, turns: Connection) -> None:
    """Train by one of the ways, in turn; the last word is our weights."""
    changes, lengths = (TINY, last_lengths() // 20 + 1) if tiny else ({}, last_lengths())
    watch, weights = Stopwatch(turns), None
    if way in THREADS_OF_TRL:
        trl(steps, lengths, changes, THREADS_OF_TRL[way], watch)
    else:
        weights = ours(steps, lengths, {**COMMON, **OURS[way], **changes}, watch, way.endswith("all levers"))
    turns.recv()
    turns.send(weights)


def summary(way: str, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means of a way's steps, and ratios to TRL's with as many threads."""
    rows = [each[way] for each in rounds]
    mean = pd.DataFrame(rows).mean().fillna(0.0)
    shares = {f"{phase}_share": float(mean.get(phase, 0.0) / mean["step_s"]) for phase in PHASES}
    reference = "trl" if " x 2" in way or way == "trl" else "trl, one thread"
    ratios = {}
    for name in CLOCKS if reference in rounds[0] else ():
        ratios[f"over_{name}"] = ratio([each[reference][name] for each in rounds], [row[name] for row in rows])
    return {"contender": way, **{name: float(value) for name, value in mean.items()}, **shares, **ratios, "steps": rows}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Seconds of a step, ratios to TRL's, and the phases' shares of the step."""
    lines = [
        "| way | s per step | CPU s | TRL / this, CPU | TRL / this, clock | " + " | ".join(PHASES) + " |",
        "|" + "---|" * (5 + len(PHASES)),
    ]
    for row in rows:
        phases = " | ".join(f"{row[f'{phase}_share']:.0%}" for phase in PHASES)
        ratios = " | ".join(told(row[f"over_{name}"]) if f"over_{name}" in row else "" for name in reversed(CLOCKS))
        lines.append(f"| {row['contender']} | {row['step_s']:.2f} | {row['cpu_s']:.2f} | {ratios} | {phases} |")
    return "\n".join(lines)


def with_drawn_rewards(options: dict[str, Any]) -> Trainer:
    """A trainer before its next step, whose rewards are drawn."""
    trainer = Trainer.continue_from(read_trace(TRACE), MODEL, progress=False, **in_sections(options))
    draw_rewards(trainer, 0, Stopwatch())
    return trainer


def difference(weights: dict[str, dict[str, np.ndarray] | None], way: str) -> float | None:
    """Largest difference of our weights after the last step between a way and ``engine``; None where one did not run."""
    mine, base = weights.get(way), weights.get("engine")
    return None if mine is None or base is None else max(float(np.abs(mine[name] - base[name]).max()) for name in base)


def main() -> None:
    """Run, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="that count; another one comes before them")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--tiny", action="store_true", help="the smallest size, which says nothing")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/training.md in the end")
    parser.add_argument("--json", type=Path, help="file of the results")
    given = parser.parse_args()
    steps, names = 2 if given.tiny else given.steps + 1, list(given.contenders)
    about: dict[str, Any] = {"device": f"{platform.machine()} CPU, {os.cpu_count()} cores, torch {torch.__version__}"}
    if importlib.util.find_spec("trl") is None:
        print("TRL is left out, as it is not installed (pip install 'trl>=1.16')")
        names = [name for name in names if name not in THREADS_OF_TRL]
    elif set(names) & set(THREADS_OF_TRL):
        from trl_same_update import SGD, same_update

        torch.set_num_threads(1)
        changes = {**COMMON, **_ONE, **SGD, **(TINY if given.tiny else {})}
        about["same_update"] = same_update(partial(with_drawn_rewards, changes))
        print("on the same responses:", {name: f"{value:.6g}" for name, value in about["same_update"].items()}, flush=True)
    ways = {name: partial(contend, name, steps, given.tiny) for name in names}
    rounds, weights = take_turns(ways, steps, lambda n: print(f"round {n} of {steps - 1} done", file=sys.stderr, flush=True))
    rows = [{**summary(name, rounds[1:]), "weights_off_by": difference(weights, name)} for name in names]
    about["load"] = [each["load"] for each in rounds]
    if given.json is not None:
        given.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    shown = ("contender", "step_s", "cpu_s", *PHASES, "tokens", "passes", "weights_off_by")
    table = pd.DataFrame([{name: row.get(name) for name in shown} for row in rows])
    with pd.option_context("display.width", 250, "display.max_columns", None):
        print(table.round(6).to_string(index=False))
    if given.markdown:
        print(f"\n{markdown(rows)}")


if __name__ == "__main__":
    main()
