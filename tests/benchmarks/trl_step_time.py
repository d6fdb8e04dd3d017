"""What a whole GRPO step takes here and with TRL's GRPOTrainer: the same model, prompts, samples, lengths and rewards.

    python tests/benchmarks/trl_step_time.py [--steps 3] [--markdown] [--json FILE]      # TRL: pip install 'trl>=1.16'

The shipped model of the arithmetic task goes on learning. The responses to a prompt get the lengths that its last recorded ones
had, forced on both sides, so both generate and learn from as many tokens; rewards are drawn, the same for both. Everything else
is alike too: float32, one update, token-level loss, no reference model. Contenders:

- ``engine``: one actor; everything on one core;
- ``engine x 2``: two actors in processes of their own, a core each; learning on one core;
- ``trl``: TRL with transformers' ``generate`` (a static batch of all responses) and torch's threads on two cores;
- ``trl, one thread``: the same on one core, as ``engine`` is: where others use the machine, threads that wait for each other
  cost TRL more than they bring.

Phases of a step: generation; preparation, which is everything between it and the first update (rewards, advantages, and
log-probabilities that are recomputed); learning; and the rest (planning, records, checkpoints). TRL has no rest, as its
learning is all that comes after preparation.

Seconds of the clock, and of all cores for what runs in this process; the first step is left out (kernels are called for the
first time, processes start). TRL is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from step_stopwatch import Stopwatch

from rlhfless.trace import read_trace
from rlhfless.training.loop import Trainer
from rlhfless.training.rewards import FunctionReward, Rewards

DATA = Path(__file__).parents[2] / "data"
TRACE, MODEL = DATA / "traces" / "arithmetic-grpo", DATA / "models" / "arithmetic-grpo"
PHASES = ("generation", "preparation", "learning", "rest")
CONTENDERS = ("engine", "engine x 2", "trl", "trl, one thread")
CORES = 2


def last_lengths() -> pd.Series:
    """Tokens of the last recorded responses, by prompt and sample."""
    rows = read_trace(TRACE).rollouts.sort_values("step")
    return rows.groupby(["prompt_id", "sample"])["response_tokens"].last()


def drawn_rewards(step: int, responses: int) -> list[float]:
    """Rewards of 0 or 1, the same for everybody."""
    return np.random.default_rng(step).integers(0, 2, responses).astype(float).tolist()


class TimedRewards(Rewards):
    """The drawn rewards of a step, timed."""

    def __init__(self, drawn: list[float], watch: Stopwatch) -> None:
        left = iter(drawn)
        super().__init__([(FunctionReward("drawn", lambda _: next(left)), 1.0)])
        self.watch = watch

    def score(self, responses: Any) -> Any:
        """As ever, timed."""
        with self.watch.timed("preparation"):
            return super().score(responses)


class TimedTrainer(Trainer):
    """A trainer whose generation is timed, and whose responses have the lengths and rewards that are given."""

    stopwatch: Stopwatch
    lengths: pd.Series

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


def ours(steps: int, lengths: pd.Series, changes: dict[str, Any], executor: str) -> list[dict[str, float]]:
    """Steps of our trainer."""
    watch, actors = Stopwatch(), CORES if executor == "local" else 1
    where = {"executor": executor, "gpus": actors, "gpus_per_node": actors, "policy": "static"}
    made = TimedTrainer.continue_from(read_trace(TRACE), MODEL, progress=False, steps=1000, **where, **changes)
    made.stopwatch, made.lengths = watch, lengths
    with made as trainer:
        responses = trainer.config.rollout.prompts_per_step * trainer.config.rollout.samples_per_prompt
        for number in range(steps):
            trainer.rewards = TimedRewards(drawn_rewards(number, responses), watch)
            watch.begin()
            step = trainer.step()
            passes_s = float(step.learning["prepare_seconds"])
            watch.of_step["preparation"] += passes_s
            watch.of_step["learning"] = float(step.learning["seconds"]) - passes_s
            watch.end(tokens=float(step.rollouts["response_tokens"].sum()))
            if executor == "local":
                del watch.steps[-1]["cpu_s"]  # the actors' cores are not this process's
    return watch.steps


def trl(steps: int, lengths: pd.Series, changes: dict[str, Any], threads: int) -> list[dict[str, float]]:
    """The same steps with TRL's trainer."""
    from trl_trainer import run, tokenizer_of

    with Trainer.continue_from(read_trace(TRACE), MODEL, progress=False, **changes) as trainer:
        first, config, model, tokenizer = trainer.next_step, trainer.config, trainer.model, trainer.tokenizer
        problems = [p for number in range(steps) for p in trainer.problems_of(first + number)]
    tokens = [[int(lengths[(p.prompt_id, sample)]) for sample in range(config.rollout.samples_per_prompt)] for p in problems]
    torch.set_num_threads(threads)
    watch = Stopwatch()
    run(model, tokenizer_of(tokenizer), [p.prompt for p in problems], tokens, config, drawn_rewards, steps, watch)
    return watch.steps


def summary(contender: str, rows: list[dict[str, float]]) -> dict[str, Any]:
    """Means of the steps after the first."""
    mean = pd.DataFrame(rows[1:]).mean()
    shares = {f"{phase}_share": float(mean[phase] / mean["step_s"]) for phase in PHASES}
    return {"contender": contender, **{name: float(value) for name, value in mean.items()}, **shares, "steps": rows}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Seconds of a step, the cores' too, and each phase's with its share of the step."""
    lines = [
        "| contender | s per step | CPU s | " + " | ".join(f"{phase}, s" for phase in PHASES) + " |",
        "|" + "---|" * (3 + len(PHASES)),
    ]
    for row in rows:
        cpu = f"{row['cpu_s']:.2f}" if "cpu_s" in row else ""
        phases = " | ".join(f"{row[phase]:.2f} ({row[f'{phase}_share']:.0%})" for phase in PHASES)
        lines.append(f"| {row['contender']} | {row['step_s']:.2f} | {cpu} | {phases} |")
    return "\n".join(lines)


def main() -> None:
    """Run, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="that count; another one comes before them")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--tiny", action="store_true", help="the smallest size, which says nothing")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/training.md in the end")
    parser.add_argument("--json", type=Path, help="file of the results")
    given = parser.parse_args()
    steps = 2 if given.tiny else given.steps + 1
    changes = {"prompts": 4, "prompts_per_step": 2, "samples_per_prompt": 2} if given.tiny else {}
    lengths = last_lengths() // 20 + 1 if given.tiny else last_lengths()
    runs: dict[str, Callable[[], list[dict[str, float]]]] = {
        "engine": lambda: ours(steps, lengths, changes, "virtual"),
        "engine x 2": lambda: ours(steps, lengths, changes, "local"),
        "trl": lambda: trl(steps, lengths, changes, CORES),
        "trl, one thread": lambda: trl(steps, lengths, changes, 1),
    }
    rows = []
    for contender in given.contenders:
        if contender.startswith("trl") and importlib.util.find_spec("trl") is None:
            print(f"{contender}: left out, TRL is not installed (pip install 'trl>=1.16')")
            continue
        load = os.getloadavg()[0]
        rows.append({**summary(contender, runs[contender]()), "load_1min": [load, os.getloadavg()[0]]})
        if given.json is not None:
            device = f"{platform.machine()} CPU, {os.cpu_count()} cores, torch {torch.__version__}"
            given.json.write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    table = pd.DataFrame([{name: value for name, value in row.items() if name not in ("steps", "load_1min")} for row in rows])
    with pd.option_context("display.width", 250, "display.max_columns", None):
        print(table.round(3).to_string(index=False))
    if given.markdown:
        print(f"\n{markdown(rows)}")


if __name__ == "__main__":
    main()
