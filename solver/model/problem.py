"""Defines ``PlanningProblem``, the input of planners, policies, bounds and simulations.

It is checked once, when it is made: types and values of the arguments, prices, and whether the latency models fit the cluster.
An actor must be able to hold every response, and the iteration tables must have every context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from solver.model.admission import check_rule
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError, as_given, check_flags
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.offers import Latencies, Offer, check_options, check_priced, offers_of, one_pool, several
from solver.model.plan import check_release
from solver.model.plurals import counted
from solver.model.workload import Workload


@dataclass(frozen=True, eq=False)
class PlanningProblem:
    """The input of planning: the responses of a step, the cluster, latency models, and the objective.

    Change a problem with ``dataclasses.replace(problem, objective=...)``; the result is checked again.

    Attributes:
        workload: the responses and their predicted lengths (true lengths for bounds and clairvoyant policies). With scenarios,
            times, costs and values are means over them.
        cluster: the GPUs.
        latency: the latency model of an actor; if there are several kinds or sizes, a mapping of (kind, GPUs per actor) to
            models.
        objective: what is minimised, and under which limit.
        phases: the phases outside generation, which time, cost, deadline and budget include.
        admission: ``reserve`` or ``preempt``, the rule that the engines will use.
        keep_together: all responses of a prompt are on one actor.
        share_prefill: an actor prefills a prompt once for all its responses (prefix caching).
        min_actors, max_actors: limits on the number of actors; as many as fit when ``max_actors`` is None.
        release: when actors release their GPUs: when they are ``done``, at the end of ``generation``, or of the ``step``.

    Raises:
        PlanningError: an argument is of the wrong type or out of its range, or latency models do not fit the cluster. Or no
            actor can hold some response, contexts can outgrow an iteration table, or cost is in dollars and nothing has a
            price. The message names the argument.

    Example:
        >>> problem = PlanningProblem(workload, Cluster(2, 8, 2), latency, Objective(time_weight=0.5))
        >>> plan = solver.plan(problem)
    """

    workload: Workload
    cluster: Cluster | MixedCluster
    latency: Latencies
    objective: Objective = field(default_factory=Objective)
    phases: NonGenerationPhases = field(default_factory=NonGenerationPhases)
    _: KW_ONLY
    admission: str = "reserve"
    keep_together: bool = False
    share_prefill: bool = False
    min_actors: int = 1
    max_actors: int | None = None
    release: str = "done"

    def __post_init__(self) -> None:
        _check_type("workload", self.workload, Workload)
        _check_type("cluster", self.cluster, Cluster, MixedCluster)
        _check_latency(self.latency)
        _check_type("objective", self.objective, Objective)
        _check_type("phases", self.phases, NonGenerationPhases)
        check_rule(self.admission)
        check_release(self.release)
        check_flags(keep_together=self.keep_together, share_prefill=self.share_prefill)
        _check_memory(self.workload, self.offers)
        _check_tables(self.workload, self.offers)
        check_priced(self.objective.cost, self.cluster)
        check_options(self.workload, self.offers, self.min_actors, self.max_actors, bool(self.keep_together))
        object.__setattr__(self, "min_actors", int(self.min_actors))
        object.__setattr__(self, "max_actors", None if self.max_actors is None else int(self.max_actors))

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Return every actor that may be started (``offers_of``)."""
        return offers_of(self.cluster, self.latency)

    @property
    def several_kinds(self) -> bool:
        """Return whether planning has to choose between kinds, sizes or markets of actors."""
        return several(self.offers)

    @cached_property
    def one_kind(self) -> tuple[Cluster, LatencyModel]:
        """Return cluster and latency model of a problem with one kind and size of actors.

        Raises:
            PlanningError: there are several.
        """
        if self.several_kinds:
            what = ", ".join(f"{offer.gpus} x {offer.kind} ({offer.market})" for offer in self.offers)
            raise PlanningError(
                f"cluster and latency offer several kinds of actors ({what}); one kind and size is needed, such as a Cluster"
            )
        return one_pool(self.cluster, self.offers[0]), self.offers[0].latency

    @cached_property
    def planning_model(self) -> PlanningProblem:
        """Return the problem with the affine fits as latency models: planners time plans by these alone."""
        return self.with_latencies(lambda model: model.affine)

    def with_latencies(self, changed: Callable[[LatencyModel], LatencyModel]) -> PlanningProblem:
        """Return the problem with every offer's latency model changed."""
        return replace(self, latency={(offer.kind, offer.gpus): changed(offer.latency) for offer in self.offers})

    @cached_property
    def needed_actors(self) -> int:
        """Return ``min_actors``, or the number of responses (prompts that stay together) to generate if that is smaller."""
        points = self.workload.points
        working = points.prompt_of[points.remaining_tokens > 0]
        return max(1, min(self.min_actors, len(np.unique(working)) if self.keep_together else len(working)))

    @property
    def generation_within_s(self) -> float:
        """Return the seconds that the deadline leaves for generation, infinite without a deadline."""
        return math.inf if self.objective.deadline_s is None else self.objective.generation_within_s(self.phases)

    def learner_rate(self, cost: str) -> float:
        """Return the ``cost`` (``gpu_s`` or ``usd``) of the learner's GPUs per second of the step, by default at the price of
        the first pool."""
        return self.phases.learner_rate(cost, self.cluster.pools[0].usd_per_gpu_s)

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(f"{offer.gpus} x {offer.kind}" for offer in self.offers))
        return f"PlanningProblem({self.workload}, {counted(self.cluster.gpus, 'GPU')} for actors of {kinds}, {self.objective})"


def check_problem(problem: Any) -> None:
    """Refuse anything but a problem (a PlanningError)."""
    _check_type("problem", problem, PlanningProblem)


def _check_type(name: str, value: Any, *kinds: type) -> None:
    if not isinstance(value, kinds):
        needed = " or ".join(kind.__name__ for kind in kinds)
        raise PlanningError(f"{name} is {as_given(value)}; a {needed} is needed")


def _check_latency(latency: Any) -> None:
    """Refuse what is neither a latency model nor a mapping of them by GPU kind and GPUs per actor."""
    needed = "a LatencyModel, or one for each (GPU kind, GPUs per actor), is needed"
    if isinstance(latency, str):
        raise PlanningError(f"latency is {as_given(latency)}; {needed}: load the profile of this name")
    if not isinstance(latency, LatencyModel | Mapping):
        raise PlanningError(f"latency is {as_given(latency)}; {needed}")
    for key, model in latency.items() if isinstance(latency, Mapping) else ():
        kind, gpus = key if isinstance(key, tuple) and len(key) == 2 else (None, None)
        if not isinstance(kind, str) or not isinstance(gpus, int | np.integer) or not isinstance(model, LatencyModel):
            raise PlanningError(f"latency has {as_given(model)} at {as_given(key)}; {needed}")


def _check_memory(workload: Workload, offers: tuple[Offer, ...]) -> None:
    """Refuse a problem in which no actor's KV memory can hold some response; the message says by how much."""
    most = workload.reserved_tokens
    worst = int(np.argmax(most))
    roomiest = max((offer.latency for offer in offers), key=lambda model: model.kv_capacity_tokens)
    if most[worst] > roomiest.kv_capacity_tokens:
        prompt = int(workload.prompt_tokens[workload.prompt_of[worst]])
        room = roomiest.kv_capacity_tokens - prompt
        shorter = f"responses of at most {room:,} tokens" if room > 0 else "shorter prompts"
        raise PlanningError(
            f"response {worst} can reach {most[worst]} KV tokens (prompt {prompt} + limit "
            f"{workload.max_response_tokens}), but an "
            f"actor of {roomiest.name!r} holds {roomiest.kv_capacity_tokens}; {shorter}, or larger actors, are needed"
        )


def _check_tables(workload: Workload, offers: tuple[Offer, ...]) -> None:
    """Refuse a problem in which a response that an actor can hold may outgrow the contexts of the actor's iteration table.

    The mean context of a batch is at most its longest one, so no iteration lies beyond the table then.
    """
    most = workload.reserved_tokens
    for model in (offer.latency for offer in offers if offer.latency.table is not None):
        assert model.table is not None
        held = np.where(most <= model.kv_capacity_tokens, most, 0)
        worst, longest = int(np.argmax(held)), int(model.table.context_tokens[-1])
        if held[worst] > longest:
            prompt = int(workload.prompt_tokens[workload.prompt_of[worst]])
            raise PlanningError(
                f"response {worst} can reach {held[worst]} KV tokens (prompt {prompt} + limit "
                f"{workload.max_response_tokens}), but the iteration table of {model.name!r} ends at a context of {longest}; a "
                f"profile measured up to {held[worst]}, a lower limit, or a log without such responses is needed"
            )
