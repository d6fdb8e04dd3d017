"""Learner processes that Ray places over its nodes: the same orders as ``WorkerGroup``, as calls of Ray actors.

The first process is on the trainer's machine, where it reads first weights and writes new ones and checkpoints. The processes
meet at an address of its node, and speak through the interface that has their own node's address.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhfless.errors import InputError, reason
from rlhfless.system.child import HEARTBEAT_TIMEOUT_S, REMEDY, START_TIMEOUT_S
from rlhfless.system.cleanup import clean_up
from rlhfless.training.config import LearnerError
from rlhfless.training.learner.worker import LearnerRank, LearnerStart
from rlhfless.training.worker_group import REPEAT
from solver.model.plurals import counted

ROOM_S = 120.0  # that Ray may take to find room for all processes
BEATS = "beats"  # Ray's thread for signs of life
CPUS = 0.01  # of a process without a GPU: it computes with one thread beside what actors reserve
GET_ADDRESS = 0x8915  # SIOCGIFADDR


class RayRank:
    """One learner process as a Ray actor."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def meeting(self) -> str:
        """Return an address on this node at which the processes can meet."""
        address = ray.util.get_node_ip_address()
        with socket.create_server((address, 0)) as free:
            return f"tcp://{address}:{free.getsockname()[1]}"

    def start(self, startup: LearnerStart) -> tuple[int, str]:
        """Connect to the others and load the learner; return the process's id, and Ray's id of its node."""
        interface = interface_of(ray.util.get_node_ip_address())
        self._learner = LearnerRank(self._rank, replace(startup, interface=interface))
        return os.getpid(), ray.get_runtime_context().get_node_id()

    def beat(self) -> None:
        """Say that the process lives; in a thread of its own, so also while an order is executed."""

    def order(self, name: str, argument: Any, seed: int) -> Any:
        """Execute an order together with the others."""
        return self._learner.execute(name, argument, seed)


class RayRanks:
    """Learner processes on the nodes of the Ray cluster that this program has joined; see ``WorkerGroup``.

    Args:
        count: of processes. gpus: of each.
        heartbeat_timeout_s: in which a process has to answer when it is asked for a sign of life; it is asked after as long.

    Attributes:
        pids, nodes: of the processes by rank, with Ray's ids of the nodes; empty before the start and after the end.
    """

    def __init__(self, count: int, gpus: int, heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S) -> None:
        self._count, self._gpus, self._timeout_s = count, gpus, heartbeat_timeout_s
        self._actors: list[Any] = []
        self._group: Any = None
        self.pids: list[int] = []
        self.nodes: list[str] = []

    def __bool__(self) -> bool:
        """Whether the processes run."""
        return bool(self._actors)

    def start(self, startup: LearnerStart) -> None:
        """Let Ray place the processes, and start them.

        Raises:
            InputError: Ray has no room for them. LearnerError: one could not be started.
        """
        each: dict[str, float] = {"GPU": self._gpus} if self._gpus else {"CPU": CPUS}
        here = {f"node:{ray.util.get_node_ip_address()}": 0.001}
        try:
            self._group = placement_group([{**each, **here}, *[each] * (self._count - 1)], "PACK" if self._gpus else "SPREAD")
            if not self._group.wait(ROOM_S):
                raise InputError(
                    f"learner_processes is {self._count}, but Ray found no room for so many with {counted(self._gpus, 'GPU')} "
                    f"each in {ROOM_S:g} s; take fewer, or leave GPUs free (`ray status`)"
                )
            ray.method(concurrency_group=BEATS)(RayRank.beat)
            kind: Any = ray.remote(concurrency_groups={BEATS: 1})(RayRank)
            for rank in range(self._count):
                strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
                resources = {"num_gpus": self._gpus, "num_cpus": 0 if self._gpus else CPUS}
                self._actors.append(kind.options(**resources, scheduling_strategy=strategy).remote(rank))
            startup = replace(startup, own_gpu=bool(self._gpus))
            limit_s = max(self._timeout_s, START_TIMEOUT_S)
            startup = replace(startup, meeting=self._answers([self._actors[0].meeting.remote()], "start", limit_s)[0])
            started = self._answers([actor.start.remote(startup) for actor in self._actors], "start", limit_s)
            self.pids, self.nodes = [pid for pid, _ in started], [node for _, node in started]
        except BaseException as error:
            clean_up(self.end, after=error)
            raise

    def order(self, name: str, argument: Any = None, seed: int = 0) -> list[Any]:
        """Send all processes an order, wait for them and return their answers by rank.

        Raises:
            LearnerError: a process was lost or hangs. Any other exception is that of a process.
        """
        try:
            calls = [actor.order.remote(name, argument, seed) for actor in self._actors]
            return self._answers(calls, name, self._timeout_s)
        except BaseException as error:
            clean_up(self.end, after=error)  # the others may wait for one that failed; nobody knows what each of them did
            raise

    def end(self) -> None:
        """Kill the processes and free their room. Idempotent."""
        with contextlib.suppress(RayError, ValueError):
            for actor in self._actors:
                ray.kill(actor)
            if self._group is not None:
                remove_placement_group(self._group)
        self._actors, self._group, self.pids, self.nodes = [], None, [], []

    def _answers(self, calls: list[Any], order: str, limit_s: float) -> list[Any]:
        """Wait for all; the first that fails ends the waiting, as others may wait for it.

        Args:
            limit_s: after which processes are asked for a sign of life, and within which they have to give it.
        """
        left = list(calls)
        try:
            while left:
                done, left = ray.wait(left, num_returns=1, timeout=limit_s)
                ray.get(done, timeout=limit_s)
                if not done:
                    self._check_alive(order, limit_s)
            return list(ray.get(calls, timeout=limit_s))
        except GetTimeoutError:
            raise LearnerError(
                f"answers of the learner's processes to {order!r} did not arrive within {limit_s:g} s; {REPEAT}, and {REMEDY}"
            ) from None
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, InputError | LearnerError | OSError):
                raise cause from None
            raise LearnerError(f"a process of the learner failed during {order!r} ({reason(cause)})") from error
        except RayError as error:  # it died, its node did, or Ray killed it because memory was short
            raise LearnerError(
                f"a process of the learner on Ray was lost during {order!r} ({reason(error)}); {REPEAT}"
            ) from None

    def _check_alive(self, order: str, limit_s: float) -> None:
        """Refuse to wait any longer for a process that does not even give a sign of life."""
        beats = [actor.beat.remote() for actor in self._actors]
        alive, _ = ray.wait(beats, num_returns=len(beats), timeout=limit_s)
        if silent := [rank for rank, beat in enumerate(beats) if beat not in alive]:
            raise LearnerError(
                f"process {silent[0]} of the learner on Ray gave no sign of life for {limit_s:g} s during {order!r}; {REPEAT}, "
                f"and {REMEDY}"
            )


def interface_of(address: str) -> str | None:
    """Return the name of this machine's network interface with an IPv4 address; None where there is none.

    Example:
        >>> interface_of("127.0.0.1")
        'lo'
    """
    import fcntl  # Windows lacks it, where this file can be imported, too

    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(asking.fileno(), GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if answer[20:24] == wanted:
                    return name
    return None
