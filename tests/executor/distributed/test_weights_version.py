"""A factory that names the version of its weights: its engines say which they have loaded."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, ClassVar

import pytest
from error_messages import refused

from rlhfless.engine import Capabilities, PoolEngines
from rlhfless.engine.common.pool_engines import Backend
from rlhfless.errors import InputTypeError
from rlhfless.executor.distributed.messages import StartStep
from rlhfless.executor.distributed.worker.shared_memory import write_block
from rlhfless.executor.distributed.worker.worker import Worker
from solver import LatencyModel
from solver.model.admission import Admission

LATENCY = LatencyModel("small", 1, 2e-3, 40e-6, max_batch=4, kv_capacity_tokens=1 << 20)
BLOCK = "rlhfless-test-weights-version"


class Idle:
    """An engine without responses."""

    clock_s = 0.0

    def generated_tokens(self) -> dict[int, int]:
        return {}

    def running(self) -> tuple[int, ...]:
        return ()

    waiting = running

    def add(self, *_: Any) -> None:
        raise NotImplementedError

    step = cut = close = add


class Loaded(Idle):
    """An engine that has loaded the weights of version 7."""

    weights_version = 7


@dataclass(frozen=True)
class Versioned(PoolEngines):
    """Makes one of them."""

    says: bool

    capabilities: ClassVar[Capabilities] = Capabilities("an idle engine")

    @property
    def version(self) -> int:
        return 6

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> Idle:
        return Loaded() if self.says else Idle()


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    ours, its = Pipe()
    with ours, its:
        yield ours, its


def start(connection: Connection, says: bool) -> None:
    worker = Worker(connection, queue.SimpleQueue(), "cpu", Capabilities.backend)
    block = write_block(Backend(), BLOCK, Versioned(says))
    try:
        worker._obey(StartStep(0.0, block, LATENCY, Admission(4, 1 << 20), 5))
    finally:
        memory = SharedMemory(BLOCK)
        memory.close()
        memory.unlink()


def test_the_first_report_has_the_version_that_the_engine_has_loaded(ends: tuple[Connection, Connection]) -> None:
    start(ends[1], says=True)
    assert ends[0].recv().weights_version == 7


def test_an_engine_that_does_not_say_its_version_is_refused_by_name(ends: tuple[Connection, Connection]) -> None:
    with refused(InputTypeError, "Versioned", "Idle", "weights_version"):
        start(ends[1], says=False)
