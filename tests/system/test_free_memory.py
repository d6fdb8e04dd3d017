"""What of the machine's memory a process can get, by the files in which Linux says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhfless.system import memory
from rlhfless.system.memory import free_memory_bytes

GIB = 2**30


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB available whose files say nothing of cgroups."""
    for name in ("MEMINFO", "CGROUP_FILE", "CGROUPS"):
        monkeypatch.setattr(memory, name, tmp_path / name)
    (tmp_path / "MEMINFO").write_text(f"MemTotal: 9 kB\nMemAvailable: {8 << 20} kB\n")
    return tmp_path


def cgroup(folder: Path, most: int | str, used: int, unread: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nfile 7\ninactive_file {unread}\nactive_file 3\n")


def test_without_cgroups_it_is_what_the_machine_has(linux: Path) -> None:
    assert free_memory_bytes() == 8 * GIB
    (linux / "MEMINFO").unlink()
    assert free_memory_bytes() is None


@pytest.mark.parametrize("told", ["0::/\n", None, "9:name=systemd:/\n4:memory:/a\n"])
def test_a_container_leaves_what_its_limit_does_and_the_files_that_nobody_reads(linux: Path, told: str | None) -> None:
    if told is not None:
        (linux / "CGROUP_FILE").write_text(told)
    cgroup(linux / "CGROUPS", 4 * GIB, 3 * GIB)
    assert free_memory_bytes() == GIB
    cgroup(linux / "CGROUPS", 4 * GIB, 3 * GIB, GIB // 2)
    assert free_memory_bytes() == GIB * 3 // 2
    cgroup(linux / "CGROUPS", 2 * GIB, 3 * GIB)
    assert free_memory_bytes() == 0
    (linux / "MEMINFO").unlink()
    assert free_memory_bytes() == 0


@pytest.mark.parametrize(("most", "used"), [("max", GIB), (64 * GIB, GIB)])
def test_a_container_that_may_use_more_than_there_is_has_what_the_machine_has(linux: Path, most: int | str, used: int) -> None:
    cgroup(linux / "CGROUPS", most, used)
    assert free_memory_bytes() == 8 * GIB


@pytest.mark.parametrize("tightest", ["", "a.slice", "a.slice/b c.scope"])
def test_every_cgroup_in_which_the_process_lies_limits_it(linux: Path, tightest: str) -> None:
    (linux / "CGROUP_FILE").write_text("4:memory:/other\n0::/a.slice/b c.scope\n")
    for folder in ("", "a.slice", "a.slice/b c.scope"):
        cgroup(linux / "CGROUPS" / folder, "max", 0)
    cgroup(linux / "CGROUPS" / tightest, 3 * GIB, GIB)
    cgroup(linux / "CGROUPS/z.slice", GIB, GIB)
    assert free_memory_bytes() == 2 * GIB


@pytest.mark.parametrize("stat", ["", "inactive_file many\n", "no pairs at all\n", None])
def test_a_cgroup_that_says_something_else_is_left_out(linux: Path, stat: str | None) -> None:
    cgroup(linux / "CGROUPS", GIB, 0)
    (linux / "CGROUPS/memory.stat").unlink()
    if stat is not None:
        (linux / "CGROUPS/memory.stat").write_text(stat)
    assert free_memory_bytes() == 8 * GIB
