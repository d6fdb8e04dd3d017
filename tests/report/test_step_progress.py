"""Progress over simulated steps where stderr is no terminal: lines, not oftener than asked for, and none after the last."""

from __future__ import annotations

import re

import pytest

from rlhfless.report.progress import step_progress


def test_without_a_terminal_each_step_but_the_last_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with step_progress(3, every_s=0) as on_step:
        for step in (4, 5, 6):
            on_step(step)
    out, err = capsys.readouterr()
    assert out == ""
    said = [re.fullmatch(r"rlhfless: simulated step (\d), (\d) of 3, after \d+ s", line) for line in err.splitlines()]
    assert [match.groups() if match else None for match in said] == [("4", "1"), ("5", "2")]


def test_steps_that_follow_quickly_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with step_progress(2, every_s=3600) as on_step:
        on_step(0)
        on_step(1)
    assert capsys.readouterr() == ("", "")
