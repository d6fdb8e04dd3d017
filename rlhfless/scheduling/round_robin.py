"""Round-robin dispatch of single responses: the samples of a prompt are spread, so that no actor gets all of a long prompt.

Lengths are used for right-sizing only. A split of whole prompts makes actors unequal where samples of a prompt have similar
lengths. Spreading them costs nothing as long as every response computes its own prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhfless.scheduling.policy import PlanningOptions, check_inputs
from rlhfless.scheduling.right_sizing import right_sized_assignment
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray, Workload
from solver.timing.build_plan import assemble


def assign_round_robin(workload: Workload, actors: int, seed: int) -> list[IntArray]:
    """Assign responses round-robin to ``actors`` actors, prompts in random order and the responses of each, too.

    In a fixed order, every actor would get the same responses of each prompt where their number divides the actors: all in one
    language, for example. With more actors than responses, the last actors get none.
    """
    rng = np.random.default_rng(seed)
    rank = rng.permutation(len(workload.prompt_tokens))
    order = np.lexsort((rng.permutation(len(workload)), rank[workload.prompt_of]))
    return [order[first::actors] for first in range(actors)]


@dataclass(frozen=True)
class Spread:
    """Prompts in random order, their responses assigned round-robin; actors are released when done.

    Args:
        actors: how many; the best number for the objective on predictions when None.
    """

    name: str = "spread"
    clairvoyant: bool = False
    actors: int | None = None

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        workload = problem.workload
        if self.actors is not None:
            return assemble(self.name, assign_round_robin(workload, self.actors, options.seed), problem)
        return right_sized_assignment(
            self.name, lambda n: assign_round_robin(workload, n, options.seed), len(workload), problem
        )
