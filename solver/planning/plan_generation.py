"""Defines ``plan_generation``: checks the problem and calls the planner for one kind of actor or for several.

The planners are in the packages ``single_kind`` and ``mixed_kinds``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError, as_given, check_flags, is_number
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.offers import Latencies, check_options, check_priced, offers_of, one_pool, several
from solver.model.plan import Plan, check_release
from solver.model.workload import Workload
from solver.planning.canonical_order import Canonical
from solver.planning.mixed_kinds.planner import plan_mixed
from solver.planning.mixed_kinds.problem import MixedProblem
from solver.planning.mixed_kinds.scenarios import plan_mixed_over_scenarios
from solver.planning.random_split import check_seed
from solver.planning.single_kind.planner import SMALLEST_MODEL_S, SingleKindPlanner
from solver.prefix_sharing.together_or_split import together_or_split
from solver.timing.build_plan import check_fits

CHEAPER = "cheaper"


def plan_generation(
    workload: Workload,
    cluster: Cluster | MixedCluster,
    latency: Latencies,
    objective: Objective = Objective(),  # noqa: B008 (frozen)
    phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008 (frozen)
    time_limit_s: float = 1.0,
    *,
    admission: str = "reserve",
    keep_together: bool | str = False,
    share_prefill: bool = False,
    min_actors: int = 1,
    max_actors: int | None = None,
    release: str = "done",
    seed: int = 0,
    prefill: Mapping[str, Any] | None = None,
    deterministic: bool = False,
) -> Plan:
    """Return a generation plan with a lower bound: the number of actors and the responses of each.

    Args:
        workload: predicted lengths. With scenarios, plans are searched for the predicted lengths. The candidates are the best
            plans for every number of actors and the random split right-sized for the scenarios. The one with the best value
            over the scenarios is returned, and value, bound, times, costs and reference are over the scenarios.
        cluster: the GPUs. latency: the latency model of an actor; one per (kind, GPUs per actor) where there are several.
        objective: what is minimised, and under which limit.
        phases: the phases outside generation, which time, cost, deadline and budget include.
        time_limit_s: seconds for everything but loading OR-Tools (once per process). The search and the OR-Tools model stop
            after a counted amount of work; the clock is a safety net, and ``status`` says when it stopped them. For one kind,
            the OR-Tools model knows no refill: its groups are no larger than the slots or the largest group that it starts
            from, and its bound counts only where slots and memory cannot bind. It is skipped under 0.2 s, and where actors hold
            their GPUs beyond their own work (``release`` other than ``done``). Sorting the work, the random split and one
            makespan come first. A limit below what they take, about 0.1 s for 100,000 responses and 0.4 s for as many whose
            prompts stay together in slots, cannot be kept. Several kinds take at least the time given in ``search_mixed`` and
            ``plan_mixed_over_scenarios``, whatever the limit.
        admission: ``reserve`` or ``preempt``, the rule that the engines will use.
        keep_together: all responses of a prompt on one actor; or ``cheaper``: planned both ways, in half the time each, prefill
            deduplicated (``solver.deduplicate``, transfers of KV cache included), and the better plan kept, without a bound.
        share_prefill: an actor computes a prompt once for all its responses there.
        min_actors, max_actors: bounds on the number of actors.
        release: actors release their GPUs when ``done``, at the end of ``generation`` or of the ``step``.
        seed: of the random split that serves as reference.
        prefill: further arguments of ``solver.deduplicate``, where ``keep_together`` is ``cheaper``.
        deterministic: the plan depends on inputs and ``seed`` alone, never on the load of the machine. No search reads the
            clock, every search stops after a counted amount of work, and ``status`` is never ``stopped``. ``time_limit_s`` then
            means work. For one kind the numbers of makespans and candidates are limited, whatever the time limit. From 0.2 s on
            OR-Tools also works ``time_limit_s / 4`` of CP-SAT's deterministic seconds; below it is skipped. Near a limit over
            scenarios up to 1,000 single moves are tried for every second. For several kinds the limit is counted seconds: work
            that takes about as long on one core of a 2.4 GHz server. A search takes 0.6 of them (0.75 over scenarios), and up
            to 0.95 while no plan meets the deadline or budget. On the clock, planning may take longer than ``time_limit_s``.

    Returns:
        The best plan found, never worse than the right-sized random split, with ``lower_bound``, ``gap``, ``status``
            (``optimal``, ``feasible``, or ``stopped`` by the clock) and ``history``.

    Raises:
        PlanningError: the arguments are wrong, or no plan was found that meets the limits; the message names the value or the
            limit and by how much it is missed.
    """
    check_release(release)
    if not is_number(time_limit_s, 0):
        raise PlanningError(f"time_limit_s is {as_given(time_limit_s)}; a finite number of seconds of 0 or more is needed")
    check_flags(share_prefill=share_prefill, deterministic=deterministic)
    if keep_together not in (True, False, CHEAPER):
        raise PlanningError(f"keep_together is {keep_together!r}; True, False or {CHEAPER!r} is needed")
    if keep_together == CHEAPER:

        def plan_with(together: bool) -> Plan:
            return plan_generation(
                workload, cluster, latency, objective, phases, time_limit_s / 2, admission=admission, keep_together=together,
                share_prefill=True, min_actors=min_actors, max_actors=max_actors, release=release, seed=seed,
                deterministic=deterministic,
            )  # fmt: skip

        return together_or_split(plan_with, workload, cluster, latency, objective, phases, admission, prefill or {})
    if prefill is not None:
        raise PlanningError(
            "prefill needs keep_together='cheaper'; deduplicate the prefill of other plans with solver.deduplicate"
        )
    keep_together = bool(keep_together)
    check_seed(seed)
    check_fits(workload, cluster, latency)
    check_priced(objective.cost, cluster)
    offers = offers_of(cluster, latency)
    check_options(workload, offers, min_actors, max_actors, keep_together)
    if several(offers):
        asked = Canonical.of(workload)
        plan_offers = plan_mixed if workload.scenarios is None else plan_mixed_over_scenarios
        problem = MixedProblem(
            asked.workload, offers, cluster, objective, phases, admission, seed, min_actors, max_actors, release,
            keep_together, share_prefill, deterministic, asked.prompt,
        )  # fmt: skip
        return asked.given(plan_offers(problem, time_limit_s))
    if time_limit_s >= SMALLEST_MODEL_S:
        from solver.planning.single_kind.cpsat import load

        load()  # once per process, before the clock starts
    began = time.perf_counter()
    asked = Canonical.of(workload)
    model, where = offers[0].latency, one_pool(cluster, offers[0])
    plan = SingleKindPlanner(
        asked.workload, where, model.affine, objective, phases, time_limit_s, admission, keep_together, share_prefill,
        min_actors, min(where.max_actors, max_actors or where.max_actors), release, seed, began,
        deterministic=deterministic,
    ).plan()  # fmt: skip
    return asked.given(plan)
