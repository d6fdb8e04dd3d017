"""Memory that a process can still allocate on this machine, limited by its container.

The values come from Linux's files. A container's memory is that of a cgroup (version 2), and every enclosing cgroup limits it
too.
"""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP_FILE = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int | None:
    """Return the bytes that could be allocated now: the least that the machine and the cgroups of this process have left. None
    where they are unknown."""
    free_bytes_of = [_of_machine(), *map(_of_cgroup, _cgroups())]
    return min((free for free in free_bytes_of if free is not None), default=None)


def _of_machine() -> int | None:
    try:
        rows = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
        return int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _cgroups() -> list[Path]:
    """Return the folders of this process' cgroup and of the enclosing ones; a container may see only its own, as the root."""
    try:
        lines = CGROUP_FILE.read_text().splitlines()
    except OSError:
        lines = []
    cgroup = next((Path(line.removeprefix("0::/")) for line in lines if line.startswith("0::/")), Path())
    return [CGROUPS / cgroup, *(CGROUPS / parent for parent in cgroup.parents)]


def _of_cgroup(folder: Path) -> int | None:
    """Return the memory that a cgroup may still use; None where it has no limit, or the folder is no cgroup."""
    try:
        maximum, used = ((folder / f"memory.{name}").read_text() for name in ("max", "current"))
        pages = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        # Files that were read count as used; the kernel drops those that nobody reads any more when memory is asked for.
        return max(0, int(maximum) - int(used) + int(pages["inactive_file"]))
    except (OSError, KeyError, ValueError):  # no limit is the word max
        return None
