"""Defines ``Placement``: a plan's actors on nodes, when their prefixes arrive, and which actors are late.

``solver.prefix_sharing.placement`` computes it and states the slack and the inequality that it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from solver.model.plan import Plan
from solver.model.plurals import counted
from solver.model.workload import FloatArray

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Placement:
    """A placed plan of N decode actors.

    Attributes:
        plan: the N actors, then the prefill actor where it has GPUs of its own.
        longest: the actor with the longest decode. prefill_node: where the prefill actor runs; None when there is none.
        prefill_gpu_ids: its own GPUs, none on the learner's. prefill_s: when its last prefix is computed.
        transfer_s: (N,) seconds of each actor's transfer. arrives_s: (N,) when it can decode, from the start of the step.
        slack_s: (N,) seconds by which each actor is done before the longest group; below 0 it is late.
        moved: responses that were moved to the longest group so that no actor is late.
    """

    plan: Plan
    longest: int
    prefill_node: int | None
    prefill_gpu_ids: tuple[int, ...]
    prefill_s: float
    transfer_s: FloatArray
    arrives_s: FloatArray
    slack_s: FloatArray
    moved: tuple[int, ...] = ()

    @property
    def late(self) -> tuple[int, ...]:
        """Return the actors that break the inequality: they are done after the longest group."""
        return tuple(np.flatnonzero(self.slack_s < -1e-9).tolist())

    def to_frame(self) -> pd.DataFrame:
        """One row per decode actor (needs pandas)."""
        frame: pd.DataFrame = self.plan.to_frame()[: len(self.slack_s)]
        near = [a.node == self.prefill_node for a in self.plan.actors[: len(self.slack_s)]]
        return frame.assign(near=near, transfer_s=self.transfer_s, arrives_s=self.arrives_s, slack_s=self.slack_s)

    def __repr__(self) -> str:
        where = "no prefill actor"
        if self.prefill_node is not None:
            gpus = f"GPUs {','.join(map(str, self.prefill_gpu_ids))}" if self.prefill_gpu_ids else "the learner's GPUs"
            where = f"prefill on {gpus} in node {self.prefill_node}, done at {self.prefill_s:.2f} s"
        lines = [
            f"Placement: {where}; actor {self.longest} has the longest group; {counted(len(self.late), 'actor')} later than it"
        ]
        for i, (actor, t, at, slack) in enumerate(
            zip(self.plan.actors, self.transfer_s, self.arrives_s, self.slack_s, strict=False)
        ):
            lines.append(
                f"  actor {i}: node {actor.node}, transfer {t:.3f} s, decodes from {at:.2f} s to {actor.predicted_s:.2f} s, "
                f"slack {slack:.2f} s"
            )
        return "\n".join([*lines[:9], *([f"  ... and {len(lines) - 9} more actors"] if len(lines) > 9 else [])])
