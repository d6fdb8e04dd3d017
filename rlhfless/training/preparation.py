"""When and where responses are prepared (rewards, reference, values) and learned from, and what it is charged.

Knows seconds per response, actors and the record; nothing of what preparing is. Preparation has GPUs of its own in the trace.
``after``: all responses are there, and it takes GPUs of generation, which is over. ``overlap``: a response is prepared as soon
as its generation ends, on GPUs beside the cluster (RLHFuse's inter-stage fusion, arXiv:2409.13221, section 4); what is
computed is the same, and on the virtual clock only its place in time is another.
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
    """Seconds of a step beside generation, as they are charged.

    Attributes:
        prepare_s: (R,) of every response. learn_s: of the learner.
        clock: ``profile`` or ``measured``: where they come from.
    """

    prepare_s: np.ndarray
    learn_s: float
    clock: str

    @classmethod
    def by_profile(cls, latency: LatencyModel, tokens: np.ndarray, learned: Mapping[str, float], judge_s: float) -> Charge:
        """A function of tokens alone: a token takes what it takes in a prefill, whatever passes it goes through.

        Args:
            tokens: (R,) prompt and response tokens. learned: the algorithm's numbers, see ``passes.pass_tokens``.
            judge_s: of judging one response.
        """
        per_token_s = latency.prefill_per_token_s
        shares = tokens / tokens.sum()
        prepare_s = judge_s + shares * learned.get("prepare_pass_tokens", 0.0) * per_token_s
        return cls(prepare_s, learned.get("learn_pass_tokens", 0.0) * per_token_s, "profile")

    @classmethod
    def measured(cls, tokens: np.ndarray, learned: Mapping[str, float], judging_s: float) -> Charge:
        """What it took here: judging shared out evenly, passes by tokens.

        Args:
            tokens, learned: as above. judging_s: of all responses together.
        """
        passes_s = learned.get("prepare_seconds", 0.0)
        prepare_s = judging_s / len(tokens) + tokens / tokens.sum() * passes_s
        return cls(prepare_s, learned["seconds"] - passes_s, "measured")


@dataclass
class PreparationInterval:
    """An actor prepares responses one after the other without a pause.

    Attributes:
        rows: indices of the responses, in order.
    """

    actor: int
    start_s: float
    end_s: float
    rows: list[int]


def dispatch(ready_s: np.ndarray, prepare_s: np.ndarray, actors: int) -> list[PreparationInterval]:
    """Who prepares which responses when: first come, first served; another actor is taken only when all are busy.

    Args:
        ready_s: (R,) when each response is complete. prepare_s: (R,) what preparing it takes.
        actors: most of them.
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


def record_rest(
    record: StepRecord,
    cluster: Cluster,
    latency: LatencyModel | None,
    batch: Batch,
    learning: Mapping[str, float],
    judging_s: float,
    config: TrainConfig,
    *,
    beside: bool = False,
) -> None:
    """Write preparation and learning behind a step's generation and close its record.

    Every preparing actor holds its GPUs from its first response to its last; the learner takes those of one actor when the
    last response is prepared. Neither is charged a start.

    Args:
        latency: the profile that decides what it takes; None charges what it took here.
        learning: the algorithm's numbers. judging_s: what judging all responses took here.
        beside: the GPUs of generation may still be held, so neither takes them.
    """
    tokens = np.array([len(p) + len(r) for p, r in zip(batch.prompt_ids, batch.response_ids, strict=True)])
    if latency is None:
        charge = Charge.measured(tokens, learning, judging_s)
    else:
        charge = Charge.by_profile(latency, tokens, learning, config.judge_s)
    generated_s, overlaps = record.end_s, config.preparation == "overlap"
    ends = [record.completions[i].time_s for i in range(len(charge.prepare_s))]
    ready_s = np.array(ends) if overlaps else np.full(len(ends), generated_s)
    stretches = [s for s in dispatch(ready_s, charge.prepare_s, config.preparation_actors) if s.end_s > s.start_s]
    behind = cluster.nodes * cluster.actors_per_node
    first = behind if beside or overlaps else 0
    for actor in sorted({s.actor for s in stretches}):
        own = [s for s in stretches if s.actor == actor]
        holder = f"prepare-{actor}"
        _hold(record, cluster, holder, "prepare", first + actor, own[0].start_s, own[-1].end_s)
        for s in own:
            record.span(holder, "prepare", s.start_s, s.end_s, responses=len(s.rows), clock=charge.clock)
    start_s = max([generated_s, *(s.end_s for s in stretches)])
    end_s = start_s + charge.learn_s
    if charge.learn_s > 0:
        _hold(record, cluster, "learner", "learner", behind if beside else 0, start_s, end_s)
        record.span("learner", "learn", start_s, end_s, clock=charge.clock, learning=learning, judging_s=judging_s)
    record.close(end_s)


def _hold(record: StepRecord, cluster: Cluster, holder: str, role: str, place: int, start_s: float, end_s: float) -> None:
    """The GPUs of the place-th actor, counted through the cluster and on beside it."""
    node, gpu_ids = cluster.place(place)
    record.allocate(holder, role, node, gpu_ids, cluster.kind, cluster.market, cluster.usd_per_gpu_s, start_s, end_s)
