"""Looks up list prices of GPUs per hour in a small public table (``data/prices.csv``), each with source and date."""

from __future__ import annotations

import csv

from rlhfless.errors import UserError
from rlhfless.system.installation import data_folders
from solver.model.errors import as_given

WITH_MEMORY = {"a100": "a100-80g"}  # kinds that have tables of model calls, as the price table names them


class PriceError(UserError, ValueError):
    """The price table lacks the GPU kind or market; the message lists what it contains."""


def list_prices() -> list[dict[str, str]]:
    """Return the rows of the price table: kind, usd_per_gpu_hour, market, source, date."""
    for folder in data_folders():
        if (folder / "prices.csv").is_file():
            with open(folder / "prices.csv", newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
    raise PriceError("prices.csv is missing from the installation; install rlhfless again")


def usd_per_gpu_hour(kind: str, market: str = "on-demand") -> float:
    """Return the list price of one GPU for an hour, in USD; ``a100`` is ``a100-80g``.

    Raises:
        PriceError: the table lacks the kind, or lacks it in this market.
    """
    prices = {(row["kind"], row["market"]): float(row["usd_per_gpu_hour"]) for row in list_prices()}
    kind = WITH_MEMORY.get(kind, kind) if isinstance(kind, str) else kind
    if isinstance(kind, str) and (kind, market) in prices:
        return prices[kind, market]
    markets = sorted({of_market for of_kind, of_market in prices if of_kind == kind})
    if markets:
        raise PriceError(f"GPU kind {kind!r} has no price on market {market!r}; choose from {', '.join(markets)}")
    kinds = sorted({of_kind for of_kind, _ in prices})
    raise PriceError(f"GPU kind {as_given(kind)} has no price; the kinds are {', '.join(kinds)}")
