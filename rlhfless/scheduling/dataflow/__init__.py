"""Published ways to plan a whole step, judged by the same arithmetic as ``solver.dataflow.plan_step``."""

from rlhfless.scheduling.dataflow.megatron import megatron_plan
from rlhfless.scheduling.dataflow.published import PUBLISHED_PLANS, published_plans

__all__ = ["PUBLISHED_PLANS", "megatron_plan", "published_plans"]


def __dir__() -> list[str]:
    return sorted(__all__)
