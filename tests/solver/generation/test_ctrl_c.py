"""Planning leaves Ctrl-C as it was: OR-Tools' own handling of it would end a notebook's kernel later."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal
import solver
work = solver.Workload.grid([10] * 6, [[5, 9, 14]] * 6, max_response_tokens=64)
latency = solver.LatencyModel("x", 1, 0.1, 0.01, 1e-5, max_batch=4)
for cluster in (solver.Cluster(1, 4, 1), solver.MixedCluster([solver.GpuPool("x", 1, 2, 1.0), solver.GpuPool("y", 1, 2, 1.0)])):
    kinds = {("x", 1): latency, ("y", 1): latency}
    models = latency if isinstance(cluster, solver.Cluster) else kinds
    plan = solver.plan(solver.PlanningProblem(work, cluster, models))
    print([line.solver for line in plan.history])
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("interrupted")
"""

PIPELINE = """
import signal, sys
from solver.pipeline import fused, schedule_pipeline
schedule_pipeline(fused((4, 2, 8), (2, 1, 4), activations=(2, 1)), objective="latency_then_memory", time_limit_s=0.3)
if "ortools.sat.python.cp_model" in sys.modules:
    print("CP-SAT was asked")
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def ended(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program; in the background of a shell SIGINT would be ignored, which children inherit."""
    python = [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{program}"]
    done = subprocess.run(python, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done


def test_ctrl_c_interrupts_after_planning_as_before() -> None:
    done = ended(PROGRAM)
    assert done.stdout.count("interrupted") == 2
    assert done.stdout.count("few items") == 2


def test_ctrl_c_interrupts_after_the_memory_of_a_pipeline_was_lowered() -> None:
    done = ended(PIPELINE)
    assert done.stdout == "CP-SAT was asked\ninterrupted\n"
