"""An actor whose tensor-parallel ranks are on two Ray nodes, with weights that reach them by vLLM's weight transfer.

vLLM's CPU build and gloo take the places of CUDA and NCCL (see ``gloo_for_nccl``). Both nodes are on this machine.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import gloo_for_nccl
import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_samples import EOS, GREEDY, LONGEST, factory_of, model_of, needs_vllm, requests, torch_engine

from rlhfless.engine.protocol import Request
from rlhfless.engine.vllm.factory import VllmEngineFactory
from rlhfless.engine.vllm.weight_folders import NO_WEIGHTS, write_config, write_weights
from rlhfless.engine.vllm.weight_transfer import TransferredWeights
from rlhfless.executor import Lifecycle, RayPool, StepRecord
from solver import Cluster, LatencyModel, Plan, PlanningError
from solver.model.plan import ActorPlan

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
import ray
import ray_samples
from ray.util import placement_group_table
from ray_samples import descendants, details, free_gpus, running, two_nodes
from torch_wall_samples import until

from rlhfless.executor.distributed.ray.placement import RayNode, place_nodes
from rlhfless.executor.distributed.ray.spanning import joined

TWO = Cluster(1, 2, 2)
FEW = requests(4)
H100 = frozenset({"h100"})


def node(number: int, gpus: float, kinds: frozenset[str] = frozenset()) -> RayNode:
    return RayNode(f"id{number}", f"10.0.0.{number}", gpus, kinds)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=8), st.integers(1, 8))
def test_joined_nodes_have_the_gpus_of_one_actor_and_of_no_other(sizes: list[tuple[int, bool]], needed: int) -> None:
    """Every Ray node is in one place; what is joined has one kind, no part too many, and as many GPUs as an actor."""
    nodes = [node(i, gpus, H100 if kind else frozenset()) for i, (gpus, kind) in enumerate(sizes)]
    found = joined(nodes, Cluster(1, needed, needed))
    assert sorted(name for each in found for name in each.node_ids) == sorted(each.node_id for each in nodes)
    for each in found:
        if each.parts:
            held = [int(part.gpus) for part in each.parts]
            assert each.gpus == needed
            assert sum(held) >= needed > sum(held[:-1])
            assert {part.kinds for part in each.parts} == {each.kinds}
    for kinds in (frozenset(), H100):
        left = [each for each in found if not each.parts and each.gpus < needed and each.kinds == kinds]
        assert sum(each.gpus for each in left) < needed, "two that fit together are joined"


def test_nodes_of_several_actors_are_not_joined() -> None:
    nodes = [node(0, 1), node(1, 1)]
    assert joined(nodes, Cluster(1, 2, 1)) == nodes
    (both,) = joined(nodes, TWO)
    assert (both.node_ids, both.address) == (("id0", "id1"), "10.0.0.0+10.0.0.1")
    assert place_nodes(TWO, [both]) == {0: both}


def by_torch(seed: int) -> dict[int, list[int]]:
    engine = torch_engine(seed)
    engine.add(FEW)
    return {c.response: np.asarray(c.token_ids).tolist() for c in engine.advance(math.inf).completions}


def tokens_of(record: StepRecord) -> dict[int, list[int]]:
    return {i: np.asarray(c.token_ids).tolist() for i, c in sorted(record.completions.items())}


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def plan_of(wanted: Sequence[Request]) -> Plan:
    return Plan((ActorPlan("gpu", (0, 1), 0, tuple(range(len(wanted))), (), 6),), "by hand", 0.0, 0.0, 0.0)


@pytest.fixture
def pool() -> Iterator[RayPool]:
    """On two nodes of one logical GPU each, whose processes have gloo in place of NCCL."""
    with mock.patch.object(ray_samples, "GPUS_PER_NODE", 1), two_nodes() as nodes:
        hook = {"worker_process_setup_hook": "gloo_for_nccl.on_ray"}
        with RayPool(nodes.address, runtime_env=hook, lifecycle=Lifecycle.serverful()) as joined_pool:
            joined_pool.spans_nodes = True
            yield joined_pool


@pytest.fixture
def trainer() -> Iterator[Any]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as there:
        yield lambda function, *arguments: there.submit(function, *arguments).result()
        with suppress(BrokenProcessPool):
            there.submit(os._exit, 0).result()


@needs_vllm
@pytest.mark.nightly
def test_an_actor_on_two_nodes_decodes_with_the_weights_of_every_step(pool: RayPool, trainer: Any, tmp_path: Path) -> None:
    """Its ranks have a bundle on each node, and its GPUs are free once it ends."""
    latency = LatencyModel("two", 2, 2e-3, 40e-6, 100e-9, max_batch=6, kv_capacity_tokens=1 << 16)
    address = trainer(gloo_for_nccl.serve)
    folder = write_config(model_of(3), tmp_path)
    for step, seed in enumerate((4, 5)):
        nbytes = trainer(gloo_for_nccl.offer, seed, step)
        engines = VllmEngineFactory(
            str(folder), step, EOS, LONGEST, GREEDY, dtype="float32", eager=True,
            transferred=TransferredWeights.sent_by(address, nbytes, NO_WEIGHTS),
        )  # fmt: skip
        record = pool.run_step(plan_of(FEW), FEW, engines, latency, TWO, step=step)
        assert tokens_of(record) == by_torch(seed)
        (sync,) = [span for span in record.spans if span["phase"] == "sync"]
        assert sync["bytes"] == nbytes
        (actor,) = [one["pid"] for one in details(record, "ready").values()]
        assert free_gpus() == 0
    (group,) = placement_group_table().values()
    assert set(group["bundles_to_node_id"].values()) == {one["NodeID"] for one in ray.nodes() if one["Alive"]}
    ranks = {pid for pid in descendants(os.getpid()) if "RayWorkerProc" in command(pid)}
    assert len(ranks) == 2
    pool.release()
    until(lambda: free_gpus() == 2, "the GPUs are free")
    until(lambda: not running({actor, *ranks}), "its processes have ended")


@needs_vllm
@pytest.mark.nightly
def test_weights_of_a_folder_reach_one_node_only(pool: RayPool, tmp_path: Path) -> None:
    engines = factory_of(write_weights(model_of(3), tmp_path, 0), 0)
    latency = LatencyModel("two", 2, 2e-3, 40e-6, 100e-9, max_batch=6, kv_capacity_tokens=1 << 16)
    with refused(PlanningError, "2 Ray nodes", "'nccl'"):
        pool.run_step(plan_of(FEW), FEW, engines, latency, TWO)
