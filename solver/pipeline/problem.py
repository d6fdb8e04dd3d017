"""Defines a pipeline training problem: chains of stages on devices, such as the actor's and the critic's in PPO.

A chain is one model cut into stages. Every micro-batch runs forward through its stages and backward again. Several chains may
share devices, in any direction: RLHFuse fuses the training of actor and critic in this way (arXiv:2409.13221, section 5).
Knows nothing of schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given, check_flags, is_number, is_whole

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
        return PipelineProblem(
            self.chains, self.devices, transfer=self.transfer, memory=memory, split_backward=self.split_backward,
            kept_for_weights=self.kept_for_weights,
        )  # fmt: skip

    def with_micro_batches(self, share: Fraction) -> PipelineProblem:
        """Return the same problem with this share of each chain's micro-batches; the results must be whole numbers."""
        chains = [
            Chain(chain.name, chain.route, int(chain.micro_batches * share), chain.forward, chain.backward, chain.activation)
            for chain in self.chains
        ]
        return PipelineProblem(
            chains, self.devices, transfer=self.transfer, memory=self.memory, split_backward=self.split_backward,
            kept_for_weights=self.kept_for_weights,
        )  # fmt: skip


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
