"""Ray's object store and the weights of a model: how large the store has to be, and whether a node's is large enough.

A step's weights are one object, which every node fetches once. Ray writes an object that its store cannot hold to the disk,
where a step of a large model would spend its time. So a store that is too small is refused before anything starts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError

SMALLEST_BYTES = 512 * 2**20
"""Room for KV states, prefixes and results of work items beside the weights."""
VERSIONS = 2
"""Weights that a store may hold at once: those of the step, and those of the last one, with which actors are prewarmed."""
SHARED_MEMORY = Path("/dev/shm")


def store_bytes(weight_bytes: int) -> int:
    """Return the bytes of the object store of a cluster that is started for these weights."""
    return SMALLEST_BYTES + VERSIONS * weight_bytes


def check_shared_memory(nbytes: int, place: Path = SHARED_MEMORY) -> None:
    """Refuse an object store that shared memory has no room for; the smallest one is left to Ray.

    Args:
        nbytes: of the store. place: the folder of shared memory; a system without one is not checked.

    Raises:
        InputError: naming what is free and what is needed.
    """
    if nbytes <= SMALLEST_BYTES or not place.is_dir():
        return
    free = shutil.disk_usage(place).free
    if free < nbytes:
        raise InputError(
            f"{place} has {gib(free)} free, but an object store for these weights needs {gib(nbytes)}; make it larger (docker "
            "run --shm-size), or generate with executor 'local' or in a smaller number format"
        )


def store_refusal(weight_bytes: int, nodes: Iterable[Mapping[str, Any]], used: Iterable[str]) -> str | None:
    """Return why weights cannot pass through the object stores of these nodes; None where they can.

    Args:
        weight_bytes: of one version. nodes: those of ``ray.nodes()``. used: ids of the nodes that the weights pass.
    """
    ids = set(used)
    for node in nodes:
        has = node["Resources"].get("object_store_memory")
        if node["NodeID"] in ids and has is not None and has < weight_bytes:
            return (
                f"the weights have {gib(weight_bytes)}, but the object store of Ray's node {node['NodeManagerAddress']} has "
                f"{gib(has)}; give it {gib(store_bytes(weight_bytes))} (`ray start --object-store-memory "
                f"{store_bytes(weight_bytes)}`)"
            )
    return None


def gib(nbytes: float) -> str:
    """Return bytes as GiB in words."""
    return f"{nbytes / 2**30:.2f} GiB"
