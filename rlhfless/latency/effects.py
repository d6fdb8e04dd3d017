"""Models of disturbances on large clusters (stragglers, outages, slow starts, network contention), each off by default.

``rlhfless.engine.simulated.disturbances`` makes engines of them. Draws depend on a seed and the number of the actor.
``share``, ``slowdown``, ``median_s``, ``per_gpu_hour`` and ``down_s`` do not change the draw, only what follows from it: a
larger value never makes an actor faster. A ``slowdown`` of 0 returns the very latency model that was given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from rlhfless.latency.scaling import RUNNING, scaled
from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.latency import LatencyModel

SECONDS_PER_HOUR = 3600.0


def _check(value: object, name: str, minimum: float, what: str) -> None:
    if not is_number(value, minimum):
        raise PlanningError(f"{name} is {as_given(value)}; {what} of {minimum:g} or more is needed")


@dataclass(frozen=True)
class Stragglers:
    """Stragglers: all iterations and prefills of these actors take longer than the profile says.

    Args:
        share: probability that an actor is a straggler. slowdown: relative slow-down, such as 0.5 for 50 % more time.
    """

    share: float = 0.0
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        _check(self.share, "share", 0, "a probability")
        _check(self.slowdown, "slowdown", 0, "a share")
        if self.share > 1:
            raise PlanningError(f"share is {as_given(self.share)}; a probability of at most 1 is needed")

    def applied(self, latency: LatencyModel, draw: np.random.Generator) -> LatencyModel:
        """Return the latency model of the actor that ``draw`` belongs to."""
        return scaled(latency, 1 + self.slowdown, RUNNING) if draw.random() < self.share else latency


@dataclass(frozen=True)
class StartDelays:
    """Start-up delays in addition to the profile's start-up time, lognormally distributed, as those of containers are.

    Args:
        median_s: median of the delay in seconds.
        spread: standard deviation of its logarithm.
    """

    median_s: float = 0.0
    spread: float = 0.5

    def __post_init__(self) -> None:
        _check(self.median_s, "median_s", 0, "a number of seconds")
        _check(self.spread, "spread", 0, "a standard deviation")

    def delay_s(self, draw: np.random.Generator) -> float:
        """Return the delay of the actor that ``draw`` belongs to."""
        return self.median_s * math.exp(self.spread * draw.standard_normal())


@dataclass(frozen=True)
class Outages:
    """Failures, or interruptions of preemptible GPUs: the actor loses its KV caches and its current iteration.

    It decodes again after ``down_s`` seconds, on the same GPUs or on others with the same price. Committed tokens are kept,
    because they had been streamed; their KV caches are recomputed. The time between outages is exponentially distributed.

    Args:
        per_gpu_hour: outages per GPU and hour. An actor goes down with any of its GPUs.
        down_s: seconds until it is up again, start-up and weight sync included.
    """

    per_gpu_hour: float = 0.0
    down_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self.per_gpu_hour, "per_gpu_hour", 0, "a rate")
        _check(self.down_s, "down_s", 0, "a number of seconds")

    def up_s(self, gpus: int, draw: np.random.Generator) -> float:
        """Return the seconds that an actor of ``gpus`` GPUs is up before its next outage."""
        rate = self.per_gpu_hour * gpus / SECONDS_PER_HOUR
        waits = float(draw.standard_exponential())
        return waits / rate if rate > 0 else math.inf


@dataclass(frozen=True)
class Contention:
    """Transfers of weights and KV caches over one node's link at the same time share its bandwidth.

    These are KV caches that go to another node, and weights that arrive at a node. Actors of a node that begin to sync at the
    same moment share one copy of the weights. An actor that starts late needs its own copy. Plans ignore contention.

    Args:
        carries: transfers that a node's link handles at once, in each direction, at the speed of a single one.
    """

    carries: float = 1.0

    def __post_init__(self) -> None:
        _check(self.carries, "carries", 0, "a number of transfers")
        if self.carries == 0:
            raise PlanningError("carries is 0; a number of transfers above 0 is needed")


@dataclass(frozen=True)
class Effects:
    """Disturbances of a step's actors: stragglers, start delays and outages; None means that one does not occur.

    Args:
        seed, step: whole numbers of 0 or more that determine all random draws.

    Raises:
        PlanningError: an effect has the wrong type, or ``seed`` or ``step`` is not a whole number of 0 or more.

    Example:
        >>> from dataclasses import replace
        >>> import rlhfless as rl
        >>> from rlhfless.latency import Effects, Outages, Stragglers
        >>> from rlhfless.simulate import simulate
        >>> run = rl.load(rl.example(), verbose=False)
        >>> faults = Effects(Stragglers(share=0.5, slowdown=0.5), outages=Outages(per_gpu_hour=0.5, down_s=60))
        >>> setting = replace(run.calibrated, effects=faults)
        >>> one, other = (simulate(run.rollouts, s, ["static"], steps=run.steps[-1:]) for s in (run.calibrated, setting))
        >>> bool(other.table["time_s"].sum() > one.table["time_s"].sum())
        True
    """

    stragglers: Stragglers | None = None
    starts: StartDelays | None = None
    outages: Outages | None = None
    contention: Contention | None = None
    seed: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        kinds = {
            "stragglers": Stragglers, "starts": StartDelays, "outages": Outages, "contention": Contention,
        }  # fmt: skip
        for name, kind in kinds.items():
            if not isinstance(value := getattr(self, name), kind | None):
                raise PlanningError(f"{name} is {value!r}; {kind.__name__}(...) or None is needed")
        for name in ("seed", "step"):
            value = getattr(self, name)
            if not (is_whole(value, 0) and isinstance(value, Integral)):  # numpy's seeds are no floats
                raise PlanningError(f"{name} is {value!r}; a whole number of 0 or more is needed")

    def draws(self, actor: int) -> tuple[np.random.Generator, np.random.Generator, np.random.Generator]:
        """Return the random streams of an actor for stragglers, start delays and outages.

        Each stream is independent of which effects are on. An actor that is a straggler is one in every step.
        """
        straggling, starting, failing = ([0, actor], [1, actor, self.step], [2, actor, self.step])
        streams = [np.random.default_rng([self.seed, *stream_key]) for stream_key in (straggling, starting, failing)]
        return streams[0], streams[1], streams[2]
