"""The rows of ``large_clusters.py`` as lines, and as the tables of ``details/large_clusters.md``. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Cell = Callable[[Row], str]
STEPS = 2  # with history, whose times a row sums up


def shown(row: Row) -> str:
    """A row as a line."""
    if "policy" not in row:
        return str(row)
    what = f"{row['nodes']:5d} nodes, {row['limit']:5d} tokens, batch {row['batch']:6d}, {row['policy']:14s}: "
    if "time_s" not in row:
        return what + f"planned in {row['planning_cpu_ms']:.0f} ms of CPU, {row['planning_wall_ms']:.0f} ms"
    return what + (
        f"{row['time_s']:8.1f} s, {row['gpu_seconds']:11,.0f} GPU-s (bound {row['bound_gpu_seconds']:9,.0f}), "
        f"{row['actors']:6.1f} actors, planning {row['planning_cpu_ms']:8.0f} ms, {row['cpu_s']:.0f} s of CPU, "
        f"{row['peak_gb']:.2f} GB {row['label']}"
    )


def outcome(row: Row) -> str:
    """Time and thousands of GPU-seconds."""
    return f"{row['time_s']:.0f} s, {row['gpu_seconds'] / 1e3:.1f}k"


def grid(rows: Sequence[Row], cell: Cell, heads: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Policies as columns, one line for each combination of ``keys``, which ``heads`` name."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lines = [f"| {' | '.join([*heads, *policies])} |", "|---" * (len(keys) + len(policies)) + "|"]
    for key in dict.fromkeys(tuple(row[k] for k in keys) for row in rows):
        own = {row["policy"]: row for row in rows if tuple(row[k] for k in keys) == key}
        names = [f"{k:,}" if isinstance(k, int) else str(k) for k in key]
        cells = [cell(own[p]) if p in own else "not run" for p in policies]
        lines.append(f"| {' | '.join([*names, *cells])} |")
    return lines


def sizes(rows: Sequence[Row], cell: Cell) -> list[str]:
    """A line for each limit and number of nodes."""
    in_order = sorted(rows, key=lambda row: (row["limit"], row["nodes"]))
    return grid(in_order, cell, ("tokens", "nodes"), ("limit", "nodes"))


def planning_shares(rows: Sequence[Row]) -> list[str]:
    """A line for each policy: the largest share that planning's CPU time is of a step, over limits and nodes."""
    lines = ["| policy | mean of the plans / mean step | slowest plan / mean step |", "|---" * 3 + "|"]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == policy]
        shares = [
            max(row[what] / 1e3 / (row["time_s"] / STEPS) for row in own)
            for what in ("planning_cpu_ms", "worst_planning_cpu_ms")
        ]
        lines.append(f"| `{policy}` | {' | '.join(f'{share:.2%}' for share in shares)} |")
    return lines


def by_policy(rows: Sequence[Row]) -> list[str]:
    """A line for each policy, a column for each limit."""
    limits = list(dict.fromkeys(row["limit"] for row in rows))
    lines = [f"| policy | {' | '.join(f'{limit:,} tokens' for limit in limits)} |", "|---" * (1 + len(limits)) + "|"]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = {row["limit"]: row for row in rows if row["policy"] == policy}
        cells = [f"{outcome(own[n])}, {own[n]['actors']:.0f} actors" for n in limits]
        lines.append(f"| `{policy}` | {' | '.join(cells)} |")
    return lines


def stress(rows: Sequence[Row]) -> list[str]:
    """A line for each row."""
    lines = ["| nodes | responses | policy | time, GPU-seconds | actors | CPU per plan | CPU in all | peak memory |"]
    lines += ["|---" * 8 + "|"]
    return lines + [
        f"| {r['nodes']:,} | {r['batch']:,} | `{r['policy']}` | {outcome(r)} | {r['actors']:,.0f} | "
        f"{r['planning_cpu_ms'] / 1e3:.1f} s | {r['cpu_s']:.0f} s | {r['peak_gb']:.2f} GB |"
        for r in rows
    ]


def markdown(results: Mapping[str, Sequence[Row]]) -> str:
    """The tables of ``details/large_clusters.md``, part by part; parts without rows are left out."""
    tables: list[list[str]] = []
    rows = {name: results.get(name) or [] for name in ("scaling", "planning", "policies", "admission", "stress", "effects")}
    if rows["scaling"]:
        shown_too = {row["policy"] for row in rows["scaling"]}
        all_sizes = [*rows["scaling"], *(row for row in rows["policies"] if row["policy"] in shown_too)]
        tables.append(sizes(all_sizes, outcome))
        tables.append(sizes(all_sizes, lambda row: f"{row['bound_gpu_seconds'] / row['gpu_seconds']:.0%}"))
    if rows["planning"]:
        tables.append(sizes(rows["planning"], lambda row: f"{row['planning_cpu_ms']:.0f} ms"))
    if rows["scaling"]:
        tables.append(planning_shares(all_sizes))
    if rows["policies"]:
        tables.append(by_policy(rows["policies"]))
    if rows["admission"]:
        tables.append(grid(rows["admission"], outcome, ("admission",), ("label",)))
    if rows["stress"]:
        tables.append(stress(rows["stress"]))
    if rows["effects"]:
        tables.append(grid(rows["effects"], outcome, ("effect",), ("label",)))
    return "\n\n".join("\n".join(lines) for lines in tables)
