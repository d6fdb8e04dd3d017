"""Chooses the plan of a whole step. An optimisation (lever) is used only if it helps on held-out scenarios.

The plan with the least mean value over the scenarios is the best. It must be better than the best plan without any one of its
levers, by more than ``SURE`` standard errors, on scenarios that neither was chosen on (``held_out``). These are differences of
logarithms: a lever saves about the same share of a long step and of a short one, so no long scenario decides alone. The lever
with the weakest evidence is removed, and the choice is made again, until every lever in use passes this test. If none passes,
the plan is the right-sized random split, learned from on all GPUs after generation.

Under a limit, values of plans that miss it are multiplied by a penalty (``Objective.soft_values``). Choices are made with it.
What a lever is said to save is without it (``compared_by``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solver.lengths.held_out import Saving, held_out
from solver.model.errors import PlanningError
from solver.model.objective import TOLERANCE, Objective
from solver.model.step_levers import CONSOLIDATION, LEVERS, SHARED_PREFILL, lever_bits, levers_of_bits
from solver.model.workload import FloatArray, IntArray

BoolArray = NDArray[np.bool_]
Values = Callable[[IntArray, IntArray], FloatArray]
"""Returns the (N, S) values of plans on scenarios, given the numbers of both."""
SURE = 1.0
"""Standard errors by which a plan with a lever must be better than the best without it. With 2, as policy ``solver`` asks of a
plan by predictions, three plans of Figure 10 without drafts change (one seed). One of them is 7 % slower at the same cost."""
TIME_FACTORS = np.array([*(1.02**power for power in range(60)), 4.0, 9.0])
"""Multiples of the least time. For each of them, the cheapest plan that is no slower is kept."""
ROUNDING = 1e-9  # relative, by which sums over the same work may differ
FOLDING_MARGIN = 0.02
"""A plan that folds must be so much faster or cheaper to be kept: its rule is executed, not timed by arrays."""


@dataclass(frozen=True, eq=False)
class StepTable:
    """N plans of a step on S scenarios.

    Attributes:
        levers: (N,) levers that each plan uses (``lever_bits``).
        times_s, gpu_s: (N, S) seconds and GPU-seconds of the whole step.
    """

    levers: IntArray
    times_s: FloatArray
    gpu_s: FloatArray

    def within(self, levers: int) -> BoolArray:
        """Return (N,) which plans use none but these levers."""
        return np.asarray((self.levers & ~levers) == 0)


@dataclass(frozen=True)
class StepChoice:
    """The chosen plan of a step, by its number in the table.

    Attributes:
        best: the chosen plan.
        saves: lever to the share that it is expected to save, measured on held-out scenarios, of what ``compared_by`` names;
            NaN where the plan keeps the limit and the best plan without the lever does not.
        without: lever to the best plan without it.
        refused: levers that did not help on held-out scenarios, in the order in which they were removed, with their saving.
    """

    best: int
    saves: Mapping[str, float] = field(default_factory=dict)
    without: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)


def choose(
    table: StepTable, objective: Objective, among: BoolArray | None = None, relative_to: FloatArray | None = None
) -> StepChoice:
    """Return the best plan of which every lever helps on held-out scenarios.

    Args:
        objective: with cost in GPU-seconds. among: (N,) plans that may be chosen; all when None.
        relative_to: (S,) of another plan, what the limit is a multiple of: its seconds, or its GPU-seconds under a budget. Long
            responses delay both plans, so that their ratio is surer than either time. None: the limit is absolute.

    Raises:
        PlanningError: every plan that may be chosen uses a lever, so that nothing says what it saves.

    Example:
        >>> import numpy as np
        >>> from solver import Objective
        >>> from solver.model.step_levers import lever_bits
        >>> from solver.step.choose import StepTable, choose
        >>> times_s = np.array([[10.0, 11.0, 9.0, 10.0], [9.0, 9.9, 8.1, 9.0]])
        >>> table = StepTable(np.array([0, lever_bits(["overlap"])]), times_s, np.ones((2, 4)))
        >>> choice = choose(table, Objective(time_weight=1.0))
        >>> choice.best, round(choice.saves["overlap"], 3)
        (1, 0.1)
    """
    left = np.ones(len(table.levers), dtype=bool) if among is None else among.copy()
    if not (left & (table.levers == 0)).any():
        raise PlanningError("all plans that may be chosen use an optimisation; one without any is needed, to compare them with")
    halves = _Halves(table, objective, relative_to)
    refused: dict[str, float] = {}
    while True:
        best = halves.best(left)
        used = sorted(levers_of_bits(int(table.levers[best])))
        others = {lever: left & (table.levers & lever_bits([lever]) == 0) for lever in used}
        tested = {lever: halves.saving(left, without) for lever, without in others.items()}
        weakest = min((lever for lever in used if not tested[lever].is_sure), key=lambda one: tested[one].mean, default=None)
        if weakest is None:
            saves = {lever: halves.share(left, without) for lever, without in others.items()}
            return StepChoice(best, saves, {lever: halves.best(without) for lever, without in others.items()}, refused)
        refused[weakest] = halves.share(left, others[weakest])
        left = others[weakest]


def best_of(table: StepTable, objective: Objective, among: BoolArray | None = None) -> int:
    """Return the number of the plan that is best on all scenarios, whatever its levers."""
    return _Halves(table, objective, None).best(np.ones(len(table.levers), dtype=bool) if among is None else among)


def compared_by(objective: Objective, plan: tuple[float, float], other: tuple[float, float]) -> Objective | None:
    """Return what two plans are compared by, without a penalty for a missed limit: an objective without a limit.

    Without a limit it is the objective itself. Under a limit that the plan keeps, it is what is minimised: cost under a
    deadline, time under a budget. Under a limit that the plan misses, it is what is limited, as the nearest miss is best.

    Args:
        objective: with cost in GPU-seconds. plan, other: seconds and GPU-seconds of each.

    Returns:
        None: the plan keeps the limit and the other one does not, so a share of either says nothing.

    Example:
        >>> from solver import Objective
        >>> from solver.step.choose import compared_by
        >>> within_4_s = Objective(deadline_s=4.0)
        >>> compared_by(within_4_s, (3.0, 9.0), (4.0, 10.0)).time_weight  # cost alone
        0.0
        >>> compared_by(within_4_s, (3.0, 9.0), (5.0, 8.0)) is None
        True
        >>> compared_by(within_4_s, (6.0, 9.0), (7.0, 8.0)).time_weight  # time alone
        1.0
    """
    if objective.limit is None:
        return objective
    of, weight = (0, 1.0) if objective.deadline_s is not None else (1, 0.0)
    if plan[of] > objective.limit * (1 + TOLERANCE):
        return Objective(weight)
    return None if other[of] > objective.limit * (1 + TOLERANCE) else Objective(1.0 - weight)


def share_text(share: float | None, before: str = "") -> str:
    """Return in words what a lever saves; None or NaN: the plan keeps the limit only with it.

    Args:
        before: words before a share, such as "saved ".
    """
    return "not within the limit without it" if share is None or math.isnan(share) else f"{before}{share:.1%}"


class _Halves:
    """Mean values of all plans on all scenarios, and on each half of them."""

    def __init__(self, table: StepTable, objective: Objective, relative_to: FloatArray | None) -> None:
        self.table, self.objective, self.relative_to = table, objective, relative_to
        every = np.arange(table.times_s.shape[1])
        self.halves = [every[half::2] for half in (0, 1)] if len(every) > 1 else [every, every]
        everyone = np.arange(len(table.levers))
        self.decides_ties = (table.times_s if objective.budget is None else table.gpu_s).mean(axis=1)
        self.means = {half: self._values(everyone, on).mean(axis=1) for half, on in ((0, self.halves[0]), (1, self.halves[1]))}
        self.of_all = self._values(everyone, every).mean(axis=1)

    def best(self, among: BoolArray) -> int:
        """Return the plan that is best on all scenarios."""
        return self._least(self.of_all, among)

    def saving(self, among: BoolArray, without: BoolArray) -> Saving:
        """Return what the best of some plans saves on held-out scenarios, in logarithms, compared with the best of others."""
        return self._saving(among, without, self._values)

    def share(self, among: BoolArray, without: BoolArray) -> float:
        """Return the share that the best of some plans saves on held-out scenarios; see ``StepChoice.saves``."""
        every = np.arange(self.table.times_s.shape[1])
        first, other = (
            (float(self.table.times_s[best].mean()), float(self.table.gpu_s[best].mean()))
            for best in (self.best(among), self.best(without))
        )
        by = compared_by(self._limited(every), first, other)
        return math.nan if by is None else 1 - math.exp(-self._saving(among, without, self._compared(by)).mean)

    def _compared(self, by: Objective) -> Values:
        times_s, gpu_s = self.table.times_s, self.table.gpu_s
        return lambda plans, scenarios: by.product(times_s[plans][:, scenarios], gpu_s[plans][:, scenarios])

    def _saving(self, among: BoolArray, without: BoolArray, values: Values) -> Saving:
        def of_best(plans: BoolArray, half: int) -> FloatArray:
            chosen = np.array([self._least(self.means[half], plans)])
            return np.asarray(np.log(np.maximum(values(chosen, self.halves[1 - half])[0], 1e-12)))

        return held_out(lambda half: of_best(among, half), lambda half: of_best(without, half), SURE)

    def _least(self, values: FloatArray, among: BoolArray) -> int:
        """Return the plan of least value. Of plans that differ by rounding only, as in cost under a deadline, the faster one,
        or under a budget the cheaper one."""
        numbers = np.flatnonzero(among)
        ties = numbers[values[numbers] <= values[numbers].min() * (1 + ROUNDING)]
        return int(ties[np.argmin(self.decides_ties[ties])])

    def _values(self, plans: IntArray, scenarios: IntArray) -> FloatArray:
        """Return the values of plans on some scenarios, with the limit that holds there."""
        times_s, gpu_s = self.table.times_s[plans][:, scenarios], self.table.gpu_s[plans][:, scenarios]
        return self._limited(scenarios).soft_values(times_s, gpu_s)

    def _limited(self, scenarios: IntArray) -> Objective:
        """Return the objective with the limit that holds on some scenarios."""
        relative_to = self.relative_to
        return self.objective if relative_to is None else self.objective.with_slack(float(relative_to[scenarios].mean()))


def dearer_by(totals: FloatArray) -> FloatArray:
    """Return (N,) the share by which each plan is dearer than the cheapest that is as fast, from (N, 2) times and costs."""
    order = np.lexsort(totals.T[::-1])
    found = np.zeros(len(totals))
    found[order] = totals[order, 1] / np.minimum.accumulate(totals[order, 1]) - 1
    return found


def kept(levers: IntArray, totals: FloatArray) -> IntArray:
    """Return the numbers of the plans that are worth timing on every scenario.

    These are the cheapest within some time (``TIME_FACTORS``): of all plans, of those without each lever, and of those that
    elastic plain is chosen from.

    Args:
        levers: (N,) of each plan. totals: (N, 2) seconds and GPU-seconds on the typical scenario.
    """
    subsets = [np.ones(len(levers), dtype=bool), *(levers & lever_bits([lever]) == 0 for lever in LEVERS)]
    subsets += [levers == lever_bits(plain) for plain in ((), (SHARED_PREFILL,))]
    margin = np.where(levers & lever_bits([CONSOLIDATION]), FOLDING_MARGIN, 0.0)
    times_s, gpu_s = totals.T * (1 + margin)
    fastest_first = np.argsort(times_s, kind="stable")
    found = np.zeros(len(levers), dtype=bool)
    for subset in subsets:
        numbers = fastest_first[subset[fastest_first]]
        if len(numbers):
            last = np.searchsorted(times_s[numbers], times_s[numbers[0]] * TIME_FACTORS, side="right") - 1
            least = np.minimum.accumulate(gpu_s[numbers])
            cheaper = np.append(True, gpu_s[numbers[1:]] < least[:-1])
            cheapest = np.maximum.accumulate(np.where(cheaper, np.arange(len(numbers)), 0))
            found[numbers[cheapest[last]]] = True
    return np.flatnonzero(found)
