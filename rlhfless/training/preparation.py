"""Schedules preparation (rewards, reference log-probabilities, values) and learning after generation, and records both.

Inputs are seconds per response, actors and the step's record. In the trace, preparation has its own allocations.
``after``: preparation starts when all responses are complete, on the GPUs of generation. ``overlap``: each response is
prepared as soon as it is complete, on GPUs outside the cluster (RLHFuse's inter-stage fusion, arXiv:2409.13221, section 4).
Both compute the same numbers; on the virtual clock only the times differ.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlhfless.executor import StepRecord
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.config import TrainConfig
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel


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


@dataclass
class PreparationInterval:
    """An interval in which one actor prepares responses one after the other without a pause.

    Attributes:
        rows: indices of the responses, in order.
    """

    actor: int
    start_s: float
    end_s: float
    rows: list[int]


def dispatch(ready_s: np.ndarray, prepare_s: np.ndarray, actors: int) -> list[PreparationInterval]:
    """Assign responses to preparing actors, first come, first served; a further actor is used only when all others are busy.

    Args:
        ready_s: (R,) when each response is complete. prepare_s: (R,) seconds to prepare it.
        actors: maximal number of preparing actors.
    """
    stretches: list[PreparationInterval] = []
    latest: dict[int, PreparationInterval] = {}
    free: list[tuple[float, int]] = []
    for row in np.argsort(ready_s, kind="stable").tolist():
        if len(free) < actors and not (free and free[0][0] <= ready_s[row]):
            heapq.heappush(free, (-math.inf, len(free)))
        free_s, actor = heapq.heappop(free)
        start_s = max(free_s, float(ready_s[row]))
        end_s = start_s + float(prepare_s[row])
        if actor in latest and latest[actor].end_s == start_s:
            latest[actor].end_s = end_s
            latest[actor].rows.append(row)
        else:
            latest[actor] = PreparationInterval(actor, start_s, end_s, [row])
            stretches.append(latest[actor])
        heapq.heappush(free, (end_s, actor))
    return stretches


def record_phases(
    record: StepRecord,
    cluster: Cluster,
    latency: LatencyModel | None,
    batch: Batch,
    learning: Mapping[str, float],
    judging_s: float,
    config: TrainConfig,
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
    ends = [record.completions[i].time_s for i in range(len(charge.prepare_s))]
    ready_s = np.array(ends) if overlaps else np.full(len(ends), generated_s)
    stretches = [s for s in dispatch(ready_s, charge.prepare_s, config.preparation_actors) if s.end_s > s.start_s]
    behind = cluster.nodes * cluster.actors_per_node
    first = behind if on_other_gpus or overlaps else 0
    for actor in sorted({s.actor for s in stretches}):
        of_actor = [s for s in stretches if s.actor == actor]
        holder = f"prepare-{actor}"
        _hold(record, cluster, holder, "prepare", first + actor, of_actor[0].start_s, of_actor[-1].end_s)
        for s in of_actor:
            record.span(holder, "prepare", s.start_s, s.end_s, responses=len(s.rows), clock=charge.clock)
    start_s = max([generated_s, *(s.end_s for s in stretches)])
    end_s = start_s + charge.learn_s
    if charge.learn_s > 0:
        _hold(record, cluster, "learner", "learner", behind if on_other_gpus else 0, start_s, end_s)
        record.span("learner", "learn", start_s, end_s, clock=charge.clock, learning=learning, judging_s=judging_s)
    record.close(end_s)


def _hold(record: StepRecord, cluster: Cluster, holder: str, role: str, place: int, start_s: float, end_s: float) -> None:
    """Allocate the GPUs of actor number ``place``; numbers beyond the cluster's actors mean further GPUs outside of it."""
    node, gpu_ids = cluster.place(place)
    record.allocate(holder, role, node, gpu_ids, cluster.kind, cluster.market, cluster.usd_per_gpu_s, start_s, end_s)
