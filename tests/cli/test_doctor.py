"""The doctor: one check per thing, advice exactly where something is missing, nothing heavy imported without need."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from error_messages import check_message

from rlhfless.cli import doctor
from rlhfless.cli.doctor import Check, diagnose, format_report

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checks() -> dict[str, Check]:
    return {check.name: check for check in diagnose()}


def test_everything_is_looked_at(checks: dict[str, Check]) -> None:
    expected = {"python", "core packages", "device", "threads", "memory", "plotly renderer", "browser", "profiles"}
    assert expected | {f"extra: {name}" for name in doctor.EXTRAS} == set(checks)


def test_advice_stands_exactly_where_something_is_missing(checks: dict[str, Check]) -> None:
    for check in checks.values():
        assert check.ok == (check.what_to_do == "")
        assert check.finding
        assert "\n" not in check.finding + check.what_to_do


def test_what_runs_the_tests_is_found(checks: dict[str, Check]) -> None:
    assert checks["python"].ok
    assert checks["core packages"].ok
    assert f"numpy {importlib.metadata.version('numpy')}" in checks["core packages"].finding
    assert "l40s-qwen2.5-3b-tp2" in checks["profiles"].finding


def test_the_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(doctor.EXTRAS) == set(extras) - {"all", "dev"}
    for name, (packages, _) in doctor.EXTRAS.items():
        stated = {requirement.split(">")[0].split("[")[0] for requirement in extras[name]}
        assert {package.split("|")[0] for package in packages} <= stated


def test_a_missing_extra_is_named_with_what_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "export", (("surely-not-installed",), "images"))
    check = {check.name: check for check in diagnose()}["extra: export"]
    assert not check.ok
    check_message(check.finding, "surely-not-installed")
    check_message(check.what_to_do, "images", "pip install 'rlhfless[export]'")


def test_without_torch_and_plotly_it_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_module", lambda name: None)
    found = {check.name: check for check in diagnose()}
    assert "rlhfless[torch]" in found["device"].what_to_do
    assert "rlhfless[notebook]" in found["plotly renderer"].what_to_do


def test_a_browser_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", sys.executable)
    assert doctor._browser() == Check("browser", True, sys.executable)
    monkeypatch.setenv("BROWSER_PATH", "/no/such/browser")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "Chromium" in doctor._browser().what_to_do


def test_the_report_has_a_line_per_check() -> None:
    text = format_report([Check("one", True, "found"), Check("three", False, "nothing", "install it")])
    *lines, summary = text.splitlines()
    assert lines == ["ok  one    found", "--  three  nothing", "           -> install it"]
    check_message(summary, "1", "2")
    *lines, summary = format_report([Check("one", True, "found")]).splitlines()
    assert lines == ["ok  one  found"]
    check_message(summary)


def test_importing_the_doctor_is_light() -> None:
    code = "import sys, rlhfless.cli.doctor; print([m for m in ('torch', 'plotly', 'pandas', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
