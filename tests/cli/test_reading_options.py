"""Commands that read a log: all of them take the same options, and read the same logs as ``rlhfless report`` does."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from error_messages import check_message, refusal_line, refused_command
from importer_samples import TOKENIZER, many_rollouts, prompt_text, response_text, write_verl_v1

import rlhfless.trace
from rlhfless.cli import main
from rlhfless.trace import OpenedLog

ROOT = Path(__file__).parents[2]
PROFILE = "l40s-qwen2.5-3b-tp2"
GPUS = ("--gpus", "4", "--profile", PROFILE)
COMMANDS: dict[str, Callable[[str, Path], list[str]]] = {
    "report": lambda log, out: ["report", log, *GPUS, "-o", str(out / "notebook.ipynb")],
    "what-if": lambda log, out: ["what-if", log, *GPUS],
    "plan": lambda log, out: ["plan", log, *GPUS],
    "simulate": lambda log, out: ["simulate", log, *GPUS, "--policies", "random"],
    "drafts": lambda log, out: ["drafts", log],
    "export": lambda log, out: ["export", log, "--perfetto", str(out / "timeline.json")],
    "profile": lambda log, out: ["profile", "--from-log", log, "--base", PROFILE, "-o", str(out / "own.json")],
    "step": lambda log, out: [
        "step", "--model", "actor=qwen2.5-3b", "--algorithm", "grpo", "--kind", "h100", "--gpus", "8", "--levers", "overlap",
        "--gap", "0.9", "--work", "20000", "--lengths", log,
    ],
}  # fmt: skip
"""What is typed to read a log with each command."""
NEEDS = {"drafts": "text", "export": "start_s", "profile": "time"}
"""What some commands find in some logs only; the refusal names it."""
READING = {
    "--from", "--tokenizer", "--map", "--where", "--run", "--max-response-tokens", "--responses-per-step",
    "--samples-per-prompt",
}  # fmt: skip


def table() -> pd.DataFrame:
    """56 responses of two steps, with texts and times, under names that are not ours; half of the rows are of another split."""
    rows = many_rollouts(prompts=14, samples=2)
    texts = {
        "prompt": [prompt_text(row) for row in rows.itertuples()],
        "answer": [response_text(row) for row in rows.itertuples()],
    }
    times = {"began": 100.0 * rows["step"], "ended": 100.0 * rows["step"] + 0.01 * rows["response_tokens"]}
    named = rows.rename(columns={"prompt": "number", "response_tokens": "length", "step": "iteration"})
    named = named.assign(source="gsm", **texts, **times)
    return pd.concat([named.assign(split="train"), named.assign(split="test")], ignore_index=True)


MAPS = [
    "--map", "step=iteration", "--map", "prompt_id=source+number", "--map", "response_tokens=length", "--map", "start_s=began",
    "--map", "end_s=ended", "--map", "run='first'", "--map", "response=answer", "--where", "split == 'train'",
]  # fmt: skip


def csv_log(folder: Path) -> tuple[Path, list[str]]:
    """Its columns are mapped, joined and constant, and some rows are left out."""
    path = folder / "theirs.csv"
    table().to_csv(path, index=False)
    return path, MAPS


def packed_log(folder: Path) -> tuple[Path, list[str]]:
    """The same as packed lines of JSON."""
    path = folder / "theirs.jsonl.gz"
    path.write_bytes(gzip.compress(table().to_json(orient="records", lines=True).encode()))
    return path, MAPS


def verl_log(folder: Path) -> tuple[Path, list[str]]:
    """A dump of verl, whose lengths are counted."""
    return write_verl_v1(folder, many_rollouts(prompts=14, samples=2)), ["--tokenizer", str(TOKENIZER)]


def our_trace(folder: Path) -> tuple[Path, list[str]]:
    """A trace folder, as ``rlhfless import`` writes it."""
    path, options = csv_log(folder)
    done = CliRunner().invoke(main, ["import", str(path), *options, "-o", str(folder / "trace")])
    assert done.exit_code == 0, done.output
    return folder / "trace", ["--run", "first"]


LOGS = {"csv": csv_log, "jsonl.gz": packed_log, "verl": verl_log, "trace": our_trace}
HAVE = {"text": {"csv", "jsonl.gz", "verl"}, "start_s": {"csv", "jsonl.gz", "trace"}, "time": {"csv", "jsonl.gz", "trace"}}


def options_of(command: str) -> dict[str, click.Option]:
    """Options by name."""
    return {name: p for p in main.commands[command].params if isinstance(p, click.Option) for name in p.opts}


def test_every_command_that_reads_a_log_has_the_same_options_of_reading() -> None:
    reports = options_of("report")
    assert set(reports) >= READING
    for command in COMMANDS:
        own = options_of(command)
        assert set(own) >= READING, command
        for name in READING:
            assert own[name].to_info_dict() == reports[name].to_info_dict(), (command, name)
    readers = {name for name in main.commands if "--map" in options_of(name)}
    assert readers == {*COMMANDS, "import"}


def test_import_writes_the_log_as_it_is_and_shares_the_other_options() -> None:
    own, reports = options_of("import"), options_of("report")
    shared = READING - {"--run", "--responses-per-step", "--samples-per-prompt"}
    assert set(own) & READING == shared
    assert all(own[name].to_info_dict() == reports[name].to_info_dict() for name in shared)


@pytest.mark.parametrize("kind", LOGS)
def test_a_log_that_the_report_reads_is_read_by_every_command(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("papermill", reason="the report is written as a notebook, which takes no time")
    path, options = LOGS[kind](tmp_path)
    read: list[int] = []

    def counting(opens: Callable[..., OpenedLog]) -> Callable[..., OpenedLog]:
        def counted(*args: object, **more: object) -> OpenedLog:
            opened = opens(*args, **more)
            read.append(len(opened.trace.rollouts))
            return opened

        return counted

    for name in ("open_log", "read_log"):  # one opens what has responses, the other what may have none
        monkeypatch.setattr(rlhfless.trace, name, counting(getattr(rlhfless.trace, name)))
    for command, words in COMMANDS.items():
        read.clear()
        result = CliRunner().invoke(main, [*words(str(path), tmp_path), *options])
        assert read == [56], (command, result.output)
        if command in NEEDS and kind not in HAVE[NEEDS[command]]:
            refused_command(result, NEEDS[command])
        else:
            assert result.exit_code == 0, (command, result.output)


def run(command: str, log: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(main, [*COMMANDS[command](str(log), out), *options])


@pytest.fixture
def scalars(tmp_path: Path) -> Path:
    """A folder of imported scalars, without responses."""
    golden = Path(__file__).parents[1] / "trace" / "importers" / "golden" / "openrlhf" / "console.log"
    done = CliRunner().invoke(main, ["import", str(golden), "-o", str(tmp_path / "scalars")])
    assert done.exit_code == 0, done.output
    return tmp_path / "scalars"


@pytest.mark.parametrize("command", ["what-if", "plan", "simulate", "step"])
def test_lengths_of_a_log_of_scalars_are_drawn_and_the_command_says_so(command: str, scalars: Path, tmp_path: Path) -> None:
    sizes = ["--max-response-tokens", "900", "--responses-per-step", "8", "--samples-per-prompt", "2"]
    result = run(command, scalars, tmp_path, *sizes)
    assert result.exit_code == 0, result.output
    check_message(result.output, "lengths are drawn", "8 per step (2 per prompt)")


@pytest.mark.parametrize("command", ["drafts", "export"])
def test_commands_that_need_logged_responses_draw_none(command: str, scalars: Path, tmp_path: Path) -> None:
    refused_command(run(command, scalars, tmp_path), str(scalars), "no responses")
    refused_command(run(command, scalars, tmp_path, "--responses-per-step", "8"), "--responses-per-step")


def test_a_wrong_mapping_is_the_same_sentence_everywhere(tmp_path: Path) -> None:
    path, options = csv_log(tmp_path)
    wrong = [word.replace("iteration", "epoch") for word in options]
    said = {refusal_line(run(command, path, tmp_path, *wrong)) for command in COMMANDS}
    assert len(said) == 1
    assert "step=epoch" in said.pop()


def test_options_of_reading_need_a_log(tmp_path: Path) -> None:
    for command, log in (("step", "--lengths"), ("profile", "--from-log")):
        words = COMMANDS[command]("LOG", tmp_path)
        at = words.index(log)
        bare = [*words[:at], *words[at + 2 :], "--where", "x > 1"]
        bare = [word for word in bare if word not in ("--levers", "overlap", "--base", PROFILE)]
        refused_command(CliRunner().invoke(main, bare), log)


@pytest.mark.parametrize("command", ["report", "what-if", "plan", "simulate"])
def test_a_profile_may_be_left_out_and_the_stand_in_is_named(command: str, tmp_path: Path) -> None:
    """It is that which the trace recorded, else assumed: the same in every command that studies a run."""
    log = tmp_path / "log.csv"
    many_rollouts(prompts=14, samples=2).rename(columns={"prompt": "prompt_id"}).to_csv(log, index=False)
    typed = [word for word in COMMANDS[command](str(log), tmp_path) if word not in GPUS[2:]]
    done = CliRunner().invoke(main, typed)
    assert done.exit_code == 0, done.stderr
    shown = (tmp_path / "notebook.ipynb").read_text("utf-8") if command == "report" else done.stdout
    assert f"profile {PROFILE}), because no profile was given" in shown


@pytest.mark.parametrize("command", ["what-if", "plan", "simulate"])
def test_a_number_of_gpus_is_never_assumed(command: str, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    many_rollouts(prompts=14, samples=2).rename(columns={"prompt": "prompt_id"}).to_csv(log, index=False)
    typed = [word for word in COMMANDS[command](str(log), tmp_path) if word not in GPUS[:2]]
    refused_command(CliRunner().invoke(main, typed), "log.csv", "how many GPUs", "--gpus N")


@pytest.mark.parametrize(("command", "options"), [("plan", []), ("simulate", ["--policies", "random"])])
def test_what_is_assumed_is_in_the_json_too_and_stated_hardware_is_not(
    command: str, options: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    many_rollouts(prompts=14, samples=2).rename(columns={"prompt": "prompt_id"}).to_csv(log, index=False)
    typed = [command, str(log), *options, "--format", "json", *GPUS[:2]]
    (assumed,) = json.loads(CliRunner().invoke(main, typed).stdout)["assumed"]
    assert PROFILE in assumed
    assert "assumed" not in json.loads(CliRunner().invoke(main, [*typed, *GPUS[2:]]).stdout)


def test_a_profile_that_a_trace_of_an_executed_run_lacks_is_named_as_assumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(ROOT / "data" / "traces" / "reasoning-static", folder)
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    typed = ["plan", str(folder), "--step", "1", "--format", "json"]
    assert "assumed" not in json.loads(CliRunner().invoke(main, typed).stdout)
    (folder / "meta.json").write_text(json.dumps({**meta, "profile": None}))
    (assumed,) = json.loads(CliRunner().invoke(main, typed).stdout)["assumed"]
    assert PROFILE in assumed


def test_a_profile_to_scale_is_chosen_from_those_that_the_refusal_names(tmp_path: Path) -> None:
    log = ROOT / "data" / "traces" / "reasoning-static"
    done = CliRunner().invoke(main, ["profile", "--from-log", str(log), "-o", str(tmp_path / "own.json")])
    refused_command(done, str(log), "--base", PROFILE)
