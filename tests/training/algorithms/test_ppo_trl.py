"""PPO's losses and gradients beside those of the last TRL with PPO, 1.12, from a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fetched import fetched

HERE = Path(__file__).parent


@pytest.mark.full
def test_losses_and_gradients_are_trls() -> None:
    """What TRL 1.12 needs beside itself is in the environment, in newer versions."""
    folder = fetched("trl==1.12.*", "trl-1.12.*.dist-info")
    path = os.pathsep.join(map(str, (folder, HERE.parents[2], *filter(None, [os.environ.get("PYTHONPATH")]))))
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(HERE / "ppo_beside_trl.py")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
