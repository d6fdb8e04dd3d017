"""`rlhfless figures`: what it writes, that the same setting gives the same bytes, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from command_line import Result, run_rlhfless
from markupsafe import escape
from paper_samples import BESIDE, VERDICTS, Paper, small

from rlhfless.paper import FIGURES, OTHER_FIGURES, Sources, catalogue, chosen, write_figures
from rlhfless.paper.catalogue import how_long
from rlhfless.paper.workloads import GSM8K_LOG, MATH_LOG, STEP_LOGS

QUICK = ("4a", "4b", "9")


def rlhfless(*arguments: object) -> Result:
    return run_rlhfless(*arguments)


def test_an_unknown_figure_is_one_sentence_and_nothing_is_written(tmp_path: Path) -> None:
    result = rlhfless("figures", "4a", "18", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert result.output == f"rlhfless: there is no figure '18'; choose from {', '.join([*FIGURES, *OTHER_FIGURES])}\n"
    assert not (tmp_path / "out").exists()


def test_the_help_says_of_every_figure_what_it_is() -> None:
    shown = " ".join(rlhfless("figures", "--help").stdout.split())
    arguments = shown[shown.index("Arguments:") : shown.index("Options:")]
    assert re.findall(r"(\w+) \([^)]+\)", arguments) == [*FIGURES, *OTHER_FIGURES]


def test_a_folder_of_logs_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = rlhfless("figures", "4a", "--logs", tmp_path / "none", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "is not a folder; give the folder that holds grpo-gsm8k-lengths" in result.output
    assert "'' is not a folder" in rlhfless("figures", "4a", "--logs", "", "-o", tmp_path / "out").output


def test_a_folder_without_any_of_the_logs_is_refused(tmp_path: Path) -> None:
    result = rlhfless("figures", "4a", "--logs", tmp_path, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{tmp_path}: holds none of the public logs; give the folder that holds one of grpo-gsm8k-lengths" in result.output
    assert not (tmp_path / "out").exists()


def test_a_folder_to_write_into_needs_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = rlhfless("figures", "4b", "--fast", "--pictures", "none", "-o", "")
    assert result.exit_code == 2
    assert result.output == "rlhfless: -o is empty; name the folder to write figures into\n"
    assert list(tmp_path.iterdir()) == []


GSM8K_HEAD = "step,visit,prompt_index,rollout,response_tokens,hit_cap"
MATH_HEAD = "run,benchmark,prompt_index,response_tokens,max_tokens,hit_cap"


@pytest.mark.parametrize(
    ("log", "text", "said"),
    [
        (GSM8K_LOG, "a,b\n1,2\n", "has no column visit, prompt_index, rollout, response_tokens, hit_cap (it has a, b)"),
        (GSM8K_LOG, f"{GSM8K_HEAD}\n", "has no rows"),
        (GSM8K_LOG, f"{GSM8K_HEAD}\n0,0,0,0,5,0\n0,0,1,0,long,0\n", "row 2, column 'response_tokens' is long; a finite number"),
        (GSM8K_LOG, f"{GSM8K_HEAD}\n0,0,0,0,inf,0\n", "row 1, column 'response_tokens' is inf; a finite number"),
        (GSM8K_LOG, f"{GSM8K_HEAD}\n0,0,0,0,5,0\n0,0,1,0,-5,0\n", "row 2, column 'response_tokens' is -5"),
        (GSM8K_LOG, f"{GSM8K_HEAD}\n0,0,0,0,5,0\n", "visits no prompts a second time"),
        (GSM8K_LOG, f"{GSM8K_HEAD}\n0,0,0,9,5,0\n", "the log has no rows"),
        (MATH_LOG, "", "cannot be read as csv"),
        (MATH_LOG, f"{MATH_HEAD}\nbase,mgsm,0,5,4096,0\n", "the log has no rows"),
        (STEP_LOGS["MATH"][0], "step,length\n1,2\n", "has no column avg_response_len (it has step, length)"),
    ],
)  # fmt: skip
def test_a_log_that_is_none_is_one_sentence_with_its_name(tmp_path: Path, log: Path, text: str, said: str) -> None:
    file = tmp_path / "logs" / log
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    figure = "4b" if log == STEP_LOGS["MATH"][0] else "4a"
    result = rlhfless("figures", figure, "--fast", "--pictures", "none", "--logs", tmp_path / "logs", "-o", tmp_path / "out")
    assert result.exit_code == 2, result.output
    refused = result.output.splitlines()[-1]
    assert refused.startswith(f"rlhfless: {file}: ")
    assert said in refused


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    result = rlhfless("figures", "4b", "--fast", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "is a file; name a folder" in result.output


@pytest.mark.full
def test_pages_tables_and_an_index_with_findings_are_written(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / GSM8K_LOG).parent.mkdir(parents=True)
    rows = [f"{visit},{visit},{prompt},{sample},{5 + prompt},0" for visit in (0, 1) for prompt in (0, 1) for sample in (0, 1)]
    (logs / GSM8K_LOG).write_text("\n".join([GSM8K_HEAD, *rows]), encoding="utf-8")
    result = rlhfless("figures", *reversed(QUICK), "--fast", "--logs", logs, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    how_long, where, *progress = result.output.splitlines()[:8]
    assert how_long.startswith("3 figures in smaller settings, about ")
    assert where == f"lengths: public logs of GSM8K in {logs}, stated models for all others"
    assert progress == [
        line
        for place, name in enumerate(QUICK, start=1)
        for line in (
            f"figure {place} of 3: {FIGURES[name].title}",
            f"    wrote {tmp_path / 'out' / FIGURES[name].file_name}.html",
        )
    ]
    index = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    for name in QUICK:
        figure = FIGURES[name]
        page = (tmp_path / "out" / f"{figure.file_name}.html").read_text(encoding="utf-8")
        assert "Where and why we differ" in page
        assert f'href="{figure.file_name}.html"' in index
        assert len(pd.read_csv(tmp_path / "out" / f"{figure.file_name}.csv"))
    assert index.count("Where and why we differ") == len(QUICK)
    assert "http" not in index
    assert "transfers are hidden behind the longest group" in index
    assert not (tmp_path / "out" / "README.md").exists(), "the table needs all figures"


def test_a_reader_who_stops_has_a_page_of_the_figures_that_are_there(tmp_path: Path) -> None:
    def stop_at_the_second(line: str) -> None:
        if line.startswith("figure 2 of 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_figures(tmp_path, QUICK, fast=True, sources=Sources(None), on_line=stop_at_the_second)
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="figure_04a.html"' in index
    assert "figure_04b.html" not in index
    assert "2 figures still missing" in index
    write_figures(tmp_path, QUICK, fast=True, sources=Sources(None))
    assert "still missing" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_pages_made_without_logs_say_that_they_differ_from_the_printed_ones(tmp_path: Path) -> None:
    without = Sources(None)
    for name in ("GSM8K", "MATH-500", "MATH", "instructions"):
        assert name in without.about
        assert name in without.differs
    write_figures(tmp_path, ["4b"], fast=True, sources=without)
    for page in ("index.html", "figure_04b.html"):
        assert without.differs in (tmp_path / page).read_text(encoding="utf-8")


def test_the_readme_names_the_command_that_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "FIGURES", {"4b": FIGURES["4b"]})
    (tmp_path / STEP_LOGS["MATH"][0]).parent.mkdir(parents=True)
    (tmp_path / STEP_LOGS["MATH"][0]).write_text("avg_response_len\n5\n7\n", encoding="utf-8")
    out = tmp_path / "my figures"
    for options in (["--fast"], ["--fast", "--logs", str(tmp_path)]):
        result = rlhfless("figures", *options, "--pictures", "none", "-o", out)
        assert result.exit_code == 0, result.output
        readme = (out / "README.md").read_text(encoding="utf-8")
        assert f"written by `rlhfless figures {' '.join(options)} -o '{out}'`" in readme


def test_runs_of_another_version_are_removed_when_figures_are_written(tmp_path: Path) -> None:
    old, other = (tmp_path / "runs" / name for name in ("GSM8K-0123456789abcdef.parquet", "my-lengths.parquet"))
    old.parent.mkdir()
    for file in (old, other):
        file.write_bytes(b"")
    write_figures(tmp_path, ["4b"], fast=True, sources=Sources(None))
    assert list(old.parent.iterdir()) == [other]


@pytest.mark.parametrize(
    ("names", "fast", "said"),
    [
        (
            [],
            False,
            rf"{len(FIGURES)} figures, about \d+ minutes of one core; with --fast about (\d+ minutes|\d+ s)",
        ),
        (["12"], True, r"1 figure in smaller settings, about \d+ s of one core"),
        (["12", "real_main"], False, r"2 figures, of which real_main may take minutes"),
    ],
)
def test_how_long_the_figures_take_is_said_first(names: list[str], fast: bool, said: str) -> None:
    assert re.fullmatch(said, how_long(chosen(names), fast))


@pytest.fixture
def broken_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser that is there and does not start."""
    pytest.importorskip("kaleido")
    program = tmp_path / "browser"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(program))
    return program


def test_a_browser_that_does_not_start_costs_the_pictures_alone(tmp_path: Path, broken_browser: Path) -> None:
    result = rlhfless("figures", "4b", "--fast", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    *_, why_not, wrote = result.output.splitlines()
    assert why_not.startswith(f"no pictures: a picture of a figure cannot be drawn with {broken_browser} (")
    assert not set("'\"") & set(why_not), "a sentence, no Python"
    assert wrote == f"wrote {(tmp_path / 'out' / 'index.html').resolve()}"
    assert ".png" not in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("asked", ["png", "pdf"])
def test_pictures_that_were_asked_for_are_missed_when_all_else_is_there(
    tmp_path: Path, broken_browser: Path, asked: str
) -> None:
    result = rlhfless("figures", "4b", "--fast", "--pictures", asked, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert f"rlhfless: a picture of a figure cannot be drawn with {broken_browser} (" in result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", "figure_04b.html", "figure_04b.csv"}


def same_tables(first: Path, second: Path) -> list[str]:
    """Names of the tables of both folders that are to be the same bytes, which they are."""
    names = sorted(path.name for path in first.glob("*.csv") if not path.stem.endswith("_measured"))
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    return names


@pytest.mark.parametrize("figures", [QUICK, pytest.param(("7b",), marks=pytest.mark.full)])
def test_the_same_setting_gives_the_same_bytes(tmp_path: Path, figures: tuple[str, ...]) -> None:
    for out in ("one", "two"):
        write_figures(tmp_path / out, figures, fast=True, sources=Sources(None))
    assert len(same_tables(tmp_path / "one", tmp_path / "two")) == len(figures)


@pytest.fixture
def small_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small settings for every figure."""
    for name in FIGURES:
        monkeypatch.setitem(FIGURES, name, small(name))


@pytest.mark.nightly
def test_all_figures_are_made_alike(tmp_path: Path, small_settings: None) -> None:
    for out in ("one", "two"):
        write_figures(tmp_path / out, fast=True, sources=BESIDE)
    assert len(same_tables(tmp_path / "one", tmp_path / "two")) == len(FIGURES)


@pytest.mark.full
def test_all_figures_are_made_with_small_settings(tmp_path: Path, paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {name: paper.found(name) for name in FIGURES}
    for name, numbers in made.items():
        monkeypatch.setitem(FIGURES, name, replace(small(name), numbers=lambda *_, numbers=numbers, **__: numbers))
    write_figures(tmp_path / "one", fast=True, sources=BESIDE)
    assert len([*(tmp_path / "one").glob("figure_*.html")]) == len(FIGURES)
    assert (tmp_path / "one" / "figure_10_measured.csv").is_file()
    simulated = pd.read_csv(tmp_path / "one" / "figure_16.csv")
    policies = simulated[simulated["policy"] != "bound"]
    assert (policies["gpu_s"] >= policies["bound_gpu_s"] * (1 - 1e-9)).all()
    assert (policies["speedup"] <= policies["most_speedup"] * (1 + 1e-9)).all()
    assert (policies["cost_saved"] <= policies["most_cost_saved"] + 1e-9).all()
    keys = ["nodes", "max_response_tokens", "policy"]
    step, alone = (
        policies[(policies["naive"] == "static") & (policies["scope"] == s)].set_index(keys) for s in ("step", "generation")
    )
    gpus = (step["gpu_s"] - alone["gpu_s"]) / (step["time_s"] - alone["time_s"])
    share = gpus / (8 * step.index.get_level_values("nodes"))
    assert share.max() == pytest.approx(1.0), "all GPUs, when all actors are held, and never more"
    findings = pd.read_csv(tmp_path / "one" / "findings_measured.csv", dtype=str)
    assert not findings.isna().to_numpy().any()
    assert not findings.map(lambda text: "{" in text).to_numpy().any()
    printed = " ".join(findings["paper"])
    for number in (
        "1.35x",
        "44.8 %",
        "1.23x",
        "38.7 %",
        "12.8 %",
        "22 %",
        "66 %",
        "1.22x and 28.9 %",
        "30 ms",
        "0.5",
        "second",
    ):
        assert number in printed
    index = (tmp_path / "one" / "index.html").read_text(encoding="utf-8")
    assert "<h2>Findings</h2>" in index
    readme = (tmp_path / "one" / "README.md").read_text(encoding="utf-8")
    assert f"written by `rlhfless figures --fast -o {tmp_path / 'one'}`" in readme
    assert list(findings["what"]) == [what for _, what in VERDICTS]
    assert set(findings["holds"]) <= {"yes", "in part", "no"}
    simulated = findings.set_index("what")["holds"]["faster and cheaper on average on up to 160 GPUs"]
    assert simulated == "in part", "faster than 3 actors and dearer than few, or cheaper than all and slower"
    for text in findings["ours"]:
        assert escape(text) in index
