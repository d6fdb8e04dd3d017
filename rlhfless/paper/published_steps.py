"""Whole steps of published systems and of simple ones, executed on true lengths.

What these systems decide is in ``rlhfless.scheduling``: their policies of generation by name, and layouts in its ``published``.

All have a learner of ``servers`` servers, as the naive system. Where it starts is taken from the executed step: it is loaded
exactly when it is needed, which is generous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlhfless.engine.protocol import Request
from rlhfless.scheduling import make_policy
from rlhfless.scheduling.assignments import Static
from rlhfless.simulate.drafted_steps import drafted_engines
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.whole_steps.generated import executed
from rlhfless.simulate.whole_steps.whole_step import Totals
from solver.model.objective import Objective
from solver.step.charges import Charges
from solver.step.follow import Generated, follow
from solver.step.work import Learner, StepWork, TokenWork

LAYOUTS = Objective(0.7)  # by which layouts are chosen


def own_learner(generated: Generated, work: StepWork, servers: int) -> Learner:
    """Return learning on GPUs of its own when generation is over, loaded right before."""
    return Learner(servers, max(0.0, generated.makespan_s - work.charges.loading_s(servers)), grows=False)


def naive(generated: Generated, work: StepWork, servers: int, free_gpus: int) -> Totals:
    """Return the naive system: static actors hold their GPUs until the step is over.

    Args:
        generated: by actors that are held until generation is over. free_gpus: that the learner leaves to the actors.
    """
    time_s, gpu_s = generated.step_totals(work, own_learner(generated, work, servers))
    held = min(len(generated.free_s) * work.gpus_per_actor, free_gpus)
    return time_s, gpu_s + held * (time_s - generated.makespan_s)


def rlhfless(
    logged: LoggedStep, setting: SimulationConfig, requests: Sequence[Request], work: StepWork, servers: int
) -> Totals:
    """Return RLHFless: its rule for actors and cuts, prefill shared on every actor, and the naive system's learner."""
    plan = make_policy("rlhfless").plan(*logged.inputs(setting))
    plan = replace(plan, actors=tuple(replace(actor, shares_prompts=True) for actor in plan.actors))
    generated = executed(plan, requests, setting)
    return generated.step_totals(work, own_learner(generated, work, servers))


def rlhfuse(
    logged: LoggedStep, setting: SimulationConfig, requests: Sequence[Request], work: StepWork, servers: int, *,
    token_work: TokenWork, actors: int,
) -> Totals:  # fmt: skip
    """Return RLHFuse's inter-stage fusion: the best cut for the step, preparation on released GPUs, the naive learner.

    Args:
        token_work: of preparation and learning, by which the cut is chosen; charges do not count there.
    """
    learner = Learner(servers, grows=False, overlaps=True, place="released")
    problem, options = logged.inputs(setting)
    options = replace(options, work=replace(token_work, charges=Charges()), learner=learner)
    plan = make_policy("rlhfuse", static_actors=actors).plan(problem, options)
    generated = executed(plan, requests, setting)
    prepared_s = follow(generated.completion_s, generated.free_s, work, learner).prepare_end_s
    return generated.step_totals(work, replace(learner, from_s=max(0.0, prepared_s - work.charges.loading_s(servers))))


def layouts(
    logged: LoggedStep, setting: SimulationConfig, requests: Sequence[Request], work: StepWork,
    expected: tuple[Sequence[Request], StepWork],
) -> Totals:  # fmt: skip
    """Return ReaL: each call has the layout that is best on expected lengths, and its GPUs are held for its time only.

    Prompts are assigned in the given order. When generation is over, weights are sent to the learner's GPUs.

    Args:
        expected: requests and work of the expected lengths.
    """
    most, found = setting.cluster.max_actors, []

    def step(generated: Generated, servers: int, of: StepWork) -> Totals:
        return generated.step_totals(of, Learner(servers, generated.makespan_s, grows=False))

    for actors in range(1, most + 1):
        plan = Static(actors, hold="generation").plan(*logged.inputs(setting))
        generated = executed(plan, expected[0], setting)
        for servers in sorted({1 << k for k in range(most.bit_length()) if 1 << k <= most} | {most}):
            time_s, gpu_s = step(generated, servers, expected[1])
            found.append((LAYOUTS.value(time_s, gpu_s), actors, servers, plan))
    _, _, servers, plan = min(found, key=lambda one: one[:3])
    return step(executed(plan, requests, setting), servers, work)


def drafts_only(
    logged: LoggedStep, setting: SimulationConfig, requests: Sequence[Request], work: StepWork, servers: int
) -> Totals:
    """Return RLHFSpec: drafts under the right-sized random split, released when done, and the naive system's learner."""
    plan = make_policy("spec").plan(*logged.inputs(setting))
    generated = executed(plan, requests, setting, engines=drafted_engines(setting, logged, plan, clairvoyant=False))
    return generated.step_totals(work, own_learner(generated, work, servers))
