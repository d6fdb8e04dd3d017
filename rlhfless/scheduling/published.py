"""Plans the layouts of a step as published systems do: Megatron's rule of thumb, verl's co-located sets, ReaL's search.

All plans are timed and sized by the cost model of ``solver.layouts.plan_step``. What published systems do about generation is a
policy (``rlhfless.scheduling.policies()``).

- **Megatron**: every call on all GPUs, tensor parallel in a node, pipeline stages across nodes. ReaL (arXiv:2406.14088, section
  8) compares itself with this plan. No weights are ever sent, and calls run one after another.
- **verl** (HybridFlow, arXiv:2409.19256, algorithm 1): models in co-located sets, each set with GPUs of its own. All partitions
  of the models into sets are tried, and all numbers of GPUs per set. Calls of a set share its GPUs, one after the other, each
  with the parallel strategy that is fastest for it. The published system estimates a step's seconds by stages; here all plans
  are judged by the times of following steps.
- **ReaL** (arXiv:2406.14088, section 5): Metropolis chains from a greedy plan, with calls in the order in which they become
  ready. The start is the fastest layout of every call. A move gives one call a random layout. A plan that needs too many bytes
  counts threefold. The released code mixes units in its temperature, so several temperatures are tried here, each with several
  seeds, and the best plan of all chains is taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from rlhfless.errors import InputError
from solver.layouts import CallCosts, Graph, Layout, Mesh, StepPlan, meshes
from solver.layouts.costs import CallOptions, FloatArray, IntArray
from solver.layouts.plan import FIRST_STEPS, step_plan
from solver.layouts.planner import problem_options
from solver.layouts.times import ORDERS, Order, periods_s, step_times
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, is_list, is_number, is_whole

AT_ONCE = 2048  # plans that are timed side by side
TOO_LARGE = 3.0  # factor on the seconds of a plan that needs too many bytes
AHEAD = 32  # moves of a chain that are timed side by side
DRAWN = 1024  # moves that are drawn at once
ROUND = 2_000  # states that a chain counts before the next one goes on

Seconds = Literal["period", "first steps"]
"""What ReaL's chains make short."""
Choice = tuple[int, ...]
"""The option of every call."""


@dataclass(frozen=True, eq=False)
class LayoutProblem:
    """A step whose layouts another planner chooses: the options of every call, and what plans of them take.

    Attributes:
        options: of every call. memory_bytes: of a GPU. order: in which ready calls start.
        lower_bound_s: on the period of every plan, for example that of ``plan_step``.
    """

    options: CallOptions
    memory_bytes: float = math.inf
    order: Order = "fifo"
    lower_bound_s: float = 0.0

    @classmethod
    def of(
        cls,
        graph: Graph,
        cluster: Cluster,
        costs: CallCosts,
        *,
        memory_bytes: float = math.inf,
        order: Order = "fifo",
        lower_bound_s: float = 0.0,
    ) -> LayoutProblem:
        """Return the problem of a step.

        Args:
            graph, cluster, costs, memory_bytes: see ``solver.layouts.plan_step``. order, lower_bound_s: see the class.

        Raises:
            PlanningError: an argument makes no sense, or a call runs in no layout.
        """
        if order not in ORDERS:
            raise PlanningError(f"order is {as_given(order)}; {' or '.join(map(repr, ORDERS))} is needed")
        if not is_number(lower_bound_s, 0):
            raise PlanningError(f"lower_bound_s is {as_given(lower_bound_s)}; a number of 0 or more is needed")
        return cls(problem_options(graph, cluster, costs, memory_bytes), memory_bytes, order, lower_bound_s)

    def fits(self, plans: IntArray) -> IntArray:
        """Return (P,) whether every GPU has enough bytes under each of (P, K) plans."""
        return np.asarray(self.options.peak_bytes(plans).max(axis=1) <= self.memory_bytes)

    def periods_s(self, plans: IntArray) -> FloatArray:
        """Return (P,) seconds from step to step under each of (P, K) plans."""
        return periods_s(self.options, plans, self.order)

    def step_plan(self, plan: IntArray, history: tuple[tuple[int, float], ...] = ()) -> StepPlan:
        """Return the step plan of (K,) options, with status ``given``, or ``infeasible`` where a GPU has too few bytes."""
        status = "given" if self.fits(plan[None])[0] else "infeasible"
        return step_plan(self.options, plan, status=status, order=self.order, lower_bound_s=self.lower_bound_s, history=history)


def _check(problem: LayoutProblem) -> None:
    if not isinstance(problem, LayoutProblem):
        raise PlanningError(f"problem is {as_given(problem)}; a LayoutProblem is needed")


# --- Megatron ---------------------------------------------------------------------------------------------------------------


def megatron_plan(problem: LayoutProblem) -> StepPlan:
    """Return the step plan of Megatron's rule: tp 8 (at most a node), pp = number of nodes, dp 1, for every call.

    Where a call does not run like this, it gets the largest mesh, then the largest tp, then the largest pp of at most the
    number of nodes. The status is ``given``, or ``infeasible`` where a GPU has too few bytes.

    Raises:
        PlanningError: ``problem`` is no LayoutProblem.

    Example:
        >>> from solver import Cluster
        >>> from solver.layouts import CallMemory, dpo
        >>> from rlhfless.scheduling.published import LayoutProblem, megatron_plan
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> plan = megatron_plan(LayoutProblem.of(dpo(), Cluster(2, 4, 1), Costs()))
        >>> [str(call.layout.strategy) for call in plan.calls], plan.period_s
        (['1x4x2', '1x4x2'], 0.5)
    """
    _check(problem)
    options = problem.options
    nodes = max(1, options.gpus // options.gpus_per_node)

    def rank(layout: Layout) -> tuple[int, int, bool, int]:
        strategy = layout.strategy
        return -layout.mesh.gpus, -strategy.tp, strategy.pp > nodes, -strategy.pp

    return problem.step_plan(np.array([min(range(len(of)), key=lambda i: rank(of[i])) for of in options.layouts]))


# --- verl -------------------------------------------------------------------------------------------------------------------


def colocated_plan(problem: LayoutProblem) -> StepPlan:
    """Return verl's plan: the best step plan of co-located sets of models, with status ``given``.

    Where no partition fits into memory, each call has the layout that needs least, and the status is ``infeasible`` unless that
    fits.

    Raises:
        PlanningError: ``problem`` is no LayoutProblem.

    Example:
        >>> from solver import Cluster
        >>> from solver.layouts import CallMemory, dpo
        >>> from rlhfless.scheduling.published import LayoutProblem, colocated_plan
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> plan = colocated_plan(LayoutProblem.of(dpo(), Cluster(1, 4, 1), Costs()))
        >>> [call.layout.mesh.gpus for call in plan.calls], plan.period_s
        ([4, 4], 1.0)
    """
    _check(problem)
    sets = _Sets(problem)
    found = (sets.plan(placed) for placed in placements(problem.options))
    plans = np.array([plan for plan in found if plan is not None])
    if not len(plans):
        return problem.step_plan(np.array([int(memory.sum(axis=1).argmin()) for memory in problem.options.memory]))
    period_s = np.concatenate([problem.periods_s(plans[at : at + AT_ONCE]) for at in range(0, len(plans), AT_ONCE)])
    best = int(period_s.argmin())
    return problem.step_plan(plans[best], ((len(plans), float(period_s[best])),))


def partitions(items: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield all partitions of items into sets.

    Example:
        >>> from rlhfless.scheduling.published import partitions
        >>> list(partitions(("a", "b")))
        [(('a', 'b'),), (('a',), ('b',))]
    """
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for others in partitions(rest):
        for at, one in enumerate(others):
            yield (*others[:at], (first, *one), *others[at + 1 :])
        yield ((first,), *others)


def placements(options: CallOptions) -> Iterator[dict[tuple[str, ...], Mesh]]:
    """Yield the meshes of co-located roles, for all partitions of the roles and all numbers of GPUs per set.

    Meshes follow each other, the largest first, so that parts of a node are aligned.
    """
    roles = tuple(dict.fromkeys(call.role for call in options.graph.calls))
    every = meshes(options.gpus, options.gpus_per_node)
    sizes = sorted({mesh.gpus for mesh in every}, reverse=True)
    known = {(mesh.first, mesh.gpus): mesh for mesh in every}
    for sets in partitions(roles):
        for of_sets in _sizes(sizes, len(sets), options.gpus):
            found, first = {}, 0
            for at in sorted(range(len(sets)), key=lambda one: -of_sets[one]):
                mesh = known.get((first, of_sets[at]))
                if mesh is None:
                    break
                found[sets[at]] = mesh
                first = mesh.last
            if len(found) == len(sets):
                yield found


def _sizes(sizes: list[int], sets: int, gpus: int) -> Iterator[tuple[int, ...]]:
    """Yield all numbers of GPUs per set that are together at most ``gpus``."""
    if not sets:
        yield ()
        return
    for size in sizes:
        if size <= gpus:
            for rest in _sizes(sizes, sets - 1, gpus - size):
                yield (size, *rest)


class _Sets:
    """The best strategies of the calls of roles that share a mesh; sets do not share GPUs, so each is planned alone."""

    def __init__(self, problem: LayoutProblem) -> None:
        self.options, self.memory_bytes = problem.options, problem.memory_bytes
        self.known: dict[tuple[tuple[str, ...], Mesh], dict[int, int] | None] = {}
        self.on_mesh = [
            {mesh: np.flatnonzero([layout.mesh == mesh for layout in of_call]) for mesh in {layout.mesh for layout in of_call}}
            for of_call in self.options.layouts
        ]

    def plan(self, placed: dict[tuple[str, ...], Mesh]) -> IntArray | None:
        """Return (K,) options of all calls, or None where the calls of a set do not fit on their mesh."""
        plan = np.empty(len(self.options.layouts), np.int64)
        for roles, mesh in placed.items():
            if (roles, mesh) not in self.known:
                self.known[roles, mesh] = self._best(roles, mesh)
            chosen = self.known[roles, mesh]
            if chosen is None:
                return None
            plan[list(chosen)] = list(chosen.values())
        return plan

    def _best(self, roles: tuple[str, ...], mesh: Mesh) -> dict[int, int] | None:
        """Return the option of every call of the roles that takes least together, reallocations included, or None."""
        options, graph = self.options, self.options.graph
        calls = [at for at, call in enumerate(graph.calls) if call.role in roles]
        if any(mesh not in self.on_mesh[call] for call in calls):
            return None
        trains = [call for call in calls if graph.trained_by[call] == call]
        others = [call for call in calls if call not in trains]
        least_others_s = sum(float(options.seconds[call][self.on_mesh[call][mesh]].min()) for call in others)
        combinations = list(product(*(self.on_mesh[train][mesh].tolist() for train in trains)))
        trained_s = [sum(float(options.seconds[t][o]) for t, o in zip(trains, one, strict=True)) for one in combinations]
        best, best_s = None, math.inf
        for at in np.argsort(trained_s, kind="stable").tolist():
            if trained_s[at] + least_others_s >= best_s:
                break
            trained = dict(zip(trains, combinations[at], strict=True))
            room = self.memory_bytes - sum(float(options.memory[train][option, 0]) for train, option in trained.items())
            if any(options.memory[train][option, 1:].sum() > room for train, option in trained.items()):
                continue
            chosen, total_s = dict(trained), trained_s[at]
            for call in others:
                option, seconds = self._fastest(call, mesh, trained, room)
                chosen[call], total_s = option, total_s + seconds
            if total_s < best_s:
                best, best_s = chosen, total_s
        return best

    def _fastest(self, call: int, mesh: Mesh, trained: dict[int, int], room: float) -> tuple[int, float]:
        """Return the option that takes least and fits into ``room``, with its seconds: infinite where none fits."""
        options, train = self.options, self.options.graph.trained_by[call]
        of_mesh = self.on_mesh[call][mesh]
        seconds, needs = options.seconds[call][of_mesh], options.memory[call][of_mesh, 1]
        if train is None:
            needs = needs + options.memory[call][of_mesh, 2]
        else:
            with_option = np.full(len(of_mesh), trained[train])
            seconds = seconds + options.reallocation_s(call, with_option, of_mesh)
            needs = needs + options.copies(call, of_mesh, with_option)
        seconds = np.where(needs <= room, seconds, math.inf)
        best = int(seconds.argmin())
        return int(of_mesh[best]), float(seconds[best])


# --- ReaL -------------------------------------------------------------------------------------------------------------------


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


def real_plan(problem: LayoutProblem, search: MarkovSearch = MarkovSearch()) -> StepPlan:
    """Return the best step plan of ReaL's search. ReaL starts ready calls in the order ``fifo``.

    Args:
        search: states, temperatures and seeds; the same search gives the same plan, unless ``cpu_s`` ends it.

    Returns:
        The plan, with status ``given``, or ``infeasible`` where no state fits into memory. Its history has the states of all
        chains and the best period so far.

    Raises:
        PlanningError: an argument is of another type.

    Example:
        >>> from solver import Cluster
        >>> from solver.layouts import CallMemory, dpo
        >>> from rlhfless.scheduling.published import LayoutProblem, MarkovSearch, real_plan
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> real_plan(LayoutProblem.of(dpo(), Cluster(1, 4, 1), Costs()), MarkovSearch(states=200)).period_s
        1.0
    """
    if not isinstance(search, MarkovSearch):
        raise PlanningError(f"search is {as_given(search)}; a MarkovSearch is needed")
    _check(problem)
    found = StepChains(problem, search)
    found.run()
    best = found.known.best or found.known.lowest
    assert best is not None, "the start is timed"
    return problem.step_plan(np.array(best[1]), tuple(found.history))


class StepChains:
    """The chains of all temperatures and seeds, with the energies that they share."""

    def __init__(self, problem: LayoutProblem, search: MarkovSearch) -> None:
        self.problem, self.search = problem, search
        self.known = Known({})
        self.history: list[tuple[int, float]] = []
        options = problem.options
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
        problem, fits = self.problem, self.problem.fits(plans)
        if self.search.objective == "period":
            seconds = problem.periods_s(plans)
        else:
            seconds = step_times(problem.options, plans, problem.order).step_end_s[:, FIRST_STEPS - 1]
        better = self.known.add(plans, np.where(fits, seconds, TOO_LARGE * seconds), fits)
        if better and self.known.best is not None:
            period_s = float(problem.periods_s(np.array(self.known.best[1])[None])[0])
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


@dataclass
class Known:
    """Energies of plans that were timed, and the best plan.

    Attributes:
        energy: by plan. best: of plans that fit. lowest: of all plans. states: of all chains together.
    """

    energy: dict[Choice, float]
    best: tuple[float, Choice] | None = None
    lowest: tuple[float, Choice] | None = None
    states: int = 0

    def add(self, plans: IntArray, energies: FloatArray, fits: IntArray) -> bool:
        """Keep what plans take; return whether one is the best that fits."""
        self.energy.update(zip(map(tuple, plans.tolist()), energies.tolist(), strict=True))
        at = int(energies.argmin())
        if self.lowest is None or energies[at] < self.lowest[0]:
            self.lowest = float(energies[at]), tuple(plans[at].tolist())
        among = np.where(fits, energies, math.inf)
        at = int(among.argmin())
        if among[at] < (math.inf if self.best is None else self.best[0]):
            self.best = float(among[at]), tuple(plans[at].tolist())
            return True
        return False


class MetropolisChain:
    """A Metropolis chain over the plans of a step: one call changes its option per move.

    Moves are drawn before they are judged, and do not depend on the state. So the plans of the next moves can be timed side by
    side, as if none of them were accepted, and the chain is the same whichever are timed together.

    Args:
        plan: of the start. temperature: in units of energy. seed: of its moves.
    """

    def __init__(self, options: CallOptions, plan: IntArray, temperature: float, seed: int) -> None:
        self.choices = np.array([len(seconds) for seconds in options.seconds])
        self.plan: Choice = tuple(plan.tolist())
        self.temperature = temperature
        self.rng = np.random.default_rng(seed)
        self.states = 0
        self.moves: list[tuple[int, int, float]] = []
        self.at = 0

    def next_plans(self, count: int) -> list[Choice]:
        """Return the plans of so many moves from the current one."""
        if self.at + count > len(self.moves):
            call = self.rng.integers(len(self.choices), size=DRAWN)
            option = self.rng.integers(self.choices[call])
            drawn = zip(call.tolist(), option.tolist(), self.rng.random(DRAWN).tolist(), strict=True)
            self.moves, self.at = [*self.moves[self.at :], *drawn], 0
        plan = self.plan
        return [(*plan[:call], option, *plan[call + 1 :]) for call, option, _ in self.moves[self.at : self.at + count]]

    def walk(self, known: Known, most: int) -> None:
        """Move on until a plan is not known, or ``most`` states are counted."""
        energies, energy = known.energy, known.energy[self.plan]
        while self.states < most:
            (plan,) = self.next_plans(1)
            proposed = energies.get(plan)
            if proposed is None:
                return
            if accepted(energy, proposed, self.temperature, self.moves[self.at][2]):
                self.plan, energy = plan, proposed
            self.at += 1
            self.states += 1
            known.states += 1


def accepted(energy: float, proposed: float, temperature: float, uniform: float) -> bool:
    """Return whether Metropolis moves from one energy to another, by a uniform number in [0, 1)."""
    return proposed <= energy or uniform < math.exp((energy - proposed) / temperature)


# --- by name ----------------------------------------------------------------------------------------------------------------

PUBLISHED_PLANS: dict[str, Callable[[LayoutProblem], StepPlan]] = {
    "megatron": megatron_plan,
    "real": real_plan,
    "verl": colocated_plan,
}
"""Published planners of layouts by name."""


def published_plans(
    names: Sequence[str],
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    *,
    memory_bytes: float = math.inf,
    lower_bound_s: float = 0.0,
) -> dict[str, StepPlan]:
    """Return the plan of each named planner.

    Args:
        names: of ``PUBLISHED_PLANS``. graph, cluster, costs, memory_bytes: see ``solver.layouts.plan_step``.
        lower_bound_s: on the period of every plan, for example that of ``plan_step``.

    Raises:
        InputError: names are no list, or one is unknown; the message lists those that exist.
        PlanningError: an argument makes no sense, or a call runs in no layout.

    Example:
        >>> from rlhfless.scheduling.published import published_plans
        >>> plans = published_plans(["megatron"], graph, cluster, costs, lower_bound_s=plan.lower_bound_s)
        >>> list(plans)
        ['megatron']
    """
    if not is_list(names):
        raise InputError(f"names of published plans are {as_given(names)}; a list of them is needed, such as ['megatron']")
    unknown = [name for name in names if not isinstance(name, str) or name not in PUBLISHED_PLANS]
    if unknown:
        raise InputError(f"there is no published plan {as_given(unknown[0])}; choose from {', '.join(PUBLISHED_PLANS)}")
    problem = LayoutProblem.of(graph, cluster, costs, memory_bytes=memory_bytes, lower_bound_s=lower_bound_s)
    return {name: PUBLISHED_PLANS[name](problem) for name in names}


__all__ = [
    "PUBLISHED_PLANS", "LayoutProblem", "MarkovSearch", "colocated_plan", "megatron_plan", "published_plans", "real_plan",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
