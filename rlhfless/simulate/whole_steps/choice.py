"""Chooses the plan of a whole step from its candidates; each lever has to earn its place on held-out scenarios.

The scenarios are divided into two halves. Plans are chosen on one half and compared on the other; then the halves change
places. The best plan must be surely better than the best plan without any one of its levers: by more than one standard error of
the paired differences. The lever that is least so is taken away, and the choice is made again, until each lever that is used
has earned its place. What is left at least is the right-sized random split, learned from on all GPUs after generation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rlhfless.simulate.whole_steps.aim import Aim
from rlhfless.simulate.whole_steps.candidates import WholeStepCandidates, WholeStepPlan
from solver.model.workload import FloatArray, IntArray

SURE = 1.0  # standard errors by which a plan with a lever must be better than the best without it


@dataclass(frozen=True, eq=False)
class WholeStepChoice:
    """The chosen plan of a whole step.

    Attributes:
        plan: that was chosen. time_s, gpu_seconds: expected, means over the scenarios.
        saves: lever to the share of what is minimised that it is expected to save, measured on held-out scenarios.
        without: lever to the best plan without it.
        refused: levers that did not earn their place, in the order in which they were taken away, with their saving.
    """

    plan: WholeStepPlan
    time_s: float
    gpu_seconds: float
    saves: Mapping[str, float] = field(default_factory=dict)
    without: Mapping[str, WholeStepPlan] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return one line per lever: what it is expected to save, or that it is not used."""
        used = [f"{lever}: expected to save {share:.1%}" for lever, share in self.saves.items()]
        return used + [f"{lever}: not used (expected to save {share:.1%})" for lever, share in self.refused.items()]


def choose(candidates: WholeStepCandidates, aim: Aim) -> WholeStepChoice:
    """Return the best plan whose levers have all earned their place; see the file's docstring."""
    left = candidates
    refused: dict[str, float] = {}
    while True:
        values = aim.values(left.times_s, left.gpu_s)
        best = int(np.argmin(values.mean(axis=1)))
        plan = left.plans[best]
        tested = {lever: _tested(left, aim, lever) for lever in sorted(plan.levers)}
        doubtful = {lever: mean for lever, (mean, error, _) in tested.items() if mean <= SURE * error + 1e-12}
        if not doubtful:
            return WholeStepChoice(
                plan, float(left.times_s[best].mean()), float(left.gpu_s[best].mean()),
                {lever: 1 - math.exp(-mean) for lever, (mean, _, _) in tested.items()},
                {lever: other for lever, (_, _, other) in tested.items()}, refused,
            )  # fmt: skip
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
    best = int(np.argmin(aim.values(without.times_s, without.gpu_s).mean(axis=1)))
    return float(difference.mean()), error, without.plans[best]


def _best_on(candidates: WholeStepCandidates, aim: Aim, chosen: IntArray, held_out: IntArray) -> FloatArray:
    """Return the values on held-out scenarios of the plan that is best on the others."""
    best = int(np.argmin(aim.values(candidates.times_s[:, chosen], candidates.gpu_s[:, chosen]).mean(axis=1)))
    one = candidates.chosen([best])
    return np.asarray(aim.values(one.times_s[:, held_out], one.gpu_s[:, held_out])[0])
