"""Commands that read a log: ``report`` and ``convert`` are told how, and the others read what ``convert`` wrote."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from command_line import Result, run_rlhfless
from error_messages import check_message, refusal_line, refused_command
from importer_samples import TOKENIZER, many_rollouts, prompt_text, response_text, write_verl_v1

import rlhfless as rl
import rlhfless.trace
from rlhfless.cli.command_line import COMMANDS as NAMES
from rlhfless.cli.command_line import command
from rlhfless.cli.log_options import PLACEHOLDERS, ReadOptions
from rlhfless.cli.options import flag
from rlhfless.trace import OpenedLog

ROOT = Path(__file__).parents[2]
PROFILE = "l40s-qwen2.5-3b-tp2"
GPUS = ("--gpus", "4", "--profile", PROFILE)
COMMANDS: dict[str, Callable[[str, Path], list[str]]] = {
    "report": lambda log, out: ["report", log, *GPUS, "-o", str(out / "notebook.ipynb")],
    "what-ifs": lambda log, out: ["report", log, "--only", "what-ifs", *GPUS],
    "plan": lambda log, out: ["plan", log, *GPUS],
    "simulate": lambda log, out: ["simulate", log, *GPUS, "--policies", "random"],
    "drafts": lambda log, out: ["report", log, "--only", "drafts"],
    "convert": lambda log, out: ["convert", log, "-o", str(out / "timeline.json")],
    "profile": lambda log, out: ["profile", "--from-log", log, "--base", PROFILE, "-o", str(out / "own.json")],
    "step": lambda log, out: [
        "step", log, "--model", "actor=qwen2.5-3b", "--algorithm", "grpo", "--gpu", "h100", "--gpus", "8", "--levers", "none",
    ],
}  # fmt: skip
"""What is typed to read a log with each command."""
TOLD = {"report", "what-ifs", "drafts", "convert"}
"""They have the options of reading."""
NEEDS = {"drafts": "text", "convert": "start_s", "profile": "time"}
"""What some commands find in some logs only; the refusal names it."""


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
    """A trace folder, as ``rlhfless convert`` writes it."""
    path, options = csv_log(folder)
    done = run_rlhfless("convert", str(path), *options, "-o", str(folder / "trace"))
    assert done.exit_code == 0, done.output
    return folder / "trace", ["--run", "first"]


LOGS = {"csv": csv_log, "jsonl.gz": packed_log, "verl": verl_log, "trace": our_trace}
HAVE = {"text": {"csv", "jsonl.gz", "verl"}, "start_s": {"csv", "jsonl.gz", "trace"}, "time": {"csv", "jsonl.gz", "trace"}}


def test_the_options_of_reading_are_those_of_two_commands() -> None:
    assert {name for name in NAMES if issubclass(command(name).options, ReadOptions)} == {"report", "convert"}
    assert [flag(name, field) for name, field in ReadOptions.model_fields.items()] == list(PLACEHOLDERS)


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
    converted = path
    if kind != "trace":
        converted = tmp_path / "converted"
        done = run_rlhfless("convert", str(path), *options, "-o", str(converted))
        assert done.exit_code == 0, done.output
    for name, words in COMMANDS.items():
        read.clear()
        result = run_rlhfless(*words(str(path if name in TOLD else converted), tmp_path), *(options if name in TOLD else []))
        assert read == [56], (name, result.output)
        if name in NEEDS and kind not in HAVE[NEEDS[name]]:
            refused_command(result, NEEDS[name])
        else:
            assert result.exit_code == 0, (name, result.output)


def run(command: str, log: Path, out: Path, *options: str) -> Result:
    return run_rlhfless(*COMMANDS[command](str(log), out), *options)


@pytest.fixture
def scalars(tmp_path: Path) -> Path:
    """A folder of imported scalars, without responses."""
    golden = Path(__file__).parents[1] / "trace" / "importers" / "golden" / "openrlhf" / "console.log"
    done = run_rlhfless("convert", str(golden), "-o", str(tmp_path / "scalars"))
    assert done.exit_code == 0, done.output
    return tmp_path / "scalars"


SIZES = ["--max-response-tokens", "900", "--responses-per-step", "8", "--samples-per-prompt", "2"]


@pytest.mark.parametrize("command", ["what-ifs", "plan", "simulate", "step"])
def test_lengths_of_a_log_of_scalars_are_drawn_and_the_command_says_so(command: str, scalars: Path, tmp_path: Path) -> None:
    """Its sizes are those that ``report`` is told, or that ``convert`` was told."""
    if command in TOLD:
        result = run(command, scalars, tmp_path, *SIZES)
    else:
        assert run_rlhfless("convert", scalars, *SIZES, "-o", tmp_path / "sized").exit_code == 0
        result = run(command, tmp_path / "sized", tmp_path)
    assert result.exit_code == 0, result.output
    check_message(result.output, "lengths are drawn", "8 per step (2 per prompt)")


@pytest.mark.parametrize("command", ["plan", "simulate", "step", "profile"])
def test_a_log_that_needs_help_is_converted_first_and_the_refusal_has_the_line(command: str, tmp_path: Path) -> None:
    path, options = csv_log(tmp_path)
    refused_command(run(command, path, tmp_path), f"rlhfless convert {path} --map ", "-o out/log")
    refused_command(
        run(command, path, tmp_path, *options), "--map", f"rlhfless convert {path} --map step=iteration --map prompt_id=",
        "--where 'split ==", "-o out/log",
    )  # fmt: skip
    texts, told = verl_log(tmp_path)
    refused_command(run(command, texts, tmp_path), f"rlhfless convert {texts} --tokenizer MODEL -o out/log")
    refused_command(run(command, texts, tmp_path, *told), f"rlhfless convert {texts} --tokenizer {TOKENIZER} -o out/log")


@pytest.mark.parametrize("command", ["plan", "simulate", "step", "profile"])
def test_one_of_several_runs_is_converted_first(command: str, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = many_rollouts(prompts=14, samples=2).rename(columns={"prompt": "prompt_id"})
    rows = rows.assign(start_s=100.0 * rows["step"], end_s=100.0 * rows["step"] + 0.01 * rows["response_tokens"])
    pd.concat([rows.assign(run="a"), rows.assign(run="b")]).to_csv(log, index=False)
    refused_command(run(command, log, tmp_path), "2 runs", f"rlhfless convert {log} --run NAME -o out/log")
    whole, alone, again = (tmp_path / name for name in ("whole", "alone", "again"))
    for done in (
        run_rlhfless("convert", log, "-o", whole), run_rlhfless("convert", log, "--run", "b", "-o", alone),
        run_rlhfless("convert", whole, "--run", "b", "-o", again),
    ):  # fmt: skip
        assert done.exit_code == 0, done.output
    refused_command(run(command, whole, tmp_path), "2 runs", "--run NAME")
    for one in (alone, again):
        assert rlhfless.trace.read_trace(one).runs == ["b"]
        done = run(command, one, tmp_path)
        assert done.exit_code == 0, done.output
    refused_command(run_rlhfless("convert", whole, "--run", "c", "-o", tmp_path / "none"), "no run c")


def test_the_limit_that_convert_is_told_counts_in_what_is_planned(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    many_rollouts(prompts=14, samples=2).rename(columns={"prompt": "prompt_id"}).to_csv(log, index=False)
    done = run_rlhfless("convert", log, "--max-response-tokens", "900", "-o", tmp_path / "trace")
    assert done.exit_code == 0, done.output
    limits = {"trace": rl.load(tmp_path / "trace", verbose=False), "log": rl.load(log, max_response_tokens=900, verbose=False)}
    assert {name: run.max_response_tokens for name, run in limits.items()} == {"trace": 900, "log": 900}
    assert limits["trace"].opened.trace.meta["framework"] == "table"


@pytest.mark.parametrize("command", ["drafts", "convert"])
def test_commands_that_need_logged_responses_draw_none(command: str, scalars: Path, tmp_path: Path) -> None:
    refused_command(run(command, scalars, tmp_path), str(scalars), "no responses")
    refused_command(run(command, scalars, tmp_path, "--responses-per-step", "8"), "--responses-per-step")


def test_sizes_of_a_log_of_scalars_are_refused_of_responses(tmp_path: Path) -> None:
    path, options = csv_log(tmp_path)
    done = run_rlhfless("convert", path, *options, "--samples-per-prompt", "2", "-o", tmp_path / "trace")
    refused_command(done, "--samples-per-prompt", "responses")
    assert not (tmp_path / "trace").exists()


def test_a_wrong_mapping_is_the_same_sentence_everywhere(tmp_path: Path) -> None:
    path, options = csv_log(tmp_path)
    wrong = [word.replace("iteration", "epoch") for word in options]
    said = {refusal_line(run(command, path, tmp_path, *wrong)) for command in TOLD}
    assert len(said) == 1
    assert "step=epoch" in said.pop()


def test_a_base_and_actors_need_a_log(tmp_path: Path) -> None:
    for option in (["--base", PROFILE], ["--actors", "2"]):
        refused_command(run_rlhfless("profile", "-o", tmp_path / "own.json", *option), "--from-log")


@pytest.mark.parametrize("command", ["report", "what-ifs", "plan", "simulate"])
def test_a_profile_may_be_left_out_and_the_stand_in_is_named(command: str, tmp_path: Path) -> None:
    """It is that which the trace recorded, else assumed: the same in every command that studies a run."""
    log = tmp_path / "log.csv"
    many_rollouts(prompts=14, samples=2).rename(columns={"prompt": "prompt_id"}).to_csv(log, index=False)
    typed = [word for word in COMMANDS[command](str(log), tmp_path) if word not in GPUS[2:]]
    done = run_rlhfless(*typed)
    assert done.exit_code == 0, done.stderr
    shown = (tmp_path / "notebook.ipynb").read_text("utf-8") if command == "report" else done.stdout
    assert f"profile {PROFILE}), because no profile was given" in shown


@pytest.mark.parametrize("command", ["what-ifs", "plan", "simulate"])
def test_a_number_of_gpus_is_never_assumed(command: str, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    many_rollouts(prompts=14, samples=2).rename(columns={"prompt": "prompt_id"}).to_csv(log, index=False)
    typed = [word for word in COMMANDS[command](str(log), tmp_path) if word not in GPUS[:2]]
    refused_command(run_rlhfless(*typed), "log.csv", "how many GPUs", "--gpus N")


@pytest.mark.parametrize(("command", "options"), [("plan", []), ("simulate", ["--policies", "random"])])
def test_what_is_assumed_is_in_the_json_too_and_stated_hardware_is_not(
    command: str, options: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    many_rollouts(prompts=14, samples=2).rename(columns={"prompt": "prompt_id"}).to_csv(log, index=False)
    typed = [command, str(log), *options, "--format", "json", *GPUS[:2]]
    profile, price = json.loads(run_rlhfless(*typed).stdout)["assumed"]
    assert PROFILE in profile
    assert "price" in price
    assert "assumed" not in json.loads(run_rlhfless(*typed, *GPUS[2:], "--usd-per-gpu-hour", "2").stdout)


def test_a_profile_that_a_trace_of_an_executed_run_lacks_is_named_as_assumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(ROOT / "data" / "traces" / "reasoning-static", folder)
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    typed = ["plan", str(folder), "--step", "1", "--format", "json"]
    assert "assumed" not in json.loads(run_rlhfless(*typed).stdout)
    (folder / "meta.json").write_text(json.dumps({**meta, "profile": None}))
    (assumed,) = json.loads(run_rlhfless(*typed).stdout)["assumed"]
    assert PROFILE in assumed


def test_a_profile_to_scale_is_chosen_from_those_that_the_refusal_names(tmp_path: Path) -> None:
    log = ROOT / "data" / "traces" / "reasoning-static"
    done = run_rlhfless("profile", "--from-log", str(log), "-o", str(tmp_path / "own.json"))
    refused_command(done, str(log), "--base", PROFILE)
