"""What preparation and learning of a whole step cost on the GPUs of one actor, and what a learner pays beside them."""

from __future__ import annotations

from dataclasses import dataclass, field

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.workload import Workload
from solver.step.learner_charges import LearnerCharges
from solver.step.sized_charges import SizedCharges
from solver.step.token_work import TokenWork
from solver.step.work import PhaseWork


@dataclass(frozen=True)
class StepCosts:
    """Seconds of preparation and learning per token, and the overheads of the learner.

    Args:
        prepare_per_token_s, learn_per_token_s: seconds per token, prompts included, on the GPUs of one actor at full speed.
        unlock: when a response can be learned from: when its ``group`` is complete (GRPO), or the ``response`` alone (PPO).
        charges: loss of speed, loading of models and reduction of gradients, by the number of servers of the learner.
        naive_servers: number of servers of the learner in the naive system.

    Raises:
        PlanningError: a number is out of its range, or ``unlock`` is unknown.

    Example:
        >>> import solver
        >>> from rlhfless.simulate import StepCosts
        >>> workload = solver.Workload([10], [0, 0], [90, 190])
        >>> StepCosts(0.001, 0.002).work(workload, gpus_per_actor=1).learn_s.tolist()
        [0.2, 0.4]
    """

    prepare_per_token_s: float
    learn_per_token_s: float
    unlock: str = "group"
    charges: LearnerCharges | SizedCharges = field(default_factory=LearnerCharges)
    naive_servers: int = 1

    def __post_init__(self) -> None:
        for name in ("prepare_per_token_s", "learn_per_token_s"):
            if not is_number(getattr(self, name), 0):
                raise PlanningError(f"{name} is {as_given(getattr(self, name))}; a finite number of 0 or more is needed")
        if self.unlock not in ("response", "group"):
            raise PlanningError(f"unlock {as_given(self.unlock)} is unknown; choose response or group")
        if not isinstance(self.charges, LearnerCharges | SizedCharges):
            raise PlanningError(f"charges is {as_given(self.charges)}; LearnerCharges are needed")
        if not is_whole(self.naive_servers, 1):
            raise PlanningError(f"naive_servers is {as_given(self.naive_servers)}; a whole number of 1 or more is needed")

    def work(self, workload: Workload, gpus_per_actor: int) -> PhaseWork:
        """Return the work of these lengths at full speed, learned from as soon as it is unlocked."""
        return TokenWork(self.prepare_per_token_s, self.learn_per_token_s, self.unlock).of(workload, gpus_per_actor)
