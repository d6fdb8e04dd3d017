"""Executes one step of one setting under every system, and returns tidy rows: systems, levers, waterfall, bounds.

The size of actors is that of the setting. Beside that, everything together and elastic plain may choose it, without drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhfless.paper import published_steps
from rlhfless.paper.machine import Machine
from rlhfless.paper.runs import WEIGHT
from rlhfless.scheduling.assignments import Static
from rlhfless.simulate import STRONG, WEAK, DrawnDrafts, LoggedStep, SimulationConfig, WholeStep
from rlhfless.simulate.drafts import SimulatedDrafts
from rlhfless.simulate.whole_steps.generated import executed, requests_of
from rlhfless.simulate.whole_steps.generations import expected
from rlhfless.simulate.whole_steps.lever_tables import lever_savings, lever_stages
from rlhfless.simulate.whole_steps.whole_step import StepVariant, Totals, WholeStepChoice
from solver.bounds.bound import Bound
from solver.model.objective import Objective
from solver.model.step_levers import ACTOR_SIZE
from solver.model.workload import FloatArray
from solver.step.work import TokenWork

OBJECTIVE = Objective(WEIGHT)  # by which elastic plain is sized and levers are counted
MARGIN = 0.02  # by which more than a speed is planned for, as forecasts are wrong
SPEEDUPS = {"1.35x": 1.35, "2x": 2.0}
"""Objectives: least cost at these speeds over the naive system."""
WEIGHTS = (0.2, 0.5, WEIGHT, 1.0)
EXTRA_OBJECTIVES = frozenset(f"w={weight:g}" for weight in WEIGHTS if weight != WEIGHT)
"""Points between the other objectives, executed without drafts only, as drafts take long to simulate."""
EQUAL_TIME = "equal time"
FAIR = "elastic cached"
"""The fair comparator: elastic plain with prefix caching."""
TOGETHER, TOGETHER_SIZED, FAIR_SIZED = "together", "together, any size", "elastic cached, any size"
"""Everything together, and with the fair comparator where both choose the size of actors."""
BOUND, BOUND_SIZED = "bound", "bound, any size"
ACCEPTANCES = {"weak": WEAK, "strong": STRONG}
WITHOUT = "without"
VALUES = (
    "system", "drafts", "objective", "time_s", "gpu_s", "bound_gpu_s", "lever", "expected", "saved", "stage", "value"
)  # fmt: skip
"""Columns of rows beside ``part``; those of other parts are empty."""

Relative = tuple[Objective, FloatArray | None]
"""What is minimised, and what of another plan the limit is a multiple of (``WholeStep.plan``)."""


@dataclass(frozen=True, eq=False)
class StepToCompare:
    """One step of a setting, and what is executed of it.

    Attributes:
        seed: of drafts. with_drafts: whether steps with drafts are executed. bounds_with_drafts: whether they are bounded.
        sizes: other sizes of actors.
    """

    machine: Machine
    step: WholeStep
    setting: SimulationConfig
    token_work: TokenWork
    logged: LoggedStep
    seed: int
    with_drafts: bool
    bounds_with_drafts: bool
    sizes: Sequence[StepVariant] = ()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return rows with ``part`` (``system``, ``lever``, ``stage``, ``bound``) and the columns of each; see the figure."""
        step, own, servers = self.step, self.step.own, self.machine.learner_gpus // self.machine.latency.gpus_per_actor
        static = Static(self.machine.static_actors, hold="generation").plan(*self.logged.inputs(self.setting))
        free = self.machine.gpus - self.machine.learner_gpus
        requests = self.logged.requests()
        naive = published_steps.naive(executed(static, requests, self.setting), own.work, servers, free)
        forecast_s = np.array([
            published_steps.naive(expected(static, case, self.setting, self.setting.latency), work, servers, free)[0]
            for case, work in zip(own.cases, own.works, strict=True)
        ])  # fmt: skip
        fair = step.plain(OBJECTIVE)
        yield self._system("naive", naive)
        yield self._system("elastic", step.execute(step.plain(OBJECTIVE, prefix_caching=False).plan))
        yield self._system(FAIR, step.execute(fair.plan))
        given = self.logged, self.setting, requests, own.work
        yield self._system("rlhfless", published_steps.rlhfless(*given, servers))
        fused = published_steps.rlhfuse(*given, servers, token_work=self.token_work, actors=self.machine.static_actors)
        yield self._system("rlhfuse", fused)
        yield self._system("real", published_steps.layouts(*given, (requests_of(own.cases[0]), own.works[0])))
        speeds = {name: Objective(deadline_s=1 / (speed * (1 + MARGIN))) for name, speed in SPEEDUPS.items()}
        objectives: dict[str, Relative] = {
            **{name: (objective, forecast_s) for name, objective in speeds.items()},
            EQUAL_TIME: (Objective(deadline_s=1), fair.times_s), "equal cost": (Objective(budget_gpu_s=1), fair.gpu_s),
            **{f"w={weight:g}": (Objective(weight), None) for weight in WEIGHTS},
        }  # fmt: skip
        kinds: dict[str, SimulatedDrafts | None] = {WITHOUT: None}
        if self.with_drafts:
            kinds |= {name: DrawnDrafts(acceptance, seed=self.seed) for name, acceptance in ACCEPTANCES.items()}
        for name, drafts in kinds.items():
            if drafts is not None:
                drafted = replace(self.setting, drafts=drafts)
                yield self._system("rlhfspec", published_steps.drafts_only(self.logged, drafted, *given[2:], servers), name)
            bound = step.bound(drafts) if drafts is None or self.bounds_with_drafts else None
            for objective_name, (objective, relative_to) in objectives.items():
                if drafts is not None and objective_name in EXTRA_OBJECTIVES:  # points between the others
                    continue
                totals = step.execute(step.plan(objective, drafts, relative_to=relative_to).plan)
                least = np.nan if bound is None else bound.gpu_seconds(totals[0] * (1 + 1e-9))
                yield {**self._system(TOGETHER, totals, name), "objective": objective_name, "bound_gpu_s": least}
            if bound is not None:
                yield from _bound_rows(BOUND, name, bound, naive[0])
        yield from self._of_any_size(naive[0], objectives)
        yield from self._levers()
        yield from self._stages(naive, kinds)

    def _system(self, system: str, totals: Totals, drafts: str = WITHOUT) -> dict[str, Any]:
        return {"part": "system", "system": system, "drafts": drafts, "time_s": totals[0], "gpu_s": totals[1]}

    def _of_any_size(self, naive_s: float, objectives: Mapping[str, Relative]) -> Iterator[dict[str, Any]]:
        """Return elastic plain and everything together where each may choose the size of actors, and the bound on any size."""
        step = WholeStep(self.logged, self.setting, self.token_work, self.sizes)
        bound = step.bound()
        fair, totals = self._plain_of_best_size()
        yield self._system(FAIR_SIZED, totals)
        choice = step.plan(OBJECTIVE)
        own = {name: objectives[name] for name in SPEEDUPS} | {EQUAL_TIME: (Objective(deadline_s=1), fair.times_s)}
        plans = {name: step.plan(objective, relative_to=relative_to).plan for name, (objective, relative_to) in own.items()}
        plans[f"w={WEIGHT:g}"] = choice.plan
        for name, plan in plans.items():
            totals = step.execute(plan)
            least = bound.gpu_seconds(totals[0] * (1 + 1e-9))
            yield {**self._system(TOGETHER_SIZED, totals), "objective": name, "bound_gpu_s": least}
        yield from _bound_rows(BOUND_SIZED, WITHOUT, bound, naive_s)
        without, saved = choice.without.get(ACTOR_SIZE), 0.0
        if without is not None:
            saved = 1 - OBJECTIVE.value(*step.execute(choice.plan)) / OBJECTIVE.value(*step.execute(without))
        yield {"part": "lever", "lever": ACTOR_SIZE, "expected": choice.saves.get(ACTOR_SIZE, 0.0), "saved": saved}

    def _plain_of_best_size(self) -> tuple[WholeStepChoice, Totals]:
        """Return elastic plain with prefix caching, with the size of actors that is best on the forecast, and what it takes."""
        steps = [self.step, *(WholeStep(self.logged, one.setting, one.token_work) for one in self.sizes)]
        found = [(step.plain(OBJECTIVE), step) for step in steps]
        choice, step = min(found, key=lambda one: OBJECTIVE.key(one[0].times_s, one[0].gpu_s))
        return choice, step.execute(choice.plan)

    def _levers(self) -> Iterator[dict[str, Any]]:
        """Return what each lever was expected to save of T^w C^(1-w), and what it saved beside the best plan without it."""
        for row in lever_savings(self.step, WEIGHT).itertuples():
            yield {"part": "lever", "lever": row.lever, "expected": row.expected, "saved": row.saved}

    def _stages(self, naive: Totals, kinds: Mapping[str, SimulatedDrafts | None]) -> Iterator[dict[str, Any]]:
        """Return the waterfall of T^w C^(1-w) relative to the naive system, as each stage adds levers."""
        base = OBJECTIVE.value(*naive)
        for row in lever_stages(self.step, WEIGHT).itertuples():
            value = OBJECTIVE.value(row.time_s, row.gpu_s) / base
            yield {"part": "stage", "stage": row.stage, "value": value}
        for name, drafts in kinds.items():
            if drafts is not None:
                totals = self.step.execute(self.step.plan(OBJECTIVE, drafts).plan)
                value = OBJECTIVE.value(*totals) / base
                yield {"part": "stage", "stage": f"{name} drafts", "value": value}


def _bound_rows(part: str, drafts: str, bound: Bound, naive_s: float) -> Iterator[dict[str, Any]]:
    """Return the least GPU-seconds at the speeds that are planned for, and the least time."""
    for name, speed in SPEEDUPS.items():
        at = naive_s / speed
        yield {"part": part, "drafts": drafts, "objective": name, "time_s": at, "gpu_s": bound.gpu_seconds(at)}
    yield {"part": part, "drafts": drafts, "objective": "least time", "time_s": bound.shortest_s(), "gpu_s": np.nan}
