"""Looks up GPU kinds in two small public tables: memory and bandwidth (``gpus.csv``), and list prices (``data/prices.csv``).

Every number has its source. In both tables a kind is found by any of its usual names.

A decode iteration reads all weights once, so their bytes over the bandwidth are a floor of its time, whatever the engine.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from rlhfless.errors import UserError
from rlhfless.system.installation import data_folders
from solver.model.errors import as_given, is_number

TABLE = Path(__file__).with_name("gpus.csv")
NODE_GPUS = 8
"""GPUs of a node if they are not stated."""
OTHER_NAMES = {
    "a100": "a100-80g",
    "v100": "v100-32g",
    "a6000": "rtx-a6000",
    "3090": "rtx-3090",
    "4090": "rtx-4090",
    "5090": "rtx-5090",
}


class GpuError(UserError, ValueError):
    """The table lacks the GPU kind, or a number of bytes is invalid; the message lists the known kinds."""


class PriceError(UserError, ValueError):
    """The price table lacks the GPU kind or market; the message lists what it contains."""


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        kind: name in the table.
        memory_gib: nominal memory; a driver reports up to 6 % less.
        bytes_per_s: nominal memory bandwidth.
        source: source of both numbers.
    """

    kind: str
    memory_gib: float
    bytes_per_s: float
    source: str


def list_gpus() -> list[dict[str, str]]:
    """Return the rows of the table: kind, memory_gib, memory_gb_per_s, source."""
    with open(TABLE, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def list_prices() -> list[dict[str, str]]:
    """Return the rows of the price table: kind, usd_per_gpu_hour, market, source, date."""
    for folder in data_folders():
        if (folder / "prices.csv").is_file():
            with open(folder / "prices.csv", newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
    raise PriceError("prices.csv is missing from the installation; install rlhfless again")


def _named(kind: object) -> str:
    """Return a kind as the tables name it. Upper case, spaces and the maker's name are ignored; ``a100`` has 80 GB."""
    plain = re.sub(r"[\s_]+", "-", kind.strip().lower()) if isinstance(kind, str) else ""
    plain = re.sub(r"^(?:nvidia|amd)-", "", plain).removeprefix("geforce-").removeprefix("instinct-")
    return OTHER_NAMES.get(plain, plain)


def gpu(kind: str) -> Gpu:
    """Return the data of a GPU kind. Upper case, spaces and the maker's name are ignored; ``a100`` means the one with 80 GB.

    Raises:
        GpuError: the table lacks the kind.

    Example:
        >>> from rlhfless.latency import gpu
        >>> gpu("NVIDIA H100").bytes_per_s
        3350000000000.0
    """
    plain = _named(kind)
    rows = {row["kind"]: row for row in list_gpus()}
    if plain not in rows:
        raise GpuError(f"GPU kind {as_given(kind)} is not in the table of GPUs; the kinds are {', '.join(rows)}")
    row = rows[plain]
    return Gpu(plain, float(row["memory_gib"]), float(row["memory_gb_per_s"]) * 1e9, row["source"])


def weights_floor_ms(model_bytes_per_gpu: float, kind: str) -> float:
    """Return the milliseconds that it takes to read the weights of one GPU from its memory: a lower bound on every decode
    iteration.

    Args:
        model_bytes_per_gpu: bytes of weights that one GPU reads, such as ``ModelMemory.read_bytes / tensor_parallel``.
        kind: kind of GPU, as in ``gpu``.

    Raises:
        GpuError: the table lacks the kind, or the bytes are not a number of 0 or more.

    Example:
        >>> from rlhfless.latency import weights_floor_ms
        >>> round(weights_floor_ms(15.2e9, "h100"), 1)
        4.5
    """
    if not is_number(model_bytes_per_gpu, 0):
        raise GpuError(f"model_bytes_per_gpu is {as_given(model_bytes_per_gpu)}; a number of bytes of 0 or more is needed")
    return 1e3 * model_bytes_per_gpu / gpu(kind).bytes_per_s


def usd_per_gpu_hour(kind: str, market: str = "on-demand") -> float:
    """Return the list price of one GPU for an hour, in USD, by any name that ``gpu`` knows.

    Raises:
        PriceError: the table lacks the kind, or lacks it in this market.
    """
    prices = {(row["kind"], row["market"]): float(row["usd_per_gpu_hour"]) for row in list_prices()}
    plain = _named(kind)
    if (plain, market) in prices:
        return prices[plain, market]
    markets = sorted({of_market for of_kind, of_market in prices if of_kind == plain})
    if markets:
        raise PriceError(f"GPU kind {kind!r} has no price on market {market!r}; choose from {', '.join(markets)}")
    kinds = sorted({of_kind for of_kind, _ in prices})
    raise PriceError(f"GPU kind {as_given(kind)} has no price; the kinds are {', '.join(kinds)}")
