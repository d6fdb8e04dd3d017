"""Token-aware routing: every response goes to the actor with the fewest outstanding tokens.

Routers of inference servers do this with the tokens that they know: those of prompts (SGLang's ``total_tokens``), or predicted
ones. All requests of a step arrive at once, so the tokens that are outstanding are those assigned so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

from rlhfless.analysis.what_ifs.changed_generation import generated_s, whole_steps
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked
from rlhfless.errors import InputError
from rlhfless.scheduling import PlanningOptions
from rlhfless.scheduling.policy import check_inputs
from solver.model.errors import as_given
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.timing.build_plan import assemble

COUNTED = ("predicted", "prompt")
CHANGE = {
    "predicted": "Every response goes to the actor with the fewest outstanding tokens, by predicted lengths.",
    "prompt": "Every response goes to the actor with the fewest outstanding prompt tokens.",
}


@dataclass(frozen=True)
class TokenAware:
    """Assign responses in order, each to the actor with the fewest tokens so far; start all actors.

    Attributes:
        counted: ``predicted``: prompt tokens and predicted response tokens; ``prompt``: prompt tokens alone.
        release: as of ``Random``.
    """

    counted: str = "predicted"
    release: str = "done"
    name: str = "token-aware"
    clairvoyant: bool = False

    def __post_init__(self) -> None:
        if self.counted not in COUNTED:
            raise InputError(f"counted {as_given(self.counted)} is unknown; choose one of {', '.join(COUNTED)}")

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        workload = problem.workload
        tokens = workload.prompt_tokens[workload.prompt_of]
        if self.counted == "predicted":
            tokens = tokens + workload.response_tokens
        actors: list[list[int]] = [[] for _ in range(problem.one_kind[0].max_actors)]
        outstanding = [(0, 0, actor) for actor in range(len(actors))]  # tokens, responses
        heapify(outstanding)
        for response, needed in enumerate(tokens.tolist()):
            assigned, count, actor = outstanding[0]
            actors[actor].append(response)
            heapreplace(outstanding, (assigned + needed, count + 1, actor))
        return assemble(self.name, [group for group in actors if group], replace(problem, release=self.release))


def way(run: RunToChange, counted: str = "predicted") -> WayOutcome:
    """Return the run with its responses routed by tokens.

    Args:
        counted: see ``TokenAware``.

    Raises:
        InputError: ``counted`` is neither, there are no steps, or the setting has effects.
    """
    policy = TokenAware(counted)
    return whole_steps(run, ("token-aware routing", CHANGE[counted]), generated_s(run, checked(run).logged, policy))
