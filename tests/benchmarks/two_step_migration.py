"""What a whole generation step gains if KV states are copied before their responses leave, by the speed of the link.

    python tests/benchmarks/two_step_migration.py [--tiny] [--json FILE] [--markdown]

One logged step on simulated actors of 2 x L40S with a 3B model (``l40s-qwen2.5-3b-tp2``), 24 GPUs, with the same latency model
but for the link between actors. Every KV state is moved (``migration="move"``). The same rule runs with moves in one step, in
two, and as the executor chooses; it sees what its own moves lead to, so later decisions differ. ``fold`` cuts thin actors and
``fold, drained`` moves their responses one at a time. 32 Gbyte/s (256 Gbit/s) is the profile's own link inside a node.

- *MATH-500*: 500 responses of up to 4,096 tokens. *GSM8K*: 1,024 responses of up to 512 tokens. Both are public logs, skipped
  where they are not beside the checkout. *own run*: epoch 8 of the shipped run, whose contexts are short (320 tokens at most).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policies import gsm8k_visit, math500

from rlhfless.engine import Request, SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.plots.two_step_gain import with_link
from rlhfless.scheduling import PlanningOptions
from rlhfless.scheduling.fold import Fold
from rlhfless.scheduling.fold_draining import DrainingFold
from rlhfless.simulate import logged_steps
from rlhfless.trace import read_trace
from solver import Cluster, LatencyModel, Objective, Plan, PlanningProblem, Workload
from solver.model.runtime_rules import ActorCounts, ActorView, Cut, Decision, Move, StepState, Trigger, Triggers, trigger_of

PROJECT = Path(__file__).parents[2]
LATENCY = load_profile("l40s-qwen2.5-3b-tp2")
CLUSTER = Cluster(3, 8, LATENCY.gpus_per_actor)
GBIT_PER_S = (5, 10, 25, 100, 256)
POLICIES = {"fold": Fold(), "fold, drained": Fold(rule=DrainingFold)}
STEPS: dict[str, bool | str] = {"one": False, "two": True, "auto": "auto"}
Row = dict[str, Any]


@dataclass
class InSteps:
    """A rule all of whose moves take so many steps."""

    rule: Any
    two_step: bool | str

    @property
    def name(self) -> str:
        """The rule's."""
        return str(self.rule.name)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """The rule's."""
        return trigger_of(self, view)

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """The rule's."""
        triggers: Triggers = self.rule.next_triggers(counts)
        return triggers

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """The rule's, with other moves."""
        decisions: list[Decision] = self.rule.decide(now_s, state)
        return [
            self._move(one) if isinstance(one, Move) else Cut(one.actor, tuple(map(self._move, one.moves)))
            for one in decisions
        ]  # fmt: skip

    def _move(self, move: Move) -> Move:
        return replace(move, two_step=self.two_step)


def executed(plan: Plan, requests: Sequence[Request], latency: LatencyModel, two_step: bool | str) -> Row:
    """Seconds, GPU-seconds and moves of the step."""
    plan = replace(plan, rule=InSteps(plan.rule, two_step))
    record = run_step(plan, requests, SimulatedEngine, latency, CLUSTER, migration="move")
    copied = sum(s["background"] and s["phase"] == "migrate" for s in record.spans)
    cost = sum(len(a["gpu_ids"]) * (a["end_s"] - a["start_s"]) for a in record.allocations)
    return {"time_s": record.makespan_s, "gpu_s": cost, "moves": record.moves, "copied_first": copied}


def measured(log: str, truth: Workload, tiny: bool) -> list[Row]:
    """The rows of one step."""
    prompts, pairs = truth.prompt_tokens.tolist(), zip(truth.response_tokens.tolist(), truth.prompt_of.tolist(), strict=True)
    requests = [
        Request(i, prompts[owner], truth.max_response_tokens, target_tokens=tokens, prompt=owner)
        for i, (tokens, owner) in enumerate(pairs)
    ]
    rows = []
    for policy, fold in POLICIES.items():
        for speed in GBIT_PER_S[-2:] if tiny else GBIT_PER_S:
            latency = with_link(LATENCY, speed)
            weight = Objective(0.99 if tiny else 0.8)  # few responses have a reason to start on several actors
            plan = fold.plan(PlanningProblem(truth, CLUSTER, latency, weight), PlanningOptions(time_limit_s=0.1))
            if plan.rule is None:
                continue
            found = {name: executed(plan, requests, latency, two_step) for name, two_step in STEPS.items()}
            rows.append({"log": log, "policy": policy, "gbit_per_s": speed, **found})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def last_step(rollouts: Any, limit: int, tiny: bool) -> Workload:
    """The true lengths of the log's last step; of 4 prompts if tiny."""
    if tiny:
        rollouts = rollouts[rollouts["prompt_id"].isin(rollouts["prompt_id"].unique()[:4])]
    return list(logged_steps(rollouts, max_response_tokens=limit))[-1].truth


def own_run(tiny: bool) -> Workload:
    """Epoch 8 of the shipped run as one step."""
    rollouts = read_trace(PROJECT / "data" / "traces" / "arithmetic-grpo").rollouts
    return last_step(rollouts[rollouts["epoch"] == 8].assign(step=8), 320, tiny)


def public(read: Callable[[], Any]) -> Callable[[bool], Workload]:
    """The last step of a public log."""

    def step(tiny: bool) -> Workload:
        log = read()
        return last_step(log.rollouts, log.max_response_tokens, tiny)

    return step


def markdown(rows: Sequence[Row]) -> str:
    """The table of details/executor.md: time and cost relative to moves in one step."""
    lines = [
        "| log | policy | Gbit/s | moves | copied first, two / auto | time, two / auto | cost, two / auto |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        one, two, auto = (row[name] for name in STEPS)
        time_two, time_auto, cost_two, cost_auto = (
            f"{how[what] / one[what]:.3f}" for what in ("time_s", "gpu_s") for how in (two, auto)
        )
        copied = f"{two['copied_first']} / {auto['copied_first']}"
        lines.append(
            f"| {row['log']} | {row['policy']} | {row['gbit_per_s']} | {one['moves']} | {copied} | {time_two} / {time_auto} | "
            f"{cost_two} / {cost_auto} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print a row per log, policy and link."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="4 prompts, 2 links: tries the script, its numbers say nothing")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/executor.md in the end")
    options = parser.parse_args()
    began, rows = time.process_time(), list[Row]()
    for log, step in {"MATH-500": public(math500), "GSM8K": public(gsm8k_visit), "own run": own_run}.items():
        try:
            rows += measured(log, step(options.tiny), options.tiny)
        except FileNotFoundError:
            print(f"{log} is skipped: its data folder is not beside the project (../shared/data).")
    print(f"{time.process_time() - began:.0f} s of CPU")
    if options.markdown:
        print(markdown(rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
