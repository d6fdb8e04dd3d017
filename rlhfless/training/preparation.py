"""Makes work items of preparation (rewards, reference log-probabilities, values) and learning, and adds them to a record.

Inputs are seconds per response, actors and the step's record. In the trace, preparation has its own allocations.
``after``: preparation starts when all responses are complete, on the GPUs of generation. ``freed``: each response is prepared
once it is complete and an actor has given its GPUs back, on these (RLHFuse's inter-stage fusion, arXiv:2409.13221, section 4).
``overlap``: as soon as it is complete, on GPUs outside the cluster. All compute the same numbers; on the virtual clock only the
times differ. On the wall clock there is only ``after``, by the learner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlhfless.executor import StepRecord, WorkGpus, WorkItem, WorkServer
from rlhfless.executor.step.work_rows import add_work
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.config import ClusterConfig
from rlhfless.training.pipeline.fused import PipelineStep
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


def record_phases(
    record: StepRecord,
    cluster: Cluster,
    latency: LatencyModel | None,
    batch: Batch,
    learning: Mapping[str, float],
    judging_s: float,
    config: ClusterConfig,
    *,
    server: WorkServer | None = None,
) -> None:
    """Add preparation and learning to a step's record and close it.

    Every preparing actor has its GPUs allocated from its first response to its last. The learner takes the GPUs of one actor
    when the last response is prepared. Neither is charged a start-up.

    Args:
        latency: the profile that gives the seconds; None charges the seconds measured here.
        learning: the algorithm's numbers. judging_s: seconds measured here to compute all rewards.
        server: of the learner on the wall clock, which also prepares. None: on the virtual clock, where the options decide.
    """
    tokens = np.array(batch.tokens)
    if latency is None:
        charge = Charge.measured(tokens, learning, judging_s)
    else:
        charge = Charge.by_profile(latency, tokens, learning, config.reward_s_per_response)
    overlaps, frees = config.preparation == "overlap", config.preparation == "freed"
    generated_s = record.end_s - record.start_s
    behind = cluster.nodes * cluster.actors_per_node
    if server is None:
        first = behind if overlaps else 0
        servers = tuple(_server(f"prepare-{k}", cluster, first + k) for k in range(config.preparation_actors))
        server = _server("learner", cluster, 0)
    else:
        servers = (server._replace(holder="prepare-0"),)
    preparing = WorkGpus("prepare", None if frees else servers, "prepare")
    learner = WorkGpus("learner", (server,), "learner")
    ready_s, clock = 0.0 if overlaps or frees else generated_s, {"clock": charge.clock}
    work = [
        WorkItem("prepare", seconds, gpus=preparing, responses=(i,), after_s=ready_s, detail=clock)
        for i, seconds in enumerate(charge.prepare_s.tolist())
    ]
    learned = {**clock, "learning": learning, "judging_s": judging_s}
    every = tuple(range(len(work)))
    work.append(WorkItem("learn", charge.learn_s, gpus=learner, items=every, after_s=generated_s, detail=learned))
    add_work(record, work, cluster)
    _record_reallocation(record, learning)


def _record_reallocation(record: StepRecord, learning: Mapping[str, float]) -> None:
    """Add a span ``transfer`` behind preparation if weights were sent to another layout for its passes.

    Its seconds are measured in the processes and part of those that are charged. Where the profile charges preparation, they
    may be longer than all of it; then the span ends with it, and its detail has all seconds.
    """
    if not learning.get("reallocated_bytes"):
        return
    first = min((run for run in record.work if run.item.kind == "prepare"), key=lambda run: run.start_s)
    ends_s = max(run.end_s for run in record.work if run.holder == first.holder and run.item.kind == "prepare")
    seconds = learning["reallocate_seconds"]
    record.span(
        first.holder, "transfer", first.start_s, min(first.start_s + seconds, ends_s), call="reallocate", background=True,
        bytes=int(learning["reallocated_bytes"]), seconds=seconds,
    )  # fmt: skip


def record_passes(record: StepRecord, steps: Sequence[PipelineStep], began_s: float, prepare_s: float) -> None:
    """Add the passes of a pipeline to a step's record: spans ``forward`` and ``backward`` behind that of learning.

    Args:
        began_s: when learning began, on the machine's monotonic clock. prepare_s: its passes before the first update, which
            the record has as preparation.
    """
    if not steps:
        return
    learned = next(run for run in reversed(record.work) if run.item.kind == "learn")
    for update, step in enumerate(steps):
        offset_s = learned.start_s + step.start_s - began_s - prepare_s
        for row in step.passes.itertuples(index=False):
            call = "forward" if row.operation == "F" else "backward"
            start_s, end_s = (min(max(offset_s + at_s, learned.start_s), learned.end_s) for at_s in (row.start, row.end))
            record.span(
                learned.holder, "learn", start_s, end_s, call=call, background=True, operation=row.operation, chain=row.chain,
                stage=row.stage, micro_batch=row.micro_batch, device=row.device, update=update,
            )  # fmt: skip


def _server(holder: str, cluster: Cluster, place: int) -> WorkServer:
    """Return the GPUs of actor number ``place``; numbers beyond the cluster's actors mean further GPUs outside of it."""
    node, gpu_ids = cluster.place(place)
    return WorkServer(holder, gpu_ids, node)
