"""Plans a step by ReaL's search: Metropolis chains from a greedy plan, with calls in the order in which they become ready.

ReaL (arXiv:2406.14088, section 5) starts with the fastest layout of every call. A move gives one call a random
layout. A plan that needs too many bytes counts threefold. The released code mixes units in its temperature, so several
temperatures are tried here, each with several seeds, and the best plan of all chains is taken.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlhfless.scheduling.dataflow.chains import Known, MetropolisChain
from rlhfless.scheduling.dataflow.judge import judged, judged_options
from solver.layouts import CallCosts, Graph, StepPlan
from solver.layouts.costs import CallOptions, IntArray
from solver.layouts.plan import FIRST_STEPS
from solver.layouts.times import Order, periods_s, step_times
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, is_number, is_whole

TOO_LARGE = 3.0  # factor on the seconds of a plan that needs too many bytes
AHEAD = 32  # moves of a chain that are timed side by side
ROUND = 2_000  # states that a chain counts before the next one goes on
Seconds = Literal["period", "first steps"]  # that the chains make short


@dataclass(frozen=True)
class MarkovSearch:
    """How ReaL's search runs.

    Attributes:
        states: of each chain. temperatures: as shares of the start's seconds. seeds: of the chains at each temperature.
        objective: ``period`` of following steps, or the seconds of the ``first steps``, five together, as ReaL has it.
        cpu_s: per chain; the search ends when the CPU seconds of all chains are used up, and then depends on the machine.

    Raises:
        PlanningError: one of them makes no sense.
    """

    states: int = 5_000
    temperatures: tuple[float, ...] = (0.003, 0.01, 0.03)
    seeds: tuple[int, ...] = (0,)
    objective: Seconds = "period"
    cpu_s: float = math.inf

    def __post_init__(self) -> None:
        if not is_whole(self.states, 1):
            raise PlanningError(f"states is {as_given(self.states)}; a whole number of 1 or more is needed")
        for name, of, right in (
            ("temperatures", is_number, "numbers above 0"),
            ("seeds", is_whole, "whole numbers of 0 or more"),
        ):
            given = getattr(self, name)
            each = isinstance(given, tuple) and given and all(of(one, 0) and (of is is_whole or one > 0) for one in given)
            if not each:
                raise PlanningError(f"{name} is {as_given(given)}; a tuple of one or more {right} is needed")
        if self.objective not in ("period", "first steps"):
            raise PlanningError(f"objective is {as_given(self.objective)}; 'period' or 'first steps' is needed")
        if self.cpu_s != math.inf and not (is_number(self.cpu_s, 0) and self.cpu_s > 0):
            raise PlanningError(f"cpu_s is {as_given(self.cpu_s)}; a number above 0 is needed")


def real_plan(
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    *,
    memory_bytes: float = math.inf,
    order: Order = "fifo",
    lower_bound_s: float = 0.0,
    search: MarkovSearch = MarkovSearch(),
) -> StepPlan:
    """Return the best step plan of ReaL's search.

    Args:
        graph, cluster, costs, memory_bytes: see ``solver.plan_step``. order: in which ready calls start; ``fifo`` is ReaL's.
        lower_bound_s: on the period of every plan, for example that of ``plan_step``.
        search: states, temperatures and seeds; the same search gives the same plan, unless ``cpu_s`` ends it.

    Returns:
        The plan, with status ``given``, or ``infeasible`` where no state fits into memory. Its history has the states of all
        chains and the best period so far.

    Raises:
        PlanningError: an argument makes no sense, or a call runs in no layout.

    Example:
        >>> from solver import Cluster
        >>> from solver.layouts import CallMemory, dpo
        >>> from rlhfless.scheduling.dataflow import MarkovSearch, real_plan
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> real_plan(dpo(), Cluster(1, 4, 1), Costs(), search=MarkovSearch(states=200)).period_s
        1.0
    """
    if not isinstance(search, MarkovSearch):
        raise PlanningError(f"search is {as_given(search)}; a MarkovSearch is needed")
    options = judged_options(graph, cluster, costs, memory_bytes, order, lower_bound_s)
    found = StepChains(options, memory_bytes, order, search)
    found.run()
    best = found.known.best or found.known.lowest
    assert best is not None, "the start is timed"
    return judged(options, np.array(best[1]), memory_bytes, order, lower_bound_s, tuple(found.history))


class StepChains:
    """The chains of all temperatures and seeds, with the energies that they share."""

    def __init__(self, options: CallOptions, memory_bytes: float, order: Order, search: MarkovSearch) -> None:
        self.options, self.memory_bytes, self.order, self.search = options, memory_bytes, order, search
        self.known = Known({})
        self.history: list[tuple[int, float]] = []
        greedy = np.array([int(seconds.argmin()) for seconds in options.seconds])
        self.time(greedy[None])
        energy = self.known.energy[tuple(greedy.tolist())]
        self.chains = [
            MetropolisChain(options, greedy, share * max(energy, 1e-300), seed)
            for share in search.temperatures
            for seed in search.seeds
        ]

    def time(self, plans: IntArray) -> None:
        """Time plans side by side: their seconds, threefold where a GPU has too few bytes."""
        fits = self.options.peak_bytes(plans).max(axis=1) <= self.memory_bytes
        if self.search.objective == "period":
            seconds = periods_s(self.options, plans, self.order)
        else:
            seconds = step_times(self.options, plans, self.order).step_end_s[:, FIRST_STEPS - 1]
        better = self.known.add(plans, np.where(fits, seconds, TOO_LARGE * seconds), fits)
        if better and self.known.best is not None:
            period_s = float(periods_s(self.options, np.array(self.known.best[1])[None], self.order)[0])
            self.history.append((self.known.states + 1, period_s))

    def run(self) -> None:
        """Walk all chains to their number of states, or until the CPU seconds are used up."""
        until_s = time.process_time() + self.search.cpu_s * len(self.chains)
        open_ = self.chains
        while open_ and time.process_time() < until_s:
            ahead = {plan for chain in open_ for plan in chain.next_plans(AHEAD)}
            new = sorted(plan for plan in ahead if plan not in self.known.energy)
            if new:
                self.time(np.array(new))
            for chain in open_:
                chain.walk(self.known, min(self.search.states, chain.states + ROUND))
            open_ = [chain for chain in open_ if chain.states < self.search.states]
