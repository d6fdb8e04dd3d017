"""vLLM's weights on another machine: laid down once, read by all, gone when nobody reads them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from torch_wall_samples import until
from vllm_samples import factory_of, model_of

from rlhfless.engine.vllm import weight_shipping
from rlhfless.engine.vllm import worker_backend as vllm_backend
from rlhfless.engine.vllm.factory import VllmEngineFactory
from rlhfless.engine.vllm.weight_folders import check_weights, write_weights
from rlhfless.engine.vllm.weight_shipping import ShippedWeights
from rlhfless.system import scratch_folders


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine's memory."""
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.setattr(scratch_folders, "SHARED_MEMORY", there)
    return there


@pytest.fixture
def engines(tmp_path: Path) -> VllmEngineFactory:
    return factory_of(write_weights(model_of(1), tmp_path / "here", 4), 4)


def contents(folder: str | Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in Path(folder).iterdir()}


def test_a_backend_reads_shipped_weights_as_a_factory_with_a_folder_of_its_own(
    machine: Path, engines: VllmEngineFactory
) -> None:
    (Path(engines.weights) / "empty").touch()
    expected = contents(engines.weights)
    form, buffers = vllm_backend.Backend().pack(engines.to_remote())
    stored = [bytearray(buffer) for buffer in buffers]
    assert sum(map(len, stored)) == sum(map(len, expected.values())) > len(form)
    write_weights(model_of(2), Path(engines.weights).parent, 5)  # after which the learner's folder is gone
    found = vllm_backend.Backend().unpack(form, stored, "cpu")
    for buffer in stored:
        buffer[:] = bytes(len(buffer))
    assert Path(found.weights).is_relative_to(machine)
    assert contents(found.weights) == expected
    check_weights(Path(found.weights), 4)
    assert (found.weights_version, found.eos_id) == (4, engines.eos_id)
    vllm_backend.weights_are_read()
    assert not list(machine.iterdir())
    vllm_backend.weights_are_read()


def test_the_last_reader_removes_them(machine: Path, engines: VllmEngineFactory) -> None:
    carried = engines.to_remote()
    first, second = carried.materialise(), carried.materialise()
    assert first.engines == second.engines
    first.release()
    assert contents(second.engines.weights) == contents(engines.weights)
    second.release()
    assert not list(machine.iterdir())
    again = carried.materialise()
    assert contents(again.engines.weights) == contents(engines.weights)
    again.release()


def test_what_somebody_left_who_was_killed_is_removed_by_the_next(machine: Path, engines: VllmEngineFactory) -> None:
    left, read = engines.to_remote().materialise(), engines.to_remote().materialise()
    assert len(list(machine.iterdir())) == 2
    os.close(left.lock)  # as the system does with the files of a process that has ended
    mine = engines.to_remote().materialise()
    assert sorted(machine.iterdir()) == sorted([read.place, mine.place])
    half = machine / f"{weight_shipping.PREFIX}half"
    (half / "unfinished").mkdir(parents=True)
    mine.release()
    read.release()
    ShippedWeights(engines, {"weights": np.ones(3, np.uint8)}, "half").materialise().release()
    assert not list(machine.iterdir())


def test_where_there_is_no_room_nothing_stays(
    machine: Path, engines: VllmEngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(carried: ShippedWeights, place: Path) -> None:
        (place / "unfinished").mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    carried = engines.to_remote()
    monkeypatch.setattr(ShippedWeights, "_write", full)
    with refused(OSError):
        carried.materialise()
    assert not list(machine.iterdir())
    there = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    assert not [file for file in there if str(machine) in file], "no open file is left"
    monkeypatch.undo()
    monkeypatch.setattr(scratch_folders, "SHARED_MEMORY", machine)
    carried.materialise().release()


def test_what_a_process_left_that_was_killed_while_it_read_is_removed(machine: Path, engines: VllmEngineFactory) -> None:
    """Unless somebody else reads it: then with them."""
    carried = engines.to_remote()
    mine = carried.materialise()
    context = multiprocessing.get_context("fork")
    for is_last in (False, True):
        reads, theirs = context.Pipe(duplex=False)
        other = context.Process(target=read_and_die, args=(carried if not is_last else engines.to_remote(), theirs))
        other.start()
        place = Path(reads.recv())
        assert (place == mine.place) == (not is_last)
        other.join()
        assert other.exitcode == -signal.SIGKILL
        if is_last:
            until(lambda place=place: not place.exists(), "it is removed")
    time.sleep(0.5)
    assert contents(mine.engines.weights) == contents(engines.weights)
    mine.release()
    assert not list(machine.iterdir())


def read_and_die(carried: ShippedWeights, connection: Any) -> None:
    connection.send(str(carried.materialise().place))
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


def test_many_come_and_go_at_once(machine: Path, engines: VllmEngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of them reads all of its weights for as long as it wants, whoever writes and removes meanwhile."""
    versions = [engines.to_remote() for _ in range(2)]
    expected, wrong, write = contents(engines.weights), list[str](), ShippedWeights._write
    writing: dict[str, int] = {one.name: 0 for one in versions}

    def watched_write(carried: ShippedWeights, place: Path) -> None:
        writing[carried.name] += 1
        if writing[carried.name] > 1:
            wrong.append("two write at once")
        write(carried, place)
        writing[carried.name] -= 1

    def come_and_go(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(12):
            laid_down = versions[rng.integers(2)].materialise()
            for _ in range(int(rng.integers(1, 3))):
                if contents(laid_down.engines.weights) != expected:
                    wrong.append("weights are not whole")
                time.sleep(rng.uniform(0, 2e-3))
            laid_down.release()

    monkeypatch.setattr(ShippedWeights, "_write", watched_write)
    run_all([lambda seed=seed: come_and_go(seed) for seed in range(8)])
    assert not wrong
    assert not list(machine.iterdir())


def run_all(tasks: list[Callable[[], None]]) -> None:
    """In threads; an exception in one of them fails the test."""
    failed: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
