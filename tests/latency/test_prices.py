"""The price table: every row has a source and a date, and a wrong question lists what there is."""

from __future__ import annotations

import datetime

import pytest
from error_messages import refused
from price_rows import PRICES, price_rows

from rlhfless.latency import PriceError, list_call_kinds, list_prices, list_profiles, load_profile, usd_per_gpu_hour


def test_every_price_has_source_and_date() -> None:
    rows = list_prices()
    assert {"l40s", "h100", "a100-80g", "cpu"} <= {row["kind"] for row in rows}
    assert len({(row["kind"], row["market"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["source"].strip()
        datetime.date.fromisoformat(row["date"])
        assert float(row["usd_per_gpu_hour"]) >= 0


@pytest.mark.skipif(not PRICES.exists(), reason=f"public data absent: {PRICES.name}")
def test_prices_are_those_of_the_public_tables() -> None:
    """Every kind that a table names has a price."""
    assert list_prices() == price_rows()


def test_prices_are_looked_up_by_kind_and_market() -> None:
    assert usd_per_gpu_hour("NVIDIA H100") == usd_per_gpu_hour("h100")
    assert usd_per_gpu_hour("cpu") == 0
    assert usd_per_gpu_hour("h100") > usd_per_gpu_hour("l40s", market="on-demand") > 1


def test_every_kind_with_call_tables_has_a_price() -> None:
    assert all(usd_per_gpu_hour(kind) > 0 for kind in list_call_kinds())
    assert usd_per_gpu_hour("a100") == usd_per_gpu_hour("a100-80g")
    assert usd_per_gpu_hour("a100", "spot") < usd_per_gpu_hour("a100")


def test_every_shipped_profile_has_a_price() -> None:
    for name in list_profiles():
        assert usd_per_gpu_hour(load_profile(name).kind) >= 0


def test_unknown_kinds_and_markets_are_refused() -> None:
    with refused(PriceError, "'tpu'", "100", "-80", "40"):
        usd_per_gpu_hour("tpu")
    with refused(PriceError, "['h100']"):
        usd_per_gpu_hour(["h100"])  # type: ignore[arg-type]
    with refused(PriceError, "'spot'", "'h100'"):
        usd_per_gpu_hour("h100", "spot")
