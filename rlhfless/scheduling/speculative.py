"""Speculative decoding as a policy: another policy's plan, and how many tokens its responses draft.

The other policy plans on the latency model with drafts, where the acceptance to expect is known. So it starts fewer actors
where drafts make them faster, and consolidates later. Drafts cost nothing to switch on and off: the engine chooses lengths
while the step runs, by what each response accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rlhfless.scheduling.assignments import Random
from rlhfless.scheduling.policy import PlanningOptions, PolicyError, SchedulingPolicy
from solver.model.acceptance import Acceptance
from solver.model.drafting import MAX_DRAFT_TOKENS, Drafting
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.timing.drafted_latency import drafted

FIXED = "spec-fixed-"


@dataclass(frozen=True)
class Speculative:
    """Decode with drafts under another policy's plan (the right-sized random split by default).

    Args:
        drafting: how many tokens are drafted. name: in plans, results and traces.
    """

    drafting: Drafting = field(default_factory=Drafting)
    base: SchedulingPolicy = field(default_factory=Random)
    name: str = "spec"

    @property
    def clairvoyant(self) -> bool:
        """Whether the other policy plans with true lengths."""
        return self.base.clairvoyant

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        acceptance = options.acceptance
        if acceptance is not None:
            most = self.drafting.max_draft_tokens if isinstance(self.drafting.length, str) else int(self.drafting.length)
            if most:
                _, latency = problem.one_kind
                known = Acceptance(acceptance.survival[:most])
                problem = replace(problem, latency=drafted(latency, known))
        plan = self.base.plan(problem, options)
        return replace(plan, policy=self.name, drafting=self.drafting, acceptance=acceptance)


def fixed_length(name: str) -> int:
    """Return the draft length that a policy's name says, such as ``spec-fixed-4``.

    Raises:
        PolicyError: it says none from 1 to 32.
    """
    text = name.removeprefix(FIXED)
    if not (text.isdecimal() and 1 <= int(text) <= MAX_DRAFT_TOKENS):
        raise PolicyError(f"policy {name!r} drafts {text!r} tokens; a whole number from 1 to {MAX_DRAFT_TOKENS} is needed")
    return int(text)
