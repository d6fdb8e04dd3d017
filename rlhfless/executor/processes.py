"""Actors as processes of this machine, one per actor, each on a device of its own: the carrier behind the wall clock.

Knows which process has which device, and the names of shared memory; nothing of rules, of how a token is computed, of what is
said to actors (``local.py``), or of what becomes of the responses of one that died. Whatever ends a step early (an actor too
many that died, Ctrl-C) ends every process and frees all shared memory.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import secrets
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from rlhfless.engine.protocol import Request
from rlhfless.executor.faults import Faults
from rlhfless.executor.local import LocalCrew
from rlhfless.executor.record import StepRecord
from rlhfless.executor.sides import RemoteEngines, prefix_refusal, remote_engines
from rlhfless.executor.spawn import Process
from rlhfless.executor.step import Watch
from rlhfless.executor.wall import WallStep
from solver.cluster import Cluster, MixedCluster
from solver.errors import PlanningError
from solver.objective import StepRest
from solver.offers import Latencies
from solver.plan import ActorPlan, Plan
from solver.remaining import RemainingLengths

CPU = "cpu"


class ProcessPool:
    """Processes for actors, kept from step to step; use it in a ``with`` statement, or ``close`` it.

    A process starts when a plan first needs it, in parallel with the others. An actor that is done gives its memory back; its
    process stays for the next step, which then pays the weights but no start.

    Args:
        devices: torch device of every GPU id that plans use; None takes this machine's CUDA devices in order, and on a machine
            without any lets every actor compute on the CPU with one thread.
        keep: False ends an actor's process as soon as the actor is done, so that nothing is left on its device.
        faults: what is done about actors that die, hang or are slow.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        *,
        keep: bool = True,
        faults: Faults = Faults(),  # noqa: B008 (frozen)
    ) -> None:
        from rlhfless.engine import torch_process

        self.torch, self.keep, self.faults = torch_process, keep, faults
        self.devices = tuple(torch_process.cuda_devices() if devices is None else devices)
        self._idle: list[Process] = []
        self._all: list[Process] = []
        self.inbox: queue.SimpleQueue[tuple[Process, Any]] = queue.SimpleQueue()
        self._name, self._count = f"rlhfless-{os.getpid()}-{secrets.token_hex(2)}", itertools.count()
        self._blocks: list[str] = []  # names of shared memory that may be there

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = ", ".join(self.devices) or "the CPU"
        return f"ProcessPool: {len(self._idle)} idle of {len(self._all)} processes on {where}"

    @property
    def working(self) -> list[int]:
        """Ids of the processes that are actors of a step now."""
        return [p.pid for p in list(self._all) if p.pid is not None and p.alive and p not in self._idle]

    @property
    def meta(self) -> dict[str, str]:
        """What ``meta.json`` says of a run whose steps are executed here."""
        return {"clock": "wall", "charging": "measured", "device": f"a process per actor on {', '.join(self.devices) or CPU}"}

    def run_step(
        self,
        plan: Plan,
        requests: Sequence[Request],
        engines: Any,
        latency: Latencies,
        cluster: Cluster | MixedCluster,
        *,
        run: str = "run",
        step: int = 0,
        start_s: float = 0.0,
        rest: StepRest = StepRest(),  # noqa: B008 (frozen)
        admission: str = "reserve",
        migration: str = "cheaper",
        forecast: RemainingLengths | None = None,
        watch: Watch | None = None,
    ) -> StepRecord:
        """Run ``plan`` on real devices in real time and record everything; arguments as for ``rlhfless.executor.run_step``.

        Args:
            engines: a ``TorchEngineFactory``, whose weights, as they are now, are sent to every actor (hooks of its model stay
                here), or a ``VllmEngineFactory``, whose weights every actor reads. They are those of this step, and an actor
                with others is not believed. Iterations take what they take.
            latency: slots and memory, whether moving a KV cache or recomputing it is cheaper, and how long an actor may be
                silent; no time is charged by it.
            forecast: of the lengths of all responses, for planning anew when actors are lost; None learns from the step itself.
            watch: told of completions.

        Raises:
            PlanningError: the plan asks for devices that are not there; nothing was started.
            TypeError: engines of another kind.
            MissingExtra, InputError: the engines cannot be made here.
            ActorError: too many actors died or failed (see ``Faults``). All processes have ended; the pool can be used again.
                The error, as whatever else ends a step early, has the ``record`` of what was done until then.
        """
        engines = remote_engines(engines)
        if (refusal := self._refuses(plan, engines)) is not None:
            raise PlanningError(refusal)
        record, version = StepRecord(run, step, plan, start_s), engines.weights_version
        faults = replace(self.faults, start_floor_s=max(self.faults.start_floor_s, engines.start_floor_s))
        crew = LocalCrew(self, engines.in_real_time(), start_s)
        under_way = WallStep(
            plan, requests, crew, latency, cluster, record, rest, admission, migration, faults, forecast,
            step if version is None else version,
        )  # fmt: skip
        under_way.watch = watch
        try:
            under_way.run()
            crew.bury()
        except BaseException:
            self.close()
            raise
        finally:
            self._free()
        return record

    def close(self) -> None:
        """End every process. Idempotent; another step would start new ones."""
        for process in self._all:
            process.kill()
        for process in self._all:
            process.join()
        self._idle, self._all, self.inbox = [], [], queue.SimpleQueue()
        self._free()

    def _refuses(self, plan: Plan, engines: RemoteEngines) -> str | None:
        if (refusal := prefix_refusal(plan, engines)) is not None:
            return refusal
        for i, actor in enumerate(plan.actors):
            if self.devices and max(actor.gpu_ids) >= len(self.devices):
                return (
                    f"actor {i} of the plan uses GPU {max(actor.gpu_ids)}, but there are {len(self.devices)} devices "
                    f"({', '.join(self.devices)}); plan for a cluster of {len(self.devices)} GPUs"
                )
            if len(actor.gpu_ids) > 1 and self.device_of(actor) != CPU and not engines.several_gpus:
                return (
                    f"actor {i} of the plan holds {len(actor.gpu_ids)} GPUs; the torch engine decodes on one, so plan for one"
                )
        return None

    def device_of(self, actor: ActorPlan) -> str:
        """Where it computes: a device, or several with commas between them."""
        return ",".join(dict.fromkeys(self.devices[i] for i in actor.gpu_ids)) if self.devices else CPU

    def take(self, device: str, side: str, binding: Any) -> Process:
        """An idle process on the device that can make such engines, or a new one."""
        for process in self._idle:
            if process.alive and (process.device, process.side, process.binding) == (device, side, binding):
                self._idle.remove(process)
                return process
        wanted = set(device.split(",")) - {CPU}
        for process in [p for p in self._idle if wanted.intersection(p.device.split(","))]:  # it holds memory there
            self._idle.remove(process)
            self._end(process)
        process = Process(device, side, binding, self.inbox)
        self._all.append(process)
        return process

    def give_back(self, process: Process) -> None:
        """A process without an engine."""
        if self.keep:
            self._idle.append(process)
            return
        self._end(process)

    def _end(self, process: Process) -> None:
        process.kill()
        self.forget(process)

    def forget(self, process: Process) -> None:
        """A process that was killed."""
        process.join()
        self._all.remove(process)

    def new_block(self) -> str:
        """A name for shared memory, which is freed after the step at the latest."""
        self._blocks.append(f"{self._name}-{next(self._count)}")
        return self._blocks[-1]

    def _free(self) -> None:
        for name in self._blocks:
            with contextlib.suppress(FileNotFoundError, ValueError):  # gone, or its process died before it had a size
                memory = SharedMemory(name)
                memory.close()
                memory.unlink()
        self._blocks.clear()
