"""Slots of an engine: each framework's own default, engines of several GPUs, and what more slots win at most."""

from __future__ import annotations

import pandas as pd
import pytest

from rlhfless.diagnosis import Stated, diagnose
from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected
from rlhfless.diagnosis.slots import DEFAULTS, slots_of
from rlhfless.trace.importers.names import NAMES

STEP = {"step": [0], "step_s": 100.0, "generate_s": 80.0, "response_tokens_mean": 300.0, "response_tokens_max": 1000.0}


def found_in(framework: str, responses: int, **stated: int) -> Collected:
    """Return what is found in a step of so many responses on one GPU."""
    known = Stated(**{"gpus": 1, "responses_per_step": responses, **stated})
    return collect(LoggedRun("log", framework, pd.DataFrame(STEP), stated=known))


@pytest.mark.parametrize("framework", ["verl", "slime", "skyrl", "roll", "openrlhf", "areal", "nemo-rl", "trl", ""])
def test_responses_may_wait_only_where_they_are_more_than_the_least_default(framework: str) -> None:
    least = int(slots_of(LoggedRun("log", framework, pd.DataFrame(STEP))).least)
    fit, queue = found_in(framework, least), found_in(framework, least + 1)
    assert "order_saves_at_most_share" not in fit.numbers
    assert "order_saves_at_most_share" in queue.numbers
    (generation,) = [one for one in queue.findings if one.kind == "generation"]
    assert f"{least + 1:,} responses" in generation.sentence
    assert slots_of(LoggedRun("log", framework, pd.DataFrame(STEP))).default in generation.sentence


def test_every_framework_whose_logs_are_read_has_its_slots() -> None:
    assert set(NAMES) <= set(DEFAULTS)


def test_an_engine_of_two_gpus_has_twice_the_responses() -> None:
    one, two = (found_in("verl", 1600, gpus=8, **of) for of in ({}, {"tensor_parallel": 2}))
    assert "order_saves_at_most_share" not in one.numbers, "200 of an engine of one GPU fit"
    assert "An engine of 2 GPUs has 400 responses" in next(each.sentence for each in two.findings if each.kind == "generation")


def test_more_slots_win_at_most_what_full_batches_take_beside_the_longest_response() -> None:
    (lever,) = [one for one in found_in("verl", 1280).levers if one.kind == "slots"]
    packed = 1280 * 300 / 256 + (1 - 1 / 256) * 1000
    assert lever.at_most == pytest.approx(0.8 * (1 - 1000 / packed))
    assert "256 slots" in lever.price


def test_what_would_tell_is_the_setting_of_the_framework() -> None:
    steps = pd.DataFrame({**STEP, "responses": 1280})
    run = LoggedRun("log", "verl", steps, stated=Stated(gpus=1))
    (unknown,) = [text for text in collect(run).cannot_say if "whether responses wait" in text]
    assert "actor_rollout_ref.rollout.max_num_seqs" in unknown
    assert "1,280 slots or more" in unknown
    assert not [text for text in found_in("openrlhf", 1280).cannot_say if "its setting" in text], "we know none"


def test_the_lever_has_the_setting(tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("logs") / "console.log"
    scalars = {"timing_s/gen": 80.0, "timing_s/step": 100.0, "response_length/mean": 300.0, "response_length/max": 1000.0}
    log.write_text("step:1 - " + " - ".join(f"{name}:{value}" for name, value in scalars.items()) + "\n")
    said = diagnose(log, Stated(gpus=1, responses_per_step=1280))
    assert next(one.line for one in said.levers if one.kind == "slots") == "actor_rollout_ref.rollout.max_num_seqs=N"
