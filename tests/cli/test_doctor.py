"""The doctor: its first line answers whether RLHFless works here, and each missing thing has what to type."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from error_messages import check_message

from rlhfless import __version__
from rlhfless.cli import doctor
from rlhfless.cli.doctor import NEEDED, OPTIONAL, Check, diagnose, format_report
from rlhfless.errors import EXTRAS
from rlhfless.run.example import example

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[>=<;\[ ]", requirement)[0] for requirement in requirements}


@pytest.fixture(scope="module")
def checks() -> dict[str, Check]:
    return {check.name: check for check in diagnose()}


def test_what_every_command_needs_comes_first_and_the_machine_last() -> None:
    parts = [check.part for check in diagnose()]
    assert parts == sorted(parts, key=[doctor.NEEDED, doctor.OPTIONAL, doctor.MACHINE].index)
    extras = [check.name for check in diagnose() if check.part == OPTIONAL]
    assert extras[:2] == ["notebook", "torch"]


def test_advice_stands_exactly_where_something_is_missing(checks: dict[str, Check]) -> None:
    for check in checks.values():
        assert check.found == (check.what_to_do == "")
        assert check.finding
        assert "\n" not in check.finding + check.what_to_do


def test_what_runs_the_tests_is_found(checks: dict[str, Check]) -> None:
    assert checks["Python"].found
    assert f"numpy {importlib.metadata.version('numpy')}" in checks["packages"].finding
    assert "l40s-qwen2.5-3b-tp2" in checks["latency profiles"].finding
    assert str(example()) in checks["example log"].finding


def test_the_packages_and_extras_are_those_of_the_project() -> None:
    assert set(doctor.REQUIRED) == names(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRAS) == set(doctor.BRINGS) == set(extras) - {"all", "dev", "docs"}
    for extra, modules in EXTRAS.items():
        assert {doctor.DISTRIBUTIONS.get(module, (module,))[0] for module in modules} == names(extras[extra])


def test_a_missing_extra_is_named_with_what_it_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "export", ("surely_not_installed",))
    check = {check.name: check for check in diagnose()}["export"]
    assert not check.found
    check_message(check.finding, "PNG")
    check_message(check.what_to_do, "pip install 'rlhfless[export]'")


def test_of_an_extra_that_is_there_in_part_the_rest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "torch", ("numpy", "surely_not_installed"))
    check = {check.name: check for check in diagnose()}["torch"]
    assert not check.found
    check_message(check.finding, "surely_not_installed")
    assert "numpy" not in check.finding


def test_the_first_line_answers_whether_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = format_report(diagnose()).splitlines()
    assert first.startswith("Yes, ")
    assert __version__ in second
    assert f"clone of its repository in {ROOT}" in second
    for extra, what in doctor.FIRST_EXTRAS.items():
        absent = [Check(OPTIONAL, extra, False, "nothing", "install it")]
        first = format_report(absent).splitlines()[0]
        assert first.startswith("Yes, ")
        assert what in first
    monkeypatch.setitem(doctor.REQUIRED, "plotly", "surely_not_installed")
    first = format_report(diagnose()).splitlines()[0]
    assert first.startswith("No, ")
    check_message(first, "plotly", "surely_not_installed", "pip install")


def test_where_a_wheel_was_installed_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "clone", lambda: None)
    assert f"installed in {ROOT / 'rlhfless'}" in format_report(diagnose()).splitlines()[1]


def test_without_torch_it_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_module", lambda name: None)
    found = {check.name: check for check in diagnose()}
    assert "rlhfless[torch]" in found["GPU"].what_to_do


def test_a_browser_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", sys.executable)
    browser = {check.name: check for check in diagnose()}["browser"]
    assert browser.found
    assert sys.executable in browser.finding
    monkeypatch.setenv("BROWSER_PATH", "/no/such/browser")
    monkeypatch.setattr("shutil.which", lambda name: None)
    browser = {check.name: check for check in diagnose()}["browser"]
    assert not browser.found
    check_message(browser.what_to_do, "Chromium", "BROWSER_PATH")


def test_the_report_has_a_line_per_check() -> None:
    text = format_report([Check(NEEDED, "one", True, "found"), Check(OPTIONAL, "three", False, "what it brings", "install it")])
    assert text.splitlines()[3:] == [
        f"{NEEDED}:", "  yes  one    found", "", f"{OPTIONAL}:", "  no   three  what it brings", "              install it"
    ]  # fmt: skip


def test_importing_the_doctor_is_light() -> None:
    code = "import sys, rlhfless.cli.doctor; print([m for m in ('torch', 'plotly', 'pandas', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
