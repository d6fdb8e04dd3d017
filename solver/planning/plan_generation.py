"""Defines ``plan_generation``: calls the planner for one kind of actor or for several.

The planners are in the packages ``single_kind`` and ``mixed_kinds``.
"""

from __future__ import annotations

import time
from dataclasses import replace

from solver.model.errors import check_flags
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem, check_problem
from solver.planning.canonical_order import Canonical
from solver.planning.mixed_kinds.parametric_lp import load as load_lp
from solver.planning.mixed_kinds.planner import MixedKindsPlanner
from solver.planning.mixed_kinds.point_search import HURRY_S
from solver.planning.search_options import SearchOptions, check_search
from solver.planning.single_kind.planner import SMALLEST_MODEL_S, SingleKindPlanner


def plan_generation(problem: PlanningProblem, *, time_limit_s: float = 1.0, seed: int = 0, deterministic: bool = False) -> Plan:
    """Return a generation plan with a lower bound: the number of actors and the responses of each.

    Args:
        problem: what to plan. With scenarios, plans are searched for the predicted lengths. The candidates are the best plans
            for every number of actors and the random split right-sized for the scenarios. The one with the best value over the
            scenarios is returned, and value, bound, times, costs and reference are over the scenarios.
        time_limit_s: seconds for everything but loading OR-Tools (once per process). The search and the OR-Tools model stop
            after a counted amount of work. The clock is a safety net, and ``status`` says when it stopped them. For one kind,
            the OR-Tools model is asked only for few actors with a gap left (``class_model.is_asked``). It is never asked under
            0.2 s, or where actors hold their GPUs beyond their own work (``release`` other than ``done``). Sorting the work,
            the random split and one makespan come first. A limit below what they take cannot be kept: about 0.1 s for 100,000
            responses, and 0.4 s for as many whose prompts stay together in slots. Several kinds take at least the time given in
            ``MixedKindsPlanner``, whatever the limit.
        seed: of the random split that serves as reference.
        deterministic: the plan depends on inputs and ``seed`` alone, never on the load of the machine. No search reads the
            clock, every search stops after a counted amount of work, and ``status`` is never ``stopped``. ``time_limit_s`` then
            means work. For one kind the numbers of makespans and candidates are limited, whatever the time limit. From 0.2 s on
            OR-Tools may also work ``time_limit_s / 5`` of CP-SAT's deterministic seconds. Near a limit over scenarios up to
            1,000 single moves are tried for every second. Exchanges between few actors count 0.2 of it, and as much again after
            the model. For several kinds the limit is counted seconds: work that takes about as long on one core of a 2.4 GHz
            server. A search takes 0.6 of them, and exchanges between actors that refill slots take 0.15. Over scenarios it is
            0.75 in all, and while no plan meets the deadline or budget up to 0.95. On the clock, planning may take longer than
            ``time_limit_s``.

    Returns:
        The best plan found, never worse than the right-sized random split. It has ``lower_bound``, ``gap``, ``status``
        (``optimal``, ``feasible``, or ``stopped`` by the clock) and ``history``; ``moved()`` is what each part changed.

    Raises:
        PlanningError: the arguments are wrong, or no plan was found that meets the limits. The message names the value or the
            limit and by how much it is missed.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-5, max_batch=64, start_s=1.0)
        >>> workload = solver.Workload([100] * 8, [0, 1, 2, 3, 4, 5, 6, 7], [100, 200, 300, 400, 500, 600, 700, 2000])
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 8, 1), latency, solver.Objective(time_weight=0.3))
        >>> plan = solver.plan_generation(problem, deterministic=True)
        >>> len(plan.actors), bool(plan.lower_bound <= plan.value)
        (1, True)
    """
    check_problem(problem)
    check_search(time_limit_s, seed)
    check_flags(deterministic=deterministic)
    if not problem.several_kinds and time_limit_s >= SMALLEST_MODEL_S:
        from solver.planning.single_kind.class_model import load as load_cpsat

        load_cpsat()  # once per process, before the clock starts
    elif problem.several_kinds and time_limit_s >= HURRY_S:
        load_lp()
    began = time.perf_counter()
    canonical = Canonical.of(problem.workload)
    problem = replace(problem, workload=canonical.workload)
    options = SearchOptions(time_limit_s, seed, deterministic, prompt_numbers=canonical.prompt)
    planner = MixedKindsPlanner if problem.several_kinds else SingleKindPlanner
    return canonical.with_caller_indices(planner(problem, options, began).plan())
