"""The Ray actors of one step behind the interface of ``remote.py``.

Knows Ray actors, Ray objects and the step's weights; nothing of plans' rules or of how an actor computes. A KV state that an
actor hands over is a Ray object of this process that stays on the sender's node: the receiver fetches it from there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from rlhfless.engine.protocol import Request
from rlhfless.executor import worker
from rlhfless.executor.actors import holder_of
from rlhfless.executor.ray_member import Member
from rlhfless.executor.record import StepRecord
from rlhfless.executor.remote import ActorError, Order, RemoteActor, Report
from solver.plan import ActorPlan

LOOK_S = 1.0  # between looks at whether actors started


class RayCrew:
    """The crew of one step (see ``Crew``).

    Args:
        begin: takes or starts its actors, in the plan's order. put: lays the weights out, as a block and its Ray objects.
        version: of the weights. keeps: whether an actor without work goes on living.
        record: for events. origin_s: the run's start on this machine's monotonic clock.
        start_timeout_s: an actor that is not up by then fails the step.

    Attributes:
        given: its actors. members: those of them that this step has not given back. left: those that live on, with their index.
    """

    def __init__(
        self,
        begin: Callable[[], Sequence[Member]],
        put: Callable[[], tuple[worker.Block, Mapping[str, Any]]],
        version: int,
        keeps: Callable[[ActorPlan], bool],
        record: StepRecord,
        origin_s: float,
        start_timeout_s: float,
    ) -> None:
        self._begin, self._put, self._version, self._record = begin, put, version, record
        self._keeps, self._origin_s, self._start_timeout_s = keeps, origin_s, start_timeout_s
        self.given: Sequence[Member] = ()
        self.members: dict[Member, Order] = {}
        self.left: list[tuple[int, Member]] = []
        self._ended: dict[Member, Report] = {}  # killed: what to report once Ray knows it is dead
        self._objects: dict[str, Any] = {}  # handed over and not passed on yet
        self._names = (f"kv-{version}-{i}" for i in itertools.count())

    def now_s(self) -> float:
        return time.monotonic() - self._origin_s

    def start(self, orders: Sequence[Order]) -> list[RemoteActor]:
        self.given = self._begin()
        self.members = dict(zip(self.given, orders, strict=True))
        block, objects = self._put()  # while they are on their way up
        for member, order in self.members.items():
            member.tell(self._version, worker.Begin(self._origin_s, block, order.latency, order.admission), objects)
        return [_RayRemote(member, self) for member in self.members]

    def reports(self, timeout_s: float | None) -> list[tuple[int, Report]]:
        listening = {member.listening: member for member in self.members}
        wait_s = LOOK_S if timeout_s is None else min(timeout_s, LOOK_S)
        if not ray.wait(list(listening), timeout=wait_s)[0]:
            self._refuse_late()
            return []
        ready, _ = ray.wait(list(listening), num_returns=len(listening), timeout=0)
        said = []
        for ref in ready:
            member = listening[ref]
            index = self.members[member].index
            said += [(index, report) for report in self._heard(member)]
        return said

    def _heard(self, member: Member) -> list[Report]:
        try:
            said = member.hear()
        except RayError as error:
            if member in self._ended:
                del self.members[member]
                return [replace(self._ended.pop(member), time_s=self.now_s())]
            raise self._error(member, str(member.lost)) from error
        found = []
        for what in said:
            if isinstance(what, worker.Failed):
                failed = self._error(member, f"failed with {what.error}")
                failed.add_note(what.trace)
                raise failed
            assert isinstance(what, Report)
            self._note(member, what)
            if not what.closed:
                found.append(what)
            elif self._keeps(self.members[member].plan):
                self.left.append((self.members.pop(member).index, member))
                found.append(what)
            else:
                self._ended[member] = what
                member.kill()
        return found

    def _note(self, member: Member, report: Report) -> None:
        """Where it is, when it is ready; and the KV states that it laid out."""
        if report.ready_s is not None and member.up is not None:
            self._record.event(
                self.now_s(), "ready", holder_of(self.members[member].index), weights_version=self._version,
                address=member.node.address, ray_node=member.up.node_id, pid=member.up.pid, device=member.up.device,
                clock_error_s=member.clock.error_s,
            )  # fmt: skip
        for block in blocks(report.taken or ()):
            self._objects[block.name] = member.export(block.name)

    def _refuse_late(self) -> None:
        for member in self.members:
            waited_s = time.monotonic() - max(member.asked_s, self._origin_s + self._record.start_s)
            if member.up is None and waited_s > self._start_timeout_s:
                gpus = len(member.place.gpu_ids)
                raise self._error(
                    member,
                    f"had not started after {waited_s:.0f} s; are {gpus} of the node's GPUs free, as `ray status` shows?",
                )

    def _error(self, member: Member, reason: str) -> ActorError:
        holder = holder_of(self.members[member].index)
        return ActorError(f"{holder} ({member.where}) {reason}; the step was given up and all its actors were ended")


class _RayRemote:
    """An actor of a crew (see ``RemoteActor``)."""

    def __init__(self, member: Member, crew: RayCrew) -> None:
        self._member, self._crew = member, crew

    def add(self, requests: Sequence[Request]) -> None:
        crew = self._crew
        objects = {block.name: crew._objects.pop(block.name) for block in blocks(requests)}
        self._member.tell(crew._version, worker.Add(requests), objects)

    def cut(self, responses: Sequence[int], with_kv: Collection[int]) -> None:
        names = {r: next(self._crew._names) for r in sorted(with_kv)}
        self._member.tell(self._crew._version, worker.CutOff(responses, names))

    def close(self) -> None:
        self._member.tell(self._crew._version, worker.End())


def blocks(requests: Sequence[Request]) -> list[worker.Block]:
    """What of requests is laid out elsewhere."""
    return [kv for r in requests for kv in (r.kv, r.prefix_kv) if isinstance(kv, worker.Block)]
