"""Says what preparation and learning on GPUs that wait for a step's last responses would have saved of a logged run.

Where a framework learns on the GPUs that generate, a replica waits from its own last response to that of the step. RLHFuse
(arXiv:2409.13221) prepares finished responses there (stage fusion). Gradients of finished groups can be accumulated there, too
(streaming). The optimizer still steps once, after all responses, so the update is the same up to rounding.

The log gives the seconds of preparation and learning, on all GPUs. They are spread over its responses by tokens. Completions
come from a simulation of the run's own dispatch, and no response is moved. While responses are decoded, an item of work runs on
the GPUs of one waiting replica. What is left when the last response is complete is spread evenly over all GPUs, as logged. A
learner with GPUs of its own waits from the start, and runs one item at a time on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.analysis.framework_defaults import RunSetup
from rlhfless.analysis.gpu_seconds import PhaseSeconds
from rlhfless.analysis.savings import saved_range
from rlhfless.simulate import SimulationConfig
from solver.model.workload import FloatArray
from solver.step.follow import follow
from solver.step.work import BESIDE_DECODING, StepWork


@dataclass(frozen=True)
class PhaseSavings:
    """What an overlap with the end of generation would have saved of whole steps.

    Attributes:
        learns: whether gradients are accumulated there, or responses are only prepared.
        low, mean, high: shares of the steps' time. The range covers resampled steps (5th to 95th percentile), every dispatch
            that the run may have used, and waiting replicas that load the models in no time, or as long as the latency profile
            sends weights.
    """

    learns: bool
    low: float
    mean: float
    high: float


def phase_savings(
    runs: Sequence[pd.DataFrame], setup: RunSetup, phases: PhaseSeconds, setting: SimulationConfig
) -> tuple[PhaseSavings, ...]:
    """Return what stage fusion and streaming would have saved of time, and so of reserved GPUs.

    Empty where preparation and learning took no known time, or where the run learns while it generates already.

    Args:
        runs: simulated rollouts of generation alone, under each dispatch that the run may have used, the likeliest first.
        phases: seconds of a step outside generation, on all GPUs. setting: cluster and calibrated profile.
    """
    if not setup.synchronous:
        return ()
    load_s = setting.latency.sync_s if setup.colocated else 0.0
    replicas = setting.cluster.max_actors if setup.colocated else 0
    steps_of = [[_LoggedStep.of(rows, phases, replicas) for _, rows in run.groupby("step")] for run in runs]
    found = []
    for learns, work_s in ((False, phases.prepare_s), (True, phases.learn_s)):
        if not work_s:
            continue
        ranges = []
        for steps in steps_of:
            logged_s = np.array([step.generation_s + phases.seconds for step in steps])
            for wait_s in dict.fromkeys((0.0, load_s)):
                saved_s = np.array([step.saved_s(learns, wait_s) for step in steps])
                ranges.append(saved_range(logged_s - saved_s, logged_s))
        low, high = min(one[0] for one in ranges), max(one[2] for one in ranges)
        found.append(PhaseSavings(learns, low, ranges[0][1], high))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class _LoggedStep:
    """A step: (R,) completions from its start, (N,) when each replica has decoded its last response, and the work after it.

    A learner with GPUs of its own is the only replica, and free from the start. ``prepare_s`` and ``learn_s`` are (R,) seconds
    on one replica; ``group`` numbers the prompts.
    """

    completion_s: FloatArray
    free_s: FloatArray
    prepare_s: FloatArray
    learn_s: FloatArray
    group: np.ndarray

    @classmethod
    def of(cls, rows: pd.DataFrame, phases: PhaseSeconds, replicas: int) -> _LoggedStep:
        """Return a step of a simulated trace with these rollouts; 0 ``replicas``: the learner has GPUs of its own."""
        completion = rows["end_s"].to_numpy(dtype=float) - float(rows["start_s"].min())
        last = pd.Series(completion).groupby(rows["actor"].to_numpy()).max().to_numpy(dtype=float)
        free = np.concatenate([last, np.zeros(replicas - len(last))]) if replicas else np.zeros(1)
        tokens = (rows["prompt_tokens"].fillna(0) + rows["response_tokens"]).to_numpy(dtype=float)  # logs may lack prompts
        share = len(free) * tokens / tokens.sum()
        group = np.unique(rows["prompt_id"].astype(str), return_inverse=True)[1]
        return cls(completion, free, phases.prepare_s * share, phases.learn_s * share, group)

    @property
    def generation_s(self) -> float:
        """Seconds until the last response is complete."""
        return float(self.completion_s.max())

    def saved_s(self, learns: bool, load_s: float) -> float:
        """Return the seconds of work done before the last response is complete, over the number of replicas.

        Args:
            learns: see ``PhaseSavings``. load_s: after which a waiting replica starts to work.
        """
        work = StepWork(self.prepare_s, self.learn_s * learns, self.group)
        rows = follow(self.completion_s, np.minimum(self.free_s + load_s, self.generation_s), work, BESIDE_DECODING).rows
        done_s = sum(max(0.0, min(row.end_s, self.generation_s) - row.start_s) for row in rows)
        return done_s / len(self.free_s)
