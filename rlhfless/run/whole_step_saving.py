"""Says in one sentence what a plan of a whole step with all levers would have saved of a logged run's last simulated step.

It needs the logged or stated seconds of preparation and learning, and a run that learns on the GPUs that generate, after
generation. They are spread over responses by tokens. Planning takes less than a second of CPU for the steps that are planned.
"""

from __future__ import annotations

from dataclasses import replace

from rlhfless.analysis import PhaseSeconds, RunSetup
from rlhfless.simulate import Aim, LoggedStep, SimulationConfig, StepCosts, WholeStep
from solver.model.objective import NonGenerationPhases
from solver.stage_fusion.learner_charges import LearnerCharges

MOST_RESPONSES = 1_024
"""Of a step that is planned; larger steps take longer to plan."""
LOSS_PER_DOUBLING = 0.0  # no plan has a larger learner than the run


def whole_step_costs(logged: LoggedStep, setting: SimulationConfig, phases: PhaseSeconds) -> StepCosts:
    """Return what preparation and learning cost per token on the GPUs of one actor, from their seconds on all GPUs.

    A learner on all GPUs has the logged speed, and a smaller one gains none. It loads its models in the seconds in which the
    profile sends weights.
    """
    truth, servers = logged.truth, setting.cluster.max_actors
    tokens = int(truth.prompt_tokens[truth.prompt_of].sum() + truth.response_tokens.sum())
    charges = LearnerCharges(servers, LOSS_PER_DOUBLING, setting.latency.sync_s)
    prepare_s, learn_s = (seconds * servers / tokens for seconds in (phases.prepare_s, phases.learn_s))
    return StepCosts(prepare_s, learn_s, charges=charges, naive_servers=servers)


def whole_step_sentence(
    logged: LoggedStep, setting: SimulationConfig, setup: RunSetup, phases: PhaseSeconds, generation_s: float
) -> str:
    """Return the sentence, or the empty text where the log does not allow it.

    Args:
        logged: the step, with its forecast. setting: cluster and calibrated profile. phases: seconds of a step outside
            generation, on all GPUs. generation_s: of the step, as the run generated it.
    """
    work_s = phases.prepare_s + phases.learn_s
    if not work_s or not setup.colocated or not setup.synchronous or len(logged.truth) > MOST_RESPONSES:
        return ""
    alone = replace(setting, phases=NonGenerationPhases())
    step = WholeStep(logged, alone, whole_step_costs(logged, alone, phases))
    weight, gpus = setting.objective.time_weight, setting.cluster.gpus
    own_s = generation_s + phases.seconds

    def less(totals: tuple[float, float]) -> str:
        time_s, gpu_s = totals[0] + phases.sync_s, totals[1] + gpus * phases.sync_s
        return f"{_change(time_s / own_s, 'less')} time and {_change(gpu_s / (own_s * gpus), 'fewer')} GPU-seconds"

    everything = step.execute(step.plan(Aim(time_weight=weight)).plan)
    plain = step.execute(step.plain(weight).plan)
    return (
        "Planned as a whole (responses assigned by length, preparation and learning beside decoding, idle GPUs released), step "
        f"{logged.step} takes {less(everything)}; right-sizing, prefix caching and releasing alone {less(plain)} (preparation "
        f"and learning as {phases.basis}, spread by tokens; no drafts)."
    )


def _change(ratio: float, below: str) -> str:
    """Return by how much a ratio differs from 1, in words."""
    return f"{abs(1 - ratio):.0%} {below if ratio <= 1 else 'more'}"
