"""``rlhfless report``: what it is asked for takes its own options, and refuses every other one instead of ignoring it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command

from rlhfless.cli.report import ReportOptions
from rlhfless.errors import InputError

LOG = str(Path(__file__).parents[1] / "trace" / "importers" / "golden" / "table" / "log.csv")
PLANNED = "steps=1,responses=2,mean-tokens=3"
PROFILE = "l40s-qwen2.5-3b-tp2"
USELESS = {
    "--estimate": ["--redact", "--learn-s", "--gpus-per-actor", "--time-weight", "--from", "--dispatch", "--only", "-o"],
    "--only drafts": [
        "--redact",
        "--gpus",
        "--learn-s",
        "--dispatch",
        "--responses-per-step",
        "-o",
        "--usd-per-gpu-hour",
        "--steps",
    ],
    "--only what-ifs": ["--redact", "--drafts", "--usd-per-gpu-hour", "--steps", "--time-weight", "--model"],
    "": ["--dispatch", "--usd-per-gpu-hour", "--steps", "--time-weight", "--drafts"],
}
VALUES = {
    "--dispatch": "static", "--only": "drafts", "-o": "page.html", "--usd-per-gpu-hour": "spot=1", "--drafts": "strong",
    "--from": "table",
    "--redact": "folder", "--model": "folder", "--time-weight": "0.7",
}  # fmt: skip


@pytest.mark.parametrize(("asked", "option"), [(asked, option) for asked, options in USELESS.items() for option in options])
def test_an_option_without_an_effect_is_refused(
    asked: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    about = ["--estimate", PLANNED, "--profile", PROFILE] if asked == "--estimate" else [LOG, *asked.split()]
    named = {"-o": "--out"}.get(option, option)
    refused_command(run_rlhfless("report", *about, option, VALUES.get(option, "2")), named, asked or "-o page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_switch_without_an_effect_is_refused() -> None:
    refused_command(run_rlhfless("report", LOG, "--simulate"), "--simulate", "-o page.html")
    refused_command(run_rlhfless("report", LOG, "--only", "drafts", "--simulate"), "--simulate", "--only drafts")


def test_a_switch_as_it_is_by_default_is_no_option_that_is_given() -> None:
    assert ReportOptions(log=LOG, simulate=False, drafts=None, only="drafts").only == "drafts"


def test_clusters_are_stated_once() -> None:
    words = ["report", "--estimate", f"{PLANNED},gpus=8+16", "--profile", PROFILE, "--gpus", "4"]
    refused_command(run_rlhfless(*words), "--gpus 4", "--estimate")


def test_a_dispatch_that_no_run_has_is_refused() -> None:
    refused_command(
        run_rlhfless("report", LOG, "--dispatch", "foo", "-o", "page.html"), "--dispatch is foo", "static", "least-loaded"
    )


def test_drafts_say_what_they_lack(tmp_path: Path) -> None:
    page = ["-o", str(tmp_path / "page.html")]
    refused_command(run_rlhfless("report", LOG, "--gpus", "16", "--drafts", "strong"), "--drafts", "-o page.html")
    refused_command(run_rlhfless("report", LOG, "--drafts", "strong", *page), "--drafts strong", "--gpus")
    scalars = tmp_path / "steps.jsonl"
    scalars.write_text('{"step": 0, "response_length/mean": 5, "response_length/max": 9}\n')
    refused_command(
        run_rlhfless("report", str(scalars), "--gpus", "4", "--drafts", "weak", *page), "--drafts weak", "--simulate"
    )


def test_the_figure_of_what_ifs_is_a_page(tmp_path: Path) -> None:
    out, log = tmp_path / "ways.html", tmp_path / "log.csv"
    pd.read_csv(LOG).drop(columns=["start_s", "end_s"]).to_csv(log, index=False)  # its seconds are those of a slow engine
    words = ["report", str(log), "--only", "what-ifs", "--gpus", "4", "--profile", PROFILE, "--format", "json", "-o"]
    done = run_rlhfless(*words, str(out))
    assert done.exit_code == 0, done.output
    assert str(out) in done.stderr
    assert json.loads(done.stdout)["ways"]
    assert "What-ifs: time and cost" in out.read_text("utf-8")
    refused_command(run_rlhfless(*words, str(tmp_path / "ways.json")), "ways.json", ".html")
    with refused(InputError, ".htm"):
        ReportOptions(log=LOG, only="what-ifs", out=tmp_path / "ways.ipynb")
