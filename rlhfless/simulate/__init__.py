"""Simulate what scheduling policies would have made of a logged run: predict, plan, execute on simulated engines, compare.

Knows logs, predictors, policies and the executor; nothing of plots or of the command line. Every policy gets the same
predictions (clairvoyant ones the true lengths) and runs on the same cluster and latency profile. Results include the lower
bound.
"""

from rlhfless.simulate.draft_fronts import DraftFronts, draft_fronts
from rlhfless.simulate.drafts import STRONG, WEAK, DrawnDrafts, SimulatedDrafts
from rlhfless.simulate.fusion_front import FusionFront, fusion_front
from rlhfless.simulate.results import Simulation
from rlhfless.simulate.run import execute_steps, simulate, simulate_steps
from rlhfless.simulate.steps import LoggedStep, SimulationConfig, logged_steps
from rlhfless.simulate.traces import policy_metrics
from rlhfless.simulate.whole_steps.aim import Aim
from rlhfless.simulate.whole_steps.lever_tables import lever_savings, lever_stages, savings_of
from rlhfless.simulate.whole_steps.step_costs import StepCosts
from rlhfless.simulate.whole_steps.step_of_calls import StepOfCalls, step_of_calls
from rlhfless.simulate.whole_steps.whole_step import WholeStep

__all__ = [
    "STRONG", "WEAK", "Aim", "DraftFronts", "DrawnDrafts", "FusionFront", "LoggedStep", "SimulatedDrafts", "Simulation",
    "SimulationConfig", "StepCosts", "StepOfCalls", "WholeStep", "draft_fronts", "execute_steps", "fusion_front",
    "lever_savings", "lever_stages", "logged_steps", "policy_metrics", "savings_of", "simulate", "simulate_steps",
    "step_of_calls",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
