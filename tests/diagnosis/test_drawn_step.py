"""The bar of one step in a notebook: parts as wide as their shares, the unnamed part included, names escaped."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from rlhfless.diagnosis import diagnose
from rlhfless.diagnosis.drawn_step import drawn_step
from rlhfless.trace import ImportedLog, import_log

EVIL = "<img src=x onerror=alert(1)>' onmouseover='x"


def console(tmp_path: Path) -> ImportedLog:
    path = tmp_path / "train.log"
    lines = [f"step:{n} - timing_s/gen:60.0 - timing_s/update_actor:30.0 - timing_s/step:100.0" for n in range(1, 4)]
    path.write_text("\n".join(lines) + "\n")
    return import_log(path)


def test_parts_are_as_wide_as_their_shares_and_fill_the_bar(tmp_path: Path) -> None:
    said = diagnose(console(tmp_path))
    html = said._repr_html_()
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%;background", html)]
    assert widths == pytest.approx([100 * share for share in said.step["share"]], abs=0.01)
    assert sum(widths) == pytest.approx(100, abs=0.1)
    assert "gen 60%" in html
    assert html.count("role='img'") == 1


def test_a_log_without_times_has_no_bar() -> None:
    lengths = pd.DataFrame({"step": 0, "prompt_id": range(8), "sample": 0, "response_tokens": 9})
    assert "role='img'" not in diagnose(lengths)._repr_html_()


def test_names_of_phases_are_text() -> None:
    step = pd.DataFrame([(EVIL, "", 1.0, 1.0)], columns=["phase", "kind", "seconds", "share"])
    html = drawn_step(step)
    assert "<img" not in html
    assert "' onmouseover" not in html
