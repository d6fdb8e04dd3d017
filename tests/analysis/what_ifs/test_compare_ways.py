"""All ways together: what is compared, what is left out, and how it is told."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from what_if_runs import TWO_STEPS, rollouts_of, small_run

from rlhfless.analysis import PhaseSeconds
from rlhfless.analysis.what_ifs.compare import compare_ways
from rlhfless.analysis.what_ifs.outcome import DataChange
from rlhfless.analysis.what_ifs.words import data_in_words
from rlhfless.errors import InputError
from rlhfless.plots.what_ifs import plot_what_ifs
from rlhfless.simulate import Comparison, logged_steps

ON_POLICY = {
    "deferred dispatch", "token-aware routing", "dynamic sampling", "dynamic sampling, at once", "drafts", "stage fusion",
    "streaming learning", "right-sized, released", "consolidated, released", "released in the tail", "over-sampling",
}  # fmt: skip


@pytest.fixture(scope="module")
def compared() -> Comparison:
    """Ways on two steps of six responses with rewards, on GPUs without a price."""
    rows = rollouts_of(TWO_STEPS)
    rows["reward"] = np.resize([0.0, 1.0, 1.0, 1.0], len(rows))
    return compare_ways(replace(small_run(), logged=list(logged_steps(rows))))


def test_every_way_is_there_from_the_cheapest_to_the_dearest(compared: Comparison) -> None:
    table = compared.means().set_index("way")
    assert table.index[0] == "as logged"
    assert set(table.index[1:]) == ON_POLICY | {"partial rollout", "over-sampling, rest kept", "asynchronous"}
    assert not compared.left_out
    assert table["gpu_seconds"].iloc[1:].is_monotonic_increasing
    assert set(table.index[table["on_policy"]]) >= ON_POLICY
    assert (table["least_time_s"] <= table["time_s"] * (1 + 1e-9)).all()
    assert table.loc["as logged", ["time_saved", "cost_saved"]].tolist() == [0.0, 0.0]
    assert table["cost_usd"].isna().all(), "emulated GPUs have no price"


def test_unknown_times_of_learning_leave_out_what_needs_them() -> None:
    compared = compare_ways(small_run(phases=PhaseSeconds()))
    names = set(compared.means()["way"])
    assert not names & {"asynchronous", "stage fusion", "streaming learning"}
    assert "learning" in compared.left_out["asynchronous"]
    assert "left out: asynchronous" in str(compared)
    unrewarded, known = compared.means().set_index("way").loc["dynamic sampling"], compared.parameters["dynamic sampling"]
    assert known["low_s"] <= unrewarded["time_s"] * unrewarded["steps"] <= known["high_s"]
    assert "assumed" in unrewarded["change"]


def test_a_log_with_turns_is_compared_with_waits_only() -> None:
    rows = rollouts_of([[(4, [5]), (3, [6])]])
    rows["turns"] = [json.dumps([[2, 4.0], [3, 0.0]]), None]
    compared = compare_ways(replace(small_run(), logged=list(logged_steps(rows))))
    assert compared.means()["way"].tolist() == ["multi-turn, KV kept", "multi-turn, KV dropped"]
    assert list(compared.left_out) == ["ways without waits"]
    assert compared.knobs.empty
    assert "value" in compared.knobs


def test_the_figure_has_every_way_once_and_open_points_off_policy(compared: Comparison) -> None:
    table = compared.means()
    figure = compared.plot()
    assert figure.table["variant"].tolist() == table["way"].tolist()
    assert figure.table["gpu_hours"].tolist() == pytest.approx((table["gpu_seconds"] / 3600).tolist())
    marks = {trace.name.split(" ", 1)[1]: trace.marker.symbol for trace in figure.data if trace.name}
    assert marks.pop("as logged") == "star"
    assert {name for name, symbol in marks.items() if symbol == "circle"} == set(table["way"][1:][table["on_policy"][1:]])
    assert set(marks.values()) <= {"circle", "circle-open"}
    numbers = sorted(int(n) for note in figure.layout.annotations for n in note.text.split(", "))
    assert numbers == list(range(len(table)))
    (ticks,) = [trace for trace in figure.data if trace.marker.symbol == "line-ns"]
    assert list(ticks.x) == pytest.approx(table["least_time_s"].tolist())


def test_with_a_price_costs_are_dollars() -> None:
    run = small_run()
    setting = replace(run.setting, cluster=replace(run.setting.cluster, usd_per_gpu_hour=7.2))
    means = compare_ways(replace(run, setting=setting)).means()
    figure = plot_what_ifs(means)
    assert figure.layout.yaxis.title.text == "cost of a step (USD)"
    assert figure.table["cost_usd"].tolist() == pytest.approx((means["gpu_seconds"] * 0.002).tolist())


def test_the_figure_needs_means_of_ways(compared: Comparison) -> None:
    with refused(InputError, "least_time_s", "way"):
        plot_what_ifs(compared.means().drop(columns="least_time_s"))


def test_tables_of_ways_have_what_each_saves_and_does_to_the_data(compared: Comparison) -> None:
    partial = compared.means().set_index("way").loc["partial rollout"]
    for text in (repr(compared), compared._repr_html_()):
        assert f"{partial['time_saved']:+.1%}" in text
        assert f"{partial['cost_saved']:+.1%}" in text
        assert partial["data"] in text
    shown = json.loads(compared.to_json())
    assert [row["way"] for row in shown["means"]] == compared.means()["way"].tolist()
    assert len(shown["knobs"]) == len(compared.knobs) > 0
    some = compared.only(["as logged", "partial rollout"])
    assert some.means()["time_saved"].tolist() == [0.0, partial["time_saved"]]
    assert set(some.knobs["variant"]) == {"partial rollout"}
    assert set(some.parameters) == {"partial rollout"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataChange(4, 40), "on-policy"),
        (DataChange(4, 40, 10, 2), "25% of the learned tokens are stale, by up to 2 steps"),
        (
            DataChange(6, 60, dropped_responses=2, dropped_tokens=60, started_mean_tokens=15.0),
            "on-policy; 2 responses dropped (25%); learned responses are 33% shorter than those started",
        ),
        (DataChange(5, 50, waiting_responses=1, started_mean_tokens=10.0), "on-policy; 1 response waits for a later step"),
    ],
)
def test_changes_of_the_data_in_words(data: DataChange, words: str) -> None:
    assert data_in_words(data) == words
