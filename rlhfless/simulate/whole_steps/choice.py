"""Chooses the plan of a whole step from its candidates. An optimisation (lever) is used only if it helps on held-out scenarios.

The plan with the least mean value over the scenarios is the best. The scenarios are divided into two halves. Plans are chosen
on one half and compared on the other; then the halves change places. The best plan must be better than the best plan without
any one of its levers by more than one standard error of the paired differences. These are differences of logarithms: a lever
saves about the same share of a long step and of a short one, so no long scenario decides alone. The lever with the weakest
evidence is removed, and the choice is made again, until every lever in use passes this test. If none passes, the plan is the
right-sized random split, learned from on all GPUs after generation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rlhfless.simulate.whole_steps.aim import Aim
from rlhfless.simulate.whole_steps.candidates import WholeStepCandidates, WholeStepPlan
from solver.model.workload import FloatArray, IntArray

SURE = 1.0  # standard errors by which a plan with a lever must be better than the best without it


@dataclass(frozen=True, eq=False)
class WholeStepChoice:
    """The chosen plan of a whole step.

    Attributes:
        plan: that was chosen. times_s, gpu_s: (S,) expected in each scenario.
        saves: lever to the share of what is minimised that it is expected to save, measured on held-out scenarios.
        without: lever to the best plan without it.
        refused: levers that did not earn their place, in the order in which they were taken away, with their saving.
    """

    plan: WholeStepPlan
    times_s: FloatArray
    gpu_s: FloatArray
    saves: Mapping[str, float] = field(default_factory=dict)
    without: Mapping[str, WholeStepPlan] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)

    @property
    def time_s(self) -> float:
        """Return the expected seconds of the step, the mean over the scenarios."""
        return float(self.times_s.mean())

    @property
    def gpu_seconds(self) -> float:
        """Return the expected GPU-seconds, the mean over the scenarios."""
        return float(self.gpu_s.mean())

    def lines(self) -> list[str]:
        """Return one line per lever: what it is expected to save, or that it is not used."""
        used = [f"{lever}: expected to save {share:.1%}" for lever, share in self.saves.items()]
        return used + [f"{lever}: not used (expected to save {share:.1%})" for lever, share in self.refused.items()]


def best_of(candidates: WholeStepCandidates, aim: Aim) -> WholeStepChoice:
    """Return the plan that is best on all scenarios, whatever its levers."""
    best = int(np.argmin(aim.values(candidates.times_s, candidates.gpu_s).mean(axis=1)))
    return WholeStepChoice(candidates.plans[best], candidates.times_s[best], candidates.gpu_s[best])


def choose(candidates: WholeStepCandidates, aim: Aim) -> WholeStepChoice:
    """Return the best plan whose levers have all earned their place; see the file's docstring."""
    left = candidates
    refused: dict[str, float] = {}
    while True:
        best = best_of(left, aim)
        tested = {lever: _tested(left, aim, lever) for lever in sorted(best.plan.levers)}
        doubtful = {lever: mean for lever, (mean, error, _) in tested.items() if mean <= SURE * error + 1e-12}
        if not doubtful:
            saves = {lever: 1 - math.exp(-mean) for lever, (mean, _, _) in tested.items()}
            return replace(
                best, saves=saves, without={lever: other for lever, (_, _, other) in tested.items()}, refused=refused
            )
        worst = min(doubtful, key=doubtful.__getitem__)
        refused[worst] = 1 - math.exp(-doubtful[worst])
        left = left.without(worst)


def _tested(candidates: WholeStepCandidates, aim: Aim, lever: str) -> tuple[float, float, WholeStepPlan]:
    """Return what a lever saves on held-out scenarios (a logarithm), its standard error, and the best plan without it."""
    without = candidates.without(lever)
    scenarios = np.arange(candidates.times_s.shape[1])
    differences: list[FloatArray] = []
    for half in (0, 1):
        chosen, held_out = scenarios[half::2], scenarios[1 - half :: 2]
        if not len(chosen) or not len(held_out):
            chosen = held_out = scenarios
        differences.append(np.subtract(_best_on(without, aim, chosen, held_out), _best_on(candidates, aim, chosen, held_out)))
    difference = np.concatenate(differences)
    error = float(difference.std(ddof=1)) / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return float(difference.mean()), error, best_of(without, aim).plan


def _best_on(candidates: WholeStepCandidates, aim: Aim, chosen: IntArray, held_out: IntArray) -> FloatArray:
    """Return the logarithms of the values on held-out scenarios of the plan that is best on the others."""
    values = aim.on(chosen).values(candidates.times_s[:, chosen], candidates.gpu_s[:, chosen])
    one = candidates.chosen([int(np.argmin(values.mean(axis=1)))])
    values = aim.on(held_out).values(one.times_s[:, held_out], one.gpu_s[:, held_out])[0]
    return np.asarray(np.log(np.maximum(values, 1e-12)))
