"""What a report says of preparation and learning while other responses are decoded."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from rlhfless.analysis import run_setup
from rlhfless.analysis.calibration import logged_phases
from rlhfless.analysis.phase_savings import PhaseSavings, phase_savings
from rlhfless.latency import load_profile
from rlhfless.plots.export.html_page import Page
from rlhfless.report.logged_run import times_unknown
from rlhfless.report.overlaps import overlaps_section
from rlhfless.report.study import Assumptions, calibrate_log
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import ImportOptions, import_log, open_log, read_scalars
from solver.model.cluster import Cluster

GOLDEN = Path(__file__).parents[1] / "trace" / "importers" / "golden"

STAGE_FUSION = PhaseSavings(learns=False, low=0.012, mean=0.02, high=0.031, most=0.05, load_s=0.4)
STREAMING = PhaseSavings(learns=True, low=0.04, mean=0.08, high=0.12, most=0.16, load_s=0.4)


def section(overlaps: tuple[PhaseSavings, ...], learner_gpus: int) -> str:
    page = Page("Overlaps", "")
    page.section("Possible savings")
    overlaps_section(page, overlaps, run_setup("trl", learner_gpus=learner_gpus))
    ours = page.render("").partition("<h2")[2].partition("<script")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", ours)).split())


def test_both_overlaps_are_said_with_ranges_and_conditions(snapshot: SnapshotAssertion) -> None:
    assert section((STAGE_FUSION, STREAMING), learner_gpus=0) == snapshot(name="on the GPUs that generate")
    assert section((STREAMING,), learner_gpus=2) == snapshot(name="on a learner of its own")


def test_nothing_is_said_without_times() -> None:
    assert "while other responses" not in section((), learner_gpus=0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("framework", "responses", "times", "option"),
    [
        ("trl", "trl-profiled", "trl-profiled/run.wandb", "report_to='wandb'"),
        ("nemo-rl", "nemo-rl", "tensorboard", "logger.tensorboard_enabled=true"),
    ],
)
def test_a_frameworks_own_times_say_what_overlaps_would_have_saved(
    framework: str, responses: str, times: str, option: str, tmp_path: Path
) -> None:
    """Without the log of times the report names the option that gives them; with it, both overlaps have a range."""
    pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
    assert option in times_unknown(framework)
    import_log(GOLDEN / responses, ImportOptions(tokenizer=GOLDEN / "trl", max_response_tokens=24)).save(tmp_path / "run")
    assert logged_phases(read_scalars(tmp_path / "run")) is None
    import_log(GOLDEN / times).save(tmp_path / "run")
    log = open_log(tmp_path / "run")
    setting = SimulationConfig(
        Cluster(1, 4, 2, kind="l40s"), load_profile("l40s-qwen2.5-3b-tp2"), time_limit_s=0.05, bound_work=0
    )
    read = calibrate_log(log, setting, Assumptions(dispatch="static", learner_gpus=0))
    assert read.phases.basis == "logged"
    assert min(read.phases.prepare_s, read.phases.learn_s) > 0
    runs = [simulate(log.trace.rollouts, read.setting, ["static"], steps=[1]).traces["static"].rollouts]
    overlaps = phase_savings(runs, read.setup, read.phases, read.setting)
    assert [one.learns for one in overlaps] == [False, True]
    assert all(0 <= one.low <= one.mean <= one.high <= one.most < 1 for one in overlaps)
    assert overlaps[1].high > 0


def test_an_unknown_loop_gets_no_option_of_a_framework() -> None:
    assert "--use-tensorboard or --use-wandb" in times_unknown("slime")
    assert times_unknown("table").endswith("into the same trace folder.")
