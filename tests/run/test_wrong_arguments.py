"""Arguments of another type are refused in one sentence that names the argument, whatever kind of log is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from error_messages import refused
from log_samples import rollouts

import rlhfless as rl
from rlhfless.analysis import Assumptions
from rlhfless.diagnosis import Stated
from rlhfless.errors import InputError
from rlhfless.latency import ProfileError

WRONG: dict[str, Any] = {
    "profile": 3, "assumptions": 3, "keep": 3, "known": 3, "hardware": 3, "options": 3, "mapping": 3, "limits": 3, "where": 3,
    "tokenizer": 3, "max_response_tokens": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_named_of_a_log_and_of_a_trace(name: str) -> None:
    for source in (rollouts(steps=1), rl.example()):
        with refused(InputError, name, repr(WRONG[name])):
            rl.load(source, verbose=False, **{name: WRONG[name]})


def test_a_length_below_1_is_refused_of_a_trace_too() -> None:
    with refused(InputError, "max_response_tokens", "-1"):
        rl.load(rl.example(), max_response_tokens=-1, verbose=False)


VALUES: dict[str, tuple[type[Exception], Callable[[], Any], str]] = {
    "learn_s": (InputError, lambda: Assumptions(learn_s="x"), "'x'"),  # type: ignore[arg-type]
    "prices": (InputError, lambda: Assumptions(prices={"spot": -1.0}), "-1.0"),
    "gpus": (InputError, lambda: Stated(gpus="x"), "'x'"),  # type: ignore[arg-type]
    "memory_share": (InputError, lambda: Stated(memory_share=2.0), "2.0"),
    "usd_per_gpu_hour": (InputError, lambda: rl.Hardware(usd_per_gpu_hour=-1.0), "-1.0"),
    "profile": (ProfileError, lambda: rl.load_profile(3), "3"),
    "prompts": (InputError, lambda: rl.requests(3), "3"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_is_named_where_it_is_stated(name: str) -> None:
    kind, call, given = VALUES[name]
    with refused(kind, name, given):
        call()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gpus_per_actor", "hardware=rl.Hardware(gpus_per_actor=2)"),
        ("usd_per_gpu_hour", "hardware=rl.Hardware(usd_per_gpu_hour=2)"),
        ("learner_gpus", "assumptions=Assumptions(learner_gpus=2)"),
    ],
)
def test_what_belongs_in_another_argument_is_refused_with_what_to_type(name: str, line: str) -> None:
    with refused(InputError, line):
        rl.load(rollouts(steps=1), gpus=16, verbose=False, **{name: 2})


@pytest.mark.parametrize(
    ("method", "name", "value", "said"),
    [
        (
            "plan",
            "time_weight",
            1.0,
            "rl.load(..., time_weight=1.0), or, to compare several, call run.sweep(time_weight=[...])",
        ),
        ("plan", "gpus", [8, 16], "run.sweep(gpus=[8, 16])"),
        ("plan", "policies", ["static"], "run.simulate(['static', 'solver'])"),
        ("plan", "horizon", 3, "its arguments are step, policy, predictor"),
        ("simulate", "profile", "h100-qwen2.5-3b-tp1", "rl.load(..., profile=...)"),
        ("what_ifs", "time_weight", 0.3, "rl.load(..., time_weight=0.3)"),
        ("report", "gpus_per_node", 8, "rl.load(..., hardware=rl.Hardware(gpus_per_node=8))"),
        ("explore", "policies", ["static"], "the settings are profile, gpus"),
    ],
)
def test_an_argument_of_another_method_is_refused_with_where_it_belongs(method: str, name: str, value: Any, said: str) -> None:
    with refused(InputError, name, said):
        getattr(rl.load(rl.example(), verbose=False), method)(**{name: value})


def test_a_planned_step_is_compared_with_policies_alone() -> None:
    planned = rl.load(rl.example(), verbose=False).plan(-1)
    with refused(InputError, "gpus is not an argument of PlannedStep.compare", "run.sweep(gpus=[...])"):
        planned.compare("static", gpus=8)  # type: ignore[call-arg]
