"""A Metropolis chain over the plans of a step: one call changes its option per move.

Moves are drawn before they are judged, and do not depend on the state. So the plans of the next moves can be timed side by
side, as if none of them were accepted, and the chain is the same whichever are timed together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.layouts.costs import CallOptions, FloatArray, IntArray

DRAWN = 1024  # moves that are drawn at once
Plan = tuple[int, ...]


def accepted(energy: float, proposed: float, temperature: float, uniform: float) -> bool:
    """Return whether Metropolis moves from one energy to another, by a uniform number in [0, 1)."""
    return proposed <= energy or uniform < math.exp((energy - proposed) / temperature)


@dataclass
class Known:
    """Energies of plans that were timed, and the best plan.

    Attributes:
        energy: by plan. best: of plans that fit. lowest: of all plans. states: of all chains together.
    """

    energy: dict[Plan, float]
    best: tuple[float, Plan] | None = None
    lowest: tuple[float, Plan] | None = None
    states: int = 0

    def add(self, plans: IntArray, energies: FloatArray, fits: IntArray) -> bool:
        """Keep what plans take; return whether one is the best that fits."""
        self.energy.update(zip(map(tuple, plans.tolist()), energies.tolist(), strict=True))
        at = int(energies.argmin())
        if self.lowest is None or energies[at] < self.lowest[0]:
            self.lowest = float(energies[at]), tuple(plans[at].tolist())
        among = np.where(fits, energies, math.inf)
        at = int(among.argmin())
        if among[at] < (math.inf if self.best is None else self.best[0]):
            self.best = float(among[at]), tuple(plans[at].tolist())
            return True
        return False


class MetropolisChain:
    """One chain.

    Args:
        plan: of the start. temperature: in units of energy. seed: of its moves.
    """

    def __init__(self, options: CallOptions, plan: IntArray, temperature: float, seed: int) -> None:
        self.choices = np.array([len(seconds) for seconds in options.seconds])
        self.plan: Plan = tuple(plan.tolist())
        self.temperature = temperature
        self.rng = np.random.default_rng(seed)
        self.states = 0
        self.moves: list[tuple[int, int, float]] = []
        self.at = 0

    def next_plans(self, count: int) -> list[Plan]:
        """Return the plans of so many moves from the current one."""
        if self.at + count > len(self.moves):
            call = self.rng.integers(len(self.choices), size=DRAWN)
            option = self.rng.integers(self.choices[call])
            drawn = zip(call.tolist(), option.tolist(), self.rng.random(DRAWN).tolist(), strict=True)
            self.moves, self.at = [*self.moves[self.at :], *drawn], 0
        plan = self.plan
        return [(*plan[:call], option, *plan[call + 1 :]) for call, option, _ in self.moves[self.at : self.at + count]]

    def walk(self, known: Known, most: int) -> None:
        """Move on until a plan is not known, or ``most`` states are counted."""
        energies, energy = known.energy, known.energy[self.plan]
        while self.states < most:
            (plan,) = self.next_plans(1)
            proposed = energies.get(plan)
            if proposed is None:
                return
            if accepted(energy, proposed, self.temperature, self.moves[self.at][2]):
                self.plan, energy = plan, proposed
            self.at += 1
            self.states += 1
            known.states += 1
