"""Schedules preparation (rewards, reference log-probabilities, values) and learning after generation, and records both.

Inputs are seconds per response, actors and the step's record. In the trace, preparation has its own allocations.
``after``: preparation starts when all responses are complete, on the GPUs of generation. ``overlap``: each response is
prepared as soon as it is complete, on GPUs outside the cluster (RLHFuse's inter-stage fusion, arXiv:2409.13221, section 4).
Both compute the same numbers; on the virtual clock only the times differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlhfless.executor import StepRecord
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.config import ClusterConfig
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel
from solver.timing.work_schedule import NO_GATE, WorkItems, WorkSchedule, schedule_work

PREPARING, LEARNING = 0, 1  # the two places of work


@dataclass(frozen=True, eq=False)
class Charge:
    """Seconds charged for a step's preparation and learning.

    Attributes:
        prepare_s: (R,) for each response. learn_s: for the learner.
        clock: ``profile`` or ``measured``: the source of these seconds.
    """

    prepare_s: np.ndarray
    learn_s: float
    clock: str

    @classmethod
    def by_profile(
        cls, latency: LatencyModel, tokens: np.ndarray, learned: Mapping[str, float], reward_s_per_response: float
    ) -> Charge:
        """Return the charge from the latency profile: every pass over a token takes what a prefill of one token takes.

        Args:
            tokens: (R,) prompt and response tokens. learned: the algorithm's numbers, see ``token_counts.pass_tokens``.
            reward_s_per_response: seconds to compute the reward of one response.
        """
        per_token_s = latency.prefill_per_token_s
        shares = tokens / tokens.sum()
        prepare_s = reward_s_per_response + shares * learned.get("prepare_pass_tokens", 0.0) * per_token_s
        return cls(prepare_s, learned.get("learn_pass_tokens", 0.0) * per_token_s, "profile")

    @classmethod
    def measured(cls, tokens: np.ndarray, learned: Mapping[str, float], judging_s: float) -> Charge:
        """Return the charge from this machine's times: reward seconds split evenly, pass seconds split by tokens.

        Args:
            tokens, learned: as in ``by_profile``. judging_s: reward seconds of all responses together.
        """
        passes_s = learned.get("prepare_seconds", 0.0)
        prepare_s = judging_s / len(tokens) + tokens / tokens.sum() * passes_s
        return cls(prepare_s, learned["seconds"] - passes_s, "measured")


def record_phases(
    record: StepRecord,
    cluster: Cluster,
    latency: LatencyModel | None,
    batch: Batch,
    learning: Mapping[str, float],
    judging_s: float,
    config: ClusterConfig,
    *,
    on_other_gpus: bool = False,
) -> None:
    """Add preparation and learning to a step's record and close it.

    Every preparing actor has its GPUs allocated from its first response to its last. The learner takes the GPUs of one actor
    when the last response is prepared. Neither is charged a start-up.

    Args:
        latency: the profile that gives the seconds; None charges the seconds measured here.
        learning: the algorithm's numbers. judging_s: seconds measured here to compute all rewards.
        on_other_gpus: use other GPUs than generation, because those may still be allocated.
    """
    tokens = np.array([len(p) + len(r) for p, r in zip(batch.prompt_ids, batch.response_ids, strict=True)])
    if latency is None:
        charge = Charge.measured(tokens, learning, judging_s)
    else:
        charge = Charge.by_profile(latency, tokens, learning, config.reward_s_per_response)
    generated_s, overlaps = record.end_s, config.preparation == "overlap"
    ends = np.array([record.completions[i].time_s for i in range(len(charge.prepare_s))])
    ready_s = ends if overlaps else np.full(len(ends), generated_s)
    schedule = _schedule(ready_s, charge, generated_s, config.preparation_actors)
    intervals = [s for s in schedule.intervals() if s.end_s > s.start_s]
    behind = cluster.nodes * cluster.actors_per_node
    first = behind if on_other_gpus or overlaps else 0
    learner = config.preparation_actors  # the server after those that prepare
    for actor in sorted({s.server for s in intervals} - {learner}):
        of_actor = [s for s in intervals if s.server == actor]
        holder = f"prepare-{actor}"
        _hold(record, cluster, holder, "prepare", first + actor, of_actor[0].start_s, of_actor[-1].end_s)
        for s in of_actor:
            record.span(holder, "prepare", s.start_s, s.end_s, responses=len(s.items), clock=charge.clock)
    for s in (s for s in intervals if s.server == learner):
        _hold(record, cluster, "learner", "learner", behind if on_other_gpus else 0, s.start_s, s.end_s)
        record.span("learner", "learn", s.start_s, s.end_s, clock=charge.clock, learning=learning, judging_s=judging_s)
    record.close(schedule.finished_s)


def _schedule(ready_s: np.ndarray, charge: Charge, generated_s: float, actors: int) -> WorkSchedule:
    """Return when responses are prepared, each by one of ``actors``, and when the learner works: once all are prepared.

    The last server is the learner, the others are preparing actors; the last item is learning.
    """
    responses, all_prepared = len(ready_s), 0
    items = WorkItems(
        np.append(charge.prepare_s, charge.learn_s),
        np.append(ready_s, generated_s),
        waits_for=[*[NO_GATE] * responses, all_prepared],
        counts_for=[*[all_prepared] * responses, NO_GATE],
        place=[*[PREPARING] * responses, LEARNING],
    )
    return schedule_work(items, np.full(1 + actors, -np.inf), place=[*[PREPARING] * actors, LEARNING])


def _hold(record: StepRecord, cluster: Cluster, holder: str, role: str, place: int, start_s: float, end_s: float) -> None:
    """Allocate the GPUs of actor number ``place``; numbers beyond the cluster's actors mean further GPUs outside of it."""
    node, gpu_ids = cluster.place(place)
    record.allocate(holder, role, node, gpu_ids, cluster.kind, cluster.market, cluster.usd_per_gpu_s, start_s, end_s)
