"""Simulate a logged run under other scheduling policies: predict, plan, execute on simulated engines, compare.

Every policy gets the same predictions (clairvoyant policies the true lengths) and runs on the same cluster and latency profile.
Results include a lower bound. The package knows logs, predictors, policies and the executor, but not plots or the command line.
"""

from rlhfless.simulate.comparison import Comparison
from rlhfless.simulate.draft_fronts import draft_fronts
from rlhfless.simulate.drafts import STRONG, WEAK, DrawnDrafts, SimulatedDrafts
from rlhfless.simulate.fusion_front import fusion_front, streaming
from rlhfless.simulate.plan_bounds import bound_of_plan
from rlhfless.simulate.run import SimulationInterrupted, execute_steps, simulate, simulate_steps
from rlhfless.simulate.steps import LoggedStep, SimulationConfig, checked_steps, logged_steps
from rlhfless.simulate.traces import policy_metrics
from rlhfless.simulate.variants import simulate_variants
from rlhfless.simulate.whole_steps.lever_tables import lever_savings, lever_stages, savings_of
from rlhfless.simulate.whole_steps.step_of_calls import StepOfCalls, step_of_calls
from rlhfless.simulate.whole_steps.whole_step import WholeStep

__all__ = [
    "STRONG", "WEAK", "Comparison", "DrawnDrafts", "LoggedStep", "SimulatedDrafts",
    "SimulationConfig", "SimulationInterrupted", "StepOfCalls", "WholeStep", "bound_of_plan", "checked_steps",
    "draft_fronts", "execute_steps", "fusion_front", "lever_savings", "lever_stages", "logged_steps", "policy_metrics",
    "savings_of", "simulate", "simulate_steps", "simulate_variants", "step_of_calls", "streaming",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
