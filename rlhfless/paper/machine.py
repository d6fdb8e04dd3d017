"""The machines of the paper's testbed: latency profile, cluster, and how long preparation and learning take.

Knows models' sizes and one formula; nothing of workloads or schedules. Times of preparation and learning are a model, not a
measurement: a token costs 2 N FLOPs in a forward pass and 6 N in a training step of a model with N parameters (Kaplan et al.,
arXiv 2001.08361, section 2.1), at a stated share (MFU) of the learner GPUs' peak (data sheet).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.latency import load_profile, usd_per_gpu_hour
from rlhfless.latency.generate import QWEN_3B, QWEN_7B
from solver.cluster import Cluster
from solver.latency import LatencyModel
from solver.objective import StepRest

FORWARD_FLOPS, TRAIN_FLOPS = 2, 6  # per parameter and token
PREPARE_PASSES = {"PPO": 3, "GRPO": 2}
"""Forward passes before learning: log-probabilities under the old weights and the reference, and values for PPO."""
TRAINED_MODELS = {"PPO": 2, "GRPO": 1}
"""Models that learn: the policy, and for PPO a critic of the same size."""


@dataclass(frozen=True)
class Machine:
    """16 L40S in two nodes, one language model, and a learner that is invoked when generation is over.

    Attributes:
        model: its name; parameters: how many weights it has; profile: latency profile of an actor.
        learner_gpus: GPUs that preparation and learning are charged for, taken when generation is over: what the largest power
            of two leaves beside three actors, as the paper does not print it.
        peak_flops: dense bfloat16 of one L40S by NVIDIA's data sheet (362.05 TFLOPS). mfu: assumed.
        static_actors: actors of the naive system, as in the paper.
    """

    model: str
    parameters: int
    profile: str
    learner_gpus: int
    nodes: int = 2
    gpus_per_node: int = 8
    peak_flops: float = 362.05e12
    mfu: float = 0.3
    static_actors: int = 3

    @property
    def latency(self) -> LatencyModel:
        """Times of one actor."""
        return load_profile(self.profile)

    @property
    def cluster(self) -> Cluster:
        """The GPUs that actors may use."""
        latency = self.latency
        price = usd_per_gpu_hour(latency.kind)
        return Cluster(self.nodes, self.gpus_per_node, latency.gpus_per_actor, latency.kind, price)

    def rest(self, algorithm: str, tokens: float) -> StepRest:
        """Seconds of preparation and learning for so many tokens (prompts and responses) of a step."""
        per_s = self.learner_gpus * self.peak_flops * self.mfu
        once = self.parameters * tokens / per_s
        prepare_s = FORWARD_FLOPS * PREPARE_PASSES[algorithm] * once
        return StepRest(prepare_s, TRAIN_FLOPS * TRAINED_MODELS[algorithm] * once)

    @property
    def about(self) -> str:
        """What is modelled, in one sentence."""
        return (
            f"Decoding is charged by the profile {self.profile} (sums of operator times measured on L40S, without work of "
            f"the host); preparation and learning by FLOPs (2 N a token forward, 6 N trained) at an assumed {self.mfu:.0%} "
            f"of the peak of {self.learner_gpus} GPUs, which are invoked when generation is over; rewards take no time"
        )


QWEN_3B_L40S = Machine("Qwen2.5-3B", QWEN_3B.parameters, "l40s-qwen2.5-3b-tp2", 8)
QWEN_7B_L40S = Machine("Qwen2.5-7B", QWEN_7B.parameters, "l40s-qwen2.5-7b-tp4", 4)
