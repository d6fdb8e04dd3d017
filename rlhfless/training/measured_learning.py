"""Measures what learning in pieces costs on this machine's cores, and chooses by it how a step is learned from.

On a CPU, actors and learner share the cores, and a gradient of few responses takes longer per token than one of many. So
``learner_gpus`` ``auto`` does not go by the profile there. After each of the first steps a replica of the learner is made, as
in a process that joins. It computes gradients: of the whole batch, of a prompt whose rewards differ, and of half of such
prompts. CPU time is measured, so that other programs on the machine do not count.

Every step also measures how long passes take, and how much slower actors and learner are beside each other
(``measured_contention.py``). Until a step had both, equal shares of the cores are taken for all there is.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from rlhfless.executor import StepRecord
from rlhfless.system.cpu_threads import usable_cores
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.config import TrainConfig
from rlhfless.training.learner.learner import LocalLearner
from rlhfless.training.learner.replica import InTrainer, Joined, Loading
from rlhfless.training.measured_contention import Busy, Slowdown, decoded, slowdown
from rlhfless.training.random_state import streams_of
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.stage_fusion.pieces import PieceCosts, PiecesPlan, choose_pieces
from solver.stage_fusion.shared_cores import ALONE, CoreContention

MEASUREMENTS = 2  # steps after which costs are measured
KEPT = 3  # measurements of a factor, whose median counts
STALE_STEPS = 24  # after which a measured contention no longer holds, and pieces may be tried again


class _PieceSeconds(NamedTuple):
    """CPU seconds of a piece, sent to the trainer, and its tokens with prompts."""

    seconds: float
    tokens: int


class MeasuredLearning:
    """What learning costs on this machine, as far as it is measured.

    Args:
        config: of the run. cores: that actors and learner share.

    Attributes:
        measured: the costs after each measurement.
        steps: what each step since then measured of passes and contention; the last ``STALE_STEPS``.
    """

    def __init__(self, config: TrainConfig, cores: int) -> None:
        self.config, self.cores = config, cores
        self.measured: list[PieceCosts] = []
        self.steps: list[Slowdown] = []

    @classmethod
    def of(cls, config: TrainConfig, learner: Any, device: str, *, on_pool: bool) -> MeasuredLearning | None:
        """Return nothing measured yet; None where the profile decides, or nothing is to be decided.

        It decides for the canonical order, whose bits must not depend on measurements, on GPUs, and on other machines' cores.
        """
        options = config.cluster
        auto = options.learning == "stream" and options.learner_gpus == "auto" and options.stream_order == "completion"
        here = on_pool and device == "cpu" and options.ray_address is None and isinstance(learner, LocalLearner)
        return cls(config, usable_cores()) if auto and here else None

    @property
    def costs(self) -> PieceCosts | None:
        """Return what was measured; None before. Of several numbers the best of the whole batch counts, and the worst of
        pieces.
        """
        if not self.measured:
            return None
        names = ("fixed_s", "per_token_s", "join_s")
        return PieceCosts(
            min(one.batch_per_token_s for one in self.measured),
            *(max(getattr(one, name) for one in self.measured) for name in names),
        )

    @property
    def contention(self) -> CoreContention:
        """Return how much slower actors and learner are beside each other, by medians of the last steps that measured it."""
        last = {
            name: [value for one in self.steps if (value := getattr(one, name)) is not None][-KEPT:]
            for name in ("decoding", "learning", "unshared_scale")
        }
        decoding, learning, scale = (float(np.median(values)) if values else 1.0 for values in last.values())
        return CoreContention(decoding, learning, scale) if scale > 0 else ALONE

    def observe(self, record: StepRecord, latency: LatencyModel) -> None:
        """Measure how long passes of a step took, and what its actors and learner cost each other.

        Other programs slow all of them alike: a piece is expected to take as many times its CPU time as passes took of theirs.
        """
        decoding, costs = decoded(record.spans, latency), self.costs
        profile_s, engine_s = sum(one.alone_s for one in decoding), sum(record.engine_s.values())
        walls = [one.scale for one in self.steps if one.scale is not None][-KEPT:]
        scale = float(np.median(walls)) if walls else None
        slower = 1.0 if scale is None else max(scale / self.contention.decode_scale, 1.0)
        learned = []
        for ran in record.work:
            if costs is not None and ran.item.kind == "learn" and ran.item.responses:
                done = [record.completions[response] for response in ran.item.responses]
                tokens = sum(one.response_tokens for one in done)
                tokens += sum(record.requests[one.response].prompt_tokens for one in done)
                learned.append(Busy(ran.start_s, ran.end_s, slower * (costs.fixed_s + tokens * costs.per_token_s)))
        found = slowdown(decoding, learned, self.cores, scale)
        if profile_s > 0 and engine_s > 0:
            found = replace(found, unshared_scale=engine_s / profile_s)
        self.steps = [*self.steps, found][-STALE_STEPS:]

    def plan(self, plan: Plan, problem: PlanningProblem, waiting: int) -> PiecesPlan | None:
        """Return how a step of this plan is learned from; None as long as nothing is measured.

        Args:
            waiting: actors that waited for the step. If fewer than the plan's, actors do not stay when they are done, and
                starting them again for a piece never pays.
        """
        if self.costs is None:
            return None
        freed = waiting >= len(plan.actors)
        return choose_pieces(plan, problem, self.costs, self.cores, freed=freed, contention=self.contention)

    def measure(self, learner: LocalLearner, model: Any, step: int, batch: Batch) -> None:
        """Measure once more, if it is due.

        Args:
            model: whose weights the learner trains. batch: of the step.
        """
        if len(self.measured) >= MEASUREMENTS:
            return
        config, began = self.config, time.thread_time()
        loading = Loading(learner, InTrainer(), model.config, config.algorithm.name, config.learner_options())
        packed = pickle.loads(pickle.dumps(loading))
        with streams_of(config.seed, step):  # a new model draws its first weights
            replica = packed(None)
        join_s = time.thread_time() - began
        groups, rewards = np.asarray(batch.group_of), np.asarray(batch.rewards)
        names = np.unique(groups)
        some = [name for name in names if np.ptp(rewards[groups == name]) > 0] or list(names)  # GRPO passes over others
        chosen: list[Any] = [names, some[:1], some[: (len(some) + 1) // 2]]
        rows = [np.flatnonzero(np.isin(groups, which)) for which in chosen]
        whole, one, half = [_piece_s(replica, batch.take(which), (config.seed, step)) for which in rows]
        skips = config.algorithm.name == "grpo" and not config.algorithm.kl_coef
        learned = batch.take(np.flatnonzero(np.isin(groups, some))) if skips else batch
        per_token_s = max(half.seconds - one.seconds, 0.0) / max(half.tokens - one.tokens, 1)
        fixed_s = max(one.seconds - per_token_s * one.tokens, 0.0)
        share = sum(learned.tokens) / whole.tokens  # whose gradient is not zero
        of_batch_s = whole.seconds / whole.tokens
        self.measured.append(PieceCosts(of_batch_s, fixed_s, max(per_token_s * share, of_batch_s), join_s))


def _piece_s(replica: Joined, batch: Batch, stream: tuple[int, int]) -> _PieceSeconds:
    began = time.thread_time()
    pickle.loads(pickle.dumps(replica.piece(batch, stream), pickle.HIGHEST_PROTOCOL))
    return _PieceSeconds(time.thread_time() - began, sum(batch.tokens))


def said_of(plan: PiecesPlan, gpus: int) -> dict[str, Any]:
    """Return what a record says of the plan. ``gpus`` are the learner's own."""
    one, batch = plan.chosen, plan.batch
    return {
        "learning": "stream" if len(one.pieces) > 1 else "batch", "gpus": gpus, "from_s": 0.0, "grows": one.freed,
        "pieces": len(one.pieces), "planned_step_s": one.time_s, "planned_gpu_s": one.gpu_seconds,
        "batch_step_s": batch.time_s, "batch_gpu_s": batch.gpu_seconds, "cores": plan.cores, "costs": asdict(plan.costs),
        "contention": asdict(plan.contention),
    }  # fmt: skip
