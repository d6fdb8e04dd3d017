"""The machines of the paper, testbed and simulated cluster: latency profile, GPUs, times of preparation and learning.

Times of preparation and learning are a model, not a measurement. With N parameters, a token costs 2 N FLOPs in a forward pass
and 6 N in a training step (Kaplan et al., arXiv 2001.08361, section 2.1). The learner GPUs reach a stated share (MFU) of their
peak (data sheet).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhfless.latency import load_profile, usd_per_gpu_hour
from rlhfless.latency.operators import LLAMA_70B, QWEN_3B, QWEN_7B
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases

FORWARD_FLOPS, TRAIN_FLOPS = 2, 6  # per parameter and token
PREPARE_PASSES = {"PPO": 3, "GRPO": 2}
"""Forward passes before learning: log-probabilities under the old weights and the reference, and values for PPO."""
TRAINED_MODELS = {"PPO": 2, "GRPO": 1}
"""Models that learn: the policy, and for PPO a critic of the same size."""
KEPT_PER_DOUBLING = 0.9
"""Assumed, where scaling is not perfect: what a GPU still does of its work when a learner has twice as many GPUs."""


@dataclass(frozen=True)
class Machine:
    """Nodes of one GPU kind, one language model, and a learner that is started when generation is over.

    Attributes:
        model: its name; parameters: how many weights it has; profile: latency profile of an actor.
        peak_flops: dense bfloat16 of one GPU by NVIDIA's data sheet. mfu: assumed.
        static_actors: actors of the naive system, as in the paper.
        admission: how KV memory is allocated, where it is short (``solver.model.admission``).
    """

    model: str
    parameters: int
    profile: str
    peak_flops: float
    nodes: int = 2
    gpus_per_node: int = 8
    mfu: float = 0.3
    static_actors: int = 3
    admission: str = "reserve"

    @property
    def latency(self) -> LatencyModel:
        """Latency model of one actor."""
        return load_profile(self.profile)

    @property
    def cluster(self) -> Cluster:
        """The GPUs that actors may use."""
        latency = self.latency
        price = usd_per_gpu_hour(latency.kind)
        return Cluster(self.nodes, self.gpus_per_node, latency.gpus_per_actor, latency.kind, price)

    @property
    def gpus(self) -> int:
        """Number of all GPUs, of actors and learner."""
        return self.nodes * self.gpus_per_node

    @property
    def learner_gpus(self) -> int:
        """GPUs that preparation and learning are charged for, allocated when generation is over. As the paper does not print
        their number, it is the largest power of two that the static actors leave."""
        left = self.gpus - self.static_actors * self.latency.gpus_per_actor
        return 1 << (left.bit_length() - 1)

    def phases(self, algorithm: str, tokens: float) -> NonGenerationPhases:
        """Return the seconds of preparation and learning for this number of tokens (prompts and responses) of a step."""
        per_s = self.learner_gpus * self.peak_flops * self.mfu
        once = self.parameters * tokens / per_s
        prepare_s = FORWARD_FLOPS * PREPARE_PASSES[algorithm] * once
        return NonGenerationPhases(prepare_s, TRAIN_FLOPS * TRAINED_MODELS[algorithm] * once)

    def on_all_gpus(self, phases: NonGenerationPhases, kept_per_doubling: float = 1.0) -> NonGenerationPhases:
        """Return the same preparation and learning on all GPUs instead of ``learner_gpus``.

        Args:
            kept_per_doubling: a GPU's remaining efficiency for every doubling of the learner's GPUs. 1 is perfect data-parallel
                scaling, as ``phases`` assumes of the learner's own GPUs: the same GPU-seconds on any number of GPUs. No learner
                of this model is faster or cheaper. Below 1 it takes more seconds and more GPU-seconds.
        """
        more = self.gpus / self.learner_gpus
        faster = more * kept_per_doubling ** math.log2(more)
        return NonGenerationPhases(phases.prepare_s / faster, phases.learn_s / faster)

    @property
    def about(self) -> str:
        """Describe the modelled parts in sentences, without the last full stop."""
        kind = self.latency.kind.upper()
        return (
            f"Decoding and prefill: profile {self.profile}, the sum of operator times measured on {kind}, without the host's "
            f"work. Preparation and learning: 2 N and 6 N FLOPs a token (Kaplan et al., 2020) at an assumed {self.mfu:.0%} of "
            f"the peak of {self.learner_gpus} GPUs. Both start when generation is over, in the bound of whole steps too. "
            "Rewards take no time"
        )


L40S_FLOPS, H100_FLOPS = 362.05e12, 989.4e12  # dense bfloat16, NVIDIA's data sheets (H100: SXM)
QWEN_3B_L40S = Machine("Qwen2.5-3B", QWEN_3B.parameters, "l40s-qwen2.5-3b-tp2", L40S_FLOPS)
QWEN_7B_L40S = Machine("Qwen2.5-7B", QWEN_7B.parameters, "l40s-qwen2.5-7b-tp4", L40S_FLOPS)
LLAMA_70B_H100 = Machine("Llama2-70B", LLAMA_70B.parameters, "h100-llama2-70b-tp2", H100_FLOPS, nodes=20)
