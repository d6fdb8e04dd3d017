"""A run whose number of GPUs neither its user nor its trace states: a diagnosis, a search, and refusals with what to type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from log_samples import rollouts

import rlhfless as rl
from rlhfless.analysis import Assumptions
from rlhfless.diagnosis import Stated
from rlhfless.errors import InputError
from rlhfless.latency import ProfileError
from rlhfless.run import Run
from rlhfless.trace import read_trace

SMALL = {"steps": 2, "prompts": 4, "samples": 2}
PROFILE = "l40s-qwen2.5-3b-tp2"
NEEDS_GPUS: dict[str, Callable[[Run], Any]] = {
    "setting": lambda run: run.setting, "times": lambda run: run.times, "calibrated": lambda run: run.calibrated,
    "plan": Run.plan, "plan_step": Run.plan_step, "simulate": Run.simulate, "explore": Run.explore,
    "what_ifs": Run.what_ifs, "sweep": Run.sweep,
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDS_GPUS)
def test_what_needs_gpus_is_refused_with_the_line_to_type(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts(**SMALL).to_csv(tmp_path / "log.csv", index=False)
    run = rl.load(tmp_path / "log.csv", profile=PROFILE, verbose=False)
    with refused(InputError, "log.csv", "how many GPUs", "rl.load(..., gpus=N)"):
        NEEDS_GPUS[name](run)
    assert capsys.readouterr().out == "", "nothing is announced that is refused"


def test_no_number_of_gpus_and_no_stand_in_is_in_what_limits_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = rl.load(rollouts(**SMALL))
    said = capsys.readouterr().out
    assert said == f"{run.diagnosis()}\n"
    for word in ("16", "L40S", PROFILE, "USD"):
        assert word not in said
    assert "gpus" not in run.diagnosis().numbers
    assert run.hardware.gpus is None
    assert set(vars(run.stated).values()) == {None}


def test_its_page_is_the_diagnosis(tmp_path: Path) -> None:
    page = rl.load(rollouts(**SMALL), verbose=False).report(tmp_path / "page.html", verbose=False).read_text("utf-8")
    assert "What limits this run" in page
    assert "--gpus" in page
    assert "L40S" not in page


def test_a_learners_own_gpus_are_of_the_run_too() -> None:
    stated = rl.load(rollouts(**SMALL), gpus=8, assumptions=Assumptions(learner_gpus=4), verbose=False).stated
    assert (stated.gpus, stated.gpus_generate, stated.gpus_train) == (12, 8, 4)


def test_a_search_tries_numbers_of_gpus_by_itself_and_names_the_stand_in_profile() -> None:
    found = rl.load(rollouts(**SMALL), verbose=False).search(gpu_kinds=["l40s"], gpus=[4, 8], gpus_per_actor=[2])
    assert sorted(found.means()["gpus"]) == [4, 8]
    assert not found.left_out
    assert "not scaled to times of the log" in repr(found)
    for shown in (repr(found), found._repr_html_()):
        assert f"profile {PROFILE}), because no profile was given" in shown


def test_a_stand_in_profile_is_named_beside_a_plan() -> None:
    planned = rl.load(rollouts(**SMALL), gpus=4, verbose=False).plan()
    for shown in (repr(planned), planned._repr_html_(), repr(planned.compare())):
        assert f"profile {PROFILE}), because no profile was given" in shown
    priced = rl.Hardware(usd_per_gpu_hour=2.0)
    assert "Assumed" not in repr(rl.load(rollouts(**SMALL), 4, PROFILE, hardware=priced, verbose=False).plan())


def test_gpus_that_hold_no_replica_of_a_recorded_profile_get_one_of_the_same_model_and_kind() -> None:
    run = rl.load(rl.example(), gpus=1, verbose=False)
    assert run.profile == "h100-qwen2.5-3b-tp1"
    planned = run.plan(-1)
    assert "because replicas of 2 GPUs (profile h100-qwen2.5-3b-tp2) do not fit" in repr(planned)
    assert len(planned.plan.actors) == 1
    assert "release" not in [lever.kind for lever in run.diagnosis().levers], "a single replica cannot be released"
    assert "release" in [lever.kind for lever in rl.load(rl.example(), verbose=False).diagnosis().levers]


@pytest.mark.parametrize("per_actor", [None, 1])
def test_gpus_that_hold_no_replica_of_a_named_profile_are_told_which_one_they_hold(per_actor: int | None) -> None:
    hardware = rl.Hardware(gpus_per_actor=per_actor)
    run = rl.load(rl.example(), 1, "h100-qwen2.5-3b-tp2", hardware=hardware, verbose=False)
    with refused(InputError, "2 GPUs per actor", "give profile='h100-qwen2.5-3b-tp1'"):
        run.plan(-1)


UNPRICED: dict[str, Callable[[Run], Any]] = {
    "simulate": lambda run: run.simulate(["static"]), "sweep": lambda run: run.sweep(gpus=[2, 4]), "what_ifs": Run.what_ifs,
    "plan": lambda run: run.plan().compare(),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPRICED)
def test_gpus_that_nobody_named_have_no_price_and_named_ones_a_list_price_that_is_called_so(name: str) -> None:
    of_nobody = UNPRICED[name](rl.load(rollouts(**SMALL), gpus=4, verbose=False))
    assert of_nobody.table["cost_usd"].isna().all(), "the profile that stands in is of other GPUs"
    assert "neither a price nor the kind of GPU" in str(of_nobody)
    assert f"profile {PROFILE}), because no profile was given" in str(of_nobody)
    named = UNPRICED[name](rl.load(rollouts(**SMALL), gpus=4, profile=PROFILE, verbose=False))
    assert (named.table["cost_usd"] > 0).all()
    assert "the list price of" in str(named)
    kind = Stated(gpu="l40s")
    assert (UNPRICED[name](rl.load(rollouts(**SMALL), gpus=4, known=kind, verbose=False)).table["cost_usd"] > 0).all()


@pytest.mark.parametrize("named", [True, False])
def test_a_page_has_the_same_prices(tmp_path: Path, named: bool) -> None:
    run = rl.load(rollouts(**SMALL), gpus=4, profile=PROFILE if named else None, verbose=False)
    page = run.report(tmp_path / "page.html", max_steps=1, verbose=False).read_text("utf-8")
    assert ("the list price of" in page) is named
    assert (" USD" in page) is named


def test_a_search_compares_kinds_at_list_prices() -> None:
    found = rl.load(rollouts(**SMALL), verbose=False).search(gpus=[8])
    assert (found.table["cost_usd"] > 0).all()
    assert "list price of every kind" in str(found)
    assert "costs are GPU-seconds" not in str(found)


def test_gpus_of_a_trace_are_known_and_the_example_states_its_own() -> None:
    run = rl.load(rl.example(), verbose=False)
    assert run.setting.cluster.gpus == run.stated.gpus == 16
    assert run.assumed == ()
    bare = replace(read_trace(rl.example()), meta={})
    with refused(InputError, "how many GPUs"):
        rl.load(bare, verbose=False).plan()
    assert rl.load(bare, gpus=4, verbose=False).setting.cluster.gpus == 4


def test_a_profile_that_is_none_is_refused_at_once() -> None:
    with refused(ProfileError, "'h900'"):
        rl.load(rollouts(**SMALL), profile="h900", hardware=rl.Hardware(usd_per_gpu_hour=1.0), verbose=False)


def test_stated_seconds_are_phases_of_a_step_in_what_limits_the_run() -> None:
    log = rollouts(**SMALL)
    log["start_s"] = 10.0 * log["step"]
    log["end_s"] = log["start_s"] + 5.0 * log["response_tokens"] / log["response_tokens"].max()
    bare = rl.load(log, gpus=4, verbose=False).diagnosis()
    assert "learn_s" not in bare.numbers
    said = rl.load(log, gpus=4, assumptions=Assumptions(prepare_s=1.0, learn_s=3.0), verbose=False).diagnosis()
    numbers = said.numbers
    assert (numbers.value("prepare_s"), numbers.value("learn_s"), numbers["learn_s"].how) == (1.0, 3.0, "as stated")
    assert numbers.value("step_s") == pytest.approx(numbers.value("generate_s") + 4.0)
    assert said.step["share"].sum() == pytest.approx(1.0)
    assert not any("share of a step" in sentence for sentence in said.cannot_say)
