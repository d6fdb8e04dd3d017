"""What ended a step or a program is the error that is seen, also when cleaning up after it fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.shared_memory import SharedMemory
from pickle import PickleBuffer
from typing import Any

import pytest
from error_messages import refused
from executor_samples import plan_of, random_step
from scripted_steps import GROUPS, POOL_KINDS, stage
from scripted_work import fail
from scripted_world import Punctual

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import Executor, Gpus, StepFailed, WorkItem
from rlhfless.executor.distributed.worker.shared_memory import read_block, write_block


class Broken(SimulatedEngine):
    """Engines that cannot be closed."""

    def close(self) -> None:
        raise OSError("the device is gone")


def notes_of(error: BaseException) -> str:
    """What is said beside the error and its causes."""
    said: list[str] = []
    found: BaseException | None = error
    while found is not None:
        said += getattr(found, "__notes__", [])
        found = found.__cause__
    return "\n".join(said)


def test_an_emulated_step_says_what_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    step = random_step(3)

    def stop(progress: Any) -> None:
        raise ValueError("the callback fails")

    with Executor(Broken, step.cluster, latency=step.latency) as executor:
        executor.on_progress = stop
        with refused(StepFailed, "the callback fails") as failed:
            executor.run(plan_of([range(0, 9), range(9, 18)]), step.requests())
    assert "the device is gone" in notes_of(failed.value)


@pytest.mark.parametrize("pool_kind", POOL_KINDS)
def test_a_step_of_a_pool_says_what_ended_it(pool_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        end: Callable[[Sequence[Any]], None] = on.pool.end_all
        with monkeypatch.context() as patch:

            def ends_and_fails(actors: Sequence[Any]) -> None:
                end(actors)
                raise OSError("the machine is gone")

            patch.setattr(on.pool, "end_all", ends_and_fails)
            learner = Gpus("learner", (8,), node=2)
            with refused(StepFailed, "work item 0", "no such token") as failed:
                on.run(plan_of(GROUPS), work=[WorkItem("learn", run=fail, gpus=learner, responses=(0,), in_process=True)])
    assert "the machine is gone" in notes_of(failed.value)


class Unclosable:
    """A pool and engines whose ends fail."""

    def __init__(self, done: list[str], name: str) -> None:
        self.done, self.name = done, name

    def __call__(self, *about: Any) -> Any:
        raise AssertionError("no step is run")

    def close(self) -> None:
        self.done.append(self.name)
        raise OSError(f"{self.name} cannot be closed")


def test_an_executor_closes_everything_and_keeps_the_error_of_the_program() -> None:
    step, done = random_step(3), list[str]()
    pool: Any = Unclosable(done, "pool")
    engines: Any = Unclosable(done, "engines")
    with (
        refused(ValueError, "the program fails") as failed,
        Executor(engines, step.cluster, latency=step.latency, actor_pool=pool),
    ):
        raise ValueError("the program fails")
    assert done == ["pool", "engines"]
    assert "pool cannot be closed" in notes_of(failed.value)
    with refused(OSError, "pool cannot be closed"):
        Executor(engines, step.cluster, latency=step.latency, actor_pool=pool).close()
    assert done == ["pool", "engines"] * 2


class Full:
    """A device on which nothing fits; it still refers to what it was given."""

    def pack(self, thing: Any) -> tuple[bytes, list[PickleBuffer]]:
        return b"", [PickleBuffer(thing)]

    def unpack(self, form: bytes, buffers: Iterable[Any], device: str) -> Any:
        self.given = list(buffers)
        raise MemoryError(f"{len(self.given)} buffers do not fit")


def test_memory_that_cannot_be_closed_does_not_hide_that_a_device_is_full() -> None:
    backend: Any = Full()
    block = write_block(backend, f"rlhfless-test-{os.getpid()}", bytes(100))
    with refused(MemoryError, "1 buffers do not fit"):
        read_block(backend, block, "cpu", free=True)
    for view in backend.given:
        view.release()
    with pytest.raises(FileNotFoundError):
        SharedMemory(block.name)
