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
