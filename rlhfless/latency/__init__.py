"""Latency profiles (shipped, measured, or generated from measured operators), costs of model calls, GPU kinds and prices."""

from rlhfless.latency.call_tables import list_call_kinds, load_call_tables
from rlhfless.latency.calls import CallTable, CostOptions, StepBatch, generation_latency
from rlhfless.latency.effects import Effects, Outages, StartDelays, Stragglers
from rlhfless.latency.gpus import Gpu, GpuError, PriceError, gpu, list_gpus, list_prices, usd_per_gpu_hour, weights_floor_ms
from rlhfless.latency.profile import (
    list_profiles,
    load_profile,
    other_sizes,
    profiles_of_the_same_model,
    read_profile,
    save_profile,
)
from rlhfless.latency.scaling import profile_like, scaled
from rlhfless.latency.shipped import ProfileError

__all__ = [
    "CallTable",
    "CostOptions",
    "Effects",
    "Gpu",
    "GpuError",
    "Outages",
    "PriceError",
    "ProfileError",
    "StartDelays",
    "StepBatch",
    "Stragglers",
    "generation_latency",
    "gpu",
    "list_call_kinds",
    "list_gpus",
    "list_prices",
    "list_profiles",
    "load_call_tables",
    "load_profile",
    "other_sizes",
    "profile_like",
    "profiles_of_the_same_model",
    "read_profile",
    "save_profile",
    "scaled",
    "usd_per_gpu_hour",
    "weights_floor_ms",
]


def __dir__() -> list[str]:
    return sorted(__all__)
