"""Policies of the published system with a part switched on or off: deduplicated prefill, a fixed number of actors.

Knows policies and ``solver.prefill.dedup``; nothing of workloads or results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlhfless.scheduling import PlanningInput, SchedulingPolicy
from rlhfless.scheduling.rlhfless import RLHFless
from solver.assemble import assemble
from solver.plan import Plan
from solver.prefill.dedup import deduplicate


@dataclass(frozen=True)
class Deduplicated:
    """Another policy's plan with each prompt computed once where that pays.

    Args:
        learner_node: a prefill actor on the learner's GPUs of this node computes for all; None lets samples of a prompt on one
            actor share its prefill, which computes as little where groups keep prompts whole.
        streamed: caches leave as soon as an actor's are computed; else after the whole prefill, as in the paper.
    """

    base: SchedulingPolicy
    name: str
    learner_node: int | None = None
    streamed: bool = False
    clairvoyant: bool = False

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        plan = self.base.plan(given)
        found = deduplicate(
            plan, given.workload, given.cluster, given.latency, prefill_actor=self.learner_node is not None,
            learner_node=self.learner_node, streamed=self.streamed, objective=given.objective, rest=given.rest,
            share_in_actors=self.learner_node is None, admission=given.admission,
        )  # fmt: skip
        return replace(found.plan, policy=self.name)


@dataclass(frozen=True)
class FixedActors:
    """RLHFless without scaling: its groups and its cut on a given number of actors."""

    actors: int
    tau: float = 0.7
    name: str = "rlhfless"
    clairvoyant: bool = False

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        small = replace(given.cluster, nodes=1, gpus_per_node=self.actors * given.cluster.gpus_per_actor)  # holds no more
        plan = RLHFless(self.tau, least_actors=self.actors, name=self.name).plan(replace(given, cluster=small))
        placed = assemble(
            self.name, [a.responses for a in plan.actors], given.workload, given.cluster, given.latency, given.rest,
            admission=given.admission,
        )  # fmt: skip
        return replace(placed, rule=plan.rule)
