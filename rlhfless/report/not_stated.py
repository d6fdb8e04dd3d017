"""Sentences on what is assumed about GPUs, their latency profile and their price where the user did not state it."""

from __future__ import annotations

from rlhfless.latency import list_prices

DEFAULT_PROFILE = "l40s-qwen2.5-3b-tp2"
DEFAULT_GPUS = 16
GPUS, PROFILE, PRICE = "gpus", "profile", "usd_per_gpu_hour"
OPTIONS = {GPUS: "--gpus", PROFILE: "--profile", PRICE: "--usd-per-gpu-hour"}
"""The option that states each of the three."""

GPUS_ASSUMED = f"{DEFAULT_GPUS} GPUs in two nodes, because the number of GPUs was not given"
PROFILE_ASSUMED = f"times of profile {DEFAULT_PROFILE}, because no profile was given"


def price_assumed(kind: str) -> str:
    """Return the sentence on the list price of a GPU kind, with its source and date."""
    for row in list_prices():
        if (row["kind"], row["market"]) == (kind, "on-demand"):
            price = f"{float(row['usd_per_gpu_hour']):.2f} USD per GPU-hour ({row['source']}, {row['date']})"
            return f"the list price of {price}, because no price was given"
    return "a list price, because no price was given"
