"""Makes docs/planning.svg, the picture of docs/planning.md: `make picture`, or `python docs/planning_picture.py`.

A small problem is cut, priced and solved by the planner's own functions. The picture shows its cells, some of its columns, and
the columns that are bought.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

import solver
from solver.generation.column_model import ColumnModel
from solver.generation.columns import Columns, Prices, first_cuts
from solver.generation.makespan_search import searched
from solver.timing.items import Items
from solver.timing.step_cost import StepObjective

TARGET = Path(__file__).with_name("planning.svg")
CELLS, LATEST_S, GRID = 10, 60.0, 9
LEFT, RESPONSE, WIDTH = 60.0, 20.0, 920.0  # pixels: where responses begin, of one response, of the picture
TALL, ROW = 120.0, 26.0  # of the longest response, of a bought column
SHOWN = 26  # columns that are not bought and yet drawn
BOLD = 'font-weight="bold"'
HALO = 'stroke="#FFFFFF" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'  # texts are legible on lines
COLOURS = {"h100": "#56B4E9", "l40s": "#E69F00"}  # as in the plots: told apart with any colour vision


class Bought(NamedTuple):
    """A column of the solution: ``actors`` of ``kind`` take the responses from ``first`` up to ``last`` in ``seconds``."""

    kind: str
    actors: int
    first: int
    last: int
    seconds: float


def problem() -> solver.PlanningProblem:
    """40 responses on two H100, which are fast and expensive, and four L40S."""
    tokens = np.sort(np.random.default_rng(4).lognormal(6.2, 0.8, 40).clip(50, 2000).astype(int))[::-1]
    fast = solver.LatencyModel("h100", 1, base_s=5e-3, per_response_s=1e-4, max_batch=8, start_s=1.0, kind="h100")
    slow = solver.LatencyModel("l40s", 1, base_s=10e-3, per_response_s=2e-4, max_batch=8, start_s=1.0, kind="l40s")
    pools = solver.MixedCluster([solver.GpuPool("h100", 1, 2, 3.0), solver.GpuPool("l40s", 1, 4, 1.0)])
    return solver.PlanningProblem(
        solver.Workload([100] * 40, list(range(40)), tokens), pools, {("h100", 1): fast, ("l40s", 1): slow},
        solver.Objective(time_weight=0.9, cost="usd"),
    ).planning_model  # fmt: skip


def solved(asked: solver.PlanningProblem) -> tuple[list[int], Columns, list[Bought]]:
    """Return the cuts, all columns and those that are bought at the best makespan."""
    items, goal = Items.of(asked), StepObjective.of_problem(asked)
    cuts, prices = first_cuts(items, CELLS), Prices(asked, items)
    columns = Columns.joined(
        [prices.of_offer(r, cuts, range(1, offer.max_actors + 1), False, LATEST_S) for r, offer in enumerate(asked.offers)]
    )
    model = ColumnModel(columns, len(cuts) - 1, items, asked, goal)
    best = searched(model, items.shortest_makespan_s, LATEST_S, GRID)[0]
    bought = [
        Bought(
            asked.offers[int(columns.offer[c])].kind, int(columns.actors[c]), int(cuts[columns.first[c]]),
            int(cuts[columns.last[c]]), float(columns.time_s[c].mean()),
        )
        for c in best.columns
    ]  # fmt: skip
    return cuts.tolist(), columns, bought


def drawn(asked: solver.PlanningProblem) -> str:
    """Return the picture as SVG."""
    cuts, columns, bought = solved(asked)
    lengths = asked.workload.points.response_tokens
    lines: list[str] = []
    parts: list[str] = []

    def at(response: float) -> float:
        return LEFT + RESPONSE * response

    def text(x: float, y: float, words: str, anchor: str = "start", more: str = HALO) -> None:
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>')

    def rect(x: float, y: float, wide: float, high: float, fill: str, more: str = "") -> None:
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{fill}" {more}/>')

    floor = 44 + TALL
    text(LEFT, 22, f"1. Cut: {len(lengths)} responses, longest first, in {len(cuts) - 1} cells", more=f"{BOLD} {HALO}")
    for i, tokens in enumerate(lengths.tolist()):
        high = TALL * tokens / lengths[0]
        rect(at(i) + 2, floor - high, RESPONSE - 4, high, "#9A9A9A")
    text(LEFT - 6, floor - TALL + 10, f"{lengths[0]:,}", "end")
    text(LEFT - 6, floor - TALL + 24, "tokens", "end")
    price = floor + 40
    text(
        LEFT,
        price,
        f"2. Price: {len(columns)} columns, of which {SHOWN} are drawn; thicker: more actors share",
        more='font-weight="bold"',
    )
    shown: list[int] = np.linspace(0, len(columns) - 1, SHOWN).astype(int).tolist()
    for row, k in enumerate(sorted(shown, key=lambda k: (int(columns.first[k]), int(columns.last[k])))):
        y = price + 12 + 5 * row
        first, last = at(cuts[columns.first[k]]), at(cuts[columns.last[k]])
        colour = COLOURS[asked.offers[int(columns.offer[k])].kind]
        rect(first + 2, y, last - first - 4, 1.2 + 0.8 * float(columns.actors[k]), colour, 'opacity="0.7"')
    choose = price + 12 + 5 * SHOWN + 30
    makespan = max(column.seconds for column in bought)
    text(
        LEFT,
        choose,
        f"3. Choose: the cheapest path from the first cut to the last within {makespan:.1f} s",
        more='font-weight="bold"',
    )
    for row, column in enumerate(bought):
        y = choose + 12 + row * (ROW + 4)
        colour = COLOURS[column.kind]
        rect(at(column.first) + 1, y, RESPONSE * (column.last - column.first) - 2, ROW, colour, 'rx="3"')
        who = f"{column.actors} {column.kind.upper()}" + (" share them" if column.actors > 1 else "")
        words = f"{who}: {column.seconds:.1f} s"
        inside = RESPONSE * (column.last - column.first) > 7.5 * len(words)
        x = at((column.first + column.last) / 2) if inside else at(column.last) + 6
        text(x, y + 17, words, "middle" if inside else "start", BOLD if inside else f"{BOLD} {HALO}")
    bottom = choose + 12 + len(bought) * (ROW + 4)
    for cut in cuts:
        lines.append(
            f'<line x1="{at(cut):.1f}" y1="34" x2="{at(cut):.1f}" y2="{bottom:.1f}" stroke="#555555" stroke-width="0.7" '
            f'stroke-dasharray="3 3"/>'
        )
    for k, cut in enumerate(cuts):
        text(at(cut), bottom + 14, str(k), "middle")
    text(LEFT - 14, bottom + 14, "cut", "end")
    told = "; ".join(
        f"{c.actors} x {c.kind.upper()} take responses {c.first} to {c.last - 1} in {c.seconds:.1f} s" for c in bought
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {bottom + 26:.0f}" role="img" font-size="12" '
        f'font-family="Helvetica, Arial, sans-serif" fill="#222222">'
    )
    title = f"<title>Cells and columns</title><desc>{escape(told)}</desc>"
    paper = f'<rect width="{WIDTH:.0f}" height="{bottom + 26:.0f}" fill="#FFFFFF"/>'
    return "\n".join([head, title, paper, *lines, *parts, "</svg>", ""])


def main() -> int:
    """Draw the picture."""
    TARGET.write_text(drawn(problem()), encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
