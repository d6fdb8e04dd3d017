"""Do the tests notice when a line is wrong? Applies each mutant of ``mutants.json`` to a copy of the project and runs tests.

The mutants were drawn by cosmic-ray 8.7 (its operators, one mutant per drawn line): those of admission, retiming, recovery
and importers with ``random.Random(20261123)``, ten more of the importers with ``random.Random(20261128)``, those of the
planner, the bounds of its plans and layouts with ``random.Random(20261129)``, and those of batching, pipelines, prefix
sharing, assignments, runtime rules, the length model, what all bounds answer, and (without mutants that fail in every call)
learners, cuts and candidates of whole steps, child processes, a step's actors, first weights and policy gradients with
``random.Random(20261130)``. Those of whole steps (the bound, timing of pairs, the choice, names of levers), of fronts, of the
proofs for any schedule, of latency profiles, of policies, of work beside decoding, of what a rule sees and of draft lengths,
and one of retiming, were made by hand. A drawn mutant that changes nothing a user can see, or never ends, is drawn again, as
is one of the planner that only moves how good plans are within the noise of its repairs, or one of layouts that only makes the
search slower. Each names its file, its line before and after, and the tests that have to notice it, as few and as quick as
possible. Tests that run beside others come first, then those that need real processes. A mutant is killed by the first that
fails, and one that no test notices ends the program with exit code 1.

    python tests/mutants/run.py                 # all of them
    python tests/mutants/run.py --only 3,7 --tests tests/solver/timing/test_batching.py
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).parents[2]
MUTANTS = Path(__file__).parent / "mutants.json"
SECONDS = 1200.0  # a mutant that hangs is noticed by that
PHASES = {"one process": "not nightly and not whole_machine", "real processes": "not nightly and whole_machine"}


def copy_of_project(folder: Path) -> Path:
    """Copy what git tracks, as it is in the working tree; ``shared`` stays beside it."""
    copy = folder / "project"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (PROJECT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, copy / name)
    if (PROJECT.parent / "shared").exists():
        (folder / "shared").symlink_to(PROJECT.parent / "shared")
    return copy


def apply(mutant: dict[str, str], copy: Path) -> Path:
    """Write the mutated file.

    Raises:
        SystemExit: The line is not in the file, or several times, so the mutant has to be drawn anew.
    """
    path = copy / mutant["path"]
    lines = path.read_text("utf-8").splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if line.rstrip("\n") == mutant["before"]]
    if mutant.get("occurrence") is not None:
        found = found[mutant["occurrence"] : mutant["occurrence"] + 1]
    if len(found) != 1:
        raise SystemExit(f"{mutant['path']} has the line {mutant['before']!r} {len(found)} times; draw this mutant anew")
    lines[found[0]] = mutant["after"] + "\n"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def killer(copy: Path, tests: list[str], phase: str) -> str | None:
    """Run tests until one fails.

    Returns:
        The test that failed, ``"time"`` where they did not end, ``None`` where all passed.
    """
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
    command = [sys.executable, "-m", "pytest", *options, "-m", PHASES[phase], *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            command, cwd=copy, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return "time"
    if ran.returncode in (0, 5):  # 5: none of these tests runs in this phase
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.M)
    return failed[1] if failed else f"pytest's exit code {ran.returncode}"


def main() -> None:
    """Print a line per mutant: what it changes, which test noticed it, after how long."""
    parser = argparse.ArgumentParser(description="Apply each mutant and run the tests that have to notice it.")
    parser.add_argument("--only", help="numbers of mutants, such as 3,7")
    parser.add_argument("--tests", nargs="*", help="run these tests instead of those that the mutant names")
    parser.add_argument("--json", type=Path, help="write the results here")
    asked = parser.parse_args()
    mutants = json.loads(MUTANTS.read_text("utf-8"))
    chosen = range(len(mutants)) if asked.only is None else [int(n) for n in asked.only.split(",")]
    results = []
    for number in chosen:
        mutant = mutants[number]
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_of_project(Path(folder))
            apply(mutant, copy)
            start_s, by, phase = time.monotonic(), None, ""
            for phase in PHASES:
                by = killer(copy, asked.tests or mutant["tests"], phase)
                if by is not None:
                    break
        took_s = round(time.monotonic() - start_s)
        results.append({"number": number, "killed_by": by, "phase": phase if by else None, "s": took_s})
        change = f"{mutant['before'].strip()} -> {mutant['after'].strip()}"
        verdict = f"{phase}: {by}" if by else "NOT NOTICED"
        print(f"{number:2d} {mutant['group']:9s} {mutant['path']}: {change}\n   {verdict} ({took_s} s)", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    missed = [one["number"] for one in results if one["killed_by"] is None]
    print(f"{len(results) - len(missed)} of {len(results)} mutants noticed", f"; not noticed: {missed}" if missed else "")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
