"""Adaptive draft lengths against every fixed one, out of sample: logs x GPUs x acceptances x numbers of actors.

    python tests/benchmarks/draft_lengths.py [--tiny] [--logs NAME ...] [--profiles NAME ...] [--json FILE] [--markdown]

Simulated as in ``draft_policies.py``: random split (one draw), GPUs released when an actor is done, measured tables, drawn
acceptance. A cell is one log, profile, acceptance and number of actors. The fixed lengths are 0, 1, 2, 4 and 8. Where no
response waits and prompts have no tokens, passes of a fixed length are summed as arrays, because responses are independent of
each other then; the first such cell of every log is compared with the engine. Two questions:

- *In each cell*: how much longer does ``spec`` take, and how much more does it cost, than the best fixed length of that cell?
  The best in time and the best in cost are looked up separately, so no single length need reach both.
- *Over 2, 4, 8 and 12 actors*: how much less does it take and cost, in the geometric mean, than the one fixed length that is
  best in that mean? The length is chosen afterwards, by log, profile and acceptance; and once more for all cells together.

The constants of the length rule were set on GSM8K and the first profile, so the other logs and profiles are out of sample.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from draft_policies import ACCEPTANCES, Step
from policies import LOGS, available

from rlhfless.engine.simulated.accepted_runs import AcceptedRuns
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.latency import load_profile
from rlhfless.simulate import DrawnDrafts, logged_steps
from solver import Drafting
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S

STUDIED = {"gsm8k-visit": 1, "math500": 2, "arithmetic-epoch": 1}  # of MATH-500 every second prompt
PROFILES = ("l40s-qwen2.5-3b-tp2", "h100-qwen2.5-3b-tp1", "l40s-qwen2.5-7b-tp4")
ACTORS = (2, 4, 8, 12)
FIXED = (0, 1, 2, 4, 8)
MEASURES = ("time_s", "gpu_seconds")
SETTING = ["log", "profile", "drafts"]
Cell = dict[str, Any]


def cells(name: str, rollouts: pd.DataFrame, limit: int, profile: str, counts: Sequence[int]) -> list[Cell]:
    """The cells of one log on one profile: seconds and GPU-seconds by length."""
    logged = [s for s in logged_steps(rollouts, max_response_tokens=limit) if s.has_history][-1]
    step = Step(logged.truth, 1, load_profile(profile))
    found, compared = [], profile != PROFILES[0]
    for drafts, acceptance in ACCEPTANCES.items():
        runs = DrawnDrafts(acceptance).runs(logged.step, logged.rows)
        for actors in counts:
            taken = {"spec": step.run(actors, DraftedEngineFactory(Drafting(), runs)), "0": step.run(actors)}
            for length in filter(None, FIXED):
                summed = summed_passes(step, actors, runs, length)
                if summed is None or not compared:
                    taken[str(length)] = step.run(actors, DraftedEngineFactory(Drafting(length=length), runs))
                    if summed is not None:
                        assert np.allclose(summed, taken[str(length)], rtol=1e-9), (name, length, summed, taken[str(length)])
                        compared = True
                else:
                    taken[str(length)] = summed
            rows = {length: dict(zip(MEASURES, np.round(pair, 4).tolist(), strict=True)) for length, pair in taken.items()}
            found.append({"log": name, "profile": profile, "drafts": drafts, "actors": actors, "lengths": rows})
            print(json.dumps(found[-1] | {"lengths": {k: list(v.values()) for k, v in rows.items()}}), flush=True)
    return found


def summed_passes(step: Step, actors: int, runs: AcceptedRuns, length: int) -> np.ndarray | None:
    """Seconds and GPU-seconds with a fixed length; None where responses wait, have prompts, or have their drafts cut."""
    plan, workload, latency = step.plan(actors, 0), step.problem.workload, step.problem.one_kind[1]
    table = latency.table
    assert table is not None, "profiles have tables"
    most = max(len(actor.responses) for actor in plan.actors)
    if workload.prompt_tokens.any() or most > latency.max_batch or most * (1 + length) > table.batch[-1]:
        return None
    responses = np.concatenate([actor.responses for actor in plan.actors])
    actor_of = np.repeat(np.arange(len(plan.actors)), [len(actor.responses) for actor in plan.actors])
    tokens = workload.response_tokens[responses]
    accepted = np.concatenate([runs.of(int(i), int(n)).accepted for i, n in zip(responses, tokens, strict=True)])
    at, left, count = tokens.cumsum() - tokens, tokens.copy(), np.zeros(len(tokens), np.int64)
    end_s = np.full(len(plan.actors), latency.start_s + latency.sync_s)
    while len(left):
        drafted = np.minimum(length, workload.max_response_tokens - count - 1)
        fed, kv_tokens, drafts = (
            np.bincount(actor_of, weights, len(end_s)) for weights in (drafted + 1, count, drafted)
        )  # fmt: skip
        pass_s = latency.iteration_s(fed, kv_tokens) + np.where(drafts > 0, DRAFT_CALL_S + DRAFT_TOKEN_S * drafts, 0)
        end_s += np.where(fed > 0, pass_s, 0)
        more = 1 + np.minimum(np.minimum(accepted[at], drafted), left - 1)
        at, left, count = at + more, left - more, count + more
        if not left.all():
            at, left, count, actor_of = (values[left > 0] for values in (at, left, count, actor_of))
    return np.array([end_s.max(), end_s.sum() * latency.gpus_per_actor])


def ratios(found: Sequence[Cell]) -> pd.DataFrame:
    """One row per cell: time and cost of ``spec`` over those of the best fixed length, and which length that is."""
    rows = []
    for cell in found:
        row = {name: cell[name] for name in (*SETTING, "actors")}
        for measure in MEASURES:
            of = {length: pair[measure] for length, pair in cell["lengths"].items()}
            best = min((length for length in of if length != "spec"), key=of.__getitem__)
            row |= {f"{measure}_ratio": of["spec"] / of[best], f"{measure}_best": best}
        rows.append(row)
    return pd.DataFrame(rows)


def single_lengths(found: Sequence[Cell]) -> pd.DataFrame:
    """One row per setting, and one for all: the fixed length that is best over all its cells, and ``spec`` over it."""
    flat = [
        {**{name: cell[name] for name in SETTING}, "length": length, **{m: np.log(pair[m]) for m in MEASURES}}
        for cell in found
        for length, pair in cell["lengths"].items()
    ]
    table = pd.DataFrame(flat)
    groups = [(dict(zip(SETTING, key, strict=True)), part) for key, part in table.groupby(SETTING, sort=False)]
    rows = []
    for key, part in [*groups, ({"log": "all", "profile": "all", "drafts": "both"}, table)]:
        means = part.groupby("length")[list(MEASURES)].mean()
        row: dict[str, Any] = dict(key)
        for measure in MEASURES:
            best = str(means[measure].drop("spec").idxmin())
            row |= {f"{measure}_ratio": float(np.exp(means[measure]["spec"] - means[measure][best])), f"{measure}_best": best}
        rows.append(row)
    return pd.DataFrame(rows)


def markdown(found: Sequence[Cell]) -> str:
    """The table of details/drafts.md: a row per setting."""
    table, singles = ratios(found), single_lengths(found)
    lines = [
        f"| log | GPUs | drafts | time / cost over the best fixed length, N={', '.join(map(str, ACTORS))} | over one length |",
        "|---|---|---|---|---|",
    ]
    for single in singles.to_dict("records"):
        part = table[np.logical_and.reduce([table[name] == single[name] for name in SETTING])]
        here = ", ".join(f"{r['time_s_ratio']:.3f} / {r['gpu_seconds_ratio']:.3f}" for r in part.to_dict("records")) or "-"
        over = " / ".join(f"{single[f'{m}_ratio']:.3f} ({single[f'{m}_best']})" for m in MEASURES)
        lines.append(f"| {single['log']} | {single['profile']} | {single['drafts']} | {here} | {over} |")
    return "\n".join(lines)


def summary(found: Sequence[Cell]) -> str:
    """The verdicts, in words."""
    table, singles = ratios(found), single_lengths(found)
    settings, every = singles.iloc[:-1], singles.iloc[-1]
    said = []
    for measure in MEASURES:
        ratio = table[f"{measure}_ratio"]
        worst = table.loc[ratio.idxmax()]
        of_settings = np.exp(np.log(settings[f"{measure}_ratio"]).mean())
        said.append(
            f"{measure}: {int((ratio > 1.03).sum())} of {len(ratio)} cells more than 3 % above the best fixed length, "
            f"{int((ratio > 1.01).sum())} more than 1 %; worst {ratio.max():.3f} ({worst['log']}, {worst['profile']}, "
            f"{worst['drafts']}, N = {worst['actors']}); mean {np.exp(np.log(ratio).mean()):.3f}. Over the best single length "
            f"of each setting {of_settings:.3f}, over {every[f'{measure}_best']} in all cells {every[f'{measure}_ratio']:.3f}."
        )
    return "\n".join(said)


def main() -> None:
    """Print a line per cell, and the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="4 prompts of the shipped run, 2 actors: only tries the script")
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=list(STUDIED))
    parser.add_argument("--profiles", nargs="+", default=list(PROFILES))
    parser.add_argument("--json", type=Path, help="write every cell here")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/drafts.md in the end")
    options = parser.parse_args()
    began, found = time.process_time(), []
    for name, log in available(["arithmetic-epoch"] if options.tiny else options.logs):
        rollouts, every = log.rollouts, STUDIED.get(name, 1)
        if name == "arithmetic-epoch":
            rollouts = rollouts[rollouts["epoch"] <= 8]  # the epoch that the strong acceptance was measured on
        prompts = rollouts["prompt_id"].unique()[::every][: 4 if options.tiny else None]
        rollouts = rollouts[rollouts["prompt_id"].isin(prompts)]
        for profile in options.profiles[: 1 if options.tiny else None]:
            found += cells(name, rollouts, log.max_response_tokens, profile, ACTORS[: 1 if options.tiny else None])
    if found:
        print(summary(found))
    print(f"{time.process_time() - began:.0f} s of CPU time")
    if options.markdown and found:
        print(markdown(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
