"""What the paper claims as an order or a trend holds in its figures made again, or the caption says what holds instead.

All with the fast settings and without logs, so that every machine checks the same.
"""

from __future__ import annotations

import numpy as np
import pytest
from paper_samples import caption, found, table

from rlhfless.paper import figure_09, figure_10, figure_12, figure_13, figure_15


def test_no_policy_is_below_the_bound_in_any_cell() -> None:
    cells = table("10")
    rows = cells[cells["policy"] != "bound"]
    assert (rows["gpu_s"] >= rows["bound_gpu_s"] * (1 - 1e-9)).all()
    assert (rows["share"] < 1).all()
    assert (rows["speedup"] <= rows["most_speedup"]).all()
    assert (rows["cost_saved"] <= rows["most_cost_saved"]).all()


def test_holding_gpus_through_the_step_costs_and_changes_no_time() -> None:
    keys = ["algorithm", "data_set", "scope"]
    held = table("10", panel="cell", policy="static").set_index(keys)
    released = table("10", panel="cell", policy="static-generation").set_index(keys)
    assert np.allclose(held["time_s"], released["time_s"])
    whole = held.index.get_level_values("scope") == "step"
    assert (held["gpu_s"][whole] > released["gpu_s"][whole] * 1.05).all()
    assert np.allclose(held["gpu_s"][~whole], released["gpu_s"][~whole])


def test_true_lengths_are_worth_more_than_predictions() -> None:
    for scope in ("step", "generation"):
        share = table("10", panel="cell", scope=scope).groupby("policy")["share"].mean()
        assert share["oracle"] > share["solver"]
        assert share["oracle"] > share["rlhfless"]


def test_ours_takes_more_of_the_possible_than_the_papers_rule() -> None:
    share = table("10", panel="cell", scope="step").groupby("policy")["share"].mean()
    assert share["solver+replan"] > share["rlhfless"]


def test_larger_batches_leave_more_room_above_three_static_actors() -> None:
    batches = figure_10.by_batch(found("10"))
    assert (np.diff(batches["possible"]) > 0).all()
    assert (np.diff(batches["best_static"]) >= 0).all()
    assert (batches["ours"] <= batches["possible"]).all()


def test_smaller_tau_is_slower_and_any_cut_cheaper_than_none() -> None:
    for own in figure_15.curves(found("15"), "tau").values():
        assert (np.diff(own["time_s"]) < 0).all(), "time falls with tau"
        assert all(figure_15.saved(own, tau, 1.0) > 0.01 for tau in own["parameter"] if tau < 1)


def test_tau_below_a_half_saves_nothing_more_on_gsm8k_and_goes_on_saving_on_longer_responses() -> None:
    for label, own in figure_15.curves(found("15"), "tau").items():
        if "GSM8K" in label:
            assert figure_15.saved(own, 0.3, 0.5) < 0.01, label
        else:
            assert (np.diff(own["gpu_s"]) > 0).all(), label


def test_a_larger_lambda_is_faster() -> None:
    for own in figure_15.curves(found("15"), "lambda").values():
        assert own["time_s"].iloc[-1] < own["time_s"].iloc[0]
        assert own["gpu_s"].iloc[-1] > own["gpu_s"].iloc[0]
        assert (np.diff(own["time_s"]) <= 0.02 * own["time_s"].max()).all()


def test_windows_differ_marginally() -> None:
    (own,) = figure_15.curves(found("15"), "window").values()
    assert own["gpu_s"].max() / own["gpu_s"].min() < 1.1


def test_one_prefill_per_prompt_saves_all_samples_but_one() -> None:
    saved = figure_13.prefill_saved(found("13"))
    assert set(saved) > {1, 3}
    for samples, share in saved.items():
        assert share == pytest.approx((samples - 1) / samples, abs=1e-12)


def test_ranking_with_a_local_cut_is_cheaper_than_the_global_cut() -> None:
    (saved,) = figure_12.cost_saved(found("12")).values()
    assert saved > 0


def test_redundant_prefill_grows_with_samples_and_with_prompts() -> None:
    share = table("3c").pivot(index="prompt_tokens", columns="samples", values="redundant_share")
    assert (share[1] == 0).all()
    assert (np.diff(share.to_numpy(), axis=1) > 0).all()
    assert (np.diff(share[4]) > 0).all()


def test_grouping_needs_the_truth() -> None:
    saved = table("7b", actors=8).set_index(["data_set", "samples", "split"])["saved"].unstack("split")
    assert (saved["true"] > saved["prompt"] - 1e-9).all()
    assert (saved["true"] > saved["predicted"]).all()
    assert (saved["bound"] >= saved["true"] - 1e-9).all()


def test_transfers_are_hidden_behind_the_longest_group() -> None:
    done, others = figure_09.hidden(found("9"))
    assert done == others == 5


def test_a_poor_predictor_still_beats_naive_static() -> None:
    worth = table("14", panel="worth", policy="rlhfless", predictor="poor")
    assert (worth["value"][worth["measure"] == "cost_saved"] > 0).all()


def test_every_caption_says_its_four_things() -> None:
    for name in ("3c", "4a", "4b", "7b", "12", "13"):
        for heading, text in caption(name).lines():
            assert text.endswith("."), f"{name}: {heading}"
            assert not set("{}") & set(text), f"{name}: {heading}"
            assert "nan" not in text.lower().split()


def test_scaling_follows_lengths_that_drift_by_a_step_and_costs_grow_with_them() -> None:
    """Min-max scaling compares actor counts of one step with each other, so it follows the drift far less than lengths grow."""
    steps = table("13", panel="scaling", policy="rlhfless").sort_values("mean_tokens")
    grown = steps["mean_tokens"].iloc[-1] / steps["mean_tokens"].iloc[0]
    actors = steps["actors"].astype(float)
    assert actors.iloc[-1] > actors.iloc[0]
    assert actors.iloc[-1] / actors.iloc[0] < grown / 1.5
    assert (np.diff(steps["step_gpu_s"]) > 0).all()
