"""Plans generate calls with the generation solver: their seconds, when each of their GPUs is released, and lower bounds.

A generate call on n GPUs with tensor-parallel size tp is a ``PlanningProblem`` with actors of tp GPUs. ``solver.plan``
gives its makespan and when each actor is done. Engines have no pipeline, so pp is 1. Actors stay up between steps and get
weights by reallocations, so the seconds of start and sync of the latency models are not charged.

Generation is planned for its time alone, whatever the step is planned for.

**GPUs that are released early.** The call starts once all GPUs of its mesh are free. Each GPU is held until its actor is done,
and one that no actor takes is not held. Calls that wait for all responses still wait for the end of the call.

**Drafts.** Speculative decoding is a latency model: ``solver.timing.drafted_latency.drafted`` turns one into that of the same
actor with drafts, in which an iteration yields one token of each response, in expectation.

**Lower bounds** hold for every generation plan without a runtime rule, not only for the one that is found. ``least_s`` is the
solver's bound on the makespan, from the plan for time alone. ``least_gpu_s`` is its bound on GPU-seconds, from the plan for
cost alone, in which every actor gives its GPUs back when it is done. ``bound.py`` says how they enter bounds on the period.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solver.generation import planner
from solver.layouts.costs import CallCosts, CallMemory, CallOptions, ReleasedEarly
from solver.layouts.graph import GENERATE, Call, Graph
from solver.layouts.layout import Layout
from solver.layouts.plan import StepPlan
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, is_whole
from solver.model.latency import LatencyModel
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload


@dataclass(frozen=True, eq=False)
class StepGeneration:
    """The responses that a generate call produces in each step, and the latency model of an actor for each tensor-parallel
    size.

    Attributes:
        workload: the responses, with their predicted lengths.
        latency: model of an actor by its number of GPUs, which is tp; a layout with another tp cannot generate.
        admission: as in ``PlanningProblem``.

    Raises:
        PlanningError: an argument is of the wrong type, or a latency model is of another number of GPUs than its key.

    Example:
        >>> import solver
        >>> from solver.layouts import StepGeneration
        >>> latency = {tp: solver.LatencyModel(f"tp{tp}", tp, base_s=5e-3 / tp, per_response_s=1e-5) for tp in (1, 2)}
        >>> generation = StepGeneration(solver.Workload([10], [0, 0], [100, 300]), latency)
        >>> generation.mean_tokens
        200.0
    """

    workload: Workload
    latency: Mapping[int, LatencyModel]
    admission: str = "reserve"

    def __post_init__(self) -> None:
        if not isinstance(self.workload, Workload):
            raise PlanningError(f"workload of generation is {as_given(self.workload)}; a Workload is needed")
        given = self.latency
        if not isinstance(given, Mapping) or not given or not all(isinstance(one, LatencyModel) for one in given.values()):
            raise PlanningError(f"latency of generation is {as_given(given)}; a LatencyModel for each tp is needed")
        for tp, model in given.items():
            if not is_whole(tp, 1) or model.gpus_per_actor != tp:
                raise PlanningError(
                    f"latency of generation has a model of {model.gpus_per_actor} GPUs per actor at tp {as_given(tp)}; the "
                    "same number is needed"
                )

    @property
    def mean_tokens(self) -> float:
        """Mean predicted tokens of a response."""
        return float(self.workload.response_tokens.mean())

    def problem(self, gpus: int, gpus_per_node: int, tp: int) -> PlanningProblem | None:
        """Return generation on a mesh of so many GPUs, for its predicted lengths; None without a latency model of this tp.

        Raises:
            PlanningError: no actor of this size can hold some response.
        """
        model = self.latency.get(tp)
        if model is None or tp > min(gpus, gpus_per_node):
            return None
        cluster = Cluster(max(1, gpus // gpus_per_node), min(gpus, gpus_per_node), tp, model.kind)
        running = replace(model, start_s=0.0, sync_s=0.0)
        return PlanningProblem(self.workload.points, cluster, running, admission=self.admission)


class PlannedGeneration(NamedTuple):
    """A generate call on a mesh.

    Attributes:
        plan: whose GPU ids count from the first GPU of the mesh.
        release_s: (n,) seconds from its start until each GPU is released.
        least_s, least_gpu_s: bounds on the makespan and on the GPU-seconds of every plan on so many GPUs with this tp.
    """

    plan: Plan
    release_s: tuple[float, ...]
    least_s: float
    least_gpu_s: float


class GenerationPlans:
    """Generation plans of one call, each made once per number of GPUs and tp."""

    def __init__(self, generation: StepGeneration, gpus_per_node: int, seed: int = 0) -> None:
        self.generation, self.gpus_per_node, self.seed = generation, gpus_per_node, seed
        self.refused: PlanningError | None = None  # why a tp cannot generate
        self._made: dict[tuple[int, int], PlannedGeneration | None] = {}

    @property
    def possible(self) -> bool:
        """Whether a layout that was asked for can generate."""
        return any(planned is not None for planned in self._made.values())

    def of(self, layout: Layout) -> PlannedGeneration | None:
        """Return generation in this layout; None where it is impossible."""
        key = gpus, tp = layout.mesh.gpus, layout.strategy.tp
        if layout.strategy.pp > 1:
            return None
        if key not in self._made:
            try:
                self._made[key] = self._plan(gpus, tp)
            except PlanningError as error:
                self.refused, self._made[key] = error, None
        return self._made[key]

    def _plan(self, gpus: int, tp: int) -> PlannedGeneration | None:
        problem = self.generation.problem(gpus, self.gpus_per_node, tp)
        if problem is None:
            return None
        fastest, cheapest = (
            planner.plan(replace(problem, objective=Objective(time_weight=weight)), quick=True, seed=self.seed)
            for weight in (1.0, 0.0)
        )
        least_s = fastest.makespan_s * _proven(fastest)
        return PlannedGeneration(fastest, _released(fastest, gpus), least_s, cheapest.gpu_seconds * _proven(cheapest))


def _released(plan: Plan, gpus: int) -> tuple[float, ...]:
    """Return when each GPU of the mesh is released."""
    release = np.zeros(gpus)
    for actor in plan.actors:
        release[list(actor.gpu_ids)] = actor.predicted_s
    return tuple(release.tolist())


def _proven(plan: Plan) -> float:
    """Return the share of a plan's value that its bound proves; value is time or cost alone, without other phases."""
    return plan.lower_bound / plan.value if plan.value and plan.lower_bound is not None else 0.0


@dataclass(frozen=True)
class GeneratedCosts:
    """Costs whose generate calls take what generation plans take; see ``CallCosts``.

    Attributes:
        costs: of everything else. plans: by the name of the call.
    """

    costs: CallCosts
    plans: Mapping[str, GenerationPlans]

    def seconds(self, call: Call, layout: Layout) -> float:
        """Return the makespan of the generation plan in this layout; infinity where there is none."""
        if call.name not in self.plans:
            return self.costs.seconds(call, layout)
        planned = self.plans[call.name].of(layout)
        return math.inf if planned is None else planned.plan.makespan_s

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        """Return the bytes that the costs say."""
        return self.costs.memory(call, layout)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        """Return the seconds and bytes that the costs say."""
        return self.costs.reallocate(role, source, destination)


def by_call(graph: Graph, generation: StepGeneration | Mapping[str, StepGeneration]) -> dict[str, StepGeneration]:
    """Return generation by the names of the graph's generate calls; one record is for each of them.

    Raises:
        PlanningError: the graph generates nothing, a name is none of its generate calls, or a record is missing or of the wrong
            type.
    """
    names = [call.name for call in graph.calls if call.kind == GENERATE]
    if not names:
        raise PlanningError(f"generation is given, but the calls of {graph.name!r} generate nothing; leave it out")
    given = dict(generation) if isinstance(generation, Mapping) else dict.fromkeys(names, generation)
    if sorted(map(str, given)) != sorted(names):
        raise PlanningError(
            f"generation is given for {', '.join(map(str, given))}; one for each of {', '.join(names)} is needed"
        )
    for name, one in given.items():
        if not isinstance(one, StepGeneration):
            raise PlanningError(f"generation of {name!r} is {as_given(one)}; a StepGeneration is needed")
    return given


def generated_options(graph: Graph, cluster: Cluster, costs: CallCosts, plans: Mapping[str, GenerationPlans]) -> CallOptions:
    """Return the options of a step whose generate calls are planned.

    Raises:
        PlanningError: as ``CallOptions.of``, or no actor of any size can generate.
    """
    try:
        options = CallOptions.of(graph, cluster.gpus, cluster.gpus_per_node, GeneratedCosts(costs, plans))
    except PlanningError:
        for of_call in plans.values():
            if of_call.refused is not None and not of_call.possible:
                raise of_call.refused from None
        raise
    released = {}
    for at, call in enumerate(graph.calls):
        if call.name in plans:
            released[at] = _released_early(options.layouts[at], plans[call.name], cluster.gpus)
    return replace(options, released_early=released)


def _released_early(layouts: Sequence[Layout], plans: GenerationPlans, gpus: int) -> ReleasedEarly:
    """Return when (n,) layouts of a call release their GPUs, and their bounds."""
    release_s = np.zeros((len(layouts), gpus))
    least = np.zeros((2, len(layouts)))
    for option, layout in enumerate(layouts):
        planned = plans.of(layout)
        assert planned is not None, "options without a generation plan take infinite seconds"
        release_s[option, layout.mesh.first : layout.mesh.last] = planned.release_s
        least[:, option] = planned.least_s, planned.least_gpu_s
    return ReleasedEarly(release_s, least[0], least[1])


def with_generation(plan: StepPlan, plans: Mapping[str, GenerationPlans]) -> StepPlan:
    """Return the step plan with the generation plan of each generate call."""
    calls = []
    for call in plan.calls:
        planned = plans[call.name].of(call.layout) if call.name in plans else None
        made = call if planned is None else replace(call, generation=planned.plan, release_s=planned.release_s)
        calls.append(made)
    return replace(plan, calls=tuple(calls))
