"""Engines for actors of a scripted world: tokens are counted, and an iteration takes as long as planned on the actor's clock.

A token is a function of the response's whole context (``counting_engine.py``), so a wrong KV state, a lost token or other
weights give other tokens. ``expected_tokens`` says what one actor without any trouble generates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from benchmark_scripts import counting_engine

from rlhfless.engine.common.pool_engines import Capabilities
from rlhfless.engine.protocol import Progress, Request
from solver.model.admission import Admission
from solver.model.latency import LatencyModel

FACTOR, MODULUS, VOCABULARY = counting_engine.FACTOR, counting_engine.MODULUS, counting_engine.VOCABULARY
HERE: list[Any] = []
"""The actor whose turn it is, last."""
LEARNERS: list[Any] = []
"""Whoever computes while no actor has its turn: the world, last."""


class Prefix(NamedTuple):
    """KV state of a prefix: its checksum, and its length in the form of the engines' pieces."""

    state: int
    pieces: tuple[np.ndarray, ...]

    @property
    def tokens(self) -> int:
        """How long it is."""
        return int(self.pieces[0].shape[3])


@dataclass(frozen=True)
class ScriptedEngines(counting_engine.CountingEngines):
    """Makes engines.

    Attributes:
        version: of the weights; None: that of the step.
        starts_more: an actor starts something beside its process, which takes ``starts_more`` seconds.
    """

    version: int | None = None
    starts_more: float = 0.0

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """They take prefixes, and may start something beside the process."""
        return Capabilities("a scripted engine", "scripted_engine", takes_prefixes=True, starts_server=self.starts_more > 0)

    def compatibility_key(self, latency: LatencyModel) -> Any:
        """What a process is bound to."""
        return self.starts_more

    def compute_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> dict[int, Prefix]:
        """Their checksums; computing a token takes a millisecond."""
        (HERE or LEARNERS)[-1].sleep(1e-3 * sum(len(ids) for ids in prefixes.values()))
        return {prompt: Prefix(checksum(ids.tolist()), (np.empty((0, 0, 0, len(ids))),)) for prompt, ids in prefixes.items()}

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> ScriptedEngine:
        return ScriptedEngine(latency, admission, self, start_s)


class ScriptedEngine(counting_engine.CountingEngine):
    """One replica; what goes wrong with it is the actor's business."""

    reuses_prefixes = True

    def __init__(self, latency: LatencyModel, admission: Admission, made_by: ScriptedEngines, clock_s: float) -> None:
        super().__init__(latency, admission, made_by, clock_s)
        self.weights_version = None if made_by.version is None else made_by.version - HERE[-1].stale
        if HERE[-1].stale:
            self._weights += 1

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        """On the actor's clock."""
        HERE[-1].sleep(seconds * HERE[-1].slowness)

    def step(self, from_s: float, clock: Any) -> Progress:
        """An iteration, if the actor gets to it."""
        HERE[-1].iterates(self)
        return super().step(from_s, clock)

    def received(self, request: Request) -> tuple[int, int]:
        """The prefix that was received with it."""
        if not request.cached_tokens:
            return 0, 0
        return request.prefix_kv.state, request.prefix_kv.tokens


def checksum(tokens: list[int]) -> int:
    """Of a context."""
    state = 0
    for token in tokens:
        state = (state * FACTOR + token + 1) % MODULUS
    return state


@cache
def _expected(weights: int, prompt: tuple[int, ...], seed: int, length: int) -> tuple[int, ...]:
    state, tokens = checksum(list(prompt)), []
    for _ in range(length):
        tokens.append((state ^ (seed * FACTOR + weights)) % MODULUS % VOCABULARY)
        state = (state * FACTOR + tokens[-1] + 1) % MODULUS
    return tuple(tokens)


def expected_tokens(request: Request, weights: int = 1) -> list[int]:
    """What one actor that nothing happens to generates."""
    assert request.prompt_ids is not None
    assert request.target_tokens is not None
    return list(_expected(weights, tuple(request.prompt_ids.tolist()), request.seed, request.target_tokens))


class Backend(counting_engine.Backend):
    """The part of an actor's process."""

    def start_server(self, engines: ScriptedEngines, latency: LatencyModel) -> bool:
        """Start what there is beside the process, once."""
        actor = HERE[-1]
        if actor.has_more or not engines.starts_more:
            return False
        actor.sleep(engines.starts_more)
        actor.has_more = True
        return True

    def prewarm(self, engines: ScriptedEngines, latency: LatencyModel) -> None:
        """The same before the step."""
        self.start_server(engines, latency)


def requests_of(lengths: list[int], limit: int = 60, prompt_tokens: int = 3, samples: int = 1) -> list[Request]:
    """Responses of these lengths, ``samples`` of each prompt."""
    return [
        Request(i, prompt_tokens, limit, prompt_ids=np.arange(prompt_tokens) + i // samples, seed=i, target_tokens=n,
                prompt=i // samples)
        for i, n in enumerate(lengths)
    ]  # fmt: skip
