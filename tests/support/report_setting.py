"""The setting of reports in tests: 16 L40S in two nodes, at list price."""

from __future__ import annotations

from rlhfless.latency import load_profile, usd_per_gpu_hour
from rlhfless.simulate import SimulationConfig
from solver.model.cluster import Cluster

PROFILE = "l40s-qwen2.5-3b-tp2"


def sixteen_l40s() -> SimulationConfig:
    """Return the setting."""
    latency = load_profile(PROFILE)
    return SimulationConfig(Cluster(2, 8, latency.gpus_per_actor, latency.kind, usd_per_gpu_hour(latency.kind)), latency)
