"""``rlhfless layouts``: a plan with its bound beside published ones, as table, JSON and page, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Result, run_rlhfless
from error_messages import refused_command
from page_figures import figures_json

SMALL = ("--algorithm", "grpo", "--model", "actor=llama2-7b", "--gpus", 8, "--gpu", "h100")


def layouts(*arguments: object) -> Result:
    return run_rlhfless("layouts", *arguments)


def test_the_table_has_every_call_and_compares_plans_with_the_bound() -> None:
    done = layouts(*SMALL, "--compare", "megatron")
    assert done.exit_code == 0, done.stderr
    assert "Step plan of grpo on 8 GPUs" in done.stdout
    first = " ".join(done.stdout[: done.stdout.index("Step plan")].split())
    assert first == (
        "Planned: algorithm grpo; models llama2-7b (actor, reward, reference); GPUs 8 h100 (1 node of 8); "
        "responses per step 256 of 384 tokens each; prompts 128 tokens each; updates of each trained model 4 mini-batches."
    )
    for text in ("generate", "reference", "reward", "train_actor", "megatron", "this plan", "of the bound", "USD per step"):
        assert text in done.stdout, text


def test_the_plan_is_compared_with_the_strongest_of_the_others_and_real_is_its_search() -> None:
    done = layouts(*SMALL, "--compare", "megatron,verl,real")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    seconds = {
        line.split()[0]: float(line.split()[1]) for line in lines if line.split()[:1] in (["megatron"], ["verl"], ["real"])
    }
    (said,) = (line for line in lines if line.startswith("this plan is "))
    strongest = said.removesuffix(", the shortest of megatron, verl, real").split()[-1]
    assert seconds[strongest] == min(seconds.values())
    assert "real: found by ReaL's search with these costs, not its published plan." in lines


def test_json_has_the_plan_those_of_others_and_what_was_assumed() -> None:
    shown = json.loads(layouts(*SMALL, "--compare", "megatron", "--format", "json").stdout)
    about = ["schema", "version", "kind", "models", "batch", "memory_bytes"]
    assert list(shown) == [*about, "plan", "others", "comparison", "assumptions"]
    assert shown["models"] == {"actor": "llama2-7b", "reward": "llama2-7b", "reference": "llama2-7b"}
    assert shown["plan"]["lower_bound_s"] <= shown["plan"]["period_s"] <= shown["others"]["megatron"]["period_s"]
    assert [row["plan"] for row in shown["comparison"]] == ["megatron", "this plan"]
    price = shown["comparison"][1]["cost_usd"] / (8 * shown["plan"]["period_s"] / 3600)
    assert json.loads(layouts(*SMALL, "--usd-per-gpu-hour", 2, "--format", "json").stdout)["comparison"][0]["cost_usd"] == (
        pytest.approx(shown["comparison"][1]["cost_usd"] * 2 / price)
    )


def test_a_deadline_a_budget_and_weights_give_cheaper_and_longer_steps() -> None:
    shortest = json.loads(layouts(*SMALL, "--format", "json").stdout)["plan"]
    limit = 1.6 * shortest["period_s"]
    for objective in (("--limit", f"{limit}s"), ("--time-weight", 0.1), ("--limit", f"{shortest['gpu_seconds'] * 0.97}gpu-s")):
        shown = json.loads(layouts(*SMALL, *objective, "--usd-per-gpu-hour", 3.6, "--format", "json").stdout)
        found = shown["objective"]
        assert (found["period_s"], found["gpu_seconds"]) == (shown["plan"]["period_s"], shown["plan"]["gpu_seconds"])
        assert shortest["period_s"] < found["period_s"]
        assert found["period_s"] <= limit or found["deadline_s"] is None
        assert found["gpu_seconds"] < shortest["gpu_seconds"]
        assert found["cost_usd"] == pytest.approx(found["gpu_seconds"] * 1e-3)
        assert found["lower_bound"] <= found["value"]
    done = layouts(*SMALL, "--limit", f"{limit}s")
    for text in ("least GPU-seconds within", "the shortest plan takes", "bound"):
        assert text in done.stdout.split("mini-batches.\n")[1].splitlines()[0], text


def test_a100_has_a_price() -> None:
    shown = json.loads(layouts(*SMALL, "--gpu", "a100", "--format", "json").stdout)
    assert shown["comparison"][0]["cost_usd"] > 0


def test_the_reward_has_the_critics_model_where_there_is_one() -> None:
    arguments = ("--model", "actor=llama2-13b", "--model", "critic=llama2-7b", "--gpus", 8, "--gpu", "h100")
    shown = json.loads(layouts(*arguments, "--format", "json").stdout)
    assert shown["models"] == {
        "actor": "llama2-13b", "reward": "llama2-7b", "reference": "llama2-13b", "critic": "llama2-7b"
    }  # fmt: skip


def test_the_page_has_the_figures_and_the_calls(tmp_path: Path) -> None:
    done = layouts(*SMALL, "--compare", "megatron", "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = page + figures_json(page)
    before = page[: page.index("Which call runs where</h2>")]
    for fact in (
        "llama2-7b (actor, reward, reference)",
        "8 h100 (1 node of 8)",
        "256 of 384 tokens",
        "128 tokens",
        "4 mini-batches",
    ):
        assert fact in before, fact
    for part in (
        "What the seconds come from",
        "lower bound",
        "seconds per step",
        "plans whose times were computed",
        "train_actor",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--gpus", 12), "--gpus is 12"),
        (("--gpus", "8x3"), "--gpus is 8x3, with nodes of 3"),
        (("--gpus", "1x16"), "--gpus is 1x16, with nodes of 16"),
        (("--gpu", "v100"), "v100"),
        (("--model", "reward=llama9"), "llama9"),
        (("--model", "reward"), "--model is 'reward'"),
        (("--model", "critic=llama2-7b"), "'critic'"),
        (("--model", "actor=llama2-7b"), "twice"),
        (("--compare", "ours"), "'ours'"),
        (("--responses", 0), "--responses is 0"),
        (("--responses", 30), "mini-batches"),
        (("--responses", 999_999_999_989, "--mini-batches", 500_000_000_000), "mini-batches do not divide"),  # a prime number
        (("--response-tokens", 10**12), "longer than any model's context"),
        (("--memory-gib", "nan"), "--memory-gib is nan"),
        (("--memory-gib", 0), "--memory-gib"),
        (("--memory-gib", 1), "train_actor"),
        (("--usd-per-gpu-hour", -1), "--usd-per-gpu-hour is -1"),
        (("--algorithm", "ppo2"), "--algorithm"),
        (("--gpus", 4096), "4,096 GPUs; steps are planned on 256 at most"),
        (("--limit", "0.1s"), "deadline_s is 0.100"),
        (("--limit", "1e-5usd"), "budget_usd is 1e-05"),
        (("--time-weight", 2), "--time-weight is 2"),
        (("--time-weight", 0.5, "--limit", "9s"), "--time-weight"),
        *((("--limit", limit), f"--limit is {limit}") for limit in ("9", "0usd", "9 hours", "1e999s", "s")),
        (("log.csv",), "log.csv is one word too many"),
    ],
)
def test_malformed_commands(arguments: tuple[object, ...], named: str) -> None:
    refused_command(layouts(*SMALL, *arguments), named)


def test_a_folder_in_place_of_a_page_is_refused_before_anything_is_printed(tmp_path: Path) -> None:
    refused_command(layouts(*SMALL, "-o", tmp_path), str(tmp_path), "is a folder")


def test_the_actor_needs_a_model() -> None:
    refused_command(layouts("--gpus", 8, "--gpu", "h100"), "--model is missing", "actor=llama2-13b")
    refused_command(layouts("--gpus", 8, "--gpu", "h100", "--model", "reward=llama2-7b"), "--model actor=MODEL")
