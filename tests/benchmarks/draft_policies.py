"""What speculative decoding saves in a generation step, by how many tokens are drafted: fixed, adaptive, on the critical path.

    python tests/benchmarks/draft_policies.py [--tiny] [--draws 2] [--seed 0] [--epoch 8] [--logs GSM8K own]
        [--drafts weak strong] [--policies NAME ...] [--no-equal-time] [--json FILE] [--markdown]
    python tests/benchmarks/draft_policies.py --spread

Simulated on 2 x L40S per actor with a 3B model (``l40s-qwen2.5-3b-tp2``): random split over N actors, GPUs released when an
actor is done, everything charged with the measured table, starts included. All numbers are relative to no drafts.

- *GSM8K*: the second visit of 128 prompts x 8 samples of a public GRPO log (skipped when it is not beside the checkout). What
  drafts accept is drawn, weak or strong (``rlhfless.simulate.WEAK`` and ``STRONG``, the latter a character task), each response
  with a power of its own (sd of its logarithm 0.35). Time and cost at the same N; and the least cost over 2 to 12 actors that
  takes no longer than no drafts on N. Bounds are at the time without drafts: of policies that decode one token per pass, and of
  policies with these drafts. *critical* follows lengths predicted from the visit before; *critical, known* the true ones.
- *own texts*: epoch 8 of the shipped run (a character task), drafts from the responses of epoch 7 to the prompt, replayed. Two
  halves of 64 prompts x 8 samples: every second prompt. The longest response (320 tokens) is in the second half.

Another ``--seed`` (of accepted tokens and splits) or ``--epoch`` checks the rule where none of its constants was chosen.
``--spread`` prints how much shares of accepted tokens differ, from which follow the tokens that a prior counts for.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from policies import gsm8k_visit

from rlhfless.analysis.draft_groups import DraftSource
from rlhfless.analysis.log_drafts import LogDrafts
from rlhfless.engine import Request, SimulatedEngine
from rlhfless.engine.simulated.accepted_runs import AcceptedRuns
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.simulate import STRONG, WEAK, DrawnDrafts, LoggedStep, logged_steps
from rlhfless.trace import read_trace
from solver import Cluster, Plan, PlanningProblem, Workload, random_split
from solver.bounds.drafts import DraftedBound
from solver.bounds.schedules import ScheduleBound
from solver.lengths.remaining import RemainingLengths
from solver.lengths.survival import from_scenarios, known_lengths
from solver.model.drafting import Drafting

PROJECT = Path(__file__).parents[2]
LATENCY = load_profile("l40s-qwen2.5-3b-tp2")
MOST_ACTORS = 12
EPOCH, MOST = 8, 8
SPREAD_EPOCHS = (2, 4, 6, 10, 12)
ACCEPTANCES = {"weak": WEAK, "strong": STRONG}
CONTENDERS = ("fixed 1", "fixed 2", "fixed 4", "fixed 8", "spec", "spec+critical", "critical, known")
Row = dict[str, Any]


class Step:
    """One step on different numbers of actors; sums of time and GPU-seconds over draws of the random split."""

    def __init__(self, workload: Workload, draws: Sequence[int]) -> None:
        cluster = Cluster(math.ceil(MOST_ACTORS * LATENCY.gpus_per_actor / 8), 8, LATENCY.gpus_per_actor)
        self.problem = PlanningProblem(workload, cluster, LATENCY)
        self._draws = draws
        prompts, limit = workload.prompt_tokens.tolist(), workload.max_response_tokens
        pairs = zip(workload.response_tokens.tolist(), workload.prompt_of.tolist(), strict=True)
        self._requests = [
            Request(i, prompts[owner], limit, target_tokens=tokens, prompt=owner) for i, (tokens, owner) in enumerate(pairs)
        ]
        self._plans: dict[tuple[int, int], Plan] = {}

    def run(self, actors: int, drafts: DraftedEngineFactory | None = None) -> np.ndarray:
        """(2,) seconds and GPU-seconds."""
        return np.sum([self._one(actors, draw, drafts) for draw in self._draws], axis=0)

    def plan(self, actors: int, draw: int) -> Plan:
        """The random split over so many actors."""
        if (actors, draw) not in self._plans:
            self._plans[actors, draw] = random_split(self.problem, actors=actors, seed=draw)
        return self._plans[actors, draw]

    def _one(self, actors: int, draw: int, drafts: DraftedEngineFactory | None) -> list[float]:
        plan = self.plan(actors, draw)
        if drafts is not None:
            plan = replace(plan, drafting=drafts.drafting)
        cluster, latency = self.problem.one_kind
        record = run_step(plan, self._requests, drafts or SimulatedEngine, latency, cluster)
        return [record.makespan_s, sum(len(a["gpu_ids"]) * (a["end_s"] - a["start_s"]) for a in record.allocations)]


def at_same_actors(step: Step, drafts: DraftedEngineFactory, plain: Mapping[int, np.ndarray]) -> Row:
    """Time and cost of each number of actors, relative to no drafts."""
    return {str(n): np.round(step.run(n, drafts) / without, 4).tolist() for n, without in plain.items()}


def at_equal_time(step: Step, drafts: DraftedEngineFactory, plain: Mapping[int, np.ndarray], counts: Sequence[int]) -> Row:
    """The least cost with drafts that takes no longer than no drafts on N actors, relative to that; None where none does."""
    taken = np.array([step.run(count, drafts) for count in counts])
    found = {}
    for n, (time_s, cost) in plain.items():
        in_time = taken[taken[:, 0] <= time_s * (1 + 1e-9), 1]
        found[str(n)] = round(float(in_time.min() / cost), 4) if len(in_time) else None
    return found


def gsm8k(draws: Sequence[int], tiny: bool, names: Sequence[str], policies: Sequence[str], equal_time: bool) -> list[Row]:
    """The rows of the GSM8K log, of some acceptances and policies; bounds for all policies only.

    The first draw is also the seed of what is accepted.
    """
    log = gsm8k_visit()
    rollouts = log.rollouts[log.rollouts["prompt_id"].isin(log.rollouts["prompt_id"].unique()[: 4 if tiny else None])]
    logged = [s for s in logged_steps(rollouts, max_response_tokens=log.max_response_tokens) if s.has_history][-1]
    step = Step(logged.truth, draws)
    plain = {n: step.run(n) for n in ((2,) if tiny else (4, 8, 12))}
    counts = range(2, 3 if tiny else MOST_ACTORS + 1)
    rows = []
    for name in names:
        runs = DrawnDrafts(ACCEPTANCES[name], seed=draws[0]).runs(logged.step, logged.rows)
        for policy, drafts in _contenders(runs, logged).items():
            if policy not in policies:
                continue
            rows.append(
                {
                    "log": "GSM8K", "drafts": name, "policy": policy,
                    "same_actors": at_same_actors(step, drafts, plain),
                    "cost_at_equal_time": at_equal_time(step, drafts, plain, counts) if equal_time else {},
                }
            )  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
        if set(policies) != set(CONTENDERS):
            continue
        accepted = [runs.of(i, tokens).accepted for i, tokens in enumerate(logged.truth.response_tokens.tolist())]
        bounds = {"bound with drafts": DraftedBound(step.problem, accepted)}
        for policy, bound in {"bound, one token per pass": ScheduleBound(step.problem), **bounds}.items():
            least = {str(n): round(bound.gpu_seconds(t / len(draws)) * len(draws) / c, 4) for n, (t, c) in plain.items()}
            rows.append({"log": "GSM8K", "drafts": name, "policy": policy, "same_actors": {}, "cost_at_equal_time": least})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def _contenders(runs: AcceptedRuns, logged: LoggedStep) -> dict[str, DraftedEngineFactory]:
    predicted: RemainingLengths = from_scenarios(logged.predicted)
    adaptive = (
        DraftedEngineFactory(Drafting(), runs),
        DraftedEngineFactory(Drafting(length="critical"), runs, predicted),
        DraftedEngineFactory(Drafting(length="critical"), runs, known_lengths(logged.truth)),
    )
    fixed = (DraftedEngineFactory(Drafting(length=n), runs) for n in (1, 2, 4, 8))
    return dict(zip(CONTENDERS, (*fixed, *adaptive), strict=True))


def own_texts(draws: Sequence[int], tiny: bool, policies: Sequence[str], epoch: int) -> list[Row]:
    """The rows of the shipped run's own texts, of some policies; what is drawn does not matter to them."""
    rows = []
    for half, (logged, runs) in own_halves(epoch, tiny).items():
        step = Step(logged.truth, draws)
        plain = {n: step.run(n) for n in ((2,) if tiny else (2, 4, 8))}
        for policy, drafts in _contenders(runs, logged).items():
            if policy in policies and not policy.startswith(("spec+", "critical")):
                rows.append(
                    {"log": "own texts", "drafts": half, "policy": policy, "same_actors": at_same_actors(step, drafts, plain)}
                )
                print(json.dumps(rows[-1]), flush=True)
    return rows


def own_halves(epoch: int, tiny: bool = False) -> dict[str, tuple[LoggedStep, AcceptedRuns]]:
    """Both halves of an epoch of the shipped run, and what they accept of drafts from the epoch before."""
    rollouts = read_trace(PROJECT / "data" / "traces" / "arithmetic-grpo").rollouts
    rollouts = (
        rollouts[rollouts["epoch"].isin([epoch - 1, epoch])].assign(step=rollouts["epoch"]).sort_values("step", kind="stable")
    )
    encode = CharTokenizer.load(PROJECT / "data" / "models" / "arithmetic-grpo" / "char_tokenizer.json").encode
    halves = {}
    for half, prompts in (("first half", slice(0, None, 2)), ("second half", slice(1, None, 2))):
        names = pd.unique(rollouts["prompt_id"])[prompts][: 4 if tiny else None]
        part = rollouts[rollouts["prompt_id"].isin(names)]
        logged = list(logged_steps(part, max_response_tokens=320))[-1]
        halves[half] = logged, LogDrafts(part, encode, DraftSource("last", siblings=False), MOST).runs(logged.step, logged.rows)
    return halves


def spread(epoch: int, draft: int = 2) -> Row:
    """The tokens that a prior has to count for, if shares of accepted tokens had beta distributions: by their moments.

    Every response is decoded with drafts of ``draft`` tokens. A beta-binomial count of n tokens has a variance of
    ``n p (1 - p) (1 + (n - 1) / (tokens + 1))``.
    """
    counts = []
    for half, (logged, runs) in own_halves(epoch).items():
        owners = zip(logged.truth.response_tokens.tolist(), logged.truth.prompt_of.tolist(), strict=True)
        for response, (tokens, prompt) in enumerate(owners):
            available, accepted = runs.of(response, tokens)
            at = right = wrong = 0
            while at < tokens:
                drafted = min(draft, int(available[at]), tokens - 1 - at)
                kept = min(int(accepted[at]), drafted)
                right, wrong, at = right + kept, wrong + (kept < drafted), at + kept + 1
            counts.append((f"{half} {prompt}", right, right + wrong))
    responses = pd.DataFrame(counts, columns=["prompt", "accepted", "verified"])
    prompts = responses.groupby("prompt").sum()
    of_prompt = responses.groupby("prompt")[["accepted", "verified"]].transform("sum")
    size = len(responses) / len(prompts)
    return {
        "epoch": epoch,
        "share": round(float(prompts["accepted"].sum() / prompts["verified"].sum()), 3),
        "prompt": _prior_tokens(prompts, prompts["accepted"].sum() / prompts["verified"].sum(), 1.0),
        "response": _prior_tokens(responses, of_prompt["accepted"] / of_prompt["verified"], size / (size - 1)),
    }


def _prior_tokens(counts: pd.DataFrame, share: pd.Series | float, fitted: float) -> float:
    """``fitted`` corrects squares for the share being a mean of the same counts."""
    n, right = counts["verified"], counts["accepted"]
    even = share * (1 - share)
    excess = ((right - n * share) ** 2 * fitted - n * even).sum() / (n * (n - 1) * even).sum()
    return round(float(1 / excess - 1), 1)


def markdown(rows: Sequence[Row]) -> str:
    """The tables of details/drafts.md: time and cost at the same N, and the cost at equal time."""
    lines = ["| log | drafts | policy | time / cost at the same N | cost at equal time |", "|---|---|---|---|---|"]
    for row in rows:
        same = ", ".join(f"N={n}: {t:.2f} / {c:.2f}" for n, (t, c) in row["same_actors"].items()) or "-"
        equal = row.get("cost_at_equal_time", {}).items()
        text = ", ".join(f"N={n}: {'-' if cost is None else f'{cost:.2f}'}" for n, cost in equal) or "-"
        lines.append(f"| {row['log']} | {row['drafts']} | {row['policy']} | {same} | {text} |")
    return "\n".join(lines)


def main() -> None:
    """Print a row per log, acceptance and policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="4 prompts, 2 actors: tries the script, its numbers say nothing")
    parser.add_argument("--draws", type=int, default=2, help="of the random split")
    parser.add_argument("--seed", type=int, default=0, help="of the first draw, and of what is accepted")
    parser.add_argument("--epoch", type=int, default=EPOCH, help="of own texts")
    parser.add_argument("--spread", action="store_true", help="print how much shares of accepted tokens differ, and end")
    parser.add_argument("--logs", nargs="+", choices=("GSM8K", "own"), default=["own", "GSM8K"])
    parser.add_argument("--drafts", nargs="+", choices=ACCEPTANCES, default=list(ACCEPTANCES), help="of GSM8K")
    parser.add_argument("--policies", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--no-equal-time", action="store_true", help="leave out the cost at equal time, which takes longest")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/drafts.md in the end")
    options = parser.parse_args()
    if options.spread:
        for epoch in SPREAD_EPOCHS:
            print(json.dumps(spread(epoch)))
        return
    began, rows = time.perf_counter(), []
    draws = range(options.seed, options.seed + options.draws)
    if "own" in options.logs:
        rows += own_texts(draws, options.tiny, options.policies, options.epoch)
    if "GSM8K" in options.logs:
        try:
            rows += gsm8k(draws, options.tiny, options.drafts, options.policies, not options.no_equal_time)
        except FileNotFoundError:
            print("GSM8K is skipped: its data folder is not beside the project (../shared/data).")
    print(f"{time.perf_counter() - began:.0f} s")
    if options.markdown:
        print(markdown(rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
