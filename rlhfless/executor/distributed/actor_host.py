"""Where actors run on the wall clock: a Ray cluster, or processes of this machine where there is no Ray."""

from __future__ import annotations

import importlib.util

from rlhfless.executor.distributed.local.pool import ProcessPool
from rlhfless.executor.distributed.pool.lifecycle import Lifecycle
from rlhfless.executor.distributed.ray.cluster import RayCluster
from rlhfless.executor.distributed.ray.pool import RayPool
from rlhfless.system.cleanup import clean_up


class ActorHost:
    """A place that runs actors, a Ray cluster or this machine; pools of actors are made on it one after another.

    Args:
        address: address of a running Ray cluster; None starts one here.
        gpus: logical GPUs of a cluster that is started here.
        ray: None: use Ray if it is installed; False: use processes of this machine.

    Attributes:
        about: where actors run, in words. is_local: whether actors are processes of this machine.

    Raises:
        MissingExtra: Ray is asked for and not installed.
    """

    def __init__(self, address: str | None = None, *, gpus: int | None = None, ray: bool | None = None) -> None:
        with_ray = address is not None or (importlib.util.find_spec("ray") is not None if ray is None else ray)
        self._cluster = RayCluster(address, gpus=None if address else gpus) if with_ray else None
        here = "a Ray cluster of this machine" if with_ray else "processes of this machine"
        self.about = f"the Ray cluster at {address}" if address else here
        self.is_local = address is None

    def pool(self, lifecycle: Lifecycle) -> ProcessPool | RayPool:
        """Return an actor pool with this life cycle."""
        return ProcessPool(lifecycle=lifecycle) if self._cluster is None else RayPool(lifecycle=lifecycle)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends. Idempotent."""
        if self._cluster is not None:
            self._cluster.close()

    def __enter__(self) -> ActorHost:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        clean_up(self.close, after=error)
