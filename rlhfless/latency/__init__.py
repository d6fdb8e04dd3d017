"""Latency profiles: shipped, fitted from measurement, generated from measured operator databases; and GPU prices."""

from rlhfless.latency.gpu_pools import mixed_pools
from rlhfless.latency.own_kind import profile_like
from rlhfless.latency.prices import PriceError, list_prices, usd_per_gpu_hour
from rlhfless.latency.profile import ProfileError, list_profiles, load_profile, read_profile, save_profile
from rlhfless.latency.scaling import scaled

__all__ = [
    "PriceError",
    "ProfileError",
    "list_prices",
    "list_profiles",
    "load_profile",
    "mixed_pools",
    "profile_like",
    "read_profile",
    "save_profile",
    "scaled",
    "usd_per_gpu_hour",
]


def __dir__() -> list[str]:
    return sorted(__all__)
