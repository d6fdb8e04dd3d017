"""The pages on parts of one's own: their code runs as it stands, and what they say is refused is."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused

import rlhfless as rl
import solver
from rlhfless.scheduling import PolicyError
from solver.model.errors import PlanningError

ROOT = Path(__file__).parents[1]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), flags=re.S)


def code_of(page: str) -> dict[str, Any]:
    """What the code of a page defines."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks_of(page):
        exec(compile(block, page, "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("page", ["algorithm", "engine", "policy", pytest.param("reward", marks=pytest.mark.full)])
def test_the_first_block_of_a_page_runs_in_a_new_process(page: str) -> None:
    """Nothing is imported before it, as in a notebook that begins with it."""
    if page != "policy":
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    first = blocks_of(f"add_a{'n' * (page[0] in 'ae')}_{page}.md")[0]
    done = subprocess.run([sys.executable, "-c", first], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["GrpoConfig", "PpoConfig", "AlgorithmConfig", "log_ratios", "register", "Trainer"])
def test_every_name_of_the_algorithm_page_may_be_imported_first(name: str) -> None:
    pytest.importorskip("torch")
    known = "from rlhfless.training.config.section import ALGORITHMS; print(*sorted(ALGORITHMS))"
    ask = f"from rlhfless.training import {name}; {known}"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["grpo", "gspo", "ppo", "rloo"], done.stderr


@pytest.mark.full
def test_the_rewards_of_the_page_train(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        page = code_of("add_a_reward.md")
    assert len(page["trained"].rollouts) == len(page["both"].rollouts) > 0
    assert page["trained"].metrics["reward_right_and_short"] == pytest.approx(page["trained"].mean_reward)
    judged = page["both"].metrics
    parts = [judged[f"reward_{name}"] for name in ("right_and_short", "digits", "length")]
    assert judged["reward_mean"] == pytest.approx(np.dot(parts, page["several"]["reward_weights"]))
    assert page["right_and_short"](["2+2=4", "no"], answer=["4", "4"]) == pytest.approx([0.995, -0.002])


def test_the_policies_of_the_page_plan_and_its_rule_moves_responses() -> None:
    page = code_of("add_a_policy.md")
    assert page["table"]["policy"].tolist() == ["random", "longest_together", "solver"]
    moved = page["moved"].groupby("policy")["moves"].sum()
    assert moved["random"] == 0
    assert 0 < moved["random_last_ones"] <= 2 * page["moved"]["actors"].sum()


def lacks_responses(problem: Any, options: Any) -> solver.Plan:
    return solver.plan_of([np.arange(5)], problem)


def too_many_actors(problem: Any, options: Any) -> solver.Plan:
    return solver.plan_of(np.array_split(np.arange(len(problem.workload)), 60), problem)


def no_plan(problem: Any, options: Any) -> Any:
    return 3


def no_options(problem: Any) -> Any:
    return None


@pytest.mark.parametrize(("policy", "error", "named"), [
    (lacks_responses, PlanningError, "response 5"), (too_many_actors, PlanningError, "60 actors"),
    (no_plan, PolicyError, "'no_plan' returned 3"), (no_options, PolicyError, "(problem, options)"),
])  # fmt: skip
def test_a_policy_that_makes_no_plan_is_refused(policy: Callable[..., Any], error: type[Exception], named: str) -> None:
    run = rl.load(rl.example(), verbose=False)
    with refused(error, named):
        run.simulate([policy], steps=run.steps[-1:])
