"""Every option and command that a message, a help text or the table of earlier options names exists."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run_rlhfless
from error_messages import refusal_line, refused_command

from rlhfless.cli.command_line import COMMANDS, GONE, command, parse
from rlhfless.cli.earlier_options import EARLIER, MODULES
from rlhfless.cli.options import is_positional
from rlhfless.cli.parser import parser_of
from rlhfless.cli.report import ReportOptions

ROOT = Path(__file__).parents[2]
OURS = sorted((ROOT / "rlhfless").rglob("*.py"))
OF_OTHERS = {
    "rlhfless/analysis/configuration_lines.py": "lines of other frameworks' configurations",
    "rlhfless/analysis/draft_configuration.py": "vLLM's",
    "rlhfless/analysis/framework_defaults.py": "slime's",
    "rlhfless/engine/server/benchmark.py": "vLLM's",
    "rlhfless/engine/server/client.py": "vLLM's",
    "rlhfless/engine/server/engine.py": "vLLM's",
    "rlhfless/analysis/what_ifs/asynchronous.py": "other frameworks'",
    "rlhfless/analysis/what_ifs/deferred_dispatch.py": "slime's",
    "rlhfless/analysis/what_ifs/dynamic_sampling.py": "slime's",
    "rlhfless/analysis/what_ifs/over_sampling.py": "slime's",
    "rlhfless/analysis/what_ifs/partial_rollout.py": "slime's",
    "rlhfless/cli/earlier_options.py": "of earlier versions",
    "rlhfless/diagnosis/levers.py": "lines of other frameworks' configurations",
    "rlhfless/diagnosis/slots.py": "lines of other frameworks' configurations",
    "rlhfless/executor/distributed/ray/cluster.py": "Ray's",
    "rlhfless/executor/distributed/ray/handle.py": "Ray's",
    "rlhfless/executor/distributed/ray/object_store.py": "Ray's and Docker's",
    "rlhfless/executor/distributed/worker/shared_memory.py": "Docker's",
    "rlhfless/latency/generate.py": "of `python -m rlhfless.latency.generate`",
    "rlhfless/latency/generate_calls.py": "of `python -m rlhfless.latency.generate_calls`",
    "rlhfless/trace/importers/console/slime.py": "slime's",
    "rlhfless/trace/importers/slime.py": "slime's, and ours",
}
"""Files whose texts name options of other programs."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])")


def options_of(name: str) -> set[str]:
    """The options of a command as they are typed."""
    return {*parser_of(command(name).options, name)._option_string_actions, "--help"}


def literals(path: Path) -> Iterator[str]:
    """The texts of a file, docstrings included."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_option_that_a_text_names_is_one_of_a_command() -> None:
    known = {"--version", *(option for name in COMMANDS for option in options_of(name))}
    named = {
        (str(path.relative_to(ROOT)), option)
        for path in OURS
        if str(path.relative_to(ROOT)) not in OF_OTHERS
        for text in literals(path)
        for option in OPTION.findall(re.sub(r"pip install (--[a-z-]+ )+", "", text))
    }
    assert {(path, option) for path, option in named if option not in known} == set()


def test_every_command_that_a_text_names_exists() -> None:
    named = {
        (str(path.relative_to(ROOT)), word)
        for path in OURS
        for text in literals(path)
        for word in re.findall(r"\brlhfless ([a-z][a-z-]+) (?:[A-Z]{2,}|--|-o)", text)
    }
    assert {(path, word) for path, word in named if word not in COMMANDS} == set()
    assert named, "messages name commands"


def rows() -> list[tuple[str, str, str]]:
    """The table of earlier options: command, option, where it is now."""
    text = (ROOT / "docs" / "command_line.md").read_text("utf-8")
    return re.findall(r"^\| `([a-z-]+)` \| `(--[a-z-]+)` \| (.*) \|$", text, flags=re.M)


def test_what_the_table_of_earlier_options_points_to_exists() -> None:
    missing = [
        (was, option, name, now)
        for was, option, where in rows()
        for name, now in re.findall(r"`([a-z]+) (--[a-z-]+)`", where)
        if now not in options_of(name)
    ]
    assert missing == []
    assert all("`" in where or where.startswith(("gone", "the same", "the LOG")) for _, _, where in rows())


def test_what_is_python_now_has_a_module_that_has_it() -> None:
    text = (ROOT / "docs" / "command_line.md").read_text("utf-8")
    listed = {
        name: module
        for module, names in re.findall(r"^\| `([a-z_.]+)` \| ((?:`\w+`(?:, )?)+) \|$", text, flags=re.M)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert [name for name, module in listed.items() if not hasattr(importlib.import_module(module), name)] == []
    used = {name for _, _, where in rows() if "Python:" in where for code in re.findall(r"`([^`]+)`", where)
            for name in re.findall(r"(?<![.\w])([A-Za-z_]+)\(", code)}  # fmt: skip
    assert used - listed.keys() == set()
    assert listed.keys() - used == set()


def asked_for() -> list[tuple[str, str]]:
    """Options of ``report`` that the table shows with what is asked for."""
    found = [re.findall(r"`report (--[a-z-]+)`.* with `(--only [a-z-]+|--estimate)`", where) for _, _, where in rows()]
    return sorted({pair for pairs in found for pair in pairs})


@pytest.mark.parametrize(("option", "asked"), asked_for())
def test_an_option_has_an_effect_on_what_the_table_shows_it_with(option: str, asked: str, tmp_path: Path) -> None:
    """Else it is refused as it is typed."""
    values = {"--format": "json", "--dispatch": "static", "--out": str(tmp_path / "page.html"), "--map": "step=x"}
    about = ["LOG", *asked.split()] if "only" in asked else [asked, "steps=1,responses=2,mean-tokens=3"]
    value = [] if option.startswith("--no-") else [values.get(option, "2")]
    assert parse(ReportOptions, [*about, option, *value], "rlhfless report") is not None


def test_a_value_that_the_table_renames_was_renamed() -> None:
    renamed = [(name, where) for _, _, where in rows() for name in re.findall(r"`(\w+) --format`", where)]
    assert {name for name, _ in renamed} == {"plan", "report", "simulate", "step", "layouts"}
    assert all("`table` is `text`" in where for _, where in renamed)


def test_the_table_has_every_earlier_command_and_no_option_twice() -> None:
    found = [(was, option) for was, option, _ in rows()]
    assert len(found) == len(set(found)) == 253
    assert {was for was, _ in found} == {*COMMANDS, *GONE} - {"train", "doctor"}


def earlier() -> list[tuple[str, str, str]]:
    """The rows of options that their command does not have any more."""
    return [row for row in rows() if row[0] in COMMANDS and row[1] not in options_of(row[0])]


def test_what_is_said_of_an_earlier_option_is_what_the_table_says() -> None:
    written = {(command, option): where for command, options in EARLIER.items() for option, where in options.items()}
    assert written == {(command, option): where for command, option, where in earlier()}


@pytest.mark.parametrize(("was", "option", "where"), earlier())
def test_an_option_that_is_typed_by_habit_is_refused_with_its_new_place(was: str, option: str, where: str) -> None:
    about = ["--from-log", "LOG"] if was == "profile" else ["LOG"] if was in {"report", "plan", "simulate", "step"} else []
    line = refusal_line(run_rlhfless(was, *about, option, "2"))
    assert line.startswith(f"rlhfless: {was} has no option {option}")
    for other, now in re.findall(r"`([a-z]+) (--[a-z-]+)`", where):
        assert now in line or f"{other} {now}" in where.partition(" and ")[2], line
    for code in re.findall(r"Python: `([^`]+)`", where):
        assert code in line
    for name in re.findall(r"(?<![.\w])([A-Za-z_]+)\(", where) if "Python:" in where else ():
        assert f"import {name}" in line
        assert hasattr(importlib.import_module(MODULES[name]), name)
    if "whose trace is named" in where:
        assert f"rlhfless convert LOG {option} 2 -o out/log" in line


def test_a_switch_that_is_gone_is_found_as_it_was_typed() -> None:
    refused_command(run_rlhfless("plan", "LOG", "--no-calibrate"), "--no-calibrate", "Assumptions(calibrate=False)")
    refused_command(run_rlhfless("figures", "--no-png"), "--pictures")


def test_a_flag_of_train_is_refused_with_its_key() -> None:
    text = (ROOT / "docs" / "command_line.md").read_text("utf-8")
    flags = re.findall(r"^\| `(--[a-z-]+)`(?:, `(--[a-z-]+)`)? \| (?:`([a-z_.]+)`)?.* \|$", text, flags=re.M)
    assert len(flags) > 90
    for first, second, key in flags:
        for flag in filter(None, (first, second)):
            if flag not in options_of("train"):
                line = refusal_line(run_rlhfless("train", flag, "2", "-o", "out"))
                instead = {"--resume-from": "--resume", "--gpus-per-actor": "tensor_parallel"}
                named = f"{key}=" if key else instead.get(flag, "it is gone: ")
                assert named in line, (flag, line)
                assert f"train has no option {flag}" in line


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--num_generations", "here it is samples_per_prompt, and a key is typed without dashes: KEY=VALUE"),
        ("--num-generations", "here it is samples_per_prompt, and a key is typed without dashes: KEY=VALUE"),
        ("--output_dir", "here it is -o FOLDER on the command line"),
        ("--resume_from_checkpoint", "here it is --resume last on the command line"),
        ("--report_to", "here it is --log NAME on the command line"),
        ("--eval_dataset", "give task.eval_prompts on the command line"),
        ("--config", "the file is typed without an option: rlhfless train CONFIG.yaml"),
        ("--bf16", "give learner_dtype='bfloat16'"),
        ("--shuffle_dataset", "there is none here"),
        ("--data.train_batch_size", "here it is prompts_per_step"),
        ("--optimizer.learning_rate", "it is a key: optimizer.learning_rate=VALUE"),
        ("--resum", "did you mean --resume?"),
        ("--nothing-like-it", "rlhfless train --help lists them"),
    ],
)
def test_a_flag_with_another_frameworks_name_or_of_a_key_is_refused_with_what_to_type(flag: str, instead: str) -> None:
    for words in ((flag, "4"), (f"{flag}=4",)):
        line = refusal_line(run_rlhfless("train", *words, "-o", "out"))
        assert line.startswith(f"rlhfless: train has no option {flag}; "), line
        assert instead in line


@pytest.mark.parametrize("name", COMMANDS)
def test_the_number_of_options_in_the_table_is_that_of_the_model(name: str) -> None:
    text = (ROOT / "docs" / "command_line.md").read_text("utf-8")
    found = re.findall(rf"^\| `{name}` \| .* \| (\d+) \|$", text, flags=re.M)
    assert [int(number) for number in found] in (
        [],
        [sum(not is_positional(f) for f in command(name).options.model_fields.values())],
    )
    assert found or name == "train"
