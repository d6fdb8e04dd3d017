"""Defines a pipeline training problem: chains of stages on devices, such as the actor's and the critic's in PPO.

A chain is one model cut into stages. Every micro-batch runs forward through its stages and backward again. Several chains may
share devices, in any direction: RLHFuse fuses the training of actor and critic in this way (arXiv:2409.13221, section 5).

``Operations`` has the problem as arrays: types by chain, kind and stage, each run once per micro-batch. Micro-batches of a
chain are alike. So on a device each type runs them in the order 0, 1, ...: exchanging two of them changes no time. A schedule
is therefore an order of types per device, and the micro-batch is the count (exchange argument).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given, check_flags, is_number, is_whole

FORWARD, BACKWARD, INPUTS, WEIGHTS = "F", "B", "I", "W"
MOST_OPERATIONS, MOST_DEVICES = 1_000_000, 10_000
MICROSECONDS_PER_SECOND = 1_000_000
LONGEST_SCHEDULE = 1 << 52  # units of time; sums of times stay exact


@dataclass(frozen=True)
class Chain:
    """One model on pipeline stages.

    Args:
        name: for tables and plots.
        route: (S,) device of each stage; a device may occur several times.
        micro_batches: number of micro-batches.
        forward, backward: time of a stage's pass over one micro-batch, in seconds or whole units; one number, or one per stage.
        activation: memory of a micro-batch at a stage, from the start of its forward to the end of its backward pass.

    Raises:
        PlanningError: a value is not a number of its kind, or a list has another length than the route.
    """

    name: str
    route: tuple[int, ...]
    micro_batches: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    activation: tuple[float, ...]

    def __init__(
        self,
        name: str,
        route: Sequence[int],
        micro_batches: int,
        forward: ArrayLike,
        backward: ArrayLike,
        activation: ArrayLike = 0.0,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise PlanningError(f"the name of a chain is {as_given(name)}; text is needed")
        where = f"of chain {as_given(name)}"
        devices = [whole(f"route {where}", device, 0) for device in items(f"route {where}", route)]
        if not devices:
            raise PlanningError(f"chain {as_given(name)} has no stages; a route of at least one device is needed")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "route", tuple(devices))
        object.__setattr__(self, "micro_batches", whole(f"micro_batches {where}", micro_batches, 1))
        object.__setattr__(self, "forward", per_item(f"forward {where}", forward, len(devices), above_zero=True))
        object.__setattr__(self, "backward", per_item(f"backward {where}", backward, len(devices), above_zero=True))
        object.__setattr__(self, "activation", per_item(f"activation {where}", activation, len(devices)))

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.route)


@dataclass(frozen=True)
class PipelineProblem:
    """Chains that share devices.

    Args:
        chains: at least one; their names differ. devices: number of devices; all that routes name when None.
        transfer: time of a hop from one stage to the next, on no device.
        memory: capacity of each device in the unit of ``activation``: one number, one per device, or None for no limit.
        split_backward: cut backward passes into the gradient of the input, which the stage before waits for, and that of the
            weights, which nothing waits for ("zero bubble"). Each takes half of ``backward``.
        kept_for_weights: share of a micro-batch's activation that stays until the gradient of the weights is done.

    Raises:
        PlanningError: a value is out of range, or a device cannot hold one micro-batch of a stage.

    Example:
        >>> from solver.pipeline import fused, schedule_pipeline
        >>> problem = fused(actor=(4, 2, 8), critic=(4, 1, 8))  # stages, forward time, micro-batches
        >>> plan = schedule_pipeline(problem)
        >>> plan.latency == plan.latency_bound
        True
    """

    chains: tuple[Chain, ...]
    devices: int
    transfer: float
    memory: tuple[float, ...] | None
    split_backward: bool
    kept_for_weights: float

    def __init__(
        self,
        chains: Sequence[Chain],
        devices: int | None = None,
        *,
        transfer: float = 0.0,
        memory: ArrayLike | None = None,
        split_backward: bool = False,
        kept_for_weights: float = 0.5,
    ) -> None:
        found = tuple(items("chains", chains))
        if not found or not all(isinstance(chain, Chain) for chain in found):
            raise PlanningError(f"chains is {as_given(chains)}; a list of at least one Chain is needed")
        names = [chain.name for chain in found]
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise PlanningError(f"two chains are called {as_given(twice)}; give each its own name")
        needed = 1 + max(max(chain.route) for chain in found)
        count = needed if devices is None else whole("devices", devices, 1)
        if count < needed:
            name = next(chain.name for chain in found if max(chain.route) >= count)
            raise PlanningError(
                f"chain {as_given(name)} runs on device {needed - 1}, but devices is {count}; at least {needed} are needed"
            )
        check_flags(split_backward=split_backward)
        if not is_number(kept_for_weights, 0) or kept_for_weights > 1:
            raise PlanningError(f"kept_for_weights is {as_given(kept_for_weights)}; a share in [0, 1] is needed")
        object.__setattr__(self, "chains", found)
        object.__setattr__(self, "devices", count)
        object.__setattr__(self, "transfer", per_item("transfer", transfer, 1)[0])
        object.__setattr__(self, "split_backward", bool(split_backward))
        object.__setattr__(self, "kept_for_weights", float(kept_for_weights))
        object.__setattr__(self, "memory", self._capacity(memory, count))
        self._check_size()

    def _capacity(self, memory: ArrayLike | None, devices: int) -> tuple[float, ...] | None:
        if memory is None:
            return None
        capacity = per_item("memory", memory, devices, above_zero=True)
        for chain in self.chains:
            needed = [0.0] * devices  # a micro-batch holds all of its stages at once when it turns round
            for device, activation in zip(chain.route, chain.activation, strict=True):
                needed[device] += activation
            short = next((device for device in range(devices) if needed[device] > capacity[device] * (1 + 1e-12)), None)
            if short is not None:
                raise PlanningError(
                    f"device {short} has memory {capacity[short]:g}, but one micro-batch of chain {as_given(chain.name)} "
                    f"takes {needed[short]:g} there; at least that much is needed"
                )
        return capacity

    def _check_size(self) -> None:
        kinds = 3 if self.split_backward else 2
        operations = sum(kinds * chain.stages * chain.micro_batches for chain in self.chains)
        if operations > MOST_OPERATIONS:
            raise PlanningError(
                f"the chains have {operations:.4g} operations (stages x micro-batches x passes); at most {MOST_OPERATIONS:,} "
                "are supported"
            )
        if self.devices > MOST_DEVICES:
            raise PlanningError(f"the problem has {self.devices:.4g} devices; at most {MOST_DEVICES:,} are supported")
        shortest, unit = min(min(*chain.forward, *chain.backward) for chain in self.chains), self.unit
        if shortest * (0.5 if self.split_backward else 1.0) < unit:
            raise PlanningError(f"the shortest pass takes {shortest:g}; times of at least one microsecond are needed")
        longest = self.transfer * operations
        longest += sum(chain.micro_batches * (sum(chain.forward) + sum(chain.backward)) for chain in self.chains)
        if longest / unit > LONGEST_SCHEDULE:
            raise PlanningError(
                f"all operations together take {longest:.4g}, which is too long to count in units of {unit:g}; "
                "give times in larger units"
            )

    @property
    def unit(self) -> float:
        """Time in which schedules count: 1 where all times are whole (half that if backward is split), else a microsecond."""
        times = [self.transfer]
        times += [x for chain in self.chains for x in (*chain.forward, *chain.backward)]
        if all(x.is_integer() for x in times):
            return 0.5 if self.split_backward else 1.0
        return 1.0 / MICROSECONDS_PER_SECOND

    def with_memory(self, memory: ArrayLike | None) -> PipelineProblem:
        """Return the same problem with another memory limit."""
        return replace(self, memory=memory)  # type: ignore[arg-type]  # as the constructor takes it

    def with_micro_batches(self, share: Fraction) -> PipelineProblem:
        """Return the same problem with this share of each chain's micro-batches; the results must be whole numbers."""
        return replace(self, chains=tuple(replace(one, micro_batches=int(one.micro_batches * share)) for one in self.chains))


def fused(
    actor: tuple[int, float, int],
    critic: tuple[int, float, int],
    *,
    activations: tuple[float, float] = (0.0, 0.0),
    backward_over_forward: float = 2.0,
    split_backward: bool = False,
) -> PipelineProblem:
    """Return the training of actor and critic on the same devices, in opposite directions.

    Args:
        actor, critic: stages, forward time of a stage, micro-batches. The actor's stages are on devices 0, 1, ...; as many
            copies of the critic as fit are on the same devices, each with so many micro-batches, in reversed order.
        activations: memory of a micro-batch at a stage of the actor and of the critic.
        backward_over_forward: time of a backward pass in forward passes.
        split_backward: as in ``PipelineProblem``.

    Raises:
        PlanningError: the critic's stages do not divide the actor's, or a value is out of range.

    Example:
        >>> from solver.pipeline import fused
        >>> [chain.route for chain in fused(actor=(4, 2, 8), critic=(2, 1, 4)).chains]
        [(0, 1, 2, 3), (1, 0), (3, 2)]
    """
    (stages, forward, micro_batches), (critic_stages, critic_forward, critic_micro_batches) = (
        _size("actor", actor), _size("critic", critic)
    )  # fmt: skip
    if stages % critic_stages:
        raise PlanningError(
            f"the critic has {critic_stages} stages, which do not divide the actor's {stages}; give a divisor of {stages}"
        )
    if len(items("activations", activations)) != 2:
        raise PlanningError(f"activations is {as_given(activations)}; one number each for actor and critic is needed")
    ratio = per_item("backward_over_forward", backward_over_forward, 1, above_zero=True)[0]
    chains = [Chain("actor", range(stages), micro_batches, forward, forward * ratio, activations[0])]
    for copy in range(stages // critic_stages):
        first = copy * critic_stages
        route = range(first + critic_stages - 1, first - 1, -1)
        name = "critic" if critic_stages == stages else f"critic {copy}"
        chains.append(Chain(name, route, critic_micro_batches, critic_forward, critic_forward * ratio, activations[1]))
    return PipelineProblem(chains, split_backward=split_backward)


def _size(name: str, given: tuple[int, float, int]) -> tuple[int, float, int]:
    if len(items(name, given)) != 3:
        raise PlanningError(f"{name} is {as_given(given)}; stages, forward time and micro-batches are needed")
    stages = whole(f"stages of the {name}", given[0], 1)
    if stages > MOST_DEVICES:
        raise PlanningError(f"stages of the {name} is {stages}; at most {MOST_DEVICES:,} are supported")
    forward = per_item(f"forward time of the {name}", given[1], 1, above_zero=True)[0]
    return stages, forward, whole(f"micro_batches of the {name}", given[2], 1)


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
        return replace(self, before=self.after, after=self.before, taken=self.released, released=self.taken)


def items(name: str, values: object) -> list:  # type: ignore[type-arg]
    """Return the items of a list, tuple, range or array.

    Raises:
        PlanningError: ``values`` is something else.
    """
    listed = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not listed and not (isinstance(values, np.ndarray) and values.ndim):
        raise PlanningError(f"{name} is {as_given(values)}; a list is needed")
    if len(values) > MOST_DEVICES:  # type: ignore[arg-type]
        raise PlanningError(f"{name} has {len(values)} items; at most {MOST_DEVICES:,} are supported")  # type: ignore[arg-type]
    return list(values)  # type: ignore[call-overload, no-any-return]


def whole(name: str, value: object, least: int) -> int:
    """Return a whole number.

    Raises:
        PlanningError: ``value`` is something else, or less than ``least``.
    """
    if not is_whole(value, least):
        raise PlanningError(f"{name} is {as_given(value)}; a whole number of {least} or more is needed")
    return int(value)  # type: ignore[call-overload, no-any-return]


def per_item(name: str, values: ArrayLike, count: int, *, above_zero: bool = False) -> tuple[float, ...]:
    """Return one finite number per item; a single number counts for all.

    Raises:
        PlanningError: a value is no finite number of 0 or more (above 0 if ``above_zero``), or their number is wrong.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise PlanningError(f"{name} is {as_given(values)}; a number, or a list of numbers, is needed")
    array = np.full(count, float(array)) if array.ndim == 0 else array.astype(float)
    if array.shape != (count,):
        raise PlanningError(f"{name} has shape {array.shape}; one number, or {count} of them, are needed")
    wrong = np.flatnonzero(~np.isfinite(array) | (array <= 0 if above_zero else array < 0))
    if len(wrong):
        least = "above 0" if above_zero else "of 0 or more"
        raise PlanningError(f"{name} is {array[wrong[0]]:g}; a finite number {least} is needed")
    return tuple(array.tolist())
