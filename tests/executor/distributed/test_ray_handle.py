"""One Ray actor as the driver sees it, and a pool of them, without a cluster: Ray and the actor are stood in for."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from error_messages import refused

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, OutOfDiskError, OutOfMemoryError, RayError

from rlhfless.executor.distributed import messages
from rlhfless.executor.distributed.messages import ActorLost, NoRoom
from rlhfless.executor.distributed.ray import handle as ray_handle
from rlhfless.executor.distributed.ray import pool as ray_pool
from rlhfless.executor.distributed.ray.actor import RayActorReady, VersionedOrder
from rlhfless.executor.distributed.ray.clock_sync import SAME
from rlhfless.executor.distributed.ray.handle import RayActorHandle
from rlhfless.executor.distributed.ray.placement import RayNode
from rlhfless.executor.distributed.ray.pool import RayPool
from rlhfless.executor.distributed.step_actors import StepActors
from rlhfless.executor.distributed.transport import ActorPlacement
from rlhfless.executor.distributed.wall_clock import Clock
from rlhfless.executor.step.record import StepRecord
from solver import Plan
from solver.model.admission import Admission
from solver.model.latency import LatencyModel

pytestmark = pytest.mark.full  # Ray is no part of what `make test` installs
AHEAD_S = 5000.0
TICKS, SLEPT = itertools.count(), [0.0]
CLOCK = Clock(lambda: 50.0 + next(TICKS) * 1e-4 + sum(SLEPT), SLEPT.append)
"""Whoever looks at it takes a moment."""
BEGIN = messages.StartStep(100.0, messages.Block("weights", b"", ()), LatencyModel("any", 1, 1e-3, 0.0), Admission(1, 1), 0)


@dataclass
class Handle:
    """Of an actor on a machine whose clock is ``AHEAD_S`` ahead of this one's, by default; what is called is there at once."""

    answers: bool = True
    full: bool = False
    said: list[Any] = field(default_factory=list)
    told: list[VersionedOrder] = field(default_factory=list)
    killed: int = 0
    there: set[str] = field(default_factory=set)  # exports that are laid out

    def options(self, **_: Any) -> Handle:
        return self

    def remote(self, backend_module: str) -> Handle:
        return self

    @property
    def listen(self) -> Any:
        return SimpleNamespace(remote=lambda: lambda _: [pickle.dumps(what) for what in self.said])

    @property
    def clock_s(self) -> Any:
        def clock(timeout: float | None) -> float:
            if not self.answers:
                assert timeout is not None, "it is waited for for ever"
                raise GetTimeoutError("no answer")
            return CLOCK.now_s() + AHEAD_S

        return SimpleNamespace(remote=lambda: clock)

    @property
    def export(self) -> Any:
        return SimpleNamespace(remote=lambda name: name)

    @property
    def send(self) -> Any:
        def remote(number: int, told: bytes, objects: object) -> None:
            if self.full:
                raise OutOfDiskError("no space\nsome more")
            assert number == len(self.told)
            self.told.append(pickle.loads(told))

        return SimpleNamespace(remote=remote)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    one = Handle()
    monkeypatch.setattr(ray, "get", lambda what, timeout=None: what(timeout))

    def wait(refs: list[str], num_returns: int, timeout: float, fetch_local: bool) -> tuple[list[str], list[str]]:
        return [r for r in refs if r in one.there], [r for r in refs if r not in one.there]

    def kill(killed: Handle, *, no_restart: bool) -> None:
        killed.killed += 1

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "kill", kill)
    return one


def member_on(handle: Handle, up_s: float | None = None) -> RayActorHandle:
    """On another machine; it has said that it is up, since ``up_s`` on its clock."""
    member = RayActorHandle(
        handle, "backend_module", ActorPlacement("gpu", 0, (0,)), RayNode("ab" * 28, "10.0.0.9", 1.0), 0.0, machine=CLOCK
    )
    up_s = CLOCK.now_s() + AHEAD_S if up_s is None else up_s
    handle.said = [RayActorReady(7, "ab" * 28, "10.0.0.9", "cpu", "another boot", up_s)]
    assert member.hear() == []
    handle.said = []
    return member


def test_times_of_an_actor_elsewhere_are_put_on_this_clock(handle: Handle) -> None:
    """The run's start, as the actor's clock shows it; and when it was up, as this one's does."""
    before_s = CLOCK.now_s()
    member = RayActorHandle(
        handle, "backend_module", ActorPlacement("gpu", 0, (0,)), RayNode("ab" * 28, "10.0.0.9", 1.0), 0.0, machine=CLOCK
    )
    member.send(VersionedOrder(0, BEGIN), {})  # before it is up
    up_s = CLOCK.now_s()
    handle.said = [RayActorReady(7, "ab" * 28, "10.0.0.9", "cpu", "another boot", up_s + AHEAD_S)]
    member.hear()
    assert member.clock.offset_s == pytest.approx(AHEAD_S, abs=0.1)
    assert 0 < member.clock.error_s < 0.1
    assert member.up_s == pytest.approx(up_s, abs=0.1)
    assert member.up_s is not None
    assert member.up_s >= before_s
    assert handle.told[0].order.origin_s == pytest.approx(BEGIN.origin_s + AHEAD_S, abs=0.1)


def test_an_actor_of_this_boot_is_not_asked_what_time_it_is(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_handle, "boot_id", lambda: "another boot")
    handle.answers = False
    member = member_on(handle, CLOCK.now_s())
    assert member.clock == SAME


def test_an_actor_that_does_not_say_what_its_clock_shows_keeps_the_last_offset(handle: Handle) -> None:
    member = member_on(handle)
    before, handle.answers = member.clock, False
    member.send(VersionedOrder(1, BEGIN), {})
    assert member.clock == before
    assert handle.told[-1].order.origin_s == BEGIN.origin_s + before.offset_s


def test_the_first_word_of_an_actor_that_says_no_more_bounds_its_clock(handle: Handle) -> None:
    handle.answers = False
    member = RayActorHandle(
        handle, "backend_module", ActorPlacement("gpu", 0, (0,)), RayNode("ab" * 28, "10.0.0.9", 1.0), 0.0, machine=CLOCK
    )
    CLOCK.sleep(0.05)
    handle.said = [RayActorReady(7, "ab" * 28, "10.0.0.9", "cpu", "another boot", CLOCK.now_s() + AHEAD_S)]
    CLOCK.sleep(0.05)
    member.hear()
    assert abs(member.clock.offset_s - AHEAD_S) <= member.clock.error_s
    assert 0.05 <= member.clock.error_s < 1.0


def test_an_order_for_which_there_is_no_room_is_one_sentence(handle: Handle) -> None:
    member = member_on(handle)
    handle.full = True
    with refused(NoRoom):
        member.send(VersionedOrder(0, messages.Close()), {})


def test_a_failure_without_a_message_is_named_by_its_kind() -> None:
    assert "8 bytes (MemoryError); give it more" in str(ray_handle.no_room(8, MemoryError()))


def test_what_is_stored_is_not_held_by_its_sender(handle: Handle) -> None:
    member = member_on(handle)
    for name in ("kv-0", "kv-1", "kv-2"):
        member.export(name)
    assert member._exports == ["kv-0", "kv-1", "kv-2"], "its process may not be killed before"
    handle.there = {"kv-0", "kv-2"}
    member.export("kv-3")
    assert member._exports == ["kv-1", "kv-3"]
    handle.there = {"kv-1"}
    member.hear()
    assert member._exports == ["kv-3"], "not until it hands over the next one, which may never be"
    member.step_over()
    assert member._exports == []


def test_an_actor_whose_words_do_not_arrive_is_lost_with_a_reason(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    member = member_on(handle)

    def never(timeout: float | None) -> None:
        assert timeout is not None, "it is waited for for ever"
        raise GetTimeoutError("no answer")

    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "ab" * 28, "Alive": True}])
    member.listening = never
    with pytest.raises(GetTimeoutError):
        member.hear()
    assert member.lost == "cannot be reached: its reports did not arrive within 30 s"
    assert not member.node_lost


def raises(error: RayError) -> Any:
    def get(timeout: float | None) -> None:
        raise error

    return get


def unavailable() -> ActorUnavailableError:
    return ActorUnavailableError("Socket closed", None)


def nodes_of_ray(monkeypatch: pytest.MonkeyPatch, *alive: bool) -> None:
    """What Ray knows of the actor's node, one call after the other."""
    answers = list(alive)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "ab" * 28, "Alive": answers.pop(0)}])


def test_an_actor_that_is_unavailable_is_not_lost_before_ray_knows_why(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node may be gone, on whose GPUs nothing can be started any more."""
    member = member_on(handle)
    nodes_of_ray(monkeypatch, True, True, False)
    for _ in range(2):
        member.listening = raises(unavailable())
        assert member.hear() == []
        assert member.lost is None
    member.listening = raises(ActorDiedError())
    with pytest.raises(ActorDiedError):
        member.hear()
    assert member.node_lost
    assert member.lost == "was lost with its node 10.0.0.9"
    assert handle.killed == 0


def test_an_actor_that_was_unavailable_for_a_moment_is_ended_as_its_words_may_be_lost(
    handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = member_on(handle)
    nodes_of_ray(monkeypatch, True, True)
    member.listening = raises(unavailable())
    assert member.hear() == []
    with pytest.raises(ActorUnavailableError):  # it says what its clock shows
        member.hear()
    assert handle.killed == 1
    assert not member.node_lost
    assert member.lost is not None
    assert member.lost.startswith("died: The actor None is unavailable: Socket closed")


# --- a pool -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> RayPool:
    """Without a cluster."""
    cluster = SimpleNamespace(ray=ray, close=lambda: None)
    monkeypatch.setattr(ray_pool, "RayCluster", lambda *_, **__: cluster)
    return RayPool(clock=CLOCK)


@pytest.mark.parametrize(
    ("error", "out_of_memory"),
    [
        (OutOfMemoryError("1 worker(s) were killed due to the node running low on memory.\nOOM kill reason: too much"), True),
        (ActorDiedError(), False),
    ],
)
def test_an_actor_that_was_killed_for_want_of_memory_is_told_from_others(
    error: RayError, out_of_memory: bool, handle: Handle, pool: RayPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(timeout: float | None) -> None:
        raise error

    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "ab" * 28, "Alive": True}])
    member = member_on(handle)
    member.listening = dead
    (lost,) = pool._heard(member)
    assert isinstance(lost, ActorLost)
    assert lost.out_of_memory == out_of_memory
    assert not lost.gpus_gone
    assert lost.reason == f"(process 7 on cpu, node 10.0.0.9) died: {str(error).splitlines()[0].rstrip('.')}"


def test_the_driver_sleeps_until_the_next_actor_starts(pool: RayPool) -> None:
    before_s = CLOCK.now_s()
    assert pool.listen([], 0.3) == []
    assert CLOCK.now_s() - before_s >= 0.3


class Engines:
    """Whose prefixes are what they were asked for."""

    def compute_prefixes(self, prefixes: Any) -> Any:
        return prefixes


def test_prefixes_for_which_there_is_no_room_are_left_to_their_receiver(pool: RayPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(name: str, thing: dict[int, np.ndarray]) -> Any:
        if len(thing) > 1:
            raise NoRoom("no room")
        return messages.Block(name, b"", ())

    monkeypatch.setattr(pool, "put", put)
    record = StepRecord("run", 0, Plan((), "none", 0.0, 0.0, 0.0), 0.0)
    actors = StepActors(pool, Engines(), record, CLOCK.now_s())
    sent, _ = actors.prefill({0: np.arange(3), 1: np.arange(4)}, {0: [0, 1], 1: [1]})
    assert list(sent) == [1]
