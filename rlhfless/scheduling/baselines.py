"""Policies that decide without lengths: static, random and least-loaded.

Only right-sizing the random split uses predictions. ``static`` and ``least-loaded`` dispatch prompts in the given order;
``shuffled`` replaces a dispatch order that a log does not hold by a random one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlhfless.scheduling.policy import PlanningInput
from solver.model.plan import Plan
from solver.model.workload import IntArray
from solver.planning.random_split import assign_prompts, random_split
from solver.timing.build_plan import assemble, check_fits


@dataclass(frozen=True)
class Static:
    """Start a fixed number of actors with equal chunks of prompts in the given order; hold GPUs until the last response.

    Args:
        actors: how many (all that fit when None; 3 in the RLHFless paper's figures).
        hold: GPUs are held until the end of ``generation`` or of the ``step``.
        shuffled: index of the random order of the prompts; None keeps the given order.
    """

    actors: int | None = None
    hold: str = "generation"
    name: str = "static"
    shuffled: int | None = None
    clairvoyant: bool = False

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        check_fits(given.workload, given.cluster, given.latency)
        prompts = _order(given, self.shuffled)
        count = given.cluster.max_actors if self.actors is None else self.actors
        groups = assign_prompts(given.workload, prompts, count)
        return assemble(
            self.name, groups, given.workload, given.cluster, given.latency, given.phases,
            release=self.hold, admission=given.admission,
        )  # fmt: skip


@dataclass(frozen=True)
class Random:
    """Split prompts at random over the number of actors that is best for the objective on predictions (right-sized).

    Args:
        release: GPUs are released when an actor is ``done``, or held until the end of ``generation`` or of the ``step``.
    """

    release: str = "done"
    name: str = "random"
    clairvoyant: bool = False

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        check_fits(given.workload, given.cluster, given.latency)
        plan = random_split(
            given.workload, given.cluster, given.latency, given.objective, given.phases,
            seed=given.seed, release=self.release, admission=given.admission,
        )  # fmt: skip
        return replace(plan, policy=self.name)


@dataclass(frozen=True)
class LeastLoaded:
    """Assign whole prompts in order, each to the actor with the fewest responses so far; start all actors.

    It stands for frameworks that balance requests in flight, such as verl. They route every request alone, while the samples
    of a prompt stay together here. All are assigned at once, so none has ended: those so far are those in flight.

    Args:
        release: as of ``Random``. shuffled: as of ``Static``.
    """

    release: str = "done"
    name: str = "least-loaded"
    shuffled: int | None = None
    clairvoyant: bool = False

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        check_fits(given.workload, given.cluster, given.latency)
        owner = given.workload.prompt_of
        in_flight = [0] * given.cluster.max_actors
        groups: list[list[int]] = [[] for _ in in_flight]
        by_prompt = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=len(given.workload.prompt_tokens)))
        for prompt in _order(given, self.shuffled).tolist():
            start, end = int(ends[prompt - 1]) if prompt else 0, int(ends[prompt])
            actor = min(range(len(groups)), key=in_flight.__getitem__)
            groups[actor].extend(by_prompt[start:end].tolist())
            in_flight[actor] += end - start
        used = [g for g in groups if g]
        return assemble(
            self.name, used, given.workload, given.cluster, given.latency, given.phases,
            release=self.release, admission=given.admission,
        )  # fmt: skip


def _order(given: PlanningInput, shuffled: int | None) -> IntArray:
    """Return the prompts that have responses, in the given order or in a random one drawn from the step's seed and
    ``shuffled``."""
    prompts = np.unique(given.workload.prompt_of)
    return prompts if shuffled is None else np.random.default_rng((given.seed, shuffled)).permutation(prompts)
