"""Savings by a profile of other hardware that is scaled to the run's time, beside those by the run's own profile.

    python tests/benchmarks/scaled_profiles.py [--tiny] [--json FILE]

A report scales its profile so that simulated times are the logged ones. Where the profile is of another model or other GPUs,
only its scale is corrected. How an iteration grows with batch and context stays that of the other hardware.

Here every shipped profile of GPUs is the truth once, for the last steps of a shipped log of reasoning on 16 replicas. Every
other one is scaled to its time. Both say what fewer replicas save of the GPU-seconds. The largest difference over 12, 8, 4 and
2 replicas stands in the table, by the factor of the scaling. ``FAR_POINTS`` of ``rlhfless/report/simulated.py`` comes from it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from rlhfless.latency import list_profiles, load_profile
from rlhfless.simulate import LoggedStep, SimulationConfig, execute_steps, logged_steps
from rlhfless.trace import open_log
from solver import Cluster

LOG = Path(__file__).parents[2] / "data" / "traces" / "reasoning-static"
STEPS, REPLICAS, FEWER = 2, 16, (12, 8, 4, 2)
FAR = 3.5  # times; no two profiles with one language model differ so much


@dataclass(frozen=True)
class Row:
    """A profile in place of another: times the scaling, and the largest error of the saved share of GPU-seconds."""

    own: str
    other: str
    factor: float
    error: float


def seconds(profile: str, replicas: int, steps: Sequence[LoggedStep]) -> float:
    """Return the seconds of generation of all steps together."""
    latency = load_profile(profile)
    cluster = Cluster(replicas, latency.gpus_per_actor, latency.gpus_per_actor, latency.kind, 1.0)
    (executed,) = execute_steps(steps, SimulationConfig(cluster, latency, bound_work=0), ["least-loaded"]).values()
    return sum(record.end_s - record.start_s for record, _ in executed)


def measured(steps: int, fewer: Sequence[int]) -> list[Row]:
    """Return a row per ordered pair of profiles, the smallest factor first."""
    rollouts = open_log(LOG).trace.rollouts
    logged = list(logged_steps(rollouts, steps=sorted(rollouts["step"].unique())[-steps:]))
    names = [name for name in list_profiles() if not name.startswith("cpu")]
    took = {name: {n: seconds(name, n, logged) for n in (REPLICAS, *fewer)} for name in names}
    saved = {name: {n: 1 - n * of[n] / (REPLICAS * of[REPLICAS]) for n in fewer} for name, of in took.items()}
    rows = []
    for own, other in permutations(names, 2):
        ratio = took[own][REPLICAS] / took[other][REPLICAS]
        error = max(abs(saved[own][n] - saved[other][n]) for n in fewer)
        rows.append(Row(own, other, max(ratio, 1 / ratio), error))
    return sorted(rows, key=lambda row: row.factor)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What the report quotes: the largest error of profiles that are near, and the range of errors of those that are far."""
    near = [row for row in rows if row.factor < FAR]
    far = [row for row in rows if row.factor >= FAR] or near
    return {
        "near": {"factor": max(row.factor for row in near), "error": max(row.error for row in near)},
        "far": {"factor": min(row.factor for row in far), "errors": [min(r.error for r in far), max(r.error for r in far)]},
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="one step and one number of replicas")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = measured(1, FEWER[:1]) if args.tiny else measured(STEPS, FEWER)
    print("| profile of the run | scaled in its place | factor | saving off by |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row.own} | {row.other} | {row.factor:.1f} | {100 * row.error:.1f} points |")
    said = summary(rows)
    print(json.dumps(said, indent=1))
    if args.json:
        args.json.write_text(json.dumps({"summary": said, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
