"""Groups sorted items into length classes and cells, the resolution of the linear relaxation.

Input: ``MixedWork``. Classes are ranges of the sorted items, longest first. A cell is the part of a class with similar prompts.
Every number of a class or a cell is the least over its items, so a model built from them is a lower bound.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.planning.mixed_kinds.items import MixedWork


@dataclass(frozen=True, eq=False)
class Classes:
    """K classes and J cells of m items (see ``MixedWork``) on R offers.

    The share of a cell that an offer takes is measured in one load for all offers, the mean of their loads. Shares of whole
    items then add up to 1 over the offers. What a share brings to an offer is at least the share times ``load``.

    Attributes:
        edges: (K+1,) sorted positions at which classes begin, and m. least: (K,) the shortest length of each class.
        class_of: (J,) class of each cell. share: (m,) what an item is of its cell; cell_of: (m,) its cell, -1 for items of
            no load.
        load, tokens, kv: (R, J) seconds, iterations and KV tokens times iterations that the whole cell brings at least.
        load_per_token, load_per_kv: (R, K) least load per iteration, and per KV token times iteration, of any item of the
            class or a shorter one.
        allowed: (R, J) whether some item of the cell fits into the offer's memory.
    """

    edges: IntArray
    least: FloatArray
    class_of: IntArray
    share: FloatArray
    cell_of: IntArray
    load: FloatArray
    tokens: FloatArray
    kv: FloatArray
    load_per_token: FloatArray
    load_per_kv: FloatArray
    allowed: FloatArray

    @classmethod
    def of(cls, work: MixedWork, most: int, resolution: float = 0.01) -> Classes:
        """Return about ``most`` classes of geometrically falling length, in cells whose loads per token differ by
        ``resolution``."""
        n = work.length.astype(float)
        count = len(n)
        positive = int(np.count_nonzero(n > 0))
        cuts = {0, count, positive}
        if positive:
            grid = np.geomspace(n[positive - 1], n[0], max(2, most))
            cuts |= {int(np.searchsorted(-n, -length, side="right")) for length in grid}
            cuts |= {int(np.searchsorted(-n, -n[0], side="right"))}  # the longest item is known exactly
        edges = np.array(sorted(cuts), dtype=np.int64)
        common = (work.load / np.maximum(work.load.sum(axis=1, keepdims=True), 1e-300)).mean(axis=0)
        per_token = common / np.maximum(work.steps, 1.0)
        cell_of = np.full(count, -1, dtype=np.int64)
        class_of: list[int] = []
        for k, (a, b) in enumerate(itertools.pairwise(edges.tolist())):
            members = np.arange(a, b)[common[a:b] > 0]
            if not len(members):
                continue
            ratio = per_token[members]
            spread = float(ratio.max() / ratio.min()) - 1.0
            pieces = int(min(8, len(members), max(1, np.ceil(spread / (2 * resolution)))))
            for part in np.array_split(members[np.argsort(ratio, kind="stable")], pieces):
                cell_of[part] = len(class_of)
                class_of.append(k)
        cells = len(class_of)
        inside = cell_of >= 0
        index, of_common = cell_of[inside], common[inside]
        total = np.bincount(index, of_common, minlength=cells)
        share = np.zeros(count)
        share[inside] = of_common / total[index]

        def least_of(values: FloatArray) -> FloatArray:
            """Return the (J,) lower bounds of a value over cells: the least value per common load, times the cell's
            common load."""
            ratio = np.full(cells, np.inf)
            np.minimum.at(ratio, index, values[inside] / of_common)
            return np.asarray(ratio * total * (1 - 1e-12), dtype=float)

        offers = len(work.offers)

        def least_after(values: FloatArray, per: FloatArray) -> FloatArray:
            """Return (K,) least ratio among items of a class and all shorter ones that have any."""
            ratio = np.where(per > 0, values / np.maximum(per, 1e-300), np.inf)
            running = np.minimum.accumulate(ratio[::-1])[::-1][edges[:-1]]
            return np.where(np.isfinite(running), running, 0.0) * (1 - 1e-12)

        allowed = np.zeros((offers, cells))
        for r in range(offers):
            np.maximum.at(allowed[r], index, work.allowed[r][inside].astype(float))
        return cls(
            edges=edges,
            least=n[edges[1:] - 1],
            class_of=np.array(class_of, dtype=np.int64),
            share=share,
            cell_of=cell_of,
            load=np.array([least_of(work.load[r]) for r in range(offers)]),
            tokens=np.tile(least_of(work.steps), (offers, 1)),
            kv=np.tile(least_of(work.occupied), (offers, 1)),
            load_per_token=np.array([least_after(work.load[r], work.steps) for r in range(offers)]),
            load_per_kv=np.array([least_after(work.load[r], work.occupied) for r in range(offers)]),
            allowed=allowed,
        )

    def __len__(self) -> int:
        """Number of classes K."""
        return len(self.least)
