"""Policies that decide without lengths: static, random and least-loaded.

Only right-sizing the random split uses predictions. ``static`` and ``least-loaded`` dispatch prompts in the given order;
``shuffled`` replaces a dispatch order that a log does not hold by a random one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlhfless.scheduling.policy import PlanningOptions, check_inputs
from solver.generation.random_split import assign_prompts, random_split
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray
from solver.timing.build_plan import assemble


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

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        prompts = _order(problem, options, self.shuffled)
        count = problem.one_kind[0].max_actors if self.actors is None else self.actors
        groups = assign_prompts(problem.workload, prompts, count)
        return assemble(self.name, groups, replace(problem, release=self.hold))


@dataclass(frozen=True)
class Random:
    """Split prompts at random over the number of actors that is best for the objective on predictions (right-sized).

    Args:
        release: GPUs are released when an actor is ``done``, or held until the end of ``generation`` or of the ``step``.
    """

    release: str = "done"
    name: str = "random"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        return replace(random_split(replace(problem, release=self.release), seed=options.seed), policy=self.name)


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

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        owner = problem.workload.prompt_of
        in_flight = [0] * problem.one_kind[0].max_actors
        groups: list[list[int]] = [[] for _ in in_flight]
        by_prompt = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=len(problem.workload.prompt_tokens)))
        for prompt in _order(problem, options, self.shuffled).tolist():
            start, end = int(ends[prompt - 1]) if prompt else 0, int(ends[prompt])
            actor = min(range(len(groups)), key=in_flight.__getitem__)
            groups[actor].extend(by_prompt[start:end].tolist())
            in_flight[actor] += end - start
        used = [g for g in groups if g]
        return assemble(self.name, used, replace(problem, release=self.release))


def _order(problem: PlanningProblem, options: PlanningOptions, shuffled: int | None) -> IntArray:
    """Return the prompts that have responses, in the given order or in a random one drawn from the step's seed and
    ``shuffled``."""
    prompts = np.unique(problem.workload.prompt_of)
    return prompts if shuffled is None else np.random.default_rng((options.seed, shuffled)).permutation(prompts)
