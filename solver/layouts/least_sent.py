"""Bounds what a training and another call of its role take together on two meshes, with the reallocation between them.

The fastest strategies of two meshes are often far apart, so weights that are sent between them take long, and equal layouts are
slow. The least of all pairs of strategies is a bound on the sum of the three, which hold for all partial plans with these
meshes.
"""

from __future__ import annotations

import math

import numpy as np

from solver.layouts.options import CallOptions, FloatArray, IntArray


class LeastSent:
    """For a call of a trained role: how much longer than with both fastest strategies training, reallocation and call take.

    Args:
        call: of a trained role. of_mesh: for training and call, the options of a mesh by its fastest one.
        rest_s: seconds that every plan needs beside these three in one chain.
    """

    def __init__(
        self, options: CallOptions, call: int, of_mesh: tuple[dict[int, IntArray], dict[int, IntArray]], rest_s: float
    ) -> None:
        self.options, self.call, self.of_mesh, self.rest_s = options, call, of_mesh, rest_s
        train = options.graph.trained_by[call]
        assert train is not None, "only trained roles are reallocated"
        self.train = train
        sizes = len(options.layouts[train]), len(options.layouts[call])
        self.known_s = np.full(sizes, np.nan)  # by the fastest options of both meshes
        self.exact = np.zeros(sizes, bool)
        self.target_s = 0.0

    def more_s(self, trained: IntArray, option: IntArray, target_s: float) -> FloatArray:
        """Return (P,) seconds that the three take longer than the fastest options ``trained`` and ``option`` of two meshes.

        Pairs with which the chain is not below the target are not looked at; the seconds that reach it are a bound, too.
        """
        if target_s == math.inf:
            return np.zeros(len(option))
        if target_s > self.target_s:
            self.known_s[~self.exact] = np.nan
        self.target_s = target_s
        found = self.known_s[trained, option]
        asked = np.flatnonzero(np.isnan(found))
        if len(asked):
            for one, other in set(zip(trained[asked].tolist(), option[asked].tolist(), strict=True)):
                self._look(one, other)
            found = self.known_s[trained, option]
        return np.asarray(found)

    def _look(self, trained: int, option: int) -> None:
        """Look at the pairs of strategies of two meshes, the fastest first."""
        options, call = self.options, self.call
        ones, others = self.of_mesh[0][trained], self.of_mesh[1][option]
        both_s = options.seconds[self.train][ones][:, None] + options.seconds[call][others]
        fastest_s = both_s[0, 0]
        most_s = self.target_s - self.rest_s
        least_s = np.inf
        for at in np.argsort(both_s, axis=None, kind="stable").tolist():
            one, other = divmod(at, len(others))
            if both_s[one, other] >= min(least_s, most_s):
                break
            sent_s = options.reallocation_s(call, ones[one : one + 1], others[other : other + 1])[0]
            least_s = min(least_s, both_s[one, other] + sent_s)
        self.exact[trained, option] = least_s <= most_s
        self.known_s[trained, option] = max(0.0, min(least_s, most_s) - fastest_s)
