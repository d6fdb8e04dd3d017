"""Folders that go with their process: after a normal end, a signal, and where nobody was left to remove them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_wall_samples import until

from rlhfless.system.scratch_folders import ELSEWHERE, OwnFolder, goes_with_this_process, in_memory, remove_unless_held

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, subprocess, sys, time
from multiprocessing.shared_memory import SharedMemory
from multiprocessing import resource_tracker
from pathlib import Path
from rlhfless.system.scratch_folders import OwnFolder

folder = OwnFolder("rlhfless-test-", Path(sys.argv[1]))
(folder.path / "deep").mkdir()
(folder.path / "deep" / "file").write_text("something")
os.environ["TMPDIR"] = str(folder.path)
rank = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
memory = SharedMemory(f"rlhfless-test-{os.getpid()}", create=True, size=8)
resource_tracker.unregister(memory._name, "shared_memory")
folder.shared_memory([f"{memory.name}*"])
print(folder.path, rank.pid, memory.name, flush=True)
if sys.argv[2] == "waits":
    time.sleep(600)
"""


@pytest.fixture
def where() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def program(where: Path, way: str) -> tuple[subprocess.Popen[str], Path, int, Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(where), way], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    folder, rank, memory = process.stdout.readline().split()
    return process, Path(folder), int(rank), Path("/dev/shm") / memory


@pytest.mark.parametrize("way", ["ends", "SIGTERM", "SIGKILL", "with its group"])
def test_a_folder_goes_with_its_process(way: str, where: Path) -> None:
    """And with it processes whose temporary files are there, and shared memory that is named there."""
    process, folder, rank, memory = program(where, "ends" if way == "ends" else "waits")
    if way == "with its group":
        os.killpg(process.pid, signal.SIGKILL)
    elif way != "ends":
        assert (folder / "deep" / "file").exists()
        assert memory.exists()
        process.send_signal(signal.Signals[way])
    process.communicate(timeout=600)
    until(lambda: not folder.exists(), "the folder is gone")
    until(lambda: not is_running(rank), "the process that it started has ended")
    until(lambda: not memory.exists(), "its shared memory is freed")


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_removed_folder_is_gone_at_once(where: Path) -> None:
    one, other = OwnFolder("rlhfless-test-", where), OwnFolder("rlhfless-test-", where)
    assert {*where.iterdir()} == {one.path, other.path}, "what somebody holds stays"
    for _ in range(2):
        one.remove()
    assert [*where.iterdir()] == [other.path]
    other.remove()


def test_what_nobody_removed_is_removed_by_the_next(where: Path) -> None:
    left, another = where / "rlhfless-test-left", where / "rlhfless-other-left"
    left.mkdir()
    another.mkdir()
    memory = in_memory() / f"rlhfless-test-left-{os.getpid()}"
    memory.touch()
    (left / ELSEWHERE).write_text(f"{memory.name}\n")
    OwnFolder("rlhfless-test-", where).remove()
    assert [*where.iterdir()] == [another]
    assert not memory.exists()


def test_what_a_folder_names_is_shared_memory_and_nothing_else(where: Path) -> None:
    left, file = where / "rlhfless-test-left", where / "file"
    left.mkdir()
    file.touch()
    (left / ELSEWHERE).write_text(f"{file}\n../..{file}\n")
    assert remove_unless_held(left)
    assert [*where.iterdir()] == [file]


def test_a_folder_of_another_user_stays(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = where / "rlhfless-test-left"
    left.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
    assert remove_unless_held(left)
    assert left.exists()


def test_a_folder_that_nobody_holds_stays_as_long_as_its_process(where: Path) -> None:
    folder = where / "rlhfless-test-mine"
    folder.mkdir()
    goes_with_this_process(folder)
    time.sleep(0.3)
    assert folder.exists()
