"""CPU time of a process and of all that it started, ended ones included (Linux)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def tree_cpu_s(pid: int | None = None) -> float:
    """Return user and system seconds of a process (None: this one) and of its descendants.

    Descendants that have ended count once their parent has waited for them.
    """
    tick, root = os.sysconf("SC_CLK_TCK"), os.getpid() if pid is None else pid
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            values = entry.read_text().rsplit(")", 1)[1].split()
            one = int(entry.parent.name)
            parents[one], seconds[one] = int(values[1]), sum(map(int, values[11:15])) / tick
    tree, new = {root}, {root}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - tree
        tree |= new
    return sum(seconds.get(one, 0.0) for one in tree)
