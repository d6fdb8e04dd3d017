"""Planning of whole steps with all levers on clusters of 2 to 1,000 nodes: CPU seconds, memory, and what the plans bring.

    python tests/benchmarks/whole_step_scale.py [--nodes N ...] [--limit TOKENS] [--json FILE] [--tiny]

The cluster, model and lengths are those of ``large_clusters.py`` (70B on H100, two per actor, 6.4 responses per actor, memory
reserved, responses of up to 2,048 tokens). Preparation and learning take 2 and 6 FLOPs per token and parameter at 40 % of
989 TFLOP/s. The naive system learns on a quarter of the GPUs; three quarters are static actors. Loading takes 5 s, and
gradients 1.4 s per round. All of this is assumed. A plan is made from forecasts and executed on true lengths, as the naive
system and elastic plain with prefix caching are. Then the step with all levers is recorded with its work items, and its trace
is made and written to Parquet files. The bound comes last. CPU seconds and the peak of memory after each part are those of a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from large_clusters import GPUS_PER_ACTOR, GPUS_PER_NODE, rollouts, setting

from rlhfless.scheduling.baselines import Static
from rlhfless.simulate import Aim, StepCosts, WholeStep, logged_steps
from rlhfless.simulate.whole_steps.published import naive
from solver import LearnerCharges

NODES, LIMIT, PER_ACTOR, WEIGHT = (2, 20, 100, 300, 1000), 2048, 6.4, 0.7
PREPARE_S = 2 * 70e9 / (GPUS_PER_ACTOR * 0.4 * 989e12)  # per token


def row(case: tuple[int, int]) -> dict[str, Any]:
    """Return the measurements of one size: nodes and the limit of tokens."""
    nodes, limit = case
    all_servers = nodes * GPUS_PER_NODE // GPUS_PER_ACTOR
    responses = max(4, round(PER_ACTOR * all_servers / 4) * 4)
    (logged,) = logged_steps(rollouts(responses, limit), None, limit, None, {2})
    servers = max(1, all_servers // 4)
    costs = StepCosts(PREPARE_S, 3 * PREPARE_S, charges=LearnerCharges(servers, 0.1, 5.0, 1.4), naive_servers=servers)
    clock = Stopwatch()
    step = WholeStep(logged, setting(nodes, limit, admission="reserve"), costs)
    choice = step.plan(Aim(time_weight=WEIGHT))
    actors_made = len(choice.plan.generation.plan.actors)
    clock.lap("planning")
    plain = step.plain(WEIGHT)
    plain_actors = len(plain.plan.generation.plan.actors)
    clock.lap("planning of elastic plain")
    every = step.execute(choice.plan)
    clock.lap("executing")
    actors = min(all_servers - servers, responses // 4)
    static = Static(actors, hold="generation").plan(*logged.inputs(step.setting))
    free_gpus = (all_servers - servers) * GPUS_PER_ACTOR
    totals = {
        "naive": naive(step.generated(static), step.work, costs, free_gpus), "plain": step.execute(plain.plan),
        "all levers": every,
    }  # fmt: skip
    clock.lap("comparators")
    trace = step.trace(choice.plan)
    clock.lap("tracing")
    with tempfile.TemporaryDirectory() as folder:
        trace.save(Path(folder) / "trace")
        clock.lap("writing")
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    least = step.bound().gpu_seconds(every[0] * (1 + 1e-9))
    clock.lap("bound")
    return {
        "nodes": nodes, "gpus": nodes * GPUS_PER_NODE, "responses": responses, "pairs": len(step.candidates().plans),
        "planned for servers": all_servers if step.part is None else step.part.setting.cluster.max_actors,
        **clock.found, "trace_mb": written / 1e6, "spans": len(trace.spans),
        "actors": actors_made, "plain actors": plain_actors, "levers": sorted(choice.plan.levers), "bound_gpu_s": least,
        **{f"{name} time_s": one[0] for name, one in totals.items()},
        **{f"{name} gpu_s": one[1] for name, one in totals.items()},
    }  # fmt: skip


class Stopwatch:
    """CPU seconds of each part, and the peak of memory by its end."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._began_s = time.process_time()

    def lap(self, part: str) -> None:
        """Note a part that ends now; the next one begins."""
        now_s = time.process_time()
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        self.found |= {f"{part}_cpu_s": now_s - self._began_s, f"{part}_peak_gb": peak_gb}
        self._began_s = time.process_time()


def main() -> None:
    """Print one row per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES), help="of eight H100")
    parser.add_argument("--limit", type=int, default=LIMIT, help="tokens of a response, at most")
    parser.add_argument("--json", type=Path, help="also write all rows to this file, row by row")
    parser.add_argument("--tiny", action="store_true", help="one node and short responses: its numbers say nothing")
    given = parser.parse_args()
    cases = [(1, 64)] if given.tiny else [(nodes, given.limit) for nodes in given.nodes]
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for one in pool.imap(row, cases):
            rows.append(one)
            shown = (
                f"{name} {value:.4g}" if isinstance(value, int | float) else f"{name} {value}" for name, value in one.items()
            )
            print(", ".join(shown), flush=True)
            if given.json:
                given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
