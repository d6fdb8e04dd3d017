"""The object store of Ray is as large as the weights need, or one sentence says so before anything starts. Ray is pretended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.errors import InputError
from rlhfless.executor.distributed.ray.cluster import RayCluster
from rlhfless.executor.distributed.ray.object_store import SMALLEST_BYTES, check_shared_memory, store_bytes, store_refusal

GIB = 2**30


def node(node_id: str, store: int | None) -> dict[str, object]:
    resources = {"GPU": 4.0} | ({} if store is None else {"object_store_memory": float(store)})
    return {"NodeID": node_id, "NodeManagerAddress": f"10.0.0.{node_id}", "Alive": True, "Resources": resources}


@given(st.integers(0, 2**40))
def test_a_store_that_is_started_for_weights_takes_them(weight_bytes: int) -> None:
    size = store_bytes(weight_bytes)
    assert size >= SMALLEST_BYTES + weight_bytes
    assert store_refusal(weight_bytes, [node("1", size)], ["1"]) is None


def test_weights_that_a_node_cannot_store_are_refused_with_the_size_that_would_do() -> None:
    nodes = [node("1", 100 * GIB), node("2", GIB // 2), node("3", None)]
    said = store_refusal(12 * GIB, nodes, ["1", "2", "3"])
    assert said is not None
    assert "12.00 GiB" in said
    assert "10.0.0.2 has 0.50 GiB" in said
    assert str(store_bytes(12 * GIB)) in said
    assert store_refusal(12 * GIB, nodes, ["1", "3"]) is None, (
        "no weights pass the second node, and of the third Ray says nothing"
    )


@pytest.mark.full
def test_a_cluster_that_is_started_here_has_the_store_that_was_asked_for() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with mock.patch.object(ray, "init") as started, mock.patch.object(ray, "shutdown"):
        RayCluster(gpus=1, object_store_bytes=store_bytes(GIB // 4)).close()
    assert started.call_args.kwargs["object_store_memory"] == GIB


@pytest.mark.full
def test_a_store_beyond_shared_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with mock.patch.object(ray, "init") as started, pytest.raises(InputError, match="free, but an object store"):
        RayCluster(gpus=1, object_store_bytes=2**60)
    assert not started.called
    few = mock.patch("shutil.disk_usage", return_value=SimpleNamespace(free=8 * GIB))
    monkeypatch.chdir(tmp_path)
    with few:
        check_shared_memory(8 * GIB, Path())
        with refused(InputError, "8.00 GiB", "24.50 GiB"):
            check_shared_memory(store_bytes(12 * GIB), Path())
    check_shared_memory(2**60, tmp_path / "no such folder")
    check_shared_memory(SMALLEST_BYTES, tmp_path)
