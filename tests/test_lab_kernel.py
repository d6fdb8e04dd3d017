"""`make lab`: the kernel is the environment's own, whatever else is called ``python3`` here, and links can be opened."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupyter_client", reason="jupyter_client is not installed")

ROOT = Path(__file__).parents[1]
ASK = """
from jupyter_client import KernelManager
manager = KernelManager(kernel_name="python3")
print(manager.kernel_spec.resource_dir)
print(manager.format_kernel_cmd()[0])
"""


def recipe(target: str, *options: str) -> str:
    """The commands of a target, with this environment as the project's."""
    command = [
        "make",
        "--no-print-directory",
        "--dry-run",
        f"VENV={sys.prefix}",
        "-o",
        f"{sys.prefix}/.installed",
        target,
        *options,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600).stdout.strip()


def decoy(folder: Path) -> Path:
    """A kernel ``python3`` that would start another Python."""
    spec = folder / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/bin/false", "{connection_file}"], "display_name": "Python 3", "language": "python"}))
    return folder


@pytest.mark.parametrize("target", ["lab", "dashboard"])
def test_a_python3_of_somebody_else_does_not_get_in_between(target: str, tmp_path: Path) -> None:
    own = Path(sys.prefix) / "share" / "jupyter" / "kernels" / "python3"
    if not own.is_dir():
        pytest.skip(f"this environment has no kernel of its own in {own}")
    variable = recipe(target).splitlines()[-1].split("/bin/")[0].rsplit(" ", 1)[0]
    assert variable.startswith("JUPYTER_PATH=")
    env = {
        **os.environ,
        "HOME": str(tmp_path),
        "JUPYTER_PATH": str(decoy(tmp_path / "named")),
        "JUPYTER_DATA_DIR": str(decoy(tmp_path / "data")),
        "JUPYTER_PREFER_ENV_PATH": "0",
    }
    ask = [sys.executable, "-c", ASK]
    without = subprocess.run(ask, env=env, capture_output=True, text=True, check=True, timeout=600).stdout.split()
    assert without == [str(tmp_path / "named" / "kernels" / "python3"), "/bin/false"], "the decoy is one"
    script = f'{variable} "$0" -c "$1"'
    found = subprocess.run(
        ["sh", "-c", script, sys.executable, ASK], env=env, capture_output=True, text=True, check=True, timeout=600
    )
    assert found.stdout.split() == [str(own), sys.executable]


def test_servers_listen_on_loopback_and_lab_serves_what_notebooks_link_to() -> None:
    lab, dashboard = recipe("lab").splitlines()[-1], recipe("dashboard").splitlines()[-1]
    assert "--ip 127.0.0.1" in lab
    assert f'--ServerApp.root_dir="{ROOT}"' in lab
    assert "--Voila.ip=127.0.0.1" in dashboard
    assert "--Voila.auto_token=True" in dashboard
    assert not re.search(r"--\S*token=(?!True)", dashboard), "the token itself is on no command line"
    tokens = {
        re.findall(r"token of the address below: (.*)\"", line)[0]
        for line in recipe("dashboard").splitlines()
        if "token of" in line
    }
    assert tokens == {"$JUPYTER_TOKEN"}


def test_a_dashboard_of_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    command = ["make", "--no-print-directory", "-o", f"{sys.prefix}/.installed", f"VENV={sys.prefix}", "dashboard"]
    result = subprocess.run([*command, f"LOG={tmp_path / 'none'}"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 2
    assert result.stdout == f"LOG is {tmp_path / 'none'}, but there is no such file or folder; give a trace folder or a table\n"
