"""``import solver`` is light: numpy is the only package that it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = ("pandas", "ortools", "scipy", "pyarrow", "torch", "plotly", "rlhfless")


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sorted(name for name in {HEAVY!r} if name in sys.modules))"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True, timeout=600)
    return set(run.stdout.split())


def test_importing_the_solver_loads_numpy_only():
    assert loaded_after("import solver") == set()


def test_timing_an_own_assignment_loads_nothing_more():
    problem = "solver.PlanningProblem(solver.Workload([1], [0, 0], [5, 9]), solver.Cluster(1, 2, 1), model)"
    own = f"(solver.plan_of([[0], [1]], {problem}), solver.random_split({problem}))"
    assert loaded_after(f"import solver\nmodel = solver.LatencyModel('x', 1, 1e-3, 1e-4)\nprint(end=repr({own})[:0])") == set()
