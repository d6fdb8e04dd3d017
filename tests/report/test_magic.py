"""``%load_ext rlhfless`` and ``%rlhfless PATH``: the report of a log in a notebook."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from error_messages import refused

from rlhfless.cli.magic import ShownOptions, report_of
from rlhfless.cli.report import ReportOptions
from rlhfless.errors import InputError
from rlhfless.report.magic import ReportFrame
from rlhfless.trace import TraceError

IPython = pytest.importorskip("IPython", reason="IPython is not installed")
LOG = "step,prompt_id,sample,response_tokens\n0,<b>a,0,10\n0,<b>a,1,30\n1,<b>a,0,12\n1,<b>a,1,28\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "my log.csv"
    path.write_text(LOG)
    return path


@pytest.mark.full
def test_the_magic_shows_the_report_of_a_log(log: Path) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "rlhfless")
    shown = shell.run_line_magic("rlhfless", f"'{log}' --gpus 16")
    frame = shown._repr_html_()
    assert frame.count("<") == 2, "one frame and nothing else is markup"
    source = re.search(r'srcdoc="([^"]*)"', frame)
    assert source is not None
    page = html.unescape(source.group(1))
    assert "RLHFless report" in page
    assert "Other schedules and settings" in page
    assert "my log.csv" in repr(shown)


def test_a_frame_may_run_its_own_scripts_and_reaches_nothing_of_the_notebook() -> None:
    frame = ReportFrame('<p>"it\'s" & <b>so</b></p>', '"><script>')._repr_html_()
    assert 'sandbox="allow-scripts"' in frame
    assert "<script" not in frame
    assert "&lt;p&gt;&#34;it&#39;s&#34; &amp;" in frame


def test_lines_that_are_no_path_are_refused(tmp_path: Path) -> None:
    with refused(InputError):
        report_of("one two")
    with refused(InputError):
        report_of("")
    with refused(TraceError):
        report_of(str(tmp_path / "none.csv"))
    with refused(InputError, "s.csv"):
        report_of("it's.csv")


def test_the_limits_of_reading_are_those_of_the_environment(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHFLESS_LIMITS", "max_rows=3")
    with refused(TraceError, "my log.csv", "more than 3 rows", "RLHFLESS_LIMITS=max_rows"):
        report_of(f"'{log}'")
    monkeypatch.setenv("RLHFLESS_LIMITS", "max_rows=three")
    with refused(InputError, "RLHFLESS_LIMITS", "'max_rows=three'"):
        report_of(f"'{log}'")


@pytest.mark.full
def test_the_magic_takes_the_options_of_the_report(tmp_path: Path) -> None:
    path = tmp_path / "theirs.csv"
    path.write_text(LOG.replace("step", "iteration").replace("response_tokens", "length"))
    maps = "--map step=iteration --map response_tokens=length --map prompt_id=prompt_id+sample"
    frame = report_of(f"'{path}' {maps} --gpus 4 --usd-per-gpu-hour 2 --learn-s 3 --usd-per-gpu-hour spot=1.25 --steps 1")
    assert frame is not None
    assert "4 L40S GPUs" in frame.page
    assert "1.25 USD" in frame.page
    written = {"out", "only", "estimate", "redact", "format"}
    assert ShownOptions.model_fields.keys() | written == ReportOptions.model_fields.keys()


def test_the_magic_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_of("--help") is None
    assert "--map" in capsys.readouterr().out


@pytest.mark.full
def test_a_path_may_begin_at_home_and_have_quotes(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(log.parent))
    log.rename(log.with_name("it's.csv"))
    frame = report_of('~/"it\'s.csv"')
    assert frame is not None
    assert "RLHFless report" in frame.page
