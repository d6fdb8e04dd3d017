"""What ``-o`` names: the end of the name says what is written, and a place that cannot be written is refused at once."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command

import rlhfless as rl
from rlhfless.cli.convert import ConvertOptions
from rlhfless.cli.report import ReportOptions
from rlhfless.cli.simulate import SimulateOptions
from rlhfless.cli.train import TrainOptions
from rlhfless.errors import InputError, UserError
from rlhfless.report.write import Report, make_report
from rlhfless.trace import TraceError

LOG = Path(__file__).parents[1] / "trace" / "importers" / "golden" / "table" / "log.csv"
NO_FOLDER = Path("/proc/self/fd")  # nobody can make a file there


@pytest.fixture(scope="module")
def made() -> Report:
    return make_report(LOG)


@pytest.mark.parametrize("name", ["r.html", "r.htm", "R.HTML", "r.json"])
def test_the_end_of_the_name_says_what_is_written(name: str, made: Report, tmp_path: Path) -> None:
    text = made.save(tmp_path / name).read_text("utf-8")
    assert text.startswith("{" if name.endswith("json") else "<!")


@pytest.mark.parametrize("name", ["r.pdf", "r", "r.txt"])
def test_a_report_under_another_name_is_refused(name: str, tmp_path: Path) -> None:
    with refused(InputError, name, ".html", ".json", ".ipynb"):
        rl.load(pd.read_csv(LOG), verbose=False).report(tmp_path / name, verbose=False)
    with refused(InputError, name, ".html", ".json", ".ipynb"):
        ReportOptions(log=LOG, out=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_is_written_of_a_log_that_it_can_read_again(made: Report, tmp_path: Path) -> None:
    by_python, by_command = tmp_path / "python.ipynb", tmp_path / "command.ipynb"
    assert rl.load(LOG, gpus=4, verbose=False).report(by_python, verbose=False) == by_python
    done = run_rlhfless("report", str(LOG), "--gpus", "4", "-o", str(by_command))
    assert done.exit_code == 0, done.output
    same = by_python.read_text("utf-8").replace("python_page", "command_page")
    assert same == by_command.read_text("utf-8")
    for run, missing in ((rl.load(LOG, verbose=False), "--gpus"), (rl.load(pd.read_csv(LOG), gpus=4, verbose=False), ".html")):
        with refused(InputError, "no.ipynb", missing):
            run.report(tmp_path / "no.ipynb", verbose=False)
    with refused(InputError, "no.ipynb", "rlhfless report LOG"):
        made.save(tmp_path / "no.ipynb")


def test_a_notebook_is_known_by_its_name_in_capitals(tmp_path: Path) -> None:
    done = run_rlhfless("report", str(LOG), "--gpus", "4", "-o", str(tmp_path / "r.IPYNB"))
    assert done.exit_code == 0, done.output
    assert '"cells"' in (tmp_path / "r.IPYNB").read_text("utf-8")


@pytest.mark.skipif(not NO_FOLDER.is_dir(), reason="this system has no folder in which nobody can make a file")
def test_a_place_that_cannot_be_written_is_refused_at_once(made: Report) -> None:
    for options in (
        lambda: ReportOptions(log=LOG, out=NO_FOLDER / "r.html"), lambda: ReportOptions(log=LOG, redact=NO_FOLDER / "new"),
        lambda: TrainOptions(out=NO_FOLDER / "run"), lambda: SimulateOptions(log=LOG, out=NO_FOLDER / "sim"),
        lambda: ConvertOptions(log=LOG, out=NO_FOLDER / "trace"),
    ):  # fmt: skip
        with refused(InputError, str(NO_FOLDER), "cannot be written"):
            options()
    with refused(TraceError, str(NO_FOLDER), "writable"):
        made.save(NO_FOLDER / "r.html")


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    there = tmp_path / "README.md"
    there.write_text("text")
    refused_command(run_rlhfless("train", "-o", str(there)), str(there), "is a file", "folder")
    refused_command(run_rlhfless("report", str(LOG), "--redact", str(there)), str(there), "is a file", "folder")
    refused_command(run_rlhfless("convert", str(LOG), "-o", str(there)), str(there), "is a file", "folder")
    assert there.read_text() == "text"


@pytest.mark.parametrize("name", ["o.html", "o.perfetto", "o.csv", "o.json.zip"])
def test_a_trace_is_not_written_where_a_file_is_named(name: str, tmp_path: Path) -> None:
    refused_command(run_rlhfless("convert", str(LOG), "-o", str(tmp_path / name)), name, "folder", ".json", "--to trace")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["o.html", "--to", "trace"], ["qwen-2.5"], ["run.v1"]])
def test_a_folder_may_have_a_dot(words: list[str], tmp_path: Path) -> None:
    done = run_rlhfless("convert", str(LOG), "-o", str(tmp_path / words[0]), *words[1:])
    assert done.exit_code == 0, done.output
    assert (tmp_path / words[0] / "meta.json").is_file()


def test_a_trace_is_told_what_it_can_become(tmp_path: Path) -> None:
    done = run_rlhfless("convert", str(LOG), "-o", str(tmp_path / "t"))
    assert done.exit_code == 0, done.output
    done = run_rlhfless("convert", str(tmp_path / "t"), "-o", str(tmp_path / "u"))
    refused_command(done, "trace already", ".json", "verl-router")
    assert not (tmp_path / "u").exists()


def test_a_preview_takes_no_place_to_write(tmp_path: Path) -> None:
    refused_command(run_rlhfless("convert", str(LOG), "--preview", "-o", str(tmp_path / "t")), "--preview", "-o")
    with refused(UserError, "-o", "--preview"):
        ConvertOptions(log=LOG)
