"""How far simulation can be trusted: predictions beside measurements that nobody here made, with signed errors.

    python tests/benchmarks/validation.py [--only points operators runs steps executed] [--json FILE] [--data FOLDER]

Points: TPOT and TTFT of servers under constant load, each pair of model and GPU predicted from the others. Operators: Vidur's
linear layers from other GPUs and models, and the large profile beside them. Runs: two whole runs of vLLM on the simulated
engine, with 30-second windows, each with what was fitted on the other. Steps: step times of public training runs, the second
half of each from the first. Executed: steps that our own engine executed on a GPU beside their simulation, as ``gpu_engine.py``
has recorded them in ``results/``. A part whose folder is not there is skipped with a sentence. ``--json`` writes every case of
points, runs and executed steps; of operators the groups and the cases of the large profile, of training steps the groups alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import validation_executed
import validation_operators
import validation_points
import validation_runs
import validation_steps
from validation_errors import AIM_MEDIAN, AIM_P90, by_group, table

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def points(data: Path) -> tuple[str, Any]:
    """TPOT and TTFT: table and cases."""
    measured = validation_points.read_points(data / validation_points.FILE)
    cases, constant = validation_points.validate(measured), validation_points.constant_share(measured)
    tables = [f"share of a constant beside the layers, where it can be told: {constant:.1%}"]
    for what in ("tpot", "ttft"):
        apart = {True: by_group([c for c in cases if c["explained"]], f"{what}_error", lambda case: case["set"])}
        apart[False] = by_group([c for c in cases if not c["explained"]], f"{what}_error", lambda case: case["set"])
        apart[False].pop("all")
        rows = apart[True] | {f"{name} (not in steady state)": row for name, row in apart[False].items()}
        tables.append(table(f"{what.upper()} from other pairs", rows))
        tables.append(table(f"{what.upper()}, the form alone", by_group(cases, f"{what}_inside", lambda case: case["set"])))
    choices = {
        ", ".join(servers): by_group(of_choice, "tpot_error", lambda case: "all of these")["all"]
        for servers in validation_points.CHOICES
        for of_choice in [[c for c in validation_points.validate(measured, servers) if c["explained"]]]
    }
    tables.append(table("TPOT from other pairs, by what is fitted for every server apart", choices))
    return "\n\n".join(tables), cases


def operators(data: Path) -> tuple[str, Any]:
    """Vidur's layers: table and summaries; every case of the profile."""
    checks = validation_operators.validate(data)
    tables = [table(f"layers: {name}", by_group(cases, "error", lambda case: case["part"])) for name, cases in checks.items()]
    groups = {name: by_group(cases, "error", lambda case: case["part"]) for name, cases in checks.items()}
    return "\n\n".join(tables), {"groups": groups, "profile": checks["profile"]}


def runs(data: Path) -> tuple[str, Any]:
    """Whole runs: table of the ways and of the windows, and all results."""
    results = validation_runs.validate(data)
    lines = ["| run | way | whole run | mean latency | mean first token |", "|---|---|---|---|---|"]
    shown = ["makespan_error", "mean_latency_error", "mean_ttft_error"]
    lines += [f"| {r['gpu']} | {r['way']} | " + " | ".join(f"{r[name]:+.1%}" for name in shown) + " |" for r in results]
    lines += ["", "| run | window from | running | error | tokens/s | error |", "|---|---|---|---|---|---|"]
    for r in results:
        lines += [
            f"| {r['gpu']} | {w['from_s']} s | {w['running']:.1f} | {w['running_error']:+.1%} | {w['tokens_per_s']:,.0f} | "
            f"{w['tokens_error']:+.1%} |"
            for w in r.get("windows", [])
        ]
    return "\n".join(lines), results


def steps(data: Path) -> tuple[str, Any]:
    """Step times: table and summaries."""
    cases = validation_steps.validate(data)
    groups = by_group(cases, "error", lambda case: case["run"])
    return table("run, second half from the first", groups), groups


def executed(results: Path) -> tuple[str, Any]:
    """Simulated against executed: table and cases."""
    cases = validation_executed.validate(results)
    groups = by_group(cases, "error", lambda case: case["group"])
    groups.pop("all")  # the same steps several times
    shown = table("simulated against executed", groups)
    if not cases:
        shown += f"\n\nOn a GPU nothing was executed yet: there is no results/{validation_executed.GPU}."
    return shown, cases


PARTS: dict[str, Callable[[Path], tuple[str, Any]]] = {
    "points": points,
    "operators": operators,
    "runs": runs,
    "steps": steps,
    "executed": executed,
}
FOLDERS = {
    "points": validation_points.FILE.parent,
    "operators": validation_operators.FOLDER,
    "runs": validation_runs.FOLDER,
    "steps": validation_steps.FOLDER,
}


def short(value: Any) -> Any:
    """The same with five digits of every number."""
    if isinstance(value, dict):
        return {key: short(one) for key, one in value.items()}
    if isinstance(value, list):
        return [short(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts (all)")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of public data (beside the checkout)")
    parser.add_argument("--json", type=Path, help="also write cases to this file; of operators and steps summaries by group")
    options = parser.parse_args()
    results: dict[str, Any] = {"aim": {"median": AIM_MEDIAN, "p90": AIM_P90}}
    for name in options.only:
        folder = validation_executed.RESULTS if name == "executed" else options.data
        if name in FOLDERS and not (folder / FOLDERS[name]).is_dir():
            print(f"{name}: skipped, {FOLDERS[name]} is not beside this checkout\n")
            continue
        shown, results[name] = PARTS[name](folder)
        print(f"{shown}\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(short(results), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
