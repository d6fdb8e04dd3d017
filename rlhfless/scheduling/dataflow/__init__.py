"""Published ways to plan a whole step, judged by the same arithmetic as ``solver.dataflow.plan_step``."""

from rlhfless.scheduling.dataflow.megatron import megatron_plan

__all__ = ["megatron_plan"]


def __dir__() -> list[str]:
    return sorted(__all__)
