"""A base install plans, reads logs and draws pages: without Jupyter and torch, and on systems other than Linux."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from page_figures import figures_json

packaging = pytest.importorskip("packaging.requirements", reason="packaging is not installed")
ROOT = Path(__file__).parents[2]
LOG = ROOT / "data" / "traces" / "reasoning-static"
ONLY_POSIX = ("fcntl", "grp", "posixshmem", "pty", "pwd", "resource", "syslog", "termios", "tty")
"""Modules of the standard library that Windows lacks."""


def _canonical(name: str) -> str:
    return name.replace("_", "-").replace(".", "-").lower()


def _needs(package: str) -> Iterator[str]:
    """What a package needs without any of its extras; of this project, what its file says."""
    if package == "rlhfless":
        listed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    else:
        listed = requires(package) or []
    for line in listed:
        requirement = packaging.Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _canonical(requirement.name)


@cache
def not_in_base() -> str:
    """Top-level modules of installed packages that a base install would not bring, and those that Windows lacks."""
    base, todo = {"rlhfless"}, ["rlhfless"]
    while todo:
        new = set(_needs(todo.pop())) - base
        base |= new
        todo += new
    modules = packages_distributions()
    missing = [name for name, packages in modules.items() if not base & set(map(_canonical, packages))]
    assert {"torch", "ipywidgets", "IPython", "nbformat"} <= set(missing)
    assert not {"plotly", "ortools", "pandas"} & set(missing)
    return ",".join([*sorted(missing), *ONLY_POSIX])


def in_base(*command: str) -> subprocess.CompletedProcess[str]:
    """Run ``rlhfless`` as a base install would, on a system without POSIX."""
    script = Path(__file__).with_name("without_modules.py")
    return subprocess.run(
        [sys.executable, str(script), not_in_base(), "rlhfless", *command],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table as people bring it: two steps of 16 prompts with four responses each."""
    rows = ["step,prompt_id,prompt_tokens,response_tokens"]
    rows += [f"{n // 64},{n // 4},{40 + n % 7},{60 + (n * n * 37) % 900}" for n in range(128)]
    path = tmp_path_factory.mktemp("base") / "log.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.full
def test_report_draws_a_page(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    made = in_base("report", str(log), "--gpus", "4", "-o", str(page))
    assert made.returncode == 0, made.stderr
    text = page.read_text("utf-8")
    assert "128 responses" in text.replace("&nbsp;", " ")
    assert '"type":"bar"' in figures_json(text)


@pytest.mark.full
def test_plan_plans(log: Path) -> None:
    made = in_base("plan", str(log), "--gpus", "4", "--profile", "l40s-qwen2.5-3b-tp2", "--step", "1")
    assert made.returncode == 0, made.stderr
    assert "actor 0: GPUs 0,1" in made.stdout


@pytest.mark.full
def test_a_notebook_is_refused_with_the_extra_to_install(log: Path, tmp_path: Path) -> None:
    refused = in_base("report", str(log), "--gpus", "4", "-o", str(tmp_path / "report.ipynb"))
    assert refused.returncode == 2
    assert "rlhfless[notebook]" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_recording_warns_where_there_are_no_file_locks(tmp_path: Path) -> None:
    code = """
import sys
from rlhfless.trace import Recorder
with Recorder(sys.argv[1]) as recorder:
    recorder.append(step=0, prompt_id=0, sample=0, response_tokens=3)
print(recorder.recorded, recorder.lost)
"""
    (tmp_path / "records_here.py").write_text(code)
    script = Path(__file__).with_name("without_modules.py")
    command = [sys.executable, str(script), ",".join(ONLY_POSIX), "records_here", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["0", "1"]
    for part in ("file locks", "Linux or macOS", "WSL"):
        assert part in run.stderr
    assert "Traceback" not in run.stderr


IMPORTS_ALL = """
import importlib
import sys

missing, names = sys.argv[1].split(","), sys.argv[2].split(",")
with_extras = []
for name in names:  # whatever else they import is loaded while the modules are there
    try:
        importlib.import_module(name)
        with_extras.append(name)
    except ModuleNotFoundError as error:
        if error.name in missing or error.name.partition(".")[0] in ("rlhfless", "solver"):
            raise
for name in [name for name in sys.modules if name.partition(".")[0] in ("rlhfless", "solver")]:
    del sys.modules[name]
sys.modules.update(dict.fromkeys(missing))
for name in with_extras:
    importlib.import_module(name)
print(len(with_extras))
"""


@pytest.mark.full
def test_every_module_can_be_imported_where_the_system_has_no_posix_modules() -> None:
    files = [path.relative_to(ROOT) for top in ("rlhfless", "solver") for path in sorted((ROOT / top).rglob("*.py"))]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files if path.stem != "__main__"]
    command = [sys.executable, "-c", IMPORTS_ALL, ",".join(ONLY_POSIX), ",".join(names)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout.split()[-1]) > 500, "most of them need no extra"
