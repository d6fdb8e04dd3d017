"""The report of a logged run as a notebook: the shipped one with every option filled in, which runs as it is written."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
papermill = pytest.importorskip("papermill", reason="papermill is not installed (pip install 'rlhfless[notebook]')")
from report_setting import PROFILE, sixteen_l40s  # noqa: E402

from rlhfless.errors import InputError, MissingExtra  # noqa: E402
from rlhfless.report.not_stated import profile_assumed  # noqa: E402
from rlhfless.report.notebook import LogSource, template_path, write_report_notebook  # noqa: E402
from rlhfless.report.study import Assumptions  # noqa: E402
from rlhfless.trace import ImportOptions, TraceError  # noqa: E402

ROOT = Path(__file__).parents[2]
TRL = ROOT / "tests" / "trace" / "importers" / "golden" / "trl"
MAPS = ["--map", "prompt_id=prompt_index", "--map", "sample=rollout", "--map", "step=visit"]


def table(folder: Path) -> Path:
    """A csv log with columns of its own; names in it and of it need escaping in Python."""
    rows = [
        {"visit": s, "prompt_index": f"p'{p}\"", "rollout": k, "prompt_tokens": 40, "response_tokens": 20 + 37 * p * (k + 1)}
        for s in range(2) for p in range(6) for k in range(4)
    ]  # fmt: skip
    path = folder / "the \"log\" \\ of 'x'.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def written(source: Path, *options: str) -> Path:
    out = source.with_name("book.ipynb")
    done = run_rlhfless("report", str(source), *options, "-o", str(out))
    assert done.exit_code == 0, done.output
    return out


def filled_in(book: Path) -> dict[str, Any]:
    """The parameters' values."""
    cells = nbformat.read(book, as_version=4).cells
    tags = [cell.metadata.get("tags", []) for cell in cells]
    cell = cells[tags.index(["parameters"]) + 1]
    assert cell.metadata.tags == ["injected-parameters"]
    return {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(cell.source).body}


def test_the_notebook_keeps_every_option(tmp_path: Path) -> None:
    first = pd.read_csv(table(tmp_path))
    both = tmp_path / "both.parquet"
    pd.concat([first.assign(run="first"), first.assign(run='a "second"')]).to_parquet(both)
    reading = [
        "--from",
        "table",
        *MAPS,
        "--where",
        "response_tokens > 0",
        "--run",
        'a "second"',
        "--max-response-tokens",
        "900",
    ]
    run = ["--dispatch", "least-loaded", "--learner-gpus", "2", "--prepare-s", "1.5", "--learn-s", "2.5"]
    gpus = ["--gpus", "1x4", "--gpus-per-actor", "2", "--usd-per-gpu-hour", "3", "--usd-per-gpu-hour", "spot=1.5"]
    values = filled_in(written(both, *reading, *run, *gpus, "--time-weight", "0.25", "--steps", "1"))
    assert values == {
        "LOG": str(both), "FORMAT": "table", "TOKENIZER": None, "RUN": "a \"second\"", "MAX_RESPONSE_TOKENS": 900,
        "COLUMNS": {"prompt_id": "prompt_index", "sample": "rollout", "step": "visit"}, "WHERE": "response_tokens > 0",
        "GPUS": 4, "GPUS_PER_NODE": 4, "GPUS_PER_ACTOR": 2, "PROFILE": PROFILE, "USD_PER_GPU_HOUR": 3.0,
        "PRICES": {"spot": 1.5}, "DISPATCH": "least-loaded", "LEARNER_GPUS": 2, "PREPARE_S": 1.5, "LEARN_S": 2.5,
        "CALIBRATE": True, "TIME_WEIGHT": 0.25, "STEPS": 1, "PAGE": str(tmp_path / "book_page.html"),
        "NOT_STATED": {"profile": profile_assumed(PROFILE)},
    }  # fmt: skip


def test_it_is_the_shipped_notebook_with_every_parameter_and_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    book = written(table(tmp_path), *MAPS, "--gpus", "16")
    assert set(filled_in(book)) == set(papermill.inspect_notebook(str(template_path())))
    ours, shipped = (nbformat.read(path, as_version=4) for path in (book, template_path()))
    nbformat.validate(ours)
    code = [cell.source for cell in ours.cells if cell.cell_type == "code" and "injected-parameters" not in cell.metadata.tags]
    assert code == [cell.source for cell in shipped.cells if cell.cell_type == "code"]
    assert not any("](" in cell.source for cell in ours.cells if cell.cell_type == "markdown")
    assert any("](../rlhfless" in cell.source for cell in shipped.cells), "there are links to leave out"
    text = book.read_bytes()
    assert written(table(tmp_path), *MAPS, "--gpus", "16").read_bytes() == text


def test_an_installed_package_has_it() -> None:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    shipped = f"notebooks/{template_path().name}"
    assert tables["force-include"][shipped] == f"rlhfless/_data/{shipped}"
    assert (ROOT / shipped).is_file()


def test_what_cannot_be_filled_in_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, out = LogSource(tmp_path / "log.csv", ImportOptions()), tmp_path / "book.ipynb"
    with refused(InputError, "prices", "nan"):
        write_report_notebook(log, out, PROFILE, sixteen_l40s(), Assumptions(prices={"spot": float("nan")}))
    (tmp_path / "file").write_text("")
    with refused(TraceError, "file"):
        write_report_notebook(log, tmp_path / "file" / "book.ipynb", PROFILE, sixteen_l40s(), Assumptions())
    for name in [name for name in sys.modules if name.startswith("papermill.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "papermill", None)
    with refused(MissingExtra, "papermill", "rlhfless[notebook]"):
        write_report_notebook(log, out, PROFILE, sixteen_l40s(), Assumptions())
    assert not out.exists()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["csv", "trace", "trl"])
def test_the_notebook_runs_as_it_is_written(kind: str, tmp_path: Path) -> None:
    from rlhfless.system.run_notebook import run_notebook

    source, options = table(tmp_path), MAPS
    if kind == "trace":
        done = run_rlhfless("convert", str(source), *MAPS, "-o", str(tmp_path / "trace"))
        assert done.exit_code == 0, done.output
        source, options = tmp_path / "trace", []
    elif kind == "trl":
        (tmp_path / "trl").symlink_to(TRL)
        source, options = tmp_path / "trl", ["--tokenizer", str(TRL), "--max-response-tokens", "24"]
    book = written(source, *options, "--gpus", "8", "--steps", "1")
    executed = nbformat.read(run_notebook(book, tmp_path / "ran" / "page.html"), as_version=4)
    said = "".join(str(output) for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs)
    assert "Assumed: " in said
    assert "RLHFless report" in book.with_name("book_page.html").read_text("utf-8")
