"""Shared memory of an actor and its ranks goes with the actor, by whatever name Python lays it out; that of others stays."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_wall_samples import until

from rlhfless.system.scratch_folders import SHARED_MEMORY

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="other systems do not list such things")
ROOT = Path(__file__).parents[3]
RANK = """
import sys, time
from _multiprocessing import SemLock
lock = SemLock(1, 1, 1, name=sys.argv[1], unlink=False)
print("there", flush=True)
time.sleep(600)
"""
ACTOR = """
import os, subprocess, sys, time
from _multiprocessing import SemLock
from pathlib import Path
from rlhfless.engine.vllm.temp_files import PREFIX, noted
from rlhfless.system.scratch_folders import OwnFolder

where, name, script = sys.argv[1:]
folder = OwnFolder(PREFIX, Path(where))
os.environ["TMPDIR"] = str(folder.path)
with noted(folder):
    lock = SemLock(1, 1, 1, name=f"{name}-actor", unlink=False)
    rank = subprocess.Popen([sys.executable, "-c", script, f"{name}-rank"], stdout=subprocess.PIPE)
    rank.stdout.readline()
print(rank.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def where() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("kind", ["mp", "loky"])
def test_locks_of_an_actor_and_its_ranks_go_when_it_is_killed(kind: str, where: Path) -> None:
    """By the names that Python gives them, and those that joblib makes of them where something, like scikit-learn, imports it.
    A lock of somebody else stays."""
    name = f"{kind}-{os.getpid()}-{secrets.token_hex(4)}"
    actors, ranks, others = (SHARED_MEMORY / f"sem.{name}-{who}" for who in ("actor", "rank", "other"))
    others.touch()
    actor = subprocess.Popen(
        [sys.executable, "-c", ACTOR, str(where), f"/{name}", RANK], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert actor.stdout is not None
        rank = Path("/proc") / actor.stdout.readline().strip()
        assert actors.exists()
        assert ranks.exists()
        actor.kill()
        actor.wait()
        until(lambda: not [*where.iterdir()], "its folder is gone")
        until(lambda: not rank.exists(), "its rank has ended")
        until(lambda: not actors.exists() and not ranks.exists(), "their locks are gone")
        assert others.exists()
    finally:
        actor.kill()
        actor.wait()
        for lock in (actors, ranks, others):
            lock.unlink(missing_ok=True)
