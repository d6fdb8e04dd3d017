"""Values of options: one value for one name, numbers where numbers are needed, and messages in the words that are typed."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command

from rlhfless.cli.command_line import COMMANDS, command
from rlhfless.cli.options import flag, members
from rlhfless.cli.report import ReportOptions
from rlhfless.errors import InputError

REQUIRED = {"log": "LOG", "gpu": "h100", "gpus": 8, "out": "profile.json", "models": ("actor=llama2-7b",)}
PLANNED = "steps=1,responses=2,mean-tokens=3"
NUMBERS = [
    (name, field)
    for name in COMMANDS
    for field, info in command(name).options.model_fields.items()
    if {int, float} & {getattr(one, "__origin__", one) for one in members(info.annotation)}
]


@pytest.mark.parametrize(("name", "field"), NUMBERS)
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_no_number(name: str, field: str, value: bool) -> None:
    kind = command(name).options
    needed = {one: REQUIRED[one] for one, info in kind.model_fields.items() if info.is_required()}
    about = {"log": "LOG"} if "log" in kind.model_fields else {}
    with refused(InputError, f"{flag(field, kind.model_fields[field])} is {value}", "number"):
        kind(**{**about, **needed, field: value})


def estimate(text: str) -> Any:
    return run_rlhfless("report", "--estimate", text, "--profile", "l40s-qwen2.5-3b-tp2")


def test_an_estimate_states_each_number_once() -> None:
    refused_command(estimate(f"{PLANNED},steps=2"), "--estimate", "steps", "twice")
    refused_command(estimate(f"{PLANNED},mean_tokens=2"), "--estimate", "mean-tokens", "twice")


def test_an_estimate_names_its_numbers_as_they_are_typed() -> None:
    refused_command(estimate(f"{PLANNED},color=2"), "--estimate color", "mean-tokens", "longest-tokens")
    refused_command(estimate(f"{PLANNED},longest-token=2"), "--estimate longest-token", "longest-tokens")
    refused_command(estimate(f"{PLANNED},longest-tokens=2"), "--estimate longest-tokens is 2", "mean")
    with refused(InputError, "--estimate is 5", "mapping"):
        ReportOptions(estimate=5)


def test_an_estimate_of_one_step_speaks_of_one_step() -> None:
    done = estimate("steps=1,responses=1,mean-tokens=3,longest-tokens=5")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("1 step of 1 response of about 3 tokens (longest 5)")
    assert "3 to 3" not in estimate("steps=1,responses=2,mean-tokens=3").stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        ("foo", "exact"), ("2*foo", "exact"), ("rewards.txt:f", "exact"),
        ("format:", "format:REGEX"), ("length:3", "length:LIMIT,SOFT"), ("model:", "model:FOLDER"),
    ],
)  # fmt: skip
def test_a_configuration_with_an_unknown_reward_is_not_printed(reward: str, named: str) -> None:
    refused_command(
        run_rlhfless("train", f"task.rewards=['{reward}']", "--dry-run"), "reward", reward.removeprefix("2*"), named
    )


@pytest.mark.parametrize("reward", ["task", "-0.5*exact", "format:^a", "length:3,4", "model:folder", "mine.py:f"])
def test_a_known_reward_is_printed(reward: str) -> None:
    done = run_rlhfless("train", f"task.rewards=['{reward}']", "--dry-run")
    assert done.exit_code == 0, done.output
    assert reward in done.stdout


@pytest.mark.parametrize(("key", "value"), [("planner.policy", "foo"), ("cluster.profile", "foo")])
def test_a_configuration_with_an_unknown_name_is_not_printed(key: str, value: str) -> None:
    refused_command(run_rlhfless("train", f"{key}={value}", "--dry-run"), value)
