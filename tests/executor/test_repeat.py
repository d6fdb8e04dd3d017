"""The same plan several times on a pool, with rests between; a rule that kills one actor."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from error_messages import refused

from rlhfless.errors import InputError
from rlhfless.executor import ActorHost, KillOneActor, Lifecycle, ProcessPool, repeat
from solver.model.runtime_rules import Trigger


class Calls:
    """An executor of a pool, whose waiting actors are charged when they are finalised."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.clock_s = 0.0
        self.actor_pool: Any = self

    def run(self, plan: Any, requests: Any) -> Any:
        self.calls.append(f"run at {self.clock_s:g}")
        return SimpleNamespace(end_s=self.clock_s + 1)

    def finalise_allocations(self, record: Any) -> None:
        self.calls.append("finalise")
        record.end_s += 0.5


def test_what_waits_in_a_rest_is_in_the_record_before_it() -> None:
    executor: Any = Calls()
    records = repeat(executor, None, [], steps=3)  # type: ignore[arg-type]
    assert executor.calls == ["run at 0", "finalise", "run at 1.5", "finalise", "run at 3"]
    assert [record.end_s for record in records] == [1.5, 3.0, 4.0]


def test_without_a_pool_nothing_rests() -> None:
    executor: Any = Calls()
    executor.actor_pool = None
    with refused(InputError, "actor_pool"):
        repeat(executor, None, [], steps=2)  # type: ignore[arg-type]


def test_without_ray_actors_are_processes_of_this_machine() -> None:
    with ActorHost(ray=False) as host:
        assert (host.about, host.is_local) == ("processes of this machine", True)
        with host.pool(Lifecycle.cold()) as pool:
            assert isinstance(pool, ProcessPool)


def test_one_process_is_killed_when_enough_is_complete_and_all_still_work() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        rule = KillOneActor(SimpleNamespace(working=[process.pid]), actors=2)  # type: ignore[arg-type]
        view: Any = SimpleNamespace(completed=4)
        assert rule.next_trigger(view) == Trigger(completions=5)
        for actors, complete in ((2, 1), (1, 4)):
            state: Any = SimpleNamespace(actors=range(actors), complete=np.arange(8) < complete)
            assert rule.decide(0.0, state) == []
            assert rule.killed is None
        enough: Any = SimpleNamespace(actors=range(2), complete=np.arange(8) < 2)
        assert rule.decide(0.0, enough) == []
        assert process.wait(timeout=600) == -9
        assert (rule.killed, rule.complete, rule.next_trigger(view)) == (process.pid, 2, None)
    finally:
        process.kill()


@pytest.mark.parametrize("address", ["10.0.0.5:6379"])
def test_a_process_on_another_machine_is_not_local(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import rlhfless.executor.distributed.actor_host as module

    monkeypatch.setattr(module, "RayCluster", lambda address, gpus: SimpleNamespace(close=lambda: None))
    with ActorHost(address, gpus=2) as host:
        assert not host.is_local
        assert address in host.about
