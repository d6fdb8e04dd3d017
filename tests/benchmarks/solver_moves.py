"""What each part of planning moves, by class of problems, and what a plan loses without it.

    python tests/benchmarks/solver_moves.py [--rows NAME ...] [--parts NAME ...] [--json FILE] [--tiny] [--markdown]

The classes are rows of ``planner_problems.py``, and packings: 12 responses on 3 actors with a deadline that only a perfect
packing keeps. Two numbers per part:

- moved: by which share of the plan's value the part lowered it, from ``plan.moved()``. The part that finds the first plan
  within a limit is counted apart.
- lost without: planning runs once more with the part left out. What the other parts make up for is not lost. Columns are left
  out together with fill, which fills what they choose. Where a part moved nothing, nothing is lost without it.

For the bound it is by how much CP-SAT's assignment of few items and the bound over whole actors raised it.

Planning is counted work, so the numbers do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import ortools
from planner_problems import ROWS, Case, Limits, of_size
from planning_speed import SIZES, TINY, packing

import solver
from solver.generation import planner
from solver.generation.planner import BOUND, COLUMNS, EXCHANGE, FEW_ITEMS, FILL, LEVELLED, REPACK, ROUND_ROBIN, Planner

MOVED = 1e-5  # relative: less counts as nothing
NOTABLE = 5e-3  # relative, from which on a loss is counted
CLASSES = ("large", "six_log", "small", "limits_small", "fresh_six", "scenarios", "scenarios_deadline")
PACKINGS = "packings"


def _nothing(*arguments: Any) -> None:
    """Take the place of a part that returns nothing, or None where it found nothing."""


WITHOUT: dict[str, Callable[[], Any]] = {
    ROUND_ROBIN: lambda: patch.object(Planner, "deal", _nothing),
    COLUMNS: lambda: patch.object(Planner, "choose", _nothing),
    FILL: lambda: patch.object(planner, "openings_of", lambda *arguments: []),
    REPACK: lambda: patch.object(planner, "repacked", lambda *arguments: []),
    LEVELLED: lambda: patch.object(planner, "levelled", _nothing),
    FEW_ITEMS: lambda: patch.object(planner.few_items, "actor_counts", _nothing),
    EXCHANGE: lambda: patch.object(planner, "exchanged", lambda values, best, *arguments: best),
}
"""How planning runs without a part. The bound is no part of it: plans do not depend on it."""


def plan_of(problem: solver.PlanningProblem) -> solver.Plan | None:
    """The plan; None if none was found within the limit."""
    try:
        return solver.plan(problem)
    except solver.PlanningError:
        return None


def classes(names: Sequence[str], tiny: bool) -> Iterator[tuple[str, Case]]:
    """The problems, each with its class."""
    limits = Limits(solver.plan)
    for name in names:
        for case in [] if name == PACKINGS else [Case("tiny", of_size(TINY[0], True, False))] if tiny else ROWS[name](limits):
            if (
                name != "large" or tiny or len(case.problem.workload) < math.prod(SIZES[-1])
            ):  # the largest would take most of it
                yield name, case
    if PACKINGS in names:
        for seed in range(2 if tiny else 40):
            yield PACKINGS, Case(str(seed), packing(seed))


def measure(case: Case, parts: Sequence[str]) -> dict[str, Any]:
    """What each part moved in one problem, relative to the value, and the value without it where it moved anything."""
    plan = plan_of(case.problem)
    if plan is None:
        return {"name": case.name, "value": None}
    row: dict[str, Any] = {"name": case.name, "value": plan.value, "gap": plan.gap, "moved": {}, "raised": {}, "without": {}}
    for moved in plan.moved():
        row["moved"][moved.solver] = None if math.isinf(moved.value_by) else moved.value_by / plan.value
        row["raised"][moved.solver] = moved.bound_by / plan.value
    for part in parts:
        behind = (COLUMNS, FILL) if part == COLUMNS else (part,)
        if any(row["moved"].get(one, 0.0) != 0.0 for one in behind):
            with WITHOUT[part]():
                other = plan_of(case.problem)
            row["without"][part] = None if other is None else other.value
    return row


def moved_in_words(rows: Sequence[dict[str, Any]], part: str) -> str:
    """In how many plans a part lowered the value, by how much in the mean of all and at most, and how many plans it found."""
    shares = [row["moved"].get(part, 0.0) for row in rows]
    by = [share for share in shares if share is not None and share > MOVED]
    found = sum(share is None for share in shares)
    words = [f"{len(by)} ({sum(by) / len(rows):.2%}, {max(by):.1%})"] if by else []
    return ", ".join([*words, *([f"first plan in {found}"] if found else [])]) or "0"


def lost_in_words(rows: Sequence[dict[str, Any]], part: str) -> str:
    """What is lost without a part: in the mean of all, at most, in how many problems more than 0.5 %, and plans."""
    others = [row["without"].get(part, row["value"]) for row in rows]
    more = [other / row["value"] - 1 for row, other in zip(rows, others, strict=True) if other is not None]
    lost = len(rows) - len(more)
    words = [f"{np.mean(more):.2%}, {max(more):.1%} ({sum(x > NOTABLE for x in more)})"] if any(more) else []
    return ", ".join([*words, *([f"{lost} plans"] if lost else [])]) or "0"


def raised_in_words(rows: Sequence[dict[str, Any]], part: str) -> str:
    """In how many problems a part raised the bound, and by which share of the value in the mean of all."""
    by = [raised for row in rows if (raised := row["raised"].get(part, 0.0)) > MOVED]
    return f"{len(by)} ({sum(by) / len(rows):.1%})" if by else "0"


def table(rows: Sequence[dict[str, Any]], parts: Sequence[str]) -> list[list[str]]:
    """A line per class and part."""
    lines = [["class", "plans", "part", "moved: plans (mean, most)", "lost without: mean, most (above 0.5 %)", "bound raised"]]
    for name in dict.fromkeys(row["class"] for row in rows):
        every = [row for row in rows if row["class"] == name]
        own = [row for row in every if row["value"] is not None]
        head = [name, str(len(own)) if len(own) == len(every) else f"{len(own)} of {len(every)}"]
        for part in parts:
            if any(part in row["moved"] for row in own):
                lost = lost_in_words(own, part) if part in WITHOUT else "-"
                lines.append([*head, part, moved_in_words(own, part), lost, raised_in_words(own, part)])
                head = ["", ""]
    return lines


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", nargs="+", choices=[*ROWS, PACKINGS], default=[*CLASSES, PACKINGS])
    options.add_argument("--parts", nargs="*", choices=list(WITHOUT), default=list(WITHOUT), help="which to leave out")
    options.add_argument("--json", type=Path)
    options.add_argument("--tiny", action="store_true", help="few small problems: tries the script, its numbers say little")
    options.add_argument("--markdown", action="store_true", help="print the table of details/planning.md")
    given = options.parse_args()
    names = ["large", PACKINGS] if given.tiny else given.rows
    rows = [{"class": name, **measure(case, given.parts)} for name, case in classes(names, given.tiny)]
    lines = table(rows, [*WITHOUT, BOUND])
    if given.markdown:
        lines.insert(1, ["---"] * len(lines[0]))
    for line in lines:
        print("| " + " | ".join(line) + " |" if given.markdown else "; ".join(line))
    if given.json:
        versions = {"python": platform.python_version(), "ortools": ortools.__version__, "numpy": np.__version__}
        given.json.write_text(json.dumps({**versions, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
