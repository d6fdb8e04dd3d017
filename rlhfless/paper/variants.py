"""Variants of the published system with a part switched on or off: deduplicated prefill, a fixed number of actors.

Each wraps another policy; prefill is deduplicated by ``solver.prefix_sharing.deduplicate``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlhfless.scheduling import PlanningOptions, SchedulingPolicy
from rlhfless.scheduling.rlhfless import RLHFless
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.prefix_sharing.deduplicate import deduplicate
from solver.prefix_sharing.placement import place
from solver.timing.build_plan import assemble


@dataclass(frozen=True)
class Deduplicated:
    """Another policy's plan in which samples of a prompt on one actor share its prefill, where that saves time. As groups keep
    prompts whole, it computes as few tokens as a plan with a prefill actor."""

    base: SchedulingPolicy
    name: str
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        deduplication = deduplicate(self.base.plan(problem, options), problem, prefill_actor=False)
        return replace(deduplication.plan, policy=self.name)


@dataclass(frozen=True)
class PrefillActor:
    """Another policy's plan with the paper's prefill actor. On the learner's GPUs it computes every prompt once, then sends the
    caches to all actors. They are placed so that the longest group is nearest.

    Args:
        learner_gpus: number of the learner's GPUs; prefill is assumed to be this many times as fast as on an actor's GPUs.
        learner_node: their node.
    """

    base: SchedulingPolicy
    learner_gpus: int
    learner_node: int = 0
    name: str = "rlhfless"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        plan, tokens, latency = self.base.plan(problem, options), problem.workload.prompt_tokens, problem.one_kind[1]
        receiving = [replace(a, prefixes=a.prompts, prefix_tokens=tuple(tokens[list(a.prompts)].tolist())) for a in plan.actors]
        share = latency.gpus_per_actor / self.learner_gpus
        wide = replace(latency, prefill_per_token_s=latency.prefill_per_token_s * share)
        return place(
            replace(plan, actors=tuple(receiving), policy=self.name), problem, learner_node=self.learner_node,
            prefill_latency=wide, streamed=False,
        ).plan  # fmt: skip


@dataclass(frozen=True)
class FixedActors:
    """RLHFless without scaling: its groups and its cut on a given number of actors."""

    actors: int
    tau: float = 0.7
    name: str = "rlhfless"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        cluster = problem.one_kind[0]
        small = replace(cluster, nodes=1, gpus_per_node=self.actors * cluster.gpus_per_actor)  # holds no more
        scaled = RLHFless(self.tau, min_actors=self.actors, name=self.name)
        plan = scaled.plan(replace(problem, cluster=small), options)
        placed = assemble(self.name, [a.responses for a in plan.actors], problem)
        return replace(placed, rule=plan.rule)
