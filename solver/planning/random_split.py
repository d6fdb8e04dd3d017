"""Right-sized random split of the prompts over N actors: the baseline of every objective and the plan of the policy ``random``.

Whole prompts are shuffled, from their canonical order so that their numbers do not matter, and dealt to N actors in equal
counts. N is the count with the least ``T^w * C^(1-w)``. The product needs no reference to normalise it. Around the chosen N it
ranks plans like the weighted objective with this split as reference: both have the same gradient there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.model.errors import PlanningError, check_flags
from solver.model.offers import check_counts
from solver.model.plan import Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray, IntArray, Workload
from solver.planning.actor_count import best_count
from solver.planning.canonical_order import Canonical
from solver.planning.prompt_dealing import candidate_counts, dealt_prompts, equal_counts
from solver.planning.search_options import check_seed
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes, Split
from solver.timing.step_cost import Pricing


def assign_prompts(workload: Workload, prompts: IntArray, actors: int) -> list[IntArray]:
    """Return the responses of at most ``actors`` actors: whole prompts, in the given order and in equal counts.

    There are as many groups as prompts if that is fewer; no group is empty.
    """
    order, first = dealt_prompts(workload, prompts)
    return [order[first[a] : first[b]] for a, b in equal_counts(len(prompts), actors)]


def random_split(problem: PlanningProblem, *, seed: int = 0, actors: int | None = None, spread: bool = False) -> Plan:
    """Return the random split with the best number of actors for the objective, or with ``actors`` if given.

    If no split meets a deadline or budget, the one that misses it least is returned. There are never more actors than prompts,
    and at least ``min_actors`` where there are that many prompts.

    Args:
        problem: with one kind of actors.
        spread: assign single responses round-robin instead of whole prompts, so that no actor gets all samples of a long
            prompt. Then there may be as many actors as responses.

    Raises:
        PlanningError: an option makes no sense, there are several kinds of actors, or ``actors`` is above the number of prompts
            (responses, with ``spread``).
    """
    check_problem(problem)
    check_seed(seed)
    check_flags(spread=spread)
    check_counts(problem.min_actors, actors=actors)
    workload = problem.workload
    items = len(workload) if spread else len(np.unique(workload.prompt_of))
    if actors is not None and actors > items:
        what = counted(items, "response" if spread else "prompt")
        raise PlanningError(f"actors is {actors}, but the workload has only {what}; give at most {items}")
    canonical = Canonical.of(workload)
    split, _ = sized_split(replace(problem, workload=canonical.workload), seed=seed, actors=actors, spread=spread)
    groups = [canonical.response[group] for group in split.groups()]
    return assemble("random", groups, problem)


def sized_split(
    problem: PlanningProblem, *, seed: int = 0, actors: int | None = None, spread: bool = False
) -> tuple[Split, FloatArray]:
    """Return the groups of ``random_split`` and the (S, N) seconds that they are busy, for a workload in canonical order.

    ``solver.planning.actor_count`` says which counts are timed exactly.
    """
    workload, (cluster, latency) = problem.workload, problem.one_kind
    used = np.unique(workload.prompt_of)
    order, first = dealt_prompts(workload, np.random.default_rng(seed).permutation(used))
    items = len(order) if spread else len(used)
    most = min(cluster.max_actors, items, problem.max_actors or items)
    counts = [actors] if actors is not None else [n for n in candidate_counts(most) if n >= min(problem.min_actors, most)]
    rule = admission_of(latency, None, problem.admission)
    of_prompts = GroupTimes.of(workload, latency, rule, order, problem.share_prefill)

    def split(n: int) -> tuple[GroupTimes, IntArray]:
        if not spread:
            return of_prompts, first[np.array([0, *(last for _, last in equal_counts(len(used), n))])]
        dealt = [order[k::n] for k in range(n)]
        times = GroupTimes.of(workload, latency, rule, np.concatenate(dealt), problem.share_prefill)
        return times, np.cumsum([0, *map(len, dealt)])

    return best_count(counts, split, Pricing.of(problem))
