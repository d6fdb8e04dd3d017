"""The table of GPUs: every row has a source, names people write are found, and the floor of a decode iteration."""

from __future__ import annotations

import pytest
from error_messages import refused

from rlhfless.latency import (
    GpuError,
    gpu,
    list_call_kinds,
    list_gpus,
    list_profiles,
    load_call_tables,
    load_profile,
    weights_floor_ms,
)


def test_every_row_has_a_source() -> None:
    rows = list_gpus()
    kinds = [row["kind"] for row in rows]
    assert kinds == sorted(kinds)
    assert len(set(kinds)) == len(kinds)
    assert {
        "a100-40g",
        "a100-80g",
        "h100",
        "h100-pcie",
        "h200",
        "l40s",
        "gh200",
        "mi300x",
        "b200",
        "rtx-4090",
        "l4",
        "a10g",
        "t4",
    } <= set(kinds)
    for row in rows:
        assert row["source"].strip()
        assert 10 <= float(row["memory_gib"]) <= 300
        assert 100 <= float(row["memory_gb_per_s"]) <= 10_000


def test_every_kind_of_a_profile_is_in_the_table() -> None:
    assert all(gpu(load_profile(name).kind).bytes_per_s > 0 for name in list_profiles() if load_profile(name).kind != "cpu")


@pytest.mark.parametrize("kind", list_call_kinds())
def test_the_table_agrees_with_the_measured_operators(kind: str) -> None:
    tables = load_call_tables(kind)
    assert gpu(kind).bytes_per_s == pytest.approx(tables.memory_bytes_per_s, rel=0.05)
    assert 0.93 <= tables.memory_bytes_per_gpu / (gpu(kind).memory_gib * 2**30) <= 1.0


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("H100", "h100"),
        ("NVIDIA H100", "h100"),
        (" a100 ", "a100-80g"),
        ("AMD Instinct MI300X", "mi300x"),
        ("RTX 4090", "rtx-4090"),
    ],
)
def test_names_as_people_write_them(written: str, kind: str) -> None:
    assert gpu(written).kind == kind


def test_the_floor_of_a_decode_iteration_by_hand() -> None:
    assert weights_floor_ms(15.2e9, "a100-80g") == pytest.approx(15.2 / 2.039)
    assert weights_floor_ms(0, "t4") == 0


def test_an_unknown_kind_or_size_is_refused() -> None:
    with refused(GpuError, "'z9'", "h100"):
        gpu("z9")
    with refused(GpuError, "None"):
        gpu(None)  # type: ignore[arg-type]
    with refused(GpuError, "model_bytes_per_gpu", "-1"):
        weights_floor_ms(-1, "h100")
