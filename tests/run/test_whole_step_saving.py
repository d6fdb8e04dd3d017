"""The verdict's sentence on whole steps: where it stands, what it compares, and where the log does not allow it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from log_samples import rollouts

import rlhfless as rl
from rlhfless.analysis import PhaseSeconds, run_setup
from rlhfless.latency import load_profile
from rlhfless.report.study import Assumptions
from rlhfless.run import whole_step_saving
from rlhfless.run.whole_step_saving import whole_step_costs, whole_step_sentence
from rlhfless.simulate import LoggedStep, SimulationConfig, logged_steps
from rlhfless.trace import Trace
from solver import Cluster

PROFILE = "l40s-qwen2.5-3b-tp2"
PHASES = PhaseSeconds(2.0, 6.0, 0.5, "logged")
SETUP = run_setup("verl")


@pytest.fixture(scope="module")
def setting() -> SimulationConfig:
    return SimulationConfig(Cluster(2, 8, 2, kind="l40s"), load_profile(PROFILE), max_response_tokens=4_096)


@pytest.fixture(scope="module")
def logged() -> LoggedStep:
    (step,) = logged_steps(Trace(rollouts()).rollouts, max_response_tokens=4_096, steps=[2])
    return step


def test_work_on_all_gpus_takes_as_long_as_the_run_logged(logged: LoggedStep, setting: SimulationConfig) -> None:
    costs = whole_step_costs(logged, setting, PHASES)
    work = costs.work(logged.truth, setting.cluster.gpus_per_actor)
    servers = setting.cluster.max_actors
    assert work.prepare_s.sum() / servers == pytest.approx(PHASES.prepare_s)
    assert work.learn_s.sum() / servers * costs.charges.slower(servers) == pytest.approx(PHASES.learn_s)


def test_both_plans_are_better_than_a_run_that_waits(logged: LoggedStep, setting: SimulationConfig) -> None:
    said = whole_step_sentence(logged, setting, SETUP, PHASES, generation_s=60.0)
    assert "step 2" in said
    assert "preparation and learning as logged" in said
    changes = re.findall(r"(\d+)% less time and (\d+)% fewer GPU-seconds", said)
    assert len(changes) == 2, "all levers, and elastic plain with prefix caching"
    together, plain = ((1 - int(time) / 100) ** 0.7 * (1 - int(cost) / 100) ** 0.3 for time, cost in changes)
    assert together <= plain + 0.02


def test_nothing_is_said_where_the_log_does_not_allow_it(
    logged: LoggedStep, setting: SimulationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not whole_step_sentence(logged, setting, SETUP, PhaseSeconds(), 60.0), "nothing is known of other phases"
    assert not whole_step_sentence(logged, setting, replace(SETUP, colocated=False), PHASES, 60.0)
    assert not whole_step_sentence(logged, setting, replace(SETUP, synchronous=False), PHASES, 60.0)
    monkeypatch.setattr(whole_step_saving, "MOST_RESPONSES", 10)
    assert not whole_step_sentence(logged, setting, SETUP, PHASES, 60.0), "the step is too large to be planned at once"


@pytest.mark.full
def test_the_verdict_says_it() -> None:
    stated = Assumptions(prepare_s=2.0, learn_s=6.0)
    run = rl.load(rollouts(), 16, PROFILE, assumptions=stated, verbose=False)
    assert run.verdict.whole_step.startswith("Planned as a whole")
    assert run.verdict.whole_step in str(run.verdict)
