"""What the iterations of a step take when each actor runs alone: every actor's journal replayed back to back.

The prefixes that the plan computes once for many responses are computed again too, as an actor of their own would.

Knows journals, token ids and numbers; nothing of how an engine replays one (``rlhfless.engine.torch.replay``), nor of the
step's times.
All actors share one device, so they must be alike, and of one GPU: what is measured there cannot stand for two kinds or sizes
of actors, nor for several GPUs.
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
    """An engine factory that can run again what one of its engines did."""

    def replay(self, journal: EngineJournal) -> Replayed:
        """Run the journal's iterations here and now with nothing in between."""
        ...


@runtime_checkable
class ReplaysPrefixes(Protocol):
    """One that can also time what computing prefixes takes."""

    def replay_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> Replayed:
        """Compute them (token ids by prompt) here and now; all of it is one prefill."""
        ...


def check_replayable(plan: Plan, make_engine: EngineFactory) -> Replayer:
    """The factory, if what its engines do for the plan can be measured on one device.

    Raises:
        PlanningError: the plan mixes kinds or sizes of actors, an actor holds several GPUs, or the engines decode nothing or
            cannot time its prefixes.
    """
    kinds = sorted({f"{len(actor.gpu_ids)} x {actor.kind}" for actor in plan.actors})
    if len(kinds) > 1:
        raise PlanningError(
            f"measured charging runs every actor on the same device, but the plan mixes actors of {' and '.join(kinds)}; plan "
            "for one kind and size, or charge by profile"
        )
    if plan.actors and (gpus := len(plan.actors[0].gpu_ids)) > 1:
        raise PlanningError(
            f"measured charging times one device, but the actors of the plan hold {gpus} GPUs each, which would all be billed; "
            "plan for actors of 1 GPU, or charge by profile"
        )
    if not isinstance(make_engine, Replayer):
        name = getattr(make_engine, "__name__", type(make_engine).__name__)
        raise PlanningError(f"measured charging needs engines that decode, which {name} does not; charge by profile")
    if plan.prefill is not None and not isinstance(make_engine, ReplaysPrefixes):
        name = getattr(make_engine, "__name__", type(make_engine).__name__)
        raise PlanningError(
            f"measured charging times the prefixes that the plan computes once, which {name} cannot; run the plan without "
            "deduplicated prefill, or charge by profile"
        )
    return make_engine


def measure_prefixes(prefixes: Mapping[int, np.ndarray], replayer: Replayer, replays: int = REPLAYS) -> Replayed:
    """What computing the plan's prefixes once takes, as one prefill: the median over ``replays``, and all warming up."""
    assert isinstance(replayer, ReplaysPrefixes), "check_replayable has said so"
    rounds = [replayer.replay_prefixes(prefixes) for _ in range(replays)]
    return Replayed(np.median([one.seconds for one in rounds], axis=0), sum(one.warm_up_s for one in rounds))


def measure(
    journals: Mapping[int, EngineJournal],
    replayer: Replayer,
    replays: int = REPLAYS,
    watch: Callable[[int, int], None] | None = None,
) -> dict[int, Replayed]:
    """What every actor's iterations take: medians over ``replays``, and all that was spent on warming up.

    ``watch`` is told how many replays are done, and of how many.

    The actors take turns, so that a slow phase of the machine hits one replay of all of them and not all replays of one.
    """
    rounds: list[dict[int, Replayed]] = [{} for _ in range(replays)]
    turns = [(one, actor) for one in rounds for actor in journals]
    for done, (one, actor) in enumerate(turns, 1):
        one[actor] = replayer.replay(journals[actor])
        if watch is not None:
            watch(done, len(turns))
    return {
        actor: Replayed(np.median([one[actor].seconds for one in rounds], axis=0), sum(one[actor].warm_up_s for one in rounds))
        for actor in journals
    }
