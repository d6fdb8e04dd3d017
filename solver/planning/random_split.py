"""Right-sized random split of the prompts over N actors: the baseline of every objective and the plan of the policy ``random``.

Whole prompts are shuffled, from their canonical order so that their numbers do not matter, and dealt to N actors in equal
counts. N is the count with the least ``T^w * C^(1-w)``. The product needs no reference to normalise it. Around the chosen N it
ranks plans like the weighted objective with this split as reference: both have the same gradient there.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, check_flags
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.offers import check_counts
from solver.model.plan import Plan, check_release
from solver.model.plurals import counted
from solver.model.workload import FloatArray, IntArray, Workload
from solver.planning.actor_count import best_count
from solver.planning.canonical_order import Canonical
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes, Split
from solver.timing.step_cost import Pricing


def equal_counts(count: int, groups: int) -> list[tuple[int, int]]:
    """Return ``groups`` half-open ranges over ``count`` positions whose sizes differ by at most one; none is empty."""
    edges: IntArray = np.linspace(0, count, min(groups, count) + 1).round().astype(np.int64)
    return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]


def assign_prompts(workload: Workload, prompts: IntArray, actors: int) -> list[IntArray]:
    """Return the responses of at most ``actors`` actors: whole prompts, in the given order and in equal counts.

    There are as many groups as prompts if that is fewer; no group is empty.
    """
    order, first = _dealt(workload, prompts)
    return [order[first[a] : first[b]] for a, b in equal_counts(len(prompts), actors)]


def candidate_counts(most: int) -> list[int]:
    """Return the actor counts to try: all up to 16, then steps of about 7 %."""
    counts = list(range(1, min(most, 16) + 1))
    while counts[-1] < most:
        counts.append(min(most, math.ceil(counts[-1] * 1.07)))
    return counts


def check_seed(seed: int) -> None:
    """Refuse a seed that is not a whole number of 0 or more (a PlanningError)."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise PlanningError(f"seed is {as_given(seed)}; a whole number of 0 or more is needed")


def random_split(
    workload: Workload,
    cluster: Cluster,
    latency: LatencyModel,
    objective: Objective = Objective(),  # noqa: B008 (frozen)
    phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008 (frozen)
    *,
    seed: int = 0,
    actors: int | None = None,
    min_actors: int = 1,
    max_actors: int | None = None,
    release: str = "done",
    admission: str = "reserve",
    share_prefill: bool = False,
    spread: bool = False,
) -> Plan:
    """Return the random split with the best number of actors for the objective, or with ``actors`` if given.

    If no split meets a deadline or budget, the one that misses it least is returned. There are never more actors than prompts,
    and at least ``min_actors`` where there are that many prompts.

    Args:
        spread: assign single responses round-robin instead of whole prompts, so that no actor gets all samples of a long
            prompt; then there may be as many actors as responses.

    Raises:
        PlanningError: an option makes no sense, or ``actors`` is above the number of prompts (responses, with ``spread``).
    """
    check_release(release)
    check_seed(seed)
    check_flags(share_prefill=share_prefill, spread=spread)
    check_counts(min_actors=min_actors, max_actors=max_actors, actors=actors)
    items = len(workload) if spread else len(np.unique(workload.prompt_of))
    if actors is not None and actors > items:
        what = counted(items, "response" if spread else "prompt")
        raise PlanningError(f"actors is {actors}, but the workload has only {what}; give at most {items}")
    asked = Canonical.of(workload)
    split, _ = sized_split(
        asked.workload, cluster, latency, objective, phases, seed=seed, actors=actors, min_actors=min_actors,
        max_actors=max_actors, release=release, admission=admission, share_prefill=share_prefill, spread=spread,
    )  # fmt: skip
    groups = [asked.response[group] for group in split.groups()]
    return assemble(
        "random", groups, workload, cluster, latency, phases, release=release, admission=admission,
        shares_prompts=share_prefill,
    )  # fmt: skip


def sized_split(
    workload: Workload,
    cluster: Cluster,
    latency: LatencyModel,
    objective: Objective,
    phases: NonGenerationPhases,
    *,
    seed: int,
    actors: int | None,
    min_actors: int,
    max_actors: int | None,
    release: str,
    admission: str,
    share_prefill: bool,
    spread: bool,
) -> tuple[Split, FloatArray]:
    """Return the groups of ``random_split`` and the (S, N) seconds that they are busy, for a workload in canonical order.

    ``solver.planning.actor_count`` says which counts are timed exactly.
    """
    used = np.unique(workload.prompt_of)
    order, first = _dealt(workload, np.random.default_rng(seed).permutation(used))
    items = len(order) if spread else len(used)
    most = min(cluster.max_actors, items, max_actors or items)
    counts = [actors] if actors is not None else [n for n in candidate_counts(most) if n >= min(min_actors, most)]
    rule = admission_of(latency, None, admission)
    pricing = Pricing.of(cluster, latency, objective, phases, release)
    of_prompts = GroupTimes.of(workload, latency, rule, order, share_prefill)

    def split(n: int) -> tuple[GroupTimes, IntArray]:
        if not spread:
            return of_prompts, first[np.array([0, *(last for _, last in equal_counts(len(used), n))])]
        dealt = [order[k::n] for k in range(n)]
        times = GroupTimes.of(workload, latency, rule, np.concatenate(dealt), share_prefill)
        return times, np.cumsum([0, *map(len, dealt)])

    return best_count(counts, split, pricing)


def _dealt(workload: Workload, prompts: IntArray) -> tuple[IntArray, IntArray]:
    """Return the (R,) responses prompt after prompt, and (P+1,) where each prompt's responses begin among them."""
    by_prompt = np.argsort(workload.prompt_of, kind="stable")
    counts = np.bincount(workload.prompt_of, minlength=len(workload.prompt_tokens))
    begin = np.concatenate([[0], np.cumsum(counts)])
    size = counts[prompts]
    first = np.concatenate([[0], np.cumsum(size)])
    return by_prompt[np.repeat(begin[prompts] - first[:-1], size) + np.arange(first[-1])], first
