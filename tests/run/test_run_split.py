"""``Run.split``: divisions of a run with responses, and what waits alone say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from error_messages import refused

import rlhfless as rl
from rlhfless.analysis import Assumptions
from rlhfless.analysis.split import DIVIDED, LENT, SHARED
from rlhfless.errors import InputError
from rlhfless.plots.split import plot_split
from rlhfless.trace import OpenedLog, Trace

GPUS = {"gpus": 8, "profile": "h100-qwen2.5-3b-tp1", "verbose": False}
SHARES = {"gpus_generate": 6, "gpus_train": 2}


def responses(steps: int = 2) -> pd.DataFrame:
    """Steps of 16 prompts with two responses each."""
    rows = [(step, f"p{p}", s, 50, 40 + 15 * p + 200 * s + step) for step in range(steps) for p in range(16) for s in range(2)]
    return pd.DataFrame(rows, columns=["step", "prompt_id", "sample", "prompt_tokens", "response_tokens"])


def waiting(folder: Path, wait_s: float, step_s: float = 66.5, **columns: Any) -> Path:
    """A log of an asynchronous loop that has times of steps alone."""
    steps = {"step": [3, 4], "timing/step": step_s, "timing/wait_for_generation_buffer": wait_s, **columns}
    pd.DataFrame(steps).to_csv(folder / "steps.csv", index=False)
    return folder / "steps.csv"


def test_a_log_of_waits_says_that_generation_is_too_slow(tmp_path: Path) -> None:
    found = rl.load(waiting(tmp_path, 32.5), verbose=False).split()
    (said,) = found.waits
    assert said.side == "generation"
    assert said.speedup_at_most == pytest.approx(66.5 / 34.0)
    assert found.table.empty
    assert found.best is None
    assert found.bound is None
    assert found.own is None
    assert "1.96" in str(found)
    assert "no division is simulated" in str(found)
    assert json.loads(found.to_json())["waits"][0]["side"] == "generation"


def test_a_log_without_waits_for_generation_gives_the_next_gpu_to_training(tmp_path: Path) -> None:
    log = waiting(tmp_path, 0.0, 3054.9, **{"timing/policy_train": 2600.0, **SHARES})
    (said,) = rl.load(log, verbose=False).split().waits
    assert said.side == "training"
    assert said.speedup_at_most == pytest.approx(1 / (1 - 2600.0 / 3054.9 * 6 / 8))
    log = waiting(tmp_path, 0.0, 3054.9)
    (said,) = rl.load(log, verbose=False).split().waits
    assert said.side == "training"
    assert said.speedup_at_most is None


def test_a_log_that_knows_neither_responses_nor_waits_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"step": [1, 2], "step_s": 10.0, "generate_s": 6.0, "learn_s": 4.0}).to_csv(tmp_path / "t.csv", index=False)
    with refused(InputError, "t.csv", "rollout log"):
        rl.load(tmp_path / "t.csv", verbose=False).split()


def test_every_division_of_a_run_with_responses() -> None:
    run = rl.load(responses(), assumptions=Assumptions(learner_gpus=2, learn_s=30.0), **GPUS)
    found = run.split(staleness=1, lend_idle=True)
    table = found.to_frame()
    assert set(table["gpus"]) == {10}
    assert set(table["gpus_per_actor"]) == {1, 2}
    assert set(table["way"]) == {SHARED, DIVIDED, LENT}
    assert found.best is not None
    assert found.own is not None
    assert found.best["step_s"] == table["step_s"].min() <= found.own["step_s"]
    assert (found.own["gpus_generate"], found.own["gpus_train"], found.own["way"]) == (8, 2, DIVIDED)
    assert found.own["learn_s"] == pytest.approx(30.0)
    assert found.bound is not None
    assert found.bound <= table["step_s"].min()
    assert found.best["gpus_train"] > 2
    assert "data-parallel" in str(found)
    plain = json.loads(found.to_json())
    assert len(plain["divisions"]) == len(table)
    assert (plain["own"]["way"], plain["own"]["gpus_train"], plain["divisions"][0]["usd"] is None) == (DIVIDED, 2, False)
    assert "<table" in found._repr_html_()
    stated = run.split(staleness=1, gpus=[4, 6], actor_sizes=[2], learn_s=10.0, efficiency=0.9).to_frame()
    assert set(stated["gpus"]) == {4, 6}
    assert set(stated["gpus_per_actor"]) == {2}
    assert "1.8 times" in str(run.split(learn_s=10.0, efficiency=0.9, actor_sizes=[1]))


def test_logged_seconds_of_learning_are_those_of_the_table() -> None:
    steps = pd.DataFrame({"step": [0, 1], "learn_s": [5.0, 7.0], "prepare_s": 1.0})
    run = rl.load(OpenedLog(Trace(responses()), steps, "slime"), assumptions=Assumptions(learner_gpus=4), **GPUS)
    own = run.split(staleness=0, actor_sizes=[1]).own
    assert own is not None
    assert own["learn_s"] == pytest.approx(7.0)
    assert own["step_s"] == pytest.approx(own["generate_s"] + 7.0)


def test_batches_follow_each_other_as_in_the_framework_of_the_log() -> None:
    stated = Assumptions(learner_gpus=2, learn_s=30.0)
    for framework, batches in (("areal", "together"), ("slime", "apart")):
        run = rl.load(OpenedLog(Trace(responses()), pd.DataFrame({"step": []}), framework), assumptions=stated, **GPUS)
        given = run.split(gpus=3, actor_sizes=[1], batches=batches).to_frame()
        pd.testing.assert_frame_equal(run.split(gpus=3, actor_sizes=[1]).to_frame(), given)


def test_an_executed_run_is_divided_by_its_spans() -> None:
    executed = rl.load(rl.example(), verbose=False)
    with refused(InputError, "learn_s", "unknown"):
        executed.split()
    stated = executed.split(learn_s=1.0, gpus=4)
    assert stated.best is not None
    assert stated.own is None  # its steps took other seconds than those that were stated


def test_the_own_division_of_an_executed_run_is_what_it_took() -> None:
    """It generated on 4 GPUs and learned on one of them, which no row of the table is."""
    run = rl.load(Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo-drafts", verbose=False)
    held = run.trace.allocations.groupby("step")
    took_s = float((held["end_s"].max() - held["start_s"].min()).mean())
    found = run.split(actor_sizes=[1])
    assert found.own is not None
    assert found.own["step_s"] == pytest.approx(took_s)
    assert (found.own["gpus"], found.own["gpus_generate"], found.own["gpus_train"]) == (4, 4, 1)
    assert found.own["learn_s"] > 0.5 * took_s
    assert found.best is not None
    assert f"{1 - found.best['step_s'] / took_s:.0%} less" in str(found)
    own = json.loads(found.to_json())["own"]
    assert own["step_s"] == pytest.approx(took_s)
    assert own["least_step_s"] is None


def test_wrong_arguments() -> None:
    run = rl.load(responses(1), assumptions=Assumptions(learn_s=10.0), **GPUS)
    for name, wrong, remedy in (
        ("staleness", "1", "None"), ("gpus", 0, "from 1 to"), ("gpus", [8, 8], "once"), ("gpus", 10**9, "1,000,000"),
        ("gpus", [], "a list"), ("gpus", "8", "a list"), ("actor_sizes", [1, 1], "once"),
        ("actor_sizes", [3], "1, 2"), ("actor_sizes", "1", "1, 2"),
        ("actor_sizes", [], "1, 2"), ("batches", "mixed", "together"), ("lend_idle", 1, "True or False"),
        ("learn_s", -1, "above 0"), ("efficiency", 2, "0.5"),
    ):  # fmt: skip
        with refused(InputError, name, remedy):
            run.split(**{name: wrong})  # type: ignore[arg-type]
    for given in ({"staleness": None}, {"lend_idle": True}):
        with refused(InputError, *given, "apart"):
            run.split(batches="together", **given)
    with refused(InputError, "learner_gpus"):
        rl.load(OpenedLog(Trace(responses(1)), pd.DataFrame({"step": []}), "areal"), **GPUS).split(learn_s=5.0)


def test_the_figure_has_every_division() -> None:
    table = rl.load(responses(1), assumptions=Assumptions(learn_s=10.0), **GPUS).split(gpus=[4, 8]).to_frame()
    fig = plot_split(table)
    assert len(fig.table) == len(table)
    drawn = [trace for trace in fig.data if trace.showlegend is not False]
    assert sum(len(trace.x) for trace in drawn) == len(table)
    assert {trace.name for trace in drawn} == set(fig.table["line"])
    assert not plot_split(table.iloc[:0]).data


@pytest.mark.parametrize(("seconds", "title", "kind"), [
    ([100.0, 101.0, 103.0], "does not start at 0", None),
    ([10.0, 15.0, 30.0], "seconds per step", None),
    ([1.0, 2.0, 60.0], "logarithmic", "log"),
], ids=["nearly equal", "apart", "far apart"])  # fmt: skip
def test_the_axis_of_seconds_shows_differences_and_says_where_it_is_broken(
    seconds: list[float], title: str, kind: str | None
) -> None:
    table = pd.DataFrame(
        {"gpus": 8, "gpus_generate": [2, 4, 6], "gpus_train": [6, 4, 2], "gpus_per_actor": 2, "way": "divided",
         "step_s": seconds, "least_step_s": seconds}
    )  # fmt: skip
    fig = plot_split(table)
    axis = fig.layout.yaxis
    assert title in f"{axis.title.text} {fig.layout.title.text}"
    assert axis.type == kind
    begins = axis.range[0] if axis.range else None
    assert (begins is None) == ("0" not in title)
    if begins is not None:
        assert 0.5 * min(seconds) < begins < min(seconds)
