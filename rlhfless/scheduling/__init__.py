"""Scheduling policies by name: published systems, simple baselines and our own.

``policies()`` is the table of all policies, ``make_policy(name)`` makes one, and ``as_policy`` also takes objects and
functions. How published systems lay out the model calls of a step is in ``rlhfless.scheduling.published``.
"""

from rlhfless.scheduling.policy import FunctionPolicy, PlanningOptions, PolicyError, PolicyFunction, SchedulingPolicy
from rlhfless.scheduling.policy_table import (
    GROUPS,
    POLICIES,
    POLICY_TABLE,
    PolicyInfo,
    as_policy,
    ladder,
    make_policy,
    policies,
    policy_names,
)

__all__ = ["GROUPS", "POLICIES", "POLICY_TABLE", "FunctionPolicy", "PlanningOptions", "PolicyError",
           "PolicyFunction", "PolicyInfo", "SchedulingPolicy", "as_policy", "ladder", "make_policy", "policies",
           "policy_names"]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
