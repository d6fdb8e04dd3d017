"""Plans of the planner beside those of an earlier version: values, gaps, CPU seconds, plans lost and found.

    python tests/benchmarks/planner_table.py [--rows NAME ...] [--json FILE] [--against FILE] [--quick] [--markdown] [--tiny]

``planner_problems.py`` has the problems of every row. ``--json`` writes what was measured, ``--against`` reads such a file and
compares with it. ``results/planner_table_before.json`` is from the two planners that ``solver.plan`` has replaced, which
planned by counted work with a limit of 1 s.

- value: ratio of the values, now over before, mean and range; below 1 the plan is better. Limits are those of the file.
- lost, found: problems with a plan before and none now, and the other way around.
- gap: mean over the problems that both could plan. CPU seconds: mean over all and the most, this process's, imports left out.
- realised: T^0.7 C^0.3 of the plan on the true lengths of the log, relative to the right-sized random split. Plans are
  made over 8 scenarios of the default predictor, for 16 GPUs. Public logs that are not beside the checkout are left out.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from planner_problems import ROWS, Case, Limits

import solver

TINY = ("small", "limits_small", "scenarios")  # rows of which --tiny plans the first problem
NOTABLE = 1.005  # ratio of values from which on a problem is named
HEAD = ("row", "problems", "value", "above 1.005, 1.01", "lost, found", "gap", "CPU s", "most CPU s", "realised")
WEIGHED = solver.Objective(0.7)  # what realised values weigh


@dataclass(frozen=True)
class Measured:
    """One plan. value, bound: None where no plan was found. realised: None where the problem is not of a log."""

    value: float | None
    bound: float | None
    cpu_s: float
    actors: int
    realised: float | None = None

    @property
    def gap(self) -> float:
        """The gap of a plan; 1 without a bound."""
        return 1.0 if self.bound is None or not self.value else max(0.0, 1 - self.bound / self.value)


Table = Mapping[str, Mapping[str, Measured]]


def measure(case: Case, quick: bool) -> Measured:
    """Plan a problem."""
    began = time.process_time()
    try:
        plan = solver.plan(case.problem, quick=quick)
    except solver.PlanningError:
        return Measured(None, None, time.process_time() - began, 0)
    took = time.process_time() - began
    realised = (
        None if case.truth is None else relative_to_random(plan, replace(case.problem, workload=case.truth), case.problem)
    )
    return Measured(plan.value, plan.lower_bound, took, len(plan.actors), realised)


def relative_to_random(plan: solver.Plan, true: solver.PlanningProblem, planned: solver.PlanningProblem) -> float:
    """T^0.7 C^0.3 of a plan on the true lengths, relative to the random split of the lengths that were planned for."""
    mine, split = solver.evaluate(plan, true), solver.evaluate(solver.random_split(planned), true)
    return WEIGHED.value(mine.makespan_s, mine.gpu_seconds, (split.makespan_s, split.gpu_seconds))


def read(path: Path) -> tuple[dict[str, dict[str, Measured]], dict[str, tuple[float, float]]]:
    """The rows and the limits of a file."""
    stored = json.loads(path.read_text())
    rows = {row: {name: Measured(**one) for name, one in own.items()} for row, own in stored["rows"].items()}
    return rows, {name: (both[0], both[1]) for name, both in stored["limits"].items()}


def mean_and_range(values: Sequence[float], digits: int = 3) -> str:
    """Mean, least and most of some numbers, in words."""
    if not values:
        return "-"
    return f"{np.mean(values):.{digits}f} ({min(values):.3f} to {max(values):.3f})"


def _changed(before: str | None, now: str) -> str:
    return now if before is None else f"{before} -> {now}"


def compared(row: str, now: Mapping[str, Measured], before: Mapping[str, Measured]) -> tuple[list[str], list[str]]:
    """The cells of a row, and a sentence for every problem with a higher value and for lost and found plans."""
    both = [(name, before[name], one) for name, one in now.items() if name in before]
    ratios = {name: one.value / old.value for name, old, one in both if old.value and one.value}
    lost = [name for name, old, one in both if old.value is not None and one.value is None]
    found = [name for name, old, one in both if old.value is None and one.value is not None]
    planned = [one for name, one in now.items() if one.value and (not both or name in ratios)]
    gaps, seconds = [one.gap for one in planned], [one.cpu_s for one in now.values()]
    realised = [one.realised for one in now.values() if one.realised is not None]
    gap_before = seconds_before = realised_before = None
    if both:
        gap_before = f"{np.mean([before[name].gap for name in ratios]):.2%}" if ratios else "-"
        seconds_before = f"{np.mean([old.cpu_s for _, old, _ in both]):.2f}"
        realised_before = mean_and_range([old.realised for _, old, _ in both if old.realised is not None])
    cells = [
        row, str(len(now)), mean_and_range(list(ratios.values()), 4),
        ", ".join(str(sum(x > least for x in ratios.values())) for least in (NOTABLE, 1.01)), f"{len(lost)}, {len(found)}",
        _changed(gap_before, f"{np.mean(gaps):.2%}" if gaps else "-"), _changed(seconds_before, f"{np.mean(seconds):.2f}"),
        f"{max(seconds):.2f}", _changed(realised_before, mean_and_range(realised)) if realised else "-",
    ]  # fmt: skip
    higher = sorted(((x, name) for name, x in ratios.items() if x > NOTABLE), reverse=True)
    said = [f"{row}: {name} is {x:.3f}" for x, name in higher]
    return cells, said + [f"{row}: {what} {', '.join(names)}" for what, names in (("lost", lost), ("found", found)) if names]


def main() -> None:
    """Plan all rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--json", type=Path, help="write what was measured here")
    parser.add_argument("--against", type=Path, help="compare with this file, and take deadlines and budgets from it")
    parser.add_argument("--quick", action="store_true", help="plan with the quick setting")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/planning.md")
    parser.add_argument("--tiny", action="store_true", help="few small problems: tries the script, its numbers say nothing")
    options = parser.parse_args()
    before: Table = {}
    limits = Limits(solver.plan)
    if options.against is not None:
        before, limits.known = read(options.against)
    solver.plan(next(ROWS["small"](limits)).problem)  # loads what is loaded once per process
    rows: dict[str, dict[str, Measured]] = {}
    table, said = [], []
    for row in TINY if options.tiny else options.rows:
        rows[row] = {}
        for case in ROWS[row](limits):
            rows[row][case.name] = measure(case, options.quick)
            if options.tiny:
                break
        if not rows[row]:
            continue
        cells, sentences = compared(row, rows[row], before.get(row, {}))
        table.append(cells)
        said += sentences
        if not options.markdown:
            print("; ".join(f"{name} {cell}" for name, cell in zip(HEAD, cells, strict=True) if cell != "-"), flush=True)
        if options.json is not None:
            stored = {name: {case: asdict(one) for case, one in own.items()} for name, own in rows.items()}
            write(options.json, stored, limits.known, options.quick)
    if options.markdown:
        print("\n".join("| " + " | ".join(cells) + " |" for cells in (HEAD, ["---"] * len(HEAD), *table)))
    if said:
        print("\n".join(said))


def write(path: Path, rows: dict[str, Any], limits: dict[str, tuple[float, float]], quick: bool) -> None:
    """Write what was measured so far."""
    machine = {"python": platform.python_version(), "machine": platform.machine(), "numpy": np.__version__}
    path.write_text(json.dumps({**machine, "quick": quick, "limits": limits, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
