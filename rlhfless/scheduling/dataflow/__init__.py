"""Published ways to plan a whole step, judged by the same arithmetic as ``solver.layouts.plan_step``."""

from rlhfless.scheduling.dataflow.colocated import colocated_plan
from rlhfless.scheduling.dataflow.megatron import megatron_plan
from rlhfless.scheduling.dataflow.published import PUBLISHED_PLANS, published_plans
from rlhfless.scheduling.dataflow.real import MarkovSearch, real_plan

__all__ = ["PUBLISHED_PLANS", "MarkovSearch", "colocated_plan", "megatron_plan", "published_plans", "real_plan"]


def __dir__() -> list[str]:
    return sorted(__all__)
