"""The operations of a pipeline problem as arrays: types by chain, kind and stage, each run once per micro-batch.

Micro-batches of a chain are alike. So on a device each type runs them in the order 0, 1, ...: exchanging two of them changes
no time. A schedule is therefore an order of types per device, and the micro-batch is the count (exchange argument).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from solver.model.errors import as_given
from solver.pipeline.problem import PipelineProblem

FORWARD, BACKWARD, INPUTS, WEIGHTS = "F", "B", "I", "W"


class Operation(NamedTuple):
    """A type of operation: F (forward), B (backward), or in its place I (gradient of the input) and W (of the weights).

    ``chain`` is the position of its chain in the problem.
    """

    chain: int
    kind: str
    stage: int


@dataclass(frozen=True, eq=False)
class Operations:
    """Everything that schedules need of a problem, in lists by type.

    Attributes:
        chains: their names. types: what each type is.
        device, duration, count: where it runs, how long, and for how many micro-batches.
        before, after: types whose same micro-batch comes directly before and after it, one hop apart.
        taken, released: memory that it takes when it starts and releases when it ends.
        on_device: types of each device.
        unit: of ``duration`` in the problem's time: times are whole numbers inside.
        transfer: time of a hop.
    """

    chains: tuple[str, ...]
    types: tuple[Operation, ...]
    device: tuple[int, ...]
    duration: tuple[int, ...]
    count: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    taken: tuple[float, ...]
    released: tuple[float, ...]
    on_device: tuple[tuple[int, ...], ...]
    unit: float
    transfer: int
    memory: tuple[float, ...] | None

    @classmethod
    def of(cls, problem: PipelineProblem) -> Operations:
        """Return the operations of a problem. Times that are not whole are rounded to whole microseconds."""
        unit = problem.unit
        types: list[Operation] = []
        rows: list[tuple[int, float, int, float, float]] = []
        links: list[tuple[Operation, Operation]] = []
        for index, chain in enumerate(problem.chains):
            split, kept = problem.split_backward, problem.kept_for_weights if problem.split_backward else 0.0
            path = [Operation(index, FORWARD, s) for s in range(chain.stages)]
            path += [Operation(index, INPUTS if split else BACKWARD, s) for s in reversed(range(chain.stages))]
            links += itertools.pairwise(path)
            for op in path:
                forward, activation = op.kind == FORWARD, float(chain.activation[op.stage])
                seconds = float(chain.forward[op.stage] if forward else chain.backward[op.stage] / (2 if split else 1))
                freed = 0.0 if forward else activation * (1 - kept)
                types.append(op)
                rows.append((chain.route[op.stage], seconds, chain.micro_batches, activation if forward else 0.0, freed))
            for s in range(chain.stages) if split else ():
                op = Operation(index, WEIGHTS, s)
                links.append((Operation(index, INPUTS, s), op))
                types.append(op)
                held = float(chain.activation[s]) * kept
                rows.append((chain.route[s], float(chain.backward[s]) / 2, chain.micro_batches, 0.0, held))
        number = {op: i for i, op in enumerate(types)}
        before: list[list[int]] = [[] for _ in types]
        after: list[list[int]] = [[] for _ in types]
        for first, then in links:
            before[number[then]].append(number[first])
            after[number[first]].append(number[then])
        devices, durations, counts, taken, released = zip(*rows, strict=True)
        on_device: list[list[int]] = [[] for _ in range(problem.devices)]
        for i, device in enumerate(devices):
            on_device[device].append(i)
        whole = tuple(max(1, round(x / unit)) for x in durations)
        return cls(
            tuple(chain.name for chain in problem.chains), tuple(types), devices, whole, counts, tuple(map(tuple, before)),
            tuple(map(tuple, after)), taken, released, tuple(map(tuple, on_device)), unit, round(problem.transfer / unit),
            problem.memory,
        )  # fmt: skip

    def __len__(self) -> int:
        """Number of types."""
        return len(self.types)

    @property
    def total(self) -> int:
        """Number of operations, micro-batches counted."""
        return sum(self.count)

    def name(self, i: int) -> str:
        """Return a type as error messages show it: ``F of stage 0 of chain 'actor'``."""
        op = self.types[i]
        return f"{op.kind} of stage {op.stage} of chain {as_given(self.chains[op.chain])}"

    def hop(self, first: int, then: int) -> int:
        """Return the time between two types that follow each other: a transfer where the stage changes."""
        return self.transfer if self.types[first].stage != self.types[then].stage else 0

    @cached_property
    def topological(self) -> tuple[int, ...]:
        """Types so that each comes after all that come before it."""
        missing = [len(types) for types in self.before]
        order = [i for i, count in enumerate(missing) if not count]
        for i in order:
            for j in self.after[i]:
                missing[j] -= 1
                if not missing[j]:
                    order.append(j)
        return tuple(order)

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Least time before each type can start for the first time."""
        found = [0] * len(self)
        for i in self.topological:
            found[i] = max((found[j] + self.duration[j] + self.hop(j, i) for j in self.before[i]), default=0)
        return tuple(found)

    @cached_property
    def tails(self) -> tuple[int, ...]:
        """Least time after each type has ended for the last time."""
        return self.reversed.heads

    @cached_property
    def reversed(self) -> Operations:
        """The same backwards in time: what came before comes after, and memory is released where it was taken."""
        return Operations(
            self.chains, self.types, self.device, self.duration, self.count, self.after, self.before, self.released, self.taken,
            self.on_device, self.unit, self.transfer, self.memory,
        )  # fmt: skip
