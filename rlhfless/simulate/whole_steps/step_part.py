"""A part of a large step, for planning: some of its prompts on as large a share of its servers.

A plan for thousands of servers says how many of them do what, and how responses are assigned. The best shares hardly depend on
the size. So a large step is planned on a part, and what was chosen is scaled up. Only a random split gets worse with more
actors, as some of them get the longest prompts by chance. Its actors are scaled as those of the right-sized random split of
both.

Prompts are sorted by predicted tokens. The part has the longest, and of the others every k-th. Times of the part stand for
those of the step, and its GPU-seconds count as often as it is contained in the step. A learner of the part loses as much speed
as one of the step that is as many times as large.

The chosen plan is then followed on the whole step (``SizedStep.followed``): what it takes there is what is expected of it, and
its number of actors is corrected (``best_actors``). Among very many actors, the responses of some need more KV memory than
there is, so that a long one waits for room. The part has no such actors. More actors have fewer responses each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.whole_steps.assignments import CACHED, RANDOM
from rlhfless.simulate.whole_steps.generations import Generations, WholeStepPlan
from solver.lengths.forecast import LengthForecast
from solver.model.workload import IntArray, Workload
from solver.step.work import Learner, TokenWork

PART_SERVERS = 32  # of a cluster with more, plans are made for about so many
STEP = 1.1  # times as many actors are tried next, or else one more
MOST_STEPS = 3


@dataclass(frozen=True, eq=False)
class StepPart:
    """A part of a step, with its cluster and charges.

    Attributes:
        ratio: how many times as large the step is. servers: of the whole cluster.
    """

    logged: LoggedStep
    setting: SimulationConfig
    token_work: TokenWork
    ratio: float
    servers: int

    @classmethod
    def of(cls, logged: LoggedStep, setting: SimulationConfig, token_work: TokenWork) -> StepPart | None:
        """Return the part that plans are made for; None where the step itself is small enough."""
        cluster = setting.cluster
        prompts = len(np.unique(logged.predicted.prompt_of))
        nodes = max(1, round(cluster.nodes * PART_SERVERS / cluster.max_actors))
        ratio = cluster.nodes / nodes
        if nodes >= cluster.nodes or prompts < 2 * ratio:
            return None
        return cls(
            _some(logged, max(2, round(prompts / ratio))),
            replace(setting, cluster=replace(cluster, nodes=nodes, prewarmed=round(cluster.prewarmed / ratio))),
            replace(token_work, charges=token_work.charges.of_part(ratio)), ratio, cluster.max_actors,
        )  # fmt: skip

    def scaled(self, pair: WholeStepPlan, of_part: Generations, generations: Generations) -> WholeStepPlan:
        """Return the plan of the whole step for one of the part.

        Args:
            of_part: of the part. generations: of the whole step, whose plans are made when they are executed.
        """
        assignments, own = generations.assignments, pair.generation.assignment
        of_random = assignments.best / of_part.assignments.best
        ratio = of_random if own.by in (RANDOM, CACHED) else self.ratio
        assignment = own.scaled(ratio, assignments.prompts, self.servers)
        learner = self._learner(pair.learner, len(pair.generation.plan.actors), assignment.actors)
        return pair._replace(generation=generations.of(assignment), learner=learner, of_part=pair)

    def with_actors(self, plan: WholeStepPlan, actors: int, generations: Generations) -> WholeStepPlan:
        """Return a plan of the whole step with so many actors, and with the learner's servers as far as they are left.

        Args:
            generations: see ``scaled``.
        """
        own, took = plan.generation.assignment, plan.learner.own
        assignment = own.scaled(actors / own.actors, generations.assignments.prompts, self.servers)
        takes_all = took == self.servers - own.actors
        left = self.servers - assignment.actors
        learner = _with_own(plan.learner, left if takes_all else min(took, left))
        return plan._replace(generation=generations.of(assignment), learner=learner)

    def _learner(self, learner: Learner, part_actors: int, actors: int) -> Learner:
        """Return a learner on as large a share of the servers; all that the actors leave stay all."""
        left = self.servers - actors
        takes_all = learner.own == self.setting.cluster.max_actors - part_actors
        return _with_own(learner, left if takes_all else min(left, round(learner.own * self.ratio)))


def best_actors(
    plan: WholeStepPlan, with_actors: Callable[[int], WholeStepPlan], value: Callable[[WholeStepPlan], float]
) -> WholeStepPlan:
    """Return the plan with the number of actors that is best in steps from its own.

    Args:
        with_actors: returns the plan with so many actors, or with as many as there can be. value: of a plan on the whole step;
            less is better.
    """
    best, least = plan, value(plan)
    for more in (True, False):
        for _ in range(MOST_STEPS):
            actors = best.generation.assignment.actors
            other = with_actors(
                max(actors + 1, round(actors * STEP)) if more else max(1, min(actors - 1, round(actors / STEP)))
            )
            if other.generation.assignment == best.generation.assignment or (found := value(other)) >= least:
                break
            best, least = other, found
        if best is not plan:
            break
    return best


def _with_own(learner: Learner, own: int) -> Learner:
    """Return the learner with so many servers of its own; with none it learns on what actors release."""
    return replace(learner, own=own) if own else replace(learner, own=0, from_s=0.0, grows=True)


def _some(logged: LoggedStep, prompts: int) -> LoggedStep:
    """Return a step of so many of the prompts with all their responses."""
    predicted, forecast = logged.predicted, logged.forecast
    tokens = np.bincount(predicted.prompt_of, predicted.response_tokens, len(predicted.prompt_tokens))
    longest_first = np.argsort(-tokens, kind="stable")
    longest_first = longest_first[np.isin(longest_first, predicted.prompt_of)]
    places = ((np.arange(prompts) + 0.5) * len(longest_first) / prompts).astype(np.int64)
    places[0] = 0
    chosen = np.sort(longest_first[places])
    responses = np.flatnonzero(np.isin(predicted.prompt_of, chosen))
    scenarios = None if forecast.scenarios is None else forecast.scenarios[:, responses]
    return replace(
        logged, rows=logged.rows.iloc[responses], predicted=_part_of(predicted, chosen, responses),
        truth=_part_of(logged.truth, chosen, responses),
        forecast=LengthForecast(forecast.expected[responses], scenarios, None, forecast.error_sd),
    )  # fmt: skip


def _part_of(workload: Workload, prompts: IntArray, responses: IntArray) -> Workload:
    """Return a workload of some prompts and all their responses."""
    return Workload(
        workload.prompt_tokens[prompts], np.searchsorted(prompts, workload.prompt_of[responses]),
        workload.response_tokens[responses], max_response_tokens=workload.max_response_tokens,
        scenarios=None if workload.scenarios is None else workload.scenarios[:, responses],
    )  # fmt: skip
