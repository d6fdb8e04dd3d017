"""Measures how long the iterations of each actor take on the device by replaying its journal back to back.

The prefixes that the plan computes once for many responses are computed again too, as a separate actor would.

Inputs: journals of actors and token ids of prefixes. Outputs: seconds per iteration, medians over several replays. All actors
are replayed on one device, so they must be of one kind and size, with one GPU each. One device cannot be measured for two kinds
or sizes of actors, nor for several GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.executor.virtual.actors import EngineFactory
from solver.model.errors import PlanningError
from solver.model.plan import Plan

REPLAYS = 3


@runtime_checkable
class Replayer(Protocol):
    """An engine factory that can replay the journal of one of its engines."""

    def replay(self, journal: EngineJournal) -> Replayed:
        """Run the journal's iterations on the device now, with nothing in between."""
        ...


@runtime_checkable
class ReplaysPrefixes(Protocol):
    """An engine factory that can also time the computation of prefixes."""

    def replay_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> Replayed:
        """Compute the prefixes (token ids by prompt) on the device now; all of it is one prefill."""
        ...


def check_replayable(plan: Plan, engine_factory: EngineFactory) -> Replayer:
    """Return the factory if the work of its engines for the plan can be measured on one device.

    Raises:
        PlanningError: the plan mixes kinds or sizes of actors, an actor has several GPUs, or the engines decode nothing or
            cannot time its prefixes.
    """
    kinds = sorted({f"{len(actor.gpu_ids)} x {actor.kind}" for actor in plan.actors})
    if len(kinds) > 1:
        raise PlanningError(
            f"measured charging runs every actor on the same device, but the plan mixes actors of {' and '.join(kinds)}; plan "
            "for one kind and size, or use charging='profile'"
        )
    if plan.actors and (gpus := len(plan.actors[0].gpu_ids)) > 1:
        raise PlanningError(
            f"measured charging times one device, but the actors of the plan have {gpus} GPUs each, which would all be billed; "
            "plan for actors of 1 GPU, or use charging='profile'"
        )
    if not isinstance(engine_factory, Replayer):
        name = getattr(engine_factory, "__name__", type(engine_factory).__name__)
        raise PlanningError(f"measured charging needs engines that decode, which {name} does not; use charging='profile'")
    if plan.prefill is not None and not isinstance(engine_factory, ReplaysPrefixes):
        name = getattr(engine_factory, "__name__", type(engine_factory).__name__)
        raise PlanningError(
            f"measured charging times the prefixes that the plan computes once, which {name} cannot; run the plan without "
            "deduplicated prefill, or use charging='profile'"
        )
    return engine_factory


def measure_prefixes(prefixes: Mapping[int, np.ndarray], replayer: Replayer, replays: int = REPLAYS) -> Replayed:
    """Return the time of computing the plan's prefixes once, as one prefill: the median over ``replays``, and all time spent on
    warming up.
    """
    assert isinstance(replayer, ReplaysPrefixes), "check_replayable has said so"
    rounds = [replayer.replay_prefixes(prefixes) for _ in range(replays)]
    return Replayed(np.median([result.seconds for result in rounds], axis=0), sum(result.warm_up_s for result in rounds))


def measure(
    journals: Mapping[int, EngineJournal],
    replayer: Replayer,
    replays: int = REPLAYS,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[int, Replayed]:
    """Return how long every actor's iterations take: medians over ``replays``, and all time spent on warming up.

    ``on_progress`` is a callback with the number of finished replays and their total. The actors are replayed round-robin. So a
    slow phase of the machine hits one replay of all actors and not all replays of one actor.
    """
    rounds: list[dict[int, Replayed]] = [{} for _ in range(replays)]
    turns = [(result, actor) for result in rounds for actor in journals]
    for done, (result, actor) in enumerate(turns, 1):
        result[actor] = replayer.replay(journals[actor])
        if on_progress is not None:
            on_progress(done, len(turns))
    return {
        actor: Replayed(
            np.median([result[actor].seconds for result in rounds], axis=0),
            sum(result[actor].warm_up_s for result in rounds),
            max(result[actor].differing for result in rounds),
        )
        for actor in journals
    }
