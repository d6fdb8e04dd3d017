"""Whole steps of published systems and of simple ones, executed on true lengths.

Where a learner of their own starts is taken from the executed step: it is loaded exactly when it is needed, which is generous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlhfless.engine.protocol import Request
from rlhfless.scheduling import make_policy
from rlhfless.scheduling.baselines import Static
from rlhfless.simulate.drafted_steps import drafted_engines
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.whole_steps.generated import GeneratedStep, executed
from rlhfless.simulate.whole_steps.learner_way import LearnerWay
from rlhfless.simulate.whole_steps.step_costs import StepCosts
from solver.model.objective import Objective
from solver.step.follow import follow, step_totals
from solver.step.token_work import TokenWork
from solver.step.work import PhaseWork

Totals = tuple[float, float]
"""Seconds and GPU-seconds of a whole step."""
LAYOUTS = Objective(0.7)  # by which layouts are chosen


def own_learner(generated: GeneratedStep, costs: StepCosts, servers: int) -> LearnerWay:
    """Return learning on GPUs of its own when generation is over, loaded right before."""
    return LearnerWay(servers, max(0.0, generated.makespan_s - costs.charges.loading_s(servers)), grows=False)


def naive(generated: GeneratedStep, work: PhaseWork, costs: StepCosts, free_gpus: int) -> Totals:
    """Return the naive system: static actors hold their GPUs until the step is over.

    Args:
        generated: by actors that are held until generation is over. free_gpus: that the learner leaves to the actors.
    """
    time_s, gpu_s = own_learner(generated, costs, costs.naive_servers).totals(generated, work, costs)
    held = min(len(generated.free_s) * work.gpus_per_actor, free_gpus)
    return time_s, gpu_s + held * (time_s - generated.makespan_s)


def rlhfless(
    logged: LoggedStep, setting: SimulationConfig, costs: StepCosts, requests: Sequence[Request], work: PhaseWork
) -> Totals:
    """Return RLHFless: its rule for actors and cuts, prefill shared on every actor, and the naive system's learner."""
    plan = make_policy("rlhfless").plan(*logged.inputs(setting))
    plan = replace(plan, actors=tuple(replace(actor, shares_prompts=True) for actor in plan.actors))
    generated = executed(plan, requests, setting)
    return own_learner(generated, costs, costs.naive_servers).totals(generated, work, costs)


def rlhfuse(
    logged: LoggedStep, setting: SimulationConfig, costs: StepCosts, requests: Sequence[Request], work: PhaseWork, actors: int
) -> Totals:
    """Return RLHFuse's inter-stage fusion: the best cut for the step, preparation on released GPUs, the naive learner."""
    servers = costs.naive_servers
    problem, options = logged.inputs(setting)
    tokens = TokenWork(costs.prepare_per_token_s, costs.learn_per_token_s, "batch", servers * work.gpus_per_actor)
    plan = make_policy("rlhfuse", static_actors=actors).plan(problem, replace(options, work=tokens))
    generated = executed(plan, requests, setting)
    fused = replace(
        work, learn_s=work.learn_s * costs.charges.slower(servers), unlock="batch", place="freed",
        learner_gpus=servers * work.gpus_per_actor, load_s=costs.charges.loading_s(servers),
        finish_s=costs.charges.finish_s(servers),
    )  # fmt: skip
    prepared_s = follow(generated.completion_s, generated.free_s, fused).prepare_end_s
    fused = replace(fused, learner_from_s=max(0.0, prepared_s - costs.charges.loading_s(servers)))
    time_s, gpu_s = step_totals(generated.completion_s, generated.free_s, fused)
    return time_s, generated.gpu_seconds + gpu_s


def layouts(
    logged: LoggedStep, setting: SimulationConfig, costs: StepCosts, requests: Sequence[Request], work: PhaseWork,
    expected: tuple[Sequence[Request], PhaseWork],
) -> Totals:  # fmt: skip
    """Return ReaL: each call has the layout that is best on expected lengths, and its GPUs are held for its time only.

    Prompts are assigned in the given order. When generation is over, weights are sent to the learner's GPUs (``load_s``).

    Args:
        expected: requests and work of the expected lengths.
    """
    most, found = setting.cluster.max_actors, []

    def step(generated: GeneratedStep, servers: int, of: PhaseWork) -> Totals:
        return LearnerWay(servers, generated.makespan_s, grows=False).totals(generated, of, costs)

    for actors in range(1, most + 1):
        plan = Static(actors, hold="generation").plan(*logged.inputs(setting))
        generated = executed(plan, expected[0], setting)
        for servers in sorted({1 << k for k in range(most.bit_length()) if 1 << k <= most} | {most}):
            time_s, gpu_s = step(generated, servers, expected[1])
            found.append((LAYOUTS.value(time_s, gpu_s), actors, servers, plan))
    _, _, servers, plan = min(found, key=lambda one: one[:3])
    return step(executed(plan, requests, setting), servers, work)


def drafts_only(
    logged: LoggedStep, setting: SimulationConfig, costs: StepCosts, requests: Sequence[Request], work: PhaseWork
) -> Totals:
    """Return RLHFSpec: drafts under the right-sized random split, released when done, and the naive system's learner."""
    plan = make_policy("spec").plan(*logged.inputs(setting))
    generated = executed(plan, requests, setting, engines=drafted_engines(setting, logged, plan, clairvoyant=False))
    return own_learner(generated, costs, costs.naive_servers).totals(generated, work, costs)
