"""A way to prepare and learn from a step: on which GPUs, from when, and what of it runs while others decode."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlhfless.executor import WorkItem, phase_work_items
from rlhfless.simulate.whole_steps.generated import GeneratedStep
from rlhfless.simulate.whole_steps.step_costs import StepCosts
from solver.model.cluster import Cluster
from solver.step.follow import step_totals
from solver.step.work import PhaseWork


@dataclass(frozen=True)
class LearnerWay:
    """How a step is prepared and learned from.

    Args:
        own: servers of the learner beside the actors, each the GPUs of one actor. from_s: when they are allocated.
        grows: GPUs that actors have given back join the learner. A learner without ``own`` servers has only those.
        streams: learning runs while others decode, as soon as it is unlocked. overlaps: preparation does, on the learner's
            GPUs.
    """

    own: int = 0
    from_s: float = 0.0
    grows: bool = True
    streams: bool = False
    overlaps: bool = False

    def servers(self, actors: int) -> int:
        """Return the servers of the learner beside a plan of so many actors."""
        return self.own + (actors if self.grows or not self.own else 0)

    def work(self, base: PhaseWork, costs: StepCosts, actors: int) -> PhaseWork:
        """Return the work of a step with its GPUs, starts and charges.

        Args:
            base: at full speed. actors: of the plan.
        """
        servers = self.servers(actors)
        return replace(
            base, learn_s=base.learn_s * costs.charges.slower(servers), unlock=base.unlock if self.streams else "batch",
            learner_gpus=self.own * base.gpus_per_actor, learner_from_s=self.from_s if self.own else None,
            learner_grows=self.grows and self.own > 0, place="learner" if self.own else "freed",
            load_s=costs.charges.loading_s(servers), finish_s=costs.charges.finish_s(servers),
        )  # fmt: skip

    def totals(self, generated: GeneratedStep, base: PhaseWork, costs: StepCosts) -> tuple[float, float]:
        """Return seconds and GPU-seconds of the whole step after this generation, as the executor takes them."""
        completion_s = generated.completion_s
        if not self.overlaps:
            completion_s = np.full(len(completion_s), generated.makespan_s)
        work = self.work(base, costs, len(generated.free_s))
        time_s, gpu_s = step_totals(completion_s, generated.free_s, work)
        return time_s, generated.gpu_seconds + gpu_s

    def items(self, base: PhaseWork, costs: StepCosts, actors: int, cluster: Cluster) -> list[WorkItem]:
        """Return the same as work items of an executor's step."""
        return phase_work_items(self.work(base, costs, actors), cluster, actors, overlaps=self.overlaps)
