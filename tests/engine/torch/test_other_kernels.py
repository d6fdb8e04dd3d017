"""The torch engine's promise of bits with the kernels of other processors, as far as this one can run them.

MKL and torch choose kernels by what the processor can do. A variable of the environment makes them choose those of a lesser
one. Each test runs the tests of the promise again in a process with such a variable. Where it changes no kernel, as AVX2's does
not on a processor without AVX-512, nothing new would be tried: the test is skipped, which the last lines of a test run say.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

TESTS = ("test_row_tiles.py", "test_torch_bits.py", "test_torch_drafts.py")
IN_CI = ("MKL_ENABLE_INSTRUCTIONS=AVX2", "MKL_CBWR=COMPATIBLE")
NIGHTLY = ("MKL_ENABLE_INSTRUCTIONS=SSE4_2", "ATEN_CPU_CAPABILITY=default")


def run(setting: str | None, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a variable, and without those by which the processes of a test run know each other."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLHFLESS_TEST"))}
    for other in (*IN_CI, *NIGHTLY):
        env.pop(other.split("=")[0], None)
    if setting is not None:
        name, value = setting.split("=")
        env[name] = value
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)


def bits(setting: str | None) -> str:
    done = run(setting, "-m", "rlhfless.engine.torch.kernel_bits")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def own_bits() -> str:
    return bits(None)


@pytest.mark.parametrize(
    "setting",
    [
        *(pytest.param(setting, marks=pytest.mark.full) for setting in IN_CI),
        *(pytest.param(setting, marks=pytest.mark.nightly) for setting in NIGHTLY),
    ],
)
def test_the_promise_of_bits_holds_with_other_kernels(setting: str, own_bits: str) -> None:
    if (found := bits(setting)) == own_bits:
        pytest.skip(f"{setting} changes no kernel on this processor ({found}), so the tests of bits are not run again with it")
    folder = Path(__file__).parent
    files = [str(folder / name) for name in TESTS]
    done = run(setting, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full and not nightly", *files)
    print(f"{setting}: kernels have other bits ({found}) than without ({own_bits})", done.stdout[-4000:], sep="\n")
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
