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


def test_ctrl_c_interrupts_after_planning_as_before() -> None:
    # in the background of a shell programs are started with SIGINT ignored, which children would inherit
    program = [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{PROGRAM}"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("interrupted") == 2
    assert done.stdout.count("few items") == 2
