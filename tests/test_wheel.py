"""An installed wheel, in an environment with no other packages and in a folder with no clone: what works, and what is refused.

In CI the environment has links to the packages of this one that the wheel needs, no others. The nightly tests install the wheel
with pip, as users do, with each extra alone and with each supported Python that is here.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from rlhfless import __version__
from rlhfless.errors import EXTRAS
from rlhfless.system.browser import find_browser

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
NEED_TORCH = ("torch", "lora")
MODEL = ROOT / "data" / "models" / "arithmetic-grpo"

RUN_COMMANDS = """
import contextlib, io, json, sys
from rlhfless.cli import main
found = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""
USE_NAMES = """
import json, rlhfless as rl
run = rl.load(rl.example(), verbose=False)
found = {"file": rl.__file__, "example": str(rl.example()), "steps": len(run.steps), "verdict": bool(run.diagnosis().verdict)}
for name, use in {"live": lambda: rl.live, "compare": lambda: rl.compare, "explore": run.explore, "Trainer": lambda: rl.Trainer,
                  "TorchEngine": lambda: rl.TorchEngine}.items():
    try:
        use()
        found[name] = ""
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


class Ended(NamedTuple):
    """A command that has ended."""

    code: int | str
    out: str
    err: str


class Installed(NamedTuple):
    """An environment with the wheel, and an empty folder in which its commands run."""

    python: Path
    folder: Path

    def run(self, *arguments: object) -> Ended:
        """Run a program of the environment, without this environment's variables."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
        typed = [str(self.python.parent / str(arguments[0])), *map(str, arguments[1:])]
        done = subprocess.run(typed, capture_output=True, text=True, check=False, cwd=self.folder, env=kept, timeout=1200)
        return Ended(done.returncode, done.stdout, done.stderr)

    def commands(self, *lines: list[str]) -> list[Ended]:
        """Run commands of ``rlhfless`` one after another in one process, as starting one takes seconds."""
        done = self.run("python", "-c", RUN_COMMANDS, json.dumps(lines))
        assert done.code == 0, done.err
        return [Ended(*found) for found in json.loads(done.out.splitlines()[-1])]

    def names(self) -> dict[str, str | int | bool]:
        """Use names of ``rlhfless`` in Python; an error becomes its type and sentence."""
        done = self.run("python", "-c", USE_NAMES)
        assert done.code == 0, done.err
        return dict(json.loads(done.out.splitlines()[-1]))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ("pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, ROOT)
    done = subprocess.run([sys.executable, "-m", *map(str, build)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def needed(name: str, extras: frozenset[str], found: dict[str, frozenset[str]]) -> None:
    """Add the distributions that one needs with these extras to ``found``."""
    if name in found and extras <= found[name]:
        return
    found[name] = extras | found.get(name, frozenset())
    for text in importlib.metadata.requires(name) or ():
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            needed(re.sub(r"[-_.]+", "-", wanted.name).lower(), frozenset(wanted.extras), found)


def linked(wheel: Path, folder: Path, extra: str | None) -> Installed:
    """Return a new environment with the wheel and links to what it needs of the packages of this environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
        metadata = next(name for name in packed.namelist() if name.endswith("/METADATA"))
        requires = importlib.metadata.PathDistribution(site / Path(metadata).parent).requires or []
    found: dict[str, frozenset[str]] = {}
    for wanted in map(Requirement, requires):
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra or ""}):
            needed(re.sub(r"[-_.]+", "-", wanted.name).lower(), frozenset(wanted.extras), found)
    for name in found:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    program = folder / "venv" / "bin" / "rlhfless"
    program.write_text(f"#!{folder / 'venv' / 'bin' / 'python'}\nfrom rlhfless.cli import main\nmain()\n", encoding="utf-8")
    program.chmod(0o755)
    (folder / "empty").mkdir()
    return Installed(folder / "venv" / "bin" / "python", folder / "empty")


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return linked(wheel, tmp_path_factory.mktemp("base"), None)


def layouts(out: str | None = None) -> list[str]:
    step = "--gpus 8 --gpu h100 --model actor=qwen2.5-7b --responses 64 --prompt-tokens 100 --response-tokens 500"
    return ["layouts", "--algorithm", "grpo", *step.split(), *(() if out is None else ("-o", out))]


def texts_without_lengths(folder: Path) -> Path:
    (folder / "verl").mkdir(exist_ok=True)
    rows = [{"step": 1, "input": "1 + 1 =", "output": "2 " * count, "score": 1.0} for count in (3, 9)]
    (folder / "verl" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / "verl"


def check_the_front(installed: Installed, extras: tuple[str, ...]) -> None:
    """Names of Python work, or say which extra they need."""
    found = installed.names()
    for key in ("file", "example"):
        assert str(found[key]).startswith(str(installed.python.parents[1])), found[key]
    assert (found["steps"], found["verdict"]) == (8, True)
    for name, extra in {"live": "notebook", "compare": "notebook", "explore": "notebook", "Trainer": "torch",
                        "TorchEngine": "torch"}.items():  # fmt: skip
        said = str(found[name])
        assert said == "" if extra in extras else re.fullmatch(rf"MissingExtra: .*pip install 'rlhfless\[{extra}\]'", said)


def check_base(installed: Installed) -> None:
    """What needs no extra works."""
    assert installed.run("rlhfless", "--version").out.strip() == f"rlhfless, version {__version__}"
    example = str(installed.names()["example"])
    drafts = str(Path(example).with_name("arithmetic-grpo-drafts"))
    ended = installed.commands(
        ["--help"], ["doctor"], ["report", example], ["report", example, "-o", "page.html", "--steps", "1"],
        ["report", example, "-o", "numbers.json", "--steps", "1"], ["plan", example],
        ["simulate", drafts, "--policies", "static"],
        ["step", drafts, "--algorithm", "grpo", "--gpus", "4", "--gpu", "h100", "--model", "actor=qwen2.5-7b"],
        layouts("layouts.html"), ["convert", example, "-o", "timeline.json"], ["figures", "3c", "-o", "figures"],
        ["train", "--dry-run", "preset=demo"],
    )  # fmt: skip
    for one in ended:
        assert one.code == 0, one
        assert "Traceback" not in one.err
    assert ended[1].out.splitlines()[0].startswith("Yes, ")
    assert "installed in" in ended[1].out.splitlines()[1]
    for name in ("page.html", "numbers.json", "layouts.html", "timeline.json", "figures/index.html"):
        assert (installed.folder / name).stat().st_size > 1000, name


def check_refusals(installed: Installed) -> None:
    """Every command that needs an extra says which, in one sentence, with exit code 2."""
    example = str(installed.names()["example"])
    lines = {
        "notebook": ["report", example, "-o", "report.ipynb"],
        "torch": ["train", "preset=demo", "-o", "run"],
        "export": layouts("layouts.png"),
        "logs": ["report", str(texts_without_lengths(installed.folder)), "--tokenizer", str(MODEL)],
    }
    measured = ["profile", "-o", "profile.json"]
    for extra, one in zip([*lines, "torch"], installed.commands(*lines.values(), measured), strict=True):
        assert one.code == 2, one
        assert one.err.count("\n") == 1, one.err
        assert one.err.rstrip().endswith(f"pip install 'rlhfless[{extra}]'"), one.err
        assert not one.out
    page = installed.run("python", "-m", "rlhfless.report.page", "some.ipynb", "page.html")
    assert (page.code, page.err.count("\n")) == (2, 1)
    assert "rlhfless[notebook]" in page.err


@pytest.mark.full
def test_what_needs_no_extra_works_in_an_empty_environment(base: Installed) -> None:
    check_base(base)


@pytest.mark.full
def test_what_needs_an_extra_names_it(base: Installed) -> None:
    check_the_front(base, ())
    check_refusals(base)


@pytest.mark.full
def test_with_the_extra_notebook_dashboards_and_notebooks_work(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("papermill", reason="the extra notebook is not installed")
    check_notebook(linked(wheel, tmp_path, "notebook"))


def check_notebook(installed: Installed) -> None:
    check_the_front(installed, ("notebook",))
    example = str(installed.names()["example"])
    (written,) = installed.commands(["report", example, "-o", "report.ipynb", "--steps", "1"])
    assert written.code == 0, written
    notebook = json.loads((installed.folder / "report.ipynb").read_text("utf-8"))
    assert example in json.dumps(notebook)


# --- installed with pip, as users do ----------------------------------------------------------------------------------


def python_of(version: str) -> str:
    """Return a Python of this version that can make environments; skips the test where there is none."""
    places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    for place in (sys.executable, shutil.which(f"python{version}"), *map(str, places)):
        asked = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        if place is not None:
            done = subprocess.run([place, "-c", asked], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return place
    pytest.skip(f"there is no Python {version} with venv on this machine")


def with_pip(wheel: Path, folder: Path, version: str, extra: str | None) -> Installed:
    """Return a new environment into which pip has installed the wheel."""
    subprocess.run([python_of(version), "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    install = ("-m", "pip", "install", "--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt"), what)
    done = subprocess.run([python, *install], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "empty").mkdir()
    return Installed(python, folder / "empty")


@pytest.mark.nightly
@pytest.mark.parametrize("version", PYTHONS)
def test_pip_installs_what_needs_no_extra(version: str, wheel: Path, tmp_path: Path) -> None:
    installed = with_pip(wheel, tmp_path, version, None)
    check_base(installed)
    check_the_front(installed, ())
    check_refusals(installed)


@pytest.mark.nightly
@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize("extra", EXTRAS)
def test_pip_installs_each_extra_alone(extra: str, version: str, wheel: Path, tmp_path: Path) -> None:
    if extra == "vllm":
        pytest.skip("vLLM's own wheel needs a GPU; make cluster installs its CPU build")
    if extra in NEED_TORCH and version != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"torch is installed for the Python of this environment only: without a CPU build it is 2.5 GB ({version})")
    installed = with_pip(wheel, tmp_path, version, extra)
    assert re.search(rf"^  yes  {extra} ", installed.run("rlhfless", "doctor").out, re.MULTILINE)
    for module in EXTRAS[extra]:
        done = installed.run("python", "-c", f"import {module}")
        assert done.code == 0, done.err
    if extra == "notebook":
        check_notebook(installed)
    elif extra == "torch":
        trained, measured = installed.commands(
            ["train", "preset=demo", f"model={MODEL}", "steps=1", "-o", "run"], ["profile", "--fast", "-o", "mine.json"]
        )
        assert (trained.code, measured.code) == (0, 0), (trained, measured)
    elif extra == "lora":
        line = ["train", "preset=demo", f"model={MODEL}", "steps=1", "optimizer.lora_rank=4", "-o", "run"]
        (trained,) = installed.commands(line)
        assert trained.code == 0, trained
    elif extra == "export" and find_browser() is not None:
        (drawn,) = installed.commands(layouts("layouts.png"))
        assert drawn.code == 0, drawn
        assert (installed.folder / "layouts.png").read_bytes().startswith(b"\x89PNG")
