"""``rlhfless step``: a plan with its bound beside published ones, as table, JSON and page, and what is refused."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from error_messages import refused_command
from page_figures import figures_json

from rlhfless.cli import main
from solver.dataflow import plan_step

SMALL = ("--algorithm", "grpo", "--model", "actor=llama2-7b", "--gpus", 8, "--kind", "h100", "--gap", 0.1)


def step(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["step", *map(str, arguments)])


def test_the_table_has_every_call_and_compares_plans_with_the_bound() -> None:
    done = step(*SMALL, "--compare", "megatron")
    assert done.exit_code == 0, done.stderr
    assert "Step plan of grpo on 8 GPUs" in done.stdout
    for text in ("generate", "reference", "reward", "train_actor", "megatron", "this plan", "of the bound", "USD per step"):
        assert text in done.stdout, text


def test_json_has_the_plan_those_of_others_and_what_was_assumed() -> None:
    shown = json.loads(step(*SMALL, "--compare", "megatron", "--format", "json").stdout)
    assert list(shown) == ["kind", "models", "batch", "memory_bytes", "plan", "others", "comparison", "assumptions"]
    assert shown["models"] == {"actor": "llama2-7b", "reward": "llama2-7b", "reference": "llama2-7b"}
    assert shown["plan"]["lower_bound_s"] <= shown["plan"]["period_s"] <= shown["others"]["megatron"]["period_s"]
    assert [row["plan"] for row in shown["comparison"]] == ["megatron", "this plan"]
    price = shown["comparison"][1]["cost_usd"] / (8 * shown["plan"]["period_s"] / 3600)
    assert json.loads(step(*SMALL, "--usd-per-gpu-hour", 2, "--format", "json").stdout)["comparison"][0]["cost_usd"] == (
        pytest.approx(shown["comparison"][1]["cost_usd"] * 2 / price)
    )


def test_a_deadline_a_budget_and_weights_give_cheaper_and_longer_steps() -> None:
    shortest = json.loads(step(*SMALL, "--format", "json").stdout)["plan"]
    limit = 1.6 * shortest["period_s"]
    for objective in (("--deadline-s", limit), ("--time-weight", 0.1), ("--budget-gpu-s", shortest["gpu_seconds"] * 0.97)):
        shown = json.loads(step(*SMALL, *objective, "--usd-per-gpu-hour", 3.6, "--format", "json").stdout)
        found = shown["objective"]
        assert (found["period_s"], found["gpu_seconds"]) == (shown["plan"]["period_s"], shown["plan"]["gpu_seconds"])
        assert shortest["period_s"] < found["period_s"] <= limit
        assert found["gpu_seconds"] < shortest["gpu_seconds"]
        assert found["cost_usd"] == pytest.approx(found["gpu_seconds"] * 1e-3)
        assert found["lower_bound"] <= found["value"]
    done = step(*SMALL, "--deadline-s", limit)
    for text in ("least GPU-seconds within", "the shortest plan takes", "bound"):
        assert text in done.stdout.splitlines()[0], text


def test_without_a_limit_of_memory_json_has_null_and_is_json() -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    done = step(*SMALL, "--memory-gib", "inf", "--compare", "megatron", "--format", "json")
    assert json.loads(done.stdout, parse_constant=refuse)["memory_bytes"] is None


def test_a100_has_a_price() -> None:
    shown = json.loads(step(*SMALL, "--kind", "a100", "--format", "json").stdout)
    assert shown["comparison"][0]["cost_usd"] > 0


def test_the_help_names_the_work_of_plan_step() -> None:
    work = inspect.signature(plan_step).parameters["work"].default
    assert f"[default: {work:,}]" in " ".join(step("--help").stdout.split())


def test_the_reward_has_the_critics_model_where_there_is_one() -> None:
    arguments = ("--model", "actor=llama2-13b", "--model", "critic=llama2-7b", "--gpus", 8, "--kind", "h100", "--gap", 0.3)
    shown = json.loads(step(*arguments, "--work", 20_000, "--format", "json").stdout)
    assert shown["models"] == {
        "actor": "llama2-13b", "reward": "llama2-7b", "reference": "llama2-13b", "critic": "llama2-7b"
    }  # fmt: skip


def test_the_page_has_the_figures_and_the_calls(tmp_path: Path) -> None:
    done = step(*SMALL, "--compare", "megatron", "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = page + figures_json(page)
    for part in ("What the seconds come from", "multiple of the lower bound", "plans whose times were computed", "train_actor"):
        assert part in text, part


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--gpus", 12), "--gpus is 12"),
        (("--gpus-per-node", 3), "--gpus-per-node is 3"),
        (("--gpus-per-node", 16), "--gpus-per-node is 16"),
        (("--kind", "v100"), "v100"),
        (("--model", "reward=llama9"), "llama9"),
        (("--model", "reward"), "--model is 'reward'"),
        (("--model", "critic=llama2-7b"), "'critic'"),
        (("--model", "actor=llama2-7b"), "twice"),
        (("--compare", "ours"), "'ours'"),
        (("--responses", 0), "responses is 0"),
        (("--responses", 30), "mini-batches"),
        (("--gap", 1), "gap is 1.0"),
        (("--gap", "nan"), "gap is nan"),
        (("--memory-gib", "nan"), "memory_bytes is nan"),
        (("--memory-gib", 0), "--memory-gib"),
        (("--memory-gib", 1), "train_actor"),
        (("--usd-per-gpu-hour", -1), "usd_per_gpu_hour is -1.0"),
        (("--algorithm", "ppo2"), "--algorithm"),
        (("--work", 0), "--work"),
        (("--gpus", 4096), "4,096 GPUs; steps are planned on 256 at most"),
        (("--deadline-s", 0.1), "deadline_s is 0.100"),
        (("--budget-usd", 1e-5), "budget_usd is 1e-05"),
        (("--time-weight", 2), "time_weight is 2.0"),
        (("--time-weight", 0.5, "--deadline-s", 9), "--time-weight"),
        (("--time-weight", 0.5, "--lengths", "log"), "--lengths"),
    ],
)
def test_malformed_commands(arguments: tuple[object, ...], named: str) -> None:
    refused_command(step(*SMALL, *arguments), named)


def test_a_folder_in_place_of_a_page_is_refused_before_anything_is_printed(tmp_path: Path) -> None:
    refused_command(step(*SMALL, "-o", tmp_path), "figures are written as .html")


def test_the_actor_needs_a_model() -> None:
    refused_command(step("--gpus", 8, "--kind", "h100"), "--model actor=MODEL")
