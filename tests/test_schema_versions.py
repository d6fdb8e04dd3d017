"""Every JSON says its schema and version, docs/stability.md lists them, and a reader refuses another version."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run_rlhfless
from error_messages import refused

import rlhfless as rl
from rlhfless.cli.printed_json import VERSIONS
from rlhfless.diagnosis import diagnosis
from rlhfless.latency import ProfileError, call_tables, load_profile, profile, read_profile
from rlhfless.latency.call_tables import read_call_tables
from rlhfless.report import study
from rlhfless.trace import SCHEMA_VERSION, TraceError, read_trace
from solver.model.errors import PlanningError
from solver.pipeline import Chain, PipelinePlan, PipelineProblem, schedule_pipeline

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "stability.md").read_text("utf-8")
LOG = ROOT / "data" / "traces" / "arithmetic-grpo-drafts"
GPUS = ("--gpus", "4", "--gpus-per-actor", "1", "--profile", "l40s-qwen2.5-3b-tp2")
CALLS = ("--algorithm", "grpo", "--gpus", "8", "--gpu", "h100", "--model", "actor=qwen2.5-7b")
SMALL = ("--responses", "64", "--prompt-tokens", "100", "--response-tokens", "500")
PRINTED = {
    "rlhfless-estimate": ("report", "--estimate", "steps=2,responses=8,mean-tokens=30", *GPUS[-2:], "--gpus", "2"),
    "rlhfless-drafts": ("report", LOG, "--only", "drafts"),
    "rlhfless-plan": ("plan", LOG),
    "rlhfless-simulation": ("simulate", LOG, "--policies", "static"),
    "rlhfless-layouts": ("layouts", *CALLS, *SMALL),
}
LONGER = {"rlhfless-step": ("step", LOG, *CALLS), "rlhfless-what-ifs": ("report", LOG, "--only", "what-ifs")}


def printed(schema: str, command: tuple[Any, ...]) -> None:
    done = run_rlhfless(*map(str, command), "--format", "json")
    assert done.exit_code == 0, done.stderr
    shown = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert list(shown)[:2] == ["schema", "version"]
    assert (shown["schema"], shown["version"]) == (schema, VERSIONS[schema])


@pytest.mark.parametrize("schema", PRINTED)
def test_the_json_of_a_command_says_its_schema_and_version(schema: str) -> None:
    printed(schema, PRINTED[schema])


@pytest.mark.full
@pytest.mark.parametrize("schema", LONGER)
def test_the_json_of_a_longer_command_says_its_schema_and_version(schema: str) -> None:
    printed(schema, LONGER[schema])


def test_every_command_that_prints_json_is_tested() -> None:
    assert {*PRINTED, *LONGER} == set(VERSIONS)


def test_the_page_lists_every_schema_with_its_version() -> None:
    learner = pytest.importorskip("rlhfless.training.learner.learner", reason="torch is not installed", exc_type=ImportError)
    rows = {name: int(version) for name, version in re.findall(r"\| `(rlhfless-[\w-]+)` \| (\d+) \|", PAGE)}
    library = {
        profile.SCHEMA: profile.SCHEMA_VERSION, call_tables.SCHEMA: call_tables.SCHEMA_VERSION,
        diagnosis.SCHEMA: diagnosis.VERSION, study.SCHEMA: study.VERSION, learner.SCHEMA: learner.VERSION,
    }  # fmt: skip
    assert rows == VERSIONS | library
    assert f"| a folder with `meta.json` | {SCHEMA_VERSION} |" in PAGE


def changed(path: Path, key: str, value: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), key: value}), encoding="utf-8")
    return path


@pytest.mark.parametrize(("version", "advice"), [(99, "pip install --upgrade rlhfless"), (0, "write it again")])
def test_a_trace_of_another_version_is_refused(version: int, advice: str, tmp_path: Path) -> None:
    folder = shutil.copytree(LOG, tmp_path / "trace")
    changed(folder / "meta.json", "schema_version", version)
    for read in (read_trace, rl.load):
        with refused(TraceError, "meta.json", f"version {version}", f"reads version {SCHEMA_VERSION}", advice):
            read(folder)


def refuses(read: Callable[[Path], Any], path: Path) -> None:
    changed(path, "schema_version", 99)
    with refused(ProfileError, str(path), "version 99", "reads version 1", "pip install --upgrade rlhfless"):
        read(path)


def test_a_profile_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(read_profile("cpu-tiny-qwen2")), encoding="utf-8")
    load_profile(path)
    refuses(load_profile, path)


def test_call_tables_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    path = Path(shutil.copy(ROOT / "data" / "calls" / "h100.json", tmp_path / "mine.json"))
    read_call_tables(path)
    refuses(read_call_tables, path)


def test_a_pipeline_plan_of_a_newer_version_is_refused() -> None:
    problem = PipelineProblem([Chain("one", (0, 1), 2, 1.0, 2.0)], 2)
    text = schedule_pipeline(problem).to_json()
    assert PipelinePlan.from_json(text).problem == problem
    with refused(PlanningError, "pipeline plan 2", "pipeline plan 1", "version of RLHFless"):
        PipelinePlan.from_json(text.replace("pipeline plan 1", "pipeline plan 2"))
