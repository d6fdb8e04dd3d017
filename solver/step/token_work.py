"""Defines ``TokenWork``: preparation and learning by seconds per token, before the lengths of a step are known."""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.errors import PlanningError, as_given, is_number
from solver.model.workload import Workload
from solver.step.work import PhaseWork


@dataclass(frozen=True)
class TokenWork:
    """Preparation and learning of a step's responses in proportion to their tokens, prompts included.

    Args:
        prepare_per_token_s, learn_per_token_s: seconds per token on the GPUs of one actor, 0 or more.
        unlock, learner_gpus, learner_from_s, learner_grows, place, load_s: see ``PhaseWork``; groups are prompts.

    Raises:
        PlanningError: seconds per token are negative or not finite; ``of`` refuses what ``PhaseWork`` does.

    Example:
        >>> import solver
        >>> from solver.step.token_work import TokenWork
        >>> workload = solver.Workload([10], [0, 0], [90, 190])
        >>> TokenWork(0.001, 0.002, unlock="group").of(workload).learn_s.tolist()
        [0.2, 0.4]
    """

    prepare_per_token_s: float
    learn_per_token_s: float
    unlock: str = "response"
    learner_gpus: int = 0
    learner_from_s: float | None = None
    learner_grows: bool = False
    place: str = "freed"
    load_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prepare_per_token_s", "learn_per_token_s"):
            if not is_number(getattr(self, name), 0):
                raise PlanningError(f"{name} is {as_given(getattr(self, name))}; a finite number of 0 or more is needed")

    def of(self, workload: Workload, gpus_per_actor: int = 1) -> PhaseWork:
        """Return the work of these lengths; of scenarios, the workload's own lengths count."""
        tokens = workload.prompt_tokens[workload.prompt_of] + workload.response_tokens
        return PhaseWork(
            tokens * self.prepare_per_token_s, tokens * self.learn_per_token_s, workload.prompt_of, self.unlock,
            self.learner_gpus, self.learner_from_s, self.learner_grows, self.place, gpus_per_actor, self.load_s,
        )  # fmt: skip
