"""What happens to actors of large clusters beside decoding, one small value per effect, each of them off unless it is asked
for.

Knows latency models, counts and seconds; nothing of engines or plans (``rlhfless.engine.simulated.disturbances`` makes engines
of them). What is drawn is drawn from a seed and the number of the actor, and the same draw is only scaled by how severe an
effect is, so a more severe one never makes an actor faster. An effect of severity 0 gives back the very latency model that it
was given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.latency import LatencyModel, StepTable
from solver.model.workload import FloatArray

SECONDS_PER_HOUR = 3600.0
UNLIMITED = 1 << 62


def _check(value: object, name: str, least: float, what: str) -> None:
    if not is_number(value, least):
        raise PlanningError(f"{name} is {as_given(value)}; {what} of {least:g} or more is needed")


@dataclass(frozen=True)
class PrefillInterference:
    """Prefill beside decoding: attention of a mixed batch takes longer, and servers prefill in chunks.

    Args:
        slowdown: by which share every token of prefill takes longer.
        chunk_tokens: most tokens of an iteration, those that are decoded included
            (``rlhfless.engine.simulated.chunked_prefill``); None computes everything that newcomers need in the iteration in
            which they join.
        attention: by which share attention of those that decode takes longer in an iteration that prefills as well, charged as
            that many more KV tokens.
    """

    slowdown: float = 0.0
    chunk_tokens: int | None = None
    attention: float = 0.0

    def __post_init__(self) -> None:
        _check(self.slowdown, "slowdown", 0, "a share")
        _check(self.attention, "attention", 0, "a share")
        if self.chunk_tokens is not None and not is_whole(self.chunk_tokens, 1):
            raise PlanningError(
                f"chunk_tokens is {as_given(self.chunk_tokens)}; a whole number of at least 1, or None, is needed"
            )

    @property
    def by_iteration(self) -> bool:
        """Whether engines have to look at every iteration."""
        return self.chunk_tokens is not None or self.attention > 0

    @property
    def budget_tokens(self) -> int:
        """Most tokens of an iteration."""
        return UNLIMITED if self.chunk_tokens is None else self.chunk_tokens

    def applied(self, latency: LatencyModel) -> LatencyModel:
        """The latency model with the slowdown."""
        if self.slowdown == 0:
            return latency
        return replace(latency, prefill_per_token_s=latency.prefill_per_token_s * (1 + self.slowdown))


@dataclass(frozen=True)
class Stragglers:
    """Actors whose every iteration and prefill takes longer than it should.

    Args:
        share: probability that an actor is one. slowdown: by which share it takes longer.
    """

    share: float = 0.0
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        _check(self.share, "share", 0, "a probability")
        _check(self.slowdown, "slowdown", 0, "a share")
        if self.share > 1:
            raise PlanningError(f"share is {as_given(self.share)}; a probability of at most 1 is needed")

    def applied(self, latency: LatencyModel, draw: np.random.Generator) -> LatencyModel:
        """The latency model of the actor that ``draw`` belongs to."""
        return slowed(latency, 1 + self.slowdown) if draw.random() < self.share else latency


@dataclass(frozen=True)
class StartDelays:
    """What starts take beyond the profile's: lognormal, as container and image start-ups are.

    Args:
        median_s: of the delay. spread: standard deviation of its logarithm.
    """

    median_s: float = 0.0
    spread: float = 0.5

    def __post_init__(self) -> None:
        _check(self.median_s, "median_s", 0, "a number of seconds")
        _check(self.spread, "spread", 0, "a standard deviation")

    def delay_s(self, draw: np.random.Generator) -> float:
        """The delay of the actor that ``draw`` belongs to."""
        return self.median_s * math.exp(self.spread * draw.standard_normal())


@dataclass(frozen=True)
class Outages:
    """Failures, or interruptions of preemptible GPUs: the actor loses its KV caches and what is under way, and decodes again
    ``down_s`` later, on the same GPUs or on others that are billed like them.

    Tokens that were committed are kept, because they had been streamed; their contexts are computed again. Outages follow each
    other at random (exponentially) in the time that the actor is up.

    Args:
        per_gpu_hour: rate. An actor goes down with any of its GPUs.
        down_s: until it is up again, start and sync included.
    """

    per_gpu_hour: float = 0.0
    down_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self.per_gpu_hour, "per_gpu_hour", 0, "a rate")
        _check(self.down_s, "down_s", 0, "a number of seconds")

    def up_s(self, gpus: int, draw: np.random.Generator) -> float:
        """Seconds that an actor of ``gpus`` GPUs is up before its next outage."""
        rate = self.per_gpu_hour * gpus / SECONDS_PER_HOUR
        waits = float(draw.standard_exponential())
        return waits / rate if rate > 0 else math.inf


@dataclass(frozen=True)
class Network:
    """Topology and contention of weight sync and KV transfer, as multiples of what the profile says for one node.

    Args:
        nodes: that actors lie on.
        between: how many times as long a byte takes between nodes as within one (450 GB/s of NVLink against 50 GB/s of a
            network card per GPU: 9).
        fan_out: nodes that a node with new weights sends them to at once, on one link each, round by round; None: the
            learner's node sends to all others one after the other.
    """

    nodes: int = 1
    between: float = 1.0
    fan_out: int | None = 1

    def __post_init__(self) -> None:
        if not is_whole(self.nodes, 1):
            raise PlanningError(f"nodes is {as_given(self.nodes)}; a whole number of at least 1 is needed")
        if self.fan_out is not None and not is_whole(self.fan_out, 1):
            raise PlanningError(f"fan_out is {as_given(self.fan_out)}; a whole number of at least 1, or None, is needed")
        _check(self.between, "between", 1, "a multiple")

    @property
    def rounds(self) -> int:
        """Sends one after the other until every node has new weights."""
        if self.fan_out is None:
            return self.nodes - 1
        reached, rounds = 1, 0
        while reached < self.nodes:
            reached *= 1 + self.fan_out
            rounds += 1
        return rounds

    def applied(self, latency: LatencyModel) -> LatencyModel:
        """The latency model on this network: weights go to the nodes and then within each; a KV cache goes to any actor, so
        to another node with probability ``1 - 1 / nodes``."""
        sync = 1 + self.between * self.rounds
        transfer = 1 + (self.between - 1) * (1 - 1 / self.nodes)
        if sync == transfer == 1:
            return latency
        return replace(
            latency,
            sync_s=latency.sync_s * sync,
            transfer_per_kv_token_s=latency.transfer_per_kv_token_s * transfer,
        )


@dataclass(frozen=True)
class Contention:
    """Weights and KV caches that are sent over the link of one node at the same time share its bandwidth.

    Shared are KV caches that go to another node, and weights that come to a node: one copy for all of its actors that begin to
    take them over at the same moment, as in ``Network``, and one for each that starts late. Nobody plans for it; what is
    planned with is the ``Network``.

    Args:
        carries: transfers that a node's link carries at once, in each direction, as fast as one goes alone.
    """

    carries: float = 1.0

    def __post_init__(self) -> None:
        _check(self.carries, "carries", 0, "a number of transfers")
        if self.carries == 0:
            raise PlanningError("carries is 0; a number of transfers above 0 is needed")


@dataclass(frozen=True)
class Effects:
    """All that may happen to the actors of a step; None leaves an effect out.

    Args:
        seed, step: what is drawn depends on them, whole numbers of 0 or more.

    Raises:
        PlanningError: an effect is of another kind than its name says, or the seed or the step is no such number.
    """

    prefill: PrefillInterference | None = None
    stragglers: Stragglers | None = None
    starts: StartDelays | None = None
    outages: Outages | None = None
    contention: Contention | None = None
    seed: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        kinds = {
            "prefill": PrefillInterference, "stragglers": Stragglers, "starts": StartDelays, "outages": Outages,
            "contention": Contention,
        }  # fmt: skip
        for name, kind in kinds.items():
            if not isinstance(given := getattr(self, name), kind | None):
                raise PlanningError(f"{name} is {given!r}; {kind.__name__}(...) or None is needed")
        for name in ("seed", "step"):
            given = getattr(self, name)
            if not (is_whole(given, 0) and isinstance(given, Integral)):  # numpy's seeds are no floats
                raise PlanningError(f"{name} is {given!r}; a whole number of 0 or more is needed")

    def draws(self, actor: int) -> tuple[np.random.Generator, np.random.Generator, np.random.Generator]:
        """A stream for each of stragglers, starts and outages of an actor; none depends on whether another is asked for. A
        straggler is one in every step."""
        straggling, starting, failing = ([0, actor], [1, actor, self.step], [2, actor, self.step])
        streams = [np.random.default_rng([self.seed, *own]) for own in (straggling, starting, failing)]
        return streams[0], streams[1], streams[2]


def slowed(latency: LatencyModel, factor: float) -> LatencyModel:
    """The same actor where every iteration, prefill and join takes ``factor`` times as long."""
    if factor == 1:
        return latency
    names = ("base_s", "per_response_s", "per_kv_token_s", "join_s", "prefill_base_s", "prefill_per_token_s")
    table, times = latency.table, {name: getattr(latency, name) * factor for name in names}
    if table is not None:
        step_s: FloatArray = table.step_s * factor
        table = StepTable(table.batch, table.context_tokens, step_s)
    return replace(latency, table=table, **times)
