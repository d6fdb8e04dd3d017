"""TRL's dispatch: prompts in the given order, cut into N equal chunks (counts differ by one at most), N right-sized.

TRL's vLLM server assigns prompts to its data-parallel workers in this way (``chunk_list`` in ``trl/scripts/vllm_serve.py``).
Accelerate splits a batch between processes alike. The first ``count mod N`` chunks have one more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhfless.scheduling.policy import PlanningOptions, check_inputs
from rlhfless.scheduling.right_sizing import right_sized
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray, Workload


@dataclass(frozen=True)
class EqualChunks:
    """Cut the given order into equal chunks; the assignment uses neither lengths nor random numbers."""

    name: str = "trl"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)

        def split(workload: Workload, prompts: IntArray, actors: int) -> list[IntArray]:
            return np.array_split(prompts, actors)

        return right_sized(self.name, split, problem)
