"""Options under the names of earlier versions: the shipped trace has them, and is read under today's."""

from __future__ import annotations

import json
from pathlib import Path

from error_messages import refused

from rlhfless.old_names import GONE, OPTIONS, UNUSED, current_options
from rlhfless.trace import Trace, read_trace
from rlhfless.training.config import RolloutConfig, TrainConfig, TrainError
from rlhfless.training.config.train import ALGORITHMS, option_names

SHIPPED = Path(__file__).parents[1] / "data" / "traces" / "arithmetic-grpo"


def test_the_shipped_trace_is_read_under_todays_names(tmp_path: Path) -> None:
    stored = json.loads((SHIPPED / "meta.json").read_text())["config"]
    trace = read_trace(SHIPPED)
    config = trace.meta["config"]
    assert len(stored.keys() & OPTIONS.keys()) >= 5
    named = {OPTIONS.get(name, name): value for name, value in stored.items()}
    assert config == {name: value for name, value in named.items() if name not in UNUSED["grpo"]}
    read = TrainConfig.from_options(**config)
    assert read.rollout == RolloutConfig(samples_per_prompt=stored["samples"], max_response_tokens=stored["response_limit"])
    assert {name: read.to_options()[name] for name in config} == config
    Trace(trace.rollouts, trace.allocations, trace.spans, trace.events, meta=trace.meta).save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "meta.json").read_text())["config"] == config


def test_every_old_name_stands_for_an_option_of_today() -> None:
    today = {name for algorithm in ALGORITHMS for name in TrainConfig.from_options(algorithm=algorithm).to_options()}
    assert set(OPTIONS.values()) <= today
    assert not set(OPTIONS) & today
    assert len(set(OPTIONS.values())) == len(OPTIONS)


def test_options_of_the_other_algorithm_are_left_out() -> None:
    own = {name: option_names("algorithm", kind) for name, kind in ALGORITHMS.items()}
    assert set(UNUSED["grpo"]) == set(own["ppo"]) - set(own["grpo"])
    assert set(UNUSED["ppo"]) == set(own["grpo"]) - set(own["ppo"])
    with refused(TrainError, "gamma", "'ppo'", "'grpo'"):
        TrainConfig.from_options(gamma=0.9)
    with refused(TrainError, "samples", "samples_per_prompt"):
        TrainConfig.from_options(samples=4)


def test_names_of_today_stay_as_they_are() -> None:
    config = TrainConfig().to_options()
    assert current_options(config) == config


def test_a_run_with_old_names_is_resumed_with_the_same_options_only() -> None:
    TrainConfig().check_resume({"samples": 8, "response_limit": 320, "updates": 1, "keep": 7})
    with refused(TrainError, "samples_per_prompt", "4", "8"):
        TrainConfig().check_resume({"samples": 4})


def test_mini_batches_that_were_updates_are_read_as_mini_batches() -> None:
    read = current_options({"minibatches": "prompts", "num_updates": 3})
    assert read == {"num_mini_batches": 3, "num_updates": 1}
    assert current_options({"minibatches": "batch", "num_updates": 3}) == {"num_updates": 3}


def test_an_option_that_was_removed_is_left_out_where_it_changed_nothing_and_refused_elsewhere() -> None:
    today = TrainConfig().to_options()
    for name, unused in GONE.items():
        assert name not in today
        stored = {**today, name: unused}
        assert current_options(stored) == today
        TrainConfig().check_resume(stored)
        used = {**today, name: "another value"}
        with refused(TrainError, name, "another value", "removed"):
            TrainConfig().check_resume(used)
        with refused(TrainError, name, "removed"):
            TrainConfig.from_options(**current_options(used))
