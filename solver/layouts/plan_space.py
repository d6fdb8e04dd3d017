"""What is fixed for all partial plans of the exact search: options by mesh, the order of calls, least seconds and bytes.

A partial plan is a row of K options: -1 for a call without a mesh, and the fastest option of its mesh for one without a
strategy. First every call gets a mesh, the slowest call first. Then every call gets its strategy, role by role: a role's
training, then its other calls. Calls of frozen roles come last.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.layouts.bound import best_within, never_together_bits
from solver.layouts.graph import TRAIN
from solver.layouts.least_sent import LeastSent
from solver.layouts.options import CallOptions, FloatArray, IntArray


class Extended(NamedTuple):
    """Partial plans with one more choice: (C,) rows of their parents, the call's options, bounds on the period."""

    parent: IntArray
    option: IntArray
    bound_s: FloatArray

    def where(self, kept: NDArray[np.bool_] | IntArray) -> Extended:
        """Return some of them, by a mask or by indices."""
        return Extended(self.parent[kept], self.option[kept], self.bound_s[kept])

    def rows(self, parents: IntArray, call: int) -> IntArray:
        """Return (C, K) the partial plans."""
        children = parents[self.parent]
        children[:, call] = self.option
        return children


class PlanSpace:
    """What is fixed for all partial plans: meshes and their options, in the order in which calls are placed.

    Attributes:
        by_mesh: for every call its meshes' options that fit alone, the fastest first. mesh_calls, strategy_calls: orders.
    """

    def __init__(self, options: CallOptions, limit_bytes: float) -> None:
        self.options, self.limit_bytes = options, limit_bytes
        graph = options.graph
        self.calls = len(graph.calls)
        self.apart = never_together_bits(options)
        self.trains = [call for call in range(self.calls) if graph.calls[call].kind == TRAIN]
        self.keeps = tuple(memory[:, 0] for memory in options.memory)
        self.works = tuple(self._works(call) for call in range(self.calls))
        self.by_mesh = [self._by_mesh(call) for call in range(self.calls)]
        self.fastest = [np.array([of[0] for of in by_mesh.values()], np.int64) for by_mesh in self.by_mesh]
        self.of_option = [{int(of[0]): of for of in by_mesh.values()} for by_mesh in self.by_mesh]
        self.some_plan = all(len(fastest) for fastest in self.fastest)
        if not self.some_plan:
            return
        self.least_s = np.array([seconds[fast].min() for seconds, fast in zip(options.seconds, self.fastest, strict=True)])
        slow_first = sorted(range(self.calls), key=lambda call: -self.least_s[call])
        self.mesh_calls = slow_first
        roles = [train for train in slow_first if train in self.trains]
        of_roles = [call for train in roles for call in (train, *(c for c in slow_first if graph.trained_by[c] == train != c))]
        self.strategy_calls = of_roles + [call for call in slow_first if graph.trained_by[call] is None]
        self.sorted_s, self.least_area = [], []
        for seconds, span, by_mesh in zip(options.seconds, options.spans, self.by_mesh, strict=True):
            fits = np.concatenate(list(by_mesh.values()))
            order = fits[np.argsort(seconds[fits], kind="stable")]
            area = np.minimum.accumulate(seconds[order] * (span[order, 1] - span[order, 0]))
            self.sorted_s.append(seconds[order])
            self.least_area.append(np.concatenate([[math.inf], area]))
        self.fastest_of = [self._fastest_of(call) for call in range(self.calls)]
        self.least_sent = self._least_sent()
        least = [self._least_bytes(call) for call in range(self.calls)]
        self.least_keeps, self.least_works = zip(*least, strict=True)

    def _works(self, call: int) -> FloatArray:
        """Return (n,) bytes while a call runs that it needs in any plan: a copy of weights only if its role is frozen."""
        _, working, copy = self.options.memory[call].T
        return np.asarray(working + copy if self.options.graph.trained_by[call] is None else working)

    def _by_mesh(self, call: int) -> dict[tuple[int, int], IntArray]:
        """Return the options of every mesh that fit alone, the fastest first."""
        seconds, span = self.options.seconds[call], self.options.spans[call]
        fits = self.keeps[call] + self.works[call] <= self.limit_bytes
        by_mesh: dict[tuple[int, int], list[int]] = {}
        for option in np.argsort(seconds, kind="stable").tolist():
            if fits[option]:
                by_mesh.setdefault((int(span[option, 0]), int(span[option, 1])), []).append(option)
        return {mesh: np.array(found, np.int64) for mesh, found in by_mesh.items()}

    def _fastest_of(self, call: int) -> IntArray:
        """Return (n,) the fastest option of every option's mesh."""
        fastest = np.full(len(self.options.seconds[call]), -1)
        for found in self.by_mesh[call].values():
            fastest[found] = found[0]
        return fastest

    def _least_sent(self) -> list[LeastSent]:
        """Return the bounds on reallocations, with what every plan needs beside them in one chain."""
        found, (best,) = [], best_within(self.least_s[None], self.apart[None, : self.calls])
        for number, call in enumerate(self.options.reallocated):
            train = self.options.graph.trained_by[call]
            assert train is not None, "only trained roles are reallocated"
            beside = self.apart[call] & self.apart[train] & self.apart[self.calls + number] & ((1 << self.calls) - 1)
            of_mesh = self.of_option[train], self.of_option[call]
            found.append(LeastSent(self.options, call, of_mesh, float(best[beside & ~(1 << call) & ~(1 << train)])))
        return found

    def joined(self, numbers: Collection[int]) -> dict[int, tuple[int, int]]:
        """Return the tasks of so many reallocations with their training and call."""
        sent = ((number, self.least_sent[number]) for number in sorted(numbers))
        return {self.calls + number: (one.train, one.call) for number, one in sent}

    def _least_bytes(self, call: int) -> tuple[FloatArray, FloatArray]:
        """Return (n,) least bytes that any option of an option's mesh keeps, and works with."""
        keeps, works = np.zeros_like(self.keeps[call]), np.zeros_like(self.works[call])
        for found in self.by_mesh[call].values():
            keeps[found], works[found] = self.keeps[call][found].min(), self.works[call][found].min()
        return keeps, works

    def extended_spans(self, rows: IntArray) -> IntArray:
        """Return (P, K, 2) GPUs of calls; (0, 0) without a mesh."""
        found = np.zeros((*rows.shape, 2), np.int64)
        for call in range(self.calls):
            placed = rows[:, call] >= 0
            found[placed, call] = self.options.spans[call][rows[placed, call]]
        return found

    def fits(self, rows: IntArray, placed: set[int], exact: set[int]) -> NDArray[np.bool_]:
        """Return (P,) whether the calls that are placed fit: ``exact`` ones with their options, others with their mesh's least.

        Copies of trained roles' weights count if both layouts are exact.
        """
        if self.limit_bytes == math.inf:
            return np.ones(len(rows), bool)
        options, spans = self.options, self.extended_spans(rows)
        keeps, works = np.zeros(rows.shape), np.zeros(rows.shape)
        for call in placed:
            option, train = rows[:, call], options.graph.trained_by[call]
            keeps[:, call] = (self.keeps if call in exact else self.least_keeps)[call][option]
            works[:, call] = (self.works if call in exact else self.least_works)[call][option]
            if train is not None and {call, train} <= exact:
                works[:, call] += options.copies(call, option, rows[:, train])
        at = spans[:, :, None, 0]  # the most bytes are needed on the first GPU of some call
        there = (spans[:, None, :, 0] <= at) & (at < spans[:, None, :, 1])
        peak = (there * keeps[:, None]).sum(axis=2) + (there * works[:, None]).max(axis=2)
        return np.asarray(peak.max(axis=1) <= self.limit_bytes)
