"""Rows of ``data/prices.csv`` as the public price tables give them: ``python tests/latency/price_rows.py > data/prices.csv``.

On demand it is AWS's price of the instance with most GPUs of a kind, then of the cheapest; for kinds that AWS has not, and for
spot prices, the median of the offers in the-full-stack.com's table. Needs the public data.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

PRICES = Path(__file__).resolve().parents[3] / "shared" / "data" / "cloud-gpu-prices"
AWS_DATE, OTHERS_DATE = "2026-07-20", "2025-04-21"
OTHERS = "table of the-full-stack.com/cloud-gpus"
CPU = {
    "kind": "cpu",
    "usd_per_gpu_hour": "0",
    "market": "on-demand",
    "source": "no charge: emulated GPUs on the machine at hand",
    "date": AWS_DATE,
}
AWS_KINDS = {("a100", "40960"): "a100-40g", ("a100", "81920"): "a100-80g", ("v100", "32768"): "v100-32g"}
OTHER_KINDS = {
    "3080Ti (12 GB)": "rtx-3080-ti", "A10": "a10", "A10 (24 GB)": "a10", "A10G (24 GB)": "a10g", "A40": "a40",
    "A40 (48 GB)": "a40", "A100 (20 GB)": "a100-20g", "A100 (40 GB)": "a100-40g", "A100 (80 GB)": "a100-80g",
    "A4000 (16 GB)": "rtx-a4000", "A5000 (24 GB)": "rtx-a5000", "A6000 (48 GB)": "rtx-a6000",
    "RTX A6000 (48 GB)": "rtx-a6000", "GH200 (96 GB)": "gh200", "H100 (80 GB)": "h100", "H100 HGX (80GB)": "h100",
    "H100 PCIe (80GB)": "h100-pcie", "K80 (12 GB)": "k80", "L4 (24 GB)": "l4", "L40 (48 GB)": "l40", "P100 (16 GB)": "p100",
    "P4 (8 GB)": "p4", "Quadro RTX 6000 (24 GB)": "quadro-rtx-6000", "RTX4000 (8 GB)": "quadro-rtx-4000",
    "RTX5000 (16 GB)": "quadro-rtx-5000", "T4 (16 GB)": "t4", "V100 (16 GB)": "v100-16g", "V100 (32 GB)": "v100-32g",
}  # fmt: skip


def price_rows() -> list[dict[str, str]]:
    """Return the rows: every kind that one of the tables names, on demand, and on spot markets where there are offers."""
    rows = _aws()
    offers = _offers("cloud-gpus.csv", "Cloud")
    for kind, found in _offers("serverless-gpus.csv", "Vendor").items():
        offers.setdefault(kind, found)
    for kind, found in sorted(offers.items()):
        on_demand = [usd for usd, market in found if market == "on-demand"]
        spot = [usd for usd, market in found if market == "spot"]
        if on_demand and kind not in rows:
            rows[kind] = _median(kind, on_demand, "on-demand")
        if spot:
            rows[f"{kind} spot"] = _median(kind, spot, "spot")
    return [*(row for _, row in sorted(rows.items())), CPU]


def _aws() -> dict[str, dict[str, str]]:
    best: dict[str, dict[str, str]] = {}
    for row in _table("aws_us_east_1_gpu_on_demand.csv"):
        kind = AWS_KINDS.get((row["gpu"], row["gpu_memory_mib"]), row["gpu"])
        old = best.get(kind)
        if row["gpu"] != "gpu" and (old is None or _rank(row) < _rank(old)):
            best[kind] = row
    return {
        kind: {
            "kind": kind,
            "usd_per_gpu_hour": f"{float(row['usd_per_gpu_hour']):.10g}",
            "market": "on-demand",
            "source": (
                f"AWS EC2 price list, us-east-1, {row['instance_type']} ({row['gpu_count']} GPU"
                f"{'s' if row['gpu_count'] != '1' else ''}, {float(row['usd_per_hour']):.7g} USD/h)"
            ),
            "date": AWS_DATE,
        }
        for kind, row in best.items()
    }


def _rank(row: dict[str, str]) -> tuple[int, float]:
    return -int(row["gpu_count"]), float(row["usd_per_gpu_hour"])


def _offers(name: str, seller: str) -> dict[str, list[tuple[float, str]]]:
    """USD per GPU-hour and market of every offer, by kind."""
    found: dict[str, list[tuple[float, str]]] = {}
    for row in _table(name):
        kind = OTHER_KINDS.get(row["GPU Type"])
        if kind is None:
            assert row["GPU Type"].startswith("Nvidia "), f"{row['GPU Type']} of {row[seller]} has no name here"
            continue
        gpus = float(row["GPUs"])
        hour = row.get("On-demand") or row.get("Per-Hour")
        if hour or row["Per-GPU"]:
            found.setdefault(kind, []).append((float(hour) / gpus if hour else float(row["Per-GPU"]) / gpus, "on-demand"))
        if row.get("Spot"):
            found.setdefault(kind, []).append((float(row["Spot"]) / gpus, "spot"))
    return found


def _median(kind: str, usd: list[float], market: str) -> dict[str, str]:
    low, high = f"{min(usd):.3g}", f"{max(usd):.3g}"
    offers = "one offer" if len(usd) == 1 else f"median of {len(usd)} offers" + (f", {low} to {high}" if low != high else "")
    return {
        "kind": kind,
        "usd_per_gpu_hour": f"{statistics.median(usd):.4g}",
        "market": market,
        "source": f"{offers}, {OTHERS}",
        "date": OTHERS_DATE,
    }


def _table(name: str) -> list[dict[str, str]]:
    with open(PRICES / name, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, ["kind", "usd_per_gpu_hour", "market", "source", "date"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(price_rows())
