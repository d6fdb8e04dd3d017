"""A transformers folder and prompts of one's own: planned, run on its weights, traced and drawn; and a plan of one's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from error_messages import refused
from tiny_architectures import tiny

import rlhfless as rl
import solver
from rlhfless.errors import InputError
from rlhfless.executor import tokens_hash
from rlhfless.plots import plot_timeline, plot_timelines
from rlhfless.scheduling import PolicyError
from rlhfless.trace import read_trace
from solver import Plan, PlanningError, PlanningProblem

ROOT = Path(__file__).parents[2]
PROMPTS = ["What is the capital of France?", "Write a haiku about the sea.", "Add 12 and 30."]
SAMPLES, LIMIT = 4, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2, which the torch engine's own forward pass does not know."""
    made, tokenizer = tmp_path_factory.mktemp("gpt2"), byte_tokenizer()
    tiny("gpt2", vocab_size=tokenizer.vocab_size, max_position_embeddings=96, eos_token_id=1).save_pretrained(made)
    tokenizer.save(made)
    return made


@pytest.fixture(scope="module")
def executor(folder: Path) -> Any:
    engine = rl.TorchEngine.from_pretrained(folder, forward="transformers", device="cpu")
    cluster, latency = rl.Hardware(gpus=4, profile="cpu-tiny-qwen2").cluster()
    with rl.Executor(engine, cluster, latency=latency) as made:
        yield made


def test_a_folder_and_prompts_become_a_plan_a_trace_and_a_figure(executor: rl.Executor, tmp_path: Path) -> None:
    requests = rl.requests(PROMPTS, SAMPLES, LIMIT)
    plan = executor.plan(requests)
    assert sorted(i for actor in plan.actors for i in actor.responses) == list(range(len(PROMPTS) * SAMPLES))
    assert "guess" in plan.notes["lengths"]
    record = executor.run(plan, requests)
    assert repr(record).count("\n") == 0
    for word in ("12 responses", "cpu-tiny-qwen2", "virtual clock", "; whole step "):
        assert word in repr(record)
    record.trace.save(tmp_path / "step")
    rows = read_trace(tmp_path / "step").rollouts
    assert rows["prompt_tokens"].tolist() == [len(text) for text in PROMPTS for _ in range(SAMPLES)]
    assert rows["response_tokens"].between(1, LIMIT).all()
    assert plot_timeline(record.trace).data

    known = executor.plan(requests, lengths=rows["response_tokens"])
    assert "lengths" not in known.notes
    assert abs(known.makespan_s - record.makespan_s) < abs(plan.makespan_s - record.makespan_s)


def test_a_plan_of_ones_own_runs_and_gives_the_same_tokens(executor: rl.Executor) -> None:
    requests = rl.requests(PROMPTS, SAMPLES, LIMIT)
    groups = np.array_split(np.arange(len(requests)), 2)
    mine = solver.plan_of(groups, executor.problem(requests), policy="two halves")
    records = {plan.policy: executor.run(plan, requests) for plan in (mine, executor.plan(requests, "random", seed=3))}
    assert len({tokens_hash(record) for record in records.values()}) == 1
    held = records["two halves"].trace.allocations
    assert len(held) == 2
    assert plot_timelines({name: record.trace for name, record in records.items()}).data


def test_a_policy_of_ones_own_gets_the_problem_of_the_requests(executor: rl.Executor) -> None:
    def one_actor(problem: PlanningProblem, options: Any) -> Plan:
        assert problem.objective.time_weight == 0.2
        return solver.random_split(problem, actors=1, seed=options.seed)

    requests = rl.requests(PROMPTS, SAMPLES, LIMIT)
    plan = executor.plan(requests, one_actor, time_weight=0.2)
    assert (plan.policy, len(plan.actors)) == ("one_actor", 1)
    with refused(PolicyError, "oracle", "true lengths"):
        executor.plan(requests, "oracle")


def test_prompts_that_are_too_long_are_one_sentence(executor: rl.Executor) -> None:
    too_long = rl.requests(["a" * 80], SAMPLES, LIMIT)
    with refused(InputError, "96 tokens", "response"):
        executor.run(executor.plan(too_long), too_long)
    longer_than_the_profile = rl.requests(["a" * 1200], SAMPLES, LIMIT)
    with refused(PlanningError, "response 0", "cpu-tiny-qwen2"):
        executor.plan(longer_than_the_profile)


@pytest.mark.parametrize("prompts", [PROMPTS, []])
def test_prompts_in_the_place_of_requests_are_one_sentence(executor: rl.Executor, prompts: list[str]) -> None:
    with refused(InputError, "requests", "rlhfless.requests(prompts)"):
        executor.plan(prompts)  # type: ignore[arg-type]
    with refused(InputError, "requests", "rlhfless.requests(prompts)"):
        executor.run(executor.plan(rl.requests(PROMPTS, SAMPLES, LIMIT)), prompts)  # type: ignore[arg-type]


def test_a_folder_in_the_place_of_an_engine_and_half_stated_hardware_are_one_sentence(folder: Path) -> None:
    cluster, latency = rl.Hardware(gpus=4, profile="cpu-tiny-qwen2").cluster()
    with refused(InputError, "engine", "from_pretrained"):
        rl.Executor(str(folder), cluster, latency=latency)  # type: ignore[arg-type]
    for stated, missing in (({"gpus": 4}, "profile"), ({"profile": "cpu-tiny-qwen2"}, "gpus")):
        with refused(InputError, missing):
            rl.Hardware(**stated).cluster()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"dtype": "float16"}, ("dtype", "float16", "bfloat16")),
        ({"dtype": 16}, ("dtype", "16", "bfloat16")),
        ({"device": "tpu"}, ("device", "tpu", "cpu")),
        ({"forward": "own"}, ("gpt2", "transformers")),
    ],
)
def test_wrong_options_of_a_folder_are_one_sentence(folder: Path, options: dict[str, Any], names: tuple[str, ...]) -> None:
    with refused(InputError, *names):
        rl.TorchEngine.from_pretrained(folder, **options)


def test_a_folder_without_tokenizer_or_model_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    with refused(InputError, str(tmp_path), "config.json"):
        rl.TorchEngine.from_pretrained(tmp_path)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with refused(InputError, str(tmp_path), "tokenizer"):
        rl.TorchEngine.from_pretrained(tmp_path, forward="transformers")


def test_weights_have_the_number_format_that_was_asked_for(folder: Path) -> None:
    exact, half = (
        rl.TorchEngine.from_pretrained(folder, forward="transformers", device="cpu", dtype=dtype)
        for dtype in ("auto", "bfloat16")
    )
    assert half.weight_bytes == exact.weight_bytes / 2


def test_the_documented_lines_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "executing_and_training.md").read_text("utf-8")
    section = page.split("## Run a step of your own model", 1)[1].split("\n## ", 1)[0]
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.S)), names)
    assert (tmp_path / "out" / "step.html").stat().st_size > 0
    run = rl.load(tmp_path / "out" / "step", verbose=False)
    assert run.rollouts["response_tokens"].tolist() == names["record"].trace.rollouts["response_tokens"].tolist()
    assert not any("profile" in sentence for sentence in run.assumed), "the trace states it"
