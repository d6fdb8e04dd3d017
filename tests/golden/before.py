"""Compares the torch engine with that of an earlier commit on this machine, bit for bit: ``make golden-torch BEFORE=HEAD~1``.

Knows git and processes; each side is run by its own ``produce_torch.py``, so names may differ between the two. Floats of torch
are the same on one machine only: nothing of them is kept in a file.

    python tests/golden/before.py HEAD~1
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare import differences, told

PROJECT = Path(__file__).parents[2]
PRODUCER = Path("tests/golden/produce_torch.py")


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yield a folder with the project as it was at ``commit``; it is removed afterwards.

    Raises:
        SystemExit: There is no such commit, or it has no golden record yet.
    """
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        copy = Path(folder) / "before"
        made = subprocess.run(
            ["git", "worktree", "add", "--detach", str(copy), commit], cwd=PROJECT, capture_output=True, text=True
        )
        if made.returncode:
            raise SystemExit(f"{commit}: cannot be checked out ({made.stderr.strip().splitlines()[-1]}); name a commit")
        try:
            if not (copy / PRODUCER).exists():
                raise SystemExit(f"{commit}: has no {PRODUCER}; name a later commit")
            yield copy
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(copy)], cwd=PROJECT, check=True)


def produced(project: Path, out: Path) -> Any:
    """Return what the torch engine of a project folder makes; its own modules come before those that are installed. One thread,
    as threads that wait for each other take minutes on a busy machine.

    Raises:
        subprocess.CalledProcessError: It failed; what it wrote stands above.
    """
    path = os.pathsep.join([str(project), str(project / "tests" / "support")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(project / PRODUCER), str(out)], cwd=project, env=environment, check=True)
    return json.loads(out.read_text())


def main() -> None:
    """Print what differs; exit with 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="the commit before, which this working tree is compared with")
    commit = parser.parse_args().commit
    with tempfile.TemporaryDirectory() as folder, checked_out(commit) as copy:
        before, now = (produced(where, Path(folder) / f"{i}.json") for i, where in enumerate((copy, PROJECT)))
    found = list(differences(before, now, exact=True))
    print(f"torch, against {commit}: {len(found):,} differences in {', '.join(before)}")
    if found:
        print(told(found))
        sys.exit(1)


if __name__ == "__main__":
    main()
