"""What re-planning takes while a step runs: a re-planning round, a call between rounds, and ``replan`` as such.

    python tests/benchmarks/replan_speed.py [--json FILE] [--markdown] [--tiny]

Steps of prompts x samples with lognormal lengths (as in planning_speed.py) in 8 scenarios, Qwen2.5-3B on two L40S per actor,
charged by the virtual clock; the policy ``solver+replan`` re-plans each from beginning to end. Times are the thread's own on
this machine: others may use it as well. A *round* is a call of the rule (``Replan.decide``) that computes its decisions anew;
between rounds the rule only sends what the last round has listed. At every round ``replan`` is called on the same state
as well, which knows nothing from before and leaves the step alone; a column says what share of the step a thousand such calls
would take. The last column is all that the rule took, ``next_trigger`` included.

The last line fits ``seconds = ROUND_S + ROUND_RESPONSE_S x unfinished responses`` to all rounds (least squares of the relative
error): the counted work from which the rule decides how far apart rounds are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from planning_speed import workload

import solver
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.replan import SolverReplan
from solver.model.runtime_rules import ActorView, Decision, StepState, Trigger
from solver.replanning.replan import ROUND_RESPONSE_S, ROUND_S, Replan, replan

LATENCY = load_profile("l40s-qwen2.5-3b-tp2")
SIZES = ((256, 4), (512, 4), (4096, 4))
TINY = ((128, 4),)


@dataclass
class Watched:
    """A re-planning rule, with what its calls take.

    Attributes:
        rounds: (unfinished responses, seconds of the round, seconds of a call of ``replan``) of every round.
        calls: seconds of every ``decide`` between rounds; triggers: seconds of every ``next_trigger``.
    """

    rule: Replan
    name: str = "watched"
    rounds: list[tuple[int, float, float]] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    triggers: list[float] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``RuntimeRule``."""
        began = time.thread_time()
        trigger = self.rule.next_trigger(view)
        self.triggers.append(time.thread_time() - began)
        return trigger

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """See ``RuntimeRule``."""
        before = self.rule._round
        began = time.thread_time()
        decisions = self.rule.decide(now_s, state)
        took_s = time.thread_time() - began
        if self.rule._round is before:
            self.calls.append(took_s)
            return decisions
        began = time.thread_time()
        replan(state, self.rule.remaining, self.rule.latency, self.rule.price)
        self.rounds.append((state.unfinished_count, took_s, time.thread_time() - began))
        return decisions


def measure(prompts: int, samples: int) -> dict[str, Any]:
    """One step, re-planned."""
    truth = workload(prompts, samples)
    rng = np.random.default_rng(1)
    drawn = truth.response_tokens * rng.lognormal(0, 0.4, (8, len(truth)))
    known = truth.with_response_tokens(np.clip(drawn, 1, 2048).astype(int))
    cluster = solver.Cluster(20, 8, 2)
    plan = SolverReplan(looks_ahead=False).plan(
        solver.PlanningProblem(known, cluster, LATENCY, solver.Objective(0.7)), PlanningOptions()
    )
    assert isinstance(plan.rule, Replan)
    prompt_tokens = truth.prompt_tokens[truth.prompt_of].tolist()
    requests = [
        Request(i, p, 2048, target_tokens=n)
        for i, (p, n) in enumerate(zip(prompt_tokens, truth.response_tokens.tolist(), strict=True))
    ]
    record = run_step(replace(plan, rule=Watched(plan.rule)), requests, SimulatedEngine, LATENCY, cluster)
    seen = record.rule
    assert isinstance(seen, Watched)
    deciding_s = sum(seconds for _, seconds, _ in seen.rounds) + sum(seen.calls) + sum(seen.triggers)
    return {
        "responses": len(truth),
        "actors": len(plan.actors),
        "step_s": record.makespan_s,
        "moves": record.moves,
        "rounds": len(seen.rounds),
        "round_ms": 1e3 * statistics.median(seconds for _, seconds, _ in seen.rounds),
        "most_round_ms": 1e3 * max(seconds for _, seconds, _ in seen.rounds),
        "replan_ms": 1e3 * statistics.median(seconds for _, _, seconds in seen.rounds),
        "most_replan_ms": 1e3 * max(seconds for _, _, seconds in seen.rounds),
        "calls": len(seen.calls),
        "call_us": 1e6 * statistics.median(seen.calls or [0.0]),
        "triggers": len(seen.triggers),
        "share_of_step": deciding_s / record.makespan_s,
        "of_rounds": seen.rounds,
    }


def fit(rounds: list[tuple[int, float, float]]) -> tuple[float, float]:
    """Seconds of a round, and for every unfinished response more."""
    count, took_s = (np.array([one[i] for one in rounds], dtype=float) for i in (0, 1))
    once, each = np.linalg.lstsq(np.stack([1 / took_s, count / took_s], axis=1), np.ones(len(rounds)), rcond=None)[0]
    return float(once), float(each)


HEAD = ("responses", "actors", "step", "rounds", "a round: median, most", "`replan`: median, most",
        "calls between rounds", "such a call", "1,000 calls of `replan`", "all deciding")  # fmt: skip


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """The columns of ``HEAD``."""
    return (
        f"{row['responses']:,}", str(row["actors"]), f"{row['step_s']:.1f} s", f"{row['rounds']:,}",
        f"{row['round_ms']:.2f}, {row['most_round_ms']:.2f} ms", f"{row['replan_ms']:.2f}, {row['most_replan_ms']:.2f} ms",
        f"{row['calls']:,}", f"{row['call_us']:.0f} us", f"{row['replan_ms'] / row['step_s']:.1%} of the step",
        f"{row['share_of_step']:.2%} of the step",
    )  # fmt: skip


def main() -> None:
    """Print the table and the fit."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path)
    options.add_argument("--markdown", action="store_true", help="print the table of details/planning.md")
    options.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    given = options.parse_args()
    sizes = TINY if given.tiny else SIZES
    measure(*TINY[0])  # what happens once per process
    rows = [measure(*size) for size in sizes]
    if given.markdown:
        print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
        print("\n".join("| " + " | ".join(cells(row)) + " |" for row in rows))
    else:
        for row in rows:
            print("; ".join(f"{name} {cell}" for name, cell in zip(HEAD, cells(row), strict=True)))
    once, each = fit([one for row in rows for one in row["of_rounds"]])
    print(
        f"a round takes {1e3 * once:.2f} ms and {1e6 * each:.2f} us per unfinished response; "
        f"counted are {1e3 * ROUND_S:.2f} ms and {1e6 * ROUND_RESPONSE_S:.2f} us"
    )
    if given.json:
        given.json.write_text(json.dumps({"rows": rows, "round_s": once, "round_response_s": each}, indent=1) + "\n")


if __name__ == "__main__":
    main()
