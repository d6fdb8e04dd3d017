"""Makes the CP-SAT solver of OR-Tools as all searches here want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver


def cp_solver(deterministic_s: float, workers: int = 1, seed: int = 0) -> CpSolver:
    """Return a solver that is limited by counted seconds, so that it finds the same on every machine.

    It leaves Ctrl-C alone. With CP-SAT's own handling of it, the next Ctrl-C would end the process, such as a notebook's
    kernel.

    Args:
        deterministic_s: CP-SAT's deterministic seconds. workers: its threads.
    """
    from ortools.sat.python.cp_model import CpSolver

    solver = CpSolver()
    parameters = solver.parameters
    parameters.max_deterministic_time, parameters.num_workers, parameters.random_seed = deterministic_s, workers, seed
    parameters.catch_sigint_signal = False
    return solver
