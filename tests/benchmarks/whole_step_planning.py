"""Planning of whole steps in the 12 settings of the paper's Figure 10: CPU seconds, and what the plans bring.

    python tests/benchmarks/whole_step_planning.py [--responses N] [--seeds N] [--drafts] [--against FILE]
    [--json FILE] [--tiny]

Every row is one step on 16 GPUs, planned with all levers from a forecast and executed on true lengths. CPU seconds are those
of all candidates and one choice among them (T^0.7 C^0.3), without the forecast itself. Further objectives only choose anew.
With ``--against``, a file of ``--json`` that another version wrote, it prints by how much executed plans differ.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlhfless.paper import Sources
from rlhfless.paper.figure_10_all import FIGURE, Cell, cells_of, step_of
from rlhfless.simulate import WEAK, DrawnDrafts
from solver import Objective

WEIGHTS = (0.2, 0.5, 0.7, 1.0)
SLOWER = (1.02, 1.3)  # deadlines, as multiples of elastic plain's expected time
NAMES = ("algorithm", "model", "data_set", "seed")
Row = dict[str, Any]


def rows(cells: Iterable[Cell], with_drafts: bool, **setting: int) -> list[Row]:
    """Return one row per step: CPU seconds and, for each objective, executed seconds and GPU-seconds."""
    found = []
    for one in cells:
        cell, of = step_of(one, Sources.default(), **setting)
        step, drafts = of.step, DrawnDrafts(WEAK, seed=of.seed) if with_drafts else None
        began_s = time.process_time()
        step.plan(Objective(0.7), drafts)
        row: Row = {**cell, "cpu_s": time.process_time() - began_s, "pairs": len(step.candidates(drafts).plans)}
        plain = step.plain(Objective(0.7), prefix_caching=False)
        objectives = {f"w={weight:g}": Objective(weight) for weight in WEIGHTS}
        objectives |= {f"{slower:g} x plain's time": Objective(deadline_s=slower * plain.time_s) for slower in SLOWER}
        objectives["plain's cost"] = Objective(budget_gpu_s=plain.gpu_seconds)
        row["executed"] = {name: step.execute(step.plan(one, drafts).plan) for name, one in objectives.items()}
        found.append(row)
        print(*(row[name] for name in NAMES), f"{row['cpu_s']:.2f} s, {row['pairs']} pairs", flush=True)
    return found


def compared(found: list[Row], before: list[Row]) -> list[str]:
    """Return one line per objective: what is minimised, relative to another version's: geometric mean and worst step."""
    lines, known = [], {tuple(row[name] for name in NAMES): row for row in before}
    pairs = [(row, known[tuple(row[name] for name in NAMES)]) for row in found]
    for name in found[0]["executed"]:
        logs = []
        for row, other in pairs:
            (time_s, gpu_s), (time_before_s, gpu_before_s) = row["executed"][name], other["executed"][name]
            weight = float(name[2:]) if name.startswith("w=") else 1.0 if name.endswith("cost") else 0.0
            logs.append(math.log(Objective(weight).value(time_s, gpu_s, (time_before_s, gpu_before_s))))
        lines.append(f"{name}: {math.exp(sum(logs) / len(logs)):.4f} (worst {math.exp(max(logs)):.4f})")
    seconds = [(row["cpu_s"], other["cpu_s"]) for row, other in pairs]
    return [*lines, f"CPU seconds: {sum(a for a, _ in seconds):.1f} against {sum(b for _, b in seconds):.1f} in all"]


def main() -> None:
    """Print one row per step, and the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--responses", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--drafts", action="store_true", help="plan with weak drafts, too")
    parser.add_argument("--against", type=Path, help="rows of another version")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="one small setting")
    given = parser.parse_args()
    if given.tiny:
        cells = cells_of(("GRPO",), FIGURE.fast["machines"], FIGURE.fast["data_sets"], seeds=1)
        found = rows(cells, given.drafts, responses=24, epochs=FIGURE.fast["epochs"])
    else:
        found = rows(cells_of(seeds=given.seeds), given.drafts, responses=given.responses)
    slowest = max(found, key=lambda row: row["cpu_s"])
    within = sum(row["cpu_s"] <= 1 for row in found)
    print(f"within 1 s of CPU: {within} of {len(found)}; most {slowest['cpu_s']:.2f} s")
    if given.against:
        print("\n".join(compared(found, json.loads(given.against.read_text(encoding="utf-8")))))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
