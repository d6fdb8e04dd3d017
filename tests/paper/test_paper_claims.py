"""What the paper claims as an order or a trend holds in its figures made again, or the caption says what holds instead.

All with the fast settings and without logs, so that every machine checks the same. The verdicts that readers see are those of
``rlhfless.paper.claims``; the tests below say what they stand on.
"""

from __future__ import annotations

import numpy as np
import pytest
from paper_samples import found, table

from rlhfless.paper import (
    FIGURES,
    Numbers,
    described,
    figure_09,
    figure_10,
    figure_12,
    figure_13,
    figure_15,
)
from rlhfless.paper.claims import CLAIMS, MARGINAL, of_figure, verdict

VERDICTS = {
    "22 % of GPU time is redundant KV computation with 4 responses per prompt": "no",
    "grouping responses by length saves GPU time": "yes",
    "transfers are hidden behind the longest group": "yes",
    "faster and cheaper than naive static for every algorithm, model and data set": "in part",
    "every idea makes a step cheaper": "in part",
    "ranking with a local cut is cheaper than RLHFuse's global cut": "yes",
    "scaling follows the drift of lengths": "yes",
    "computing each prompt once saves (G - 1) / G of the prefill tokens": "yes",
    "about 70 % of prompts change by at most 50 tokens between epochs, 90 % by at most 100": "yes",
    "faster and cheaper even with a predictor that is right for 44 %": "in part",
    "a smaller tau is cheaper and slower": "in part",
    "no further saving at tau <= 0.5": "in part",
    "a larger lambda is faster": "yes",
    "lambda = 0.7 is second in time and second in cost": "no",
    "windows of 1 to 4 epochs differ marginally": "yes",
    "less GPU time is idle than under naive static": "yes",
}
"""With the fast settings and without logs; what figure 16 decides is checked in ``test_paper_command.py``."""


def test_the_verdicts_are_those_that_were_looked_at() -> None:
    decided = {
        c.paper: v.holds
        for name in dict.fromkeys(c.figure for c in CLAIMS)
        if name != "16"
        for c, v in of_figure(name, found(name))
    }
    assert decided == VERDICTS


def test_a_verdict_is_yes_only_where_all_cases_hold() -> None:
    assert [verdict(cases, "").holds for cases in ([True, True], [True, False], [False])] == ["yes", "in part", "no"]
    with pytest.raises(AssertionError, match="a claim needs a case"):
        verdict([], "")


def test_a_claim_falls_with_its_numbers() -> None:
    rows = found("15").table.copy()
    rows.loc[rows["panel"] == "lambda", "time_s"] *= -1
    turned = {c.paper: v.holds for c, v in of_figure("15", Numbers(rows))}
    assert turned["a larger lambda is faster"] == "no"
    assert turned["no further saving at tau <= 0.5"] == "in part"
    fewer = found("13").table.copy()
    fewer.loc[(fewer["policy"] == "dedup") & (fewer["samples"] == 3), "prefill_tokens"] += 1
    prefill = {c.paper: v.holds for c, v in of_figure("13", Numbers(fewer))}
    assert prefill["computing each prompt once saves (G - 1) / G of the prefill tokens"] == "in part"


def test_under_a_figure_stands_what_it_says_of_the_papers_statements() -> None:
    figure = FIGURES["15"]
    said = [text for heading, text in described(figure, figure.fast, found("15")) if heading == "Does it hold"]
    assert len(said) == sum(claim.figure == "15" for claim in CLAIMS) == 5
    assert said[1].startswith("no further saving at tau <= 0.5: in part. From 0.5 to 0.3 another ")


def test_figure_10_shows_whether_the_papers_factors_are_in_reach_of_any_policy() -> None:
    figure, numbers = FIGURES["10"], found("10")
    faster, cheaper, count = figure_10.reach(numbers)
    drawn = figure.plot(figure.fast, numbers)
    notes = " ".join(note.text for note in drawn.layout.annotations)
    assert f"the paper's up to 1.35x faster, in reach of any policy in {faster} of {count} cells" in notes
    assert f"the paper's up to 44.8 % cheaper, in reach of any policy in {cheaper} of {count} cells" in notes
    limits = [trace for trace in drawn.data if trace.legendgroup == "limit"]
    most = figure_10.cells(numbers).query("policy == 'bound'")
    assert np.allclose(limits[0].y, 1 / most["most_speedup"])
    assert faster == int((np.array(limits[0].y) <= 1 / 1.35).sum())
    assert len(limits) == 4, "time and cost, of whole steps and of generation alone"


def test_no_step_of_figures_11_and_13_is_below_their_bounds() -> None:
    for scope in ("step", "generation"):
        steps, curve = table("11", row="step", scope=scope), table("11", row="bound", scope=scope)
        least = np.interp(steps["time_s"], curve["time_s"], curve["gpu_s"])
        assert (steps["gpu_s"] >= least * (1 - 1e-9)).all()
        assert (steps["time_s"] >= curve["time_s"].min()).all()
        drift = table("13", panel="scaling", scope=scope)
        bound = drift[drift["policy"] == "bound"].set_index("step")
        others = drift[drift["policy"] != "bound"]
        for what in ("time_s", "gpu_s"):
            assert (others[what].astype(float) >= others["step"].map(bound[what])).all(), (scope, what)


COMPARATORS = {"static", "static-generation", "random", "rlhfuse", "rlhfless", "solver+replan", "oracle+replan", "bound"}


def test_figure_13_compares_every_comparator_in_whole_steps_and_in_generation_alone() -> None:
    rows = table("13", panel="scaling")
    for scope in ("step", "generation"):
        assert set(rows[rows["scope"] == scope]["policy"]) == COMPARATORS, scope
        naive, released = (table("13", panel="scaling", scope=scope, policy=p) for p in ("static", "static-generation"))
        held = naive["gpu_s"].to_numpy() - released["gpu_s"].to_numpy()
        assert (held > 1 if scope == "step" else held == 0).all(), "the naive system holds its GPUs through the step"
    drawn = FIGURES["13"].plot(FIGURES["13"].fast, found("13")).data
    assert sum(trace.legendgroup == "rlhfuse" for trace in drawn) == 2 * 3 + 1, "time, cost and share of both; actors"


def test_figure_15_has_every_comparator_in_whole_steps_and_in_generation_alone() -> None:
    for scope in ("step", "generation"):
        for panel, histories in (("window", 1), ("tau", 3), ("lambda", 3)):
            rows = table("15", panel=panel, scope=scope)
            assert set(rows["policy"]) == COMPARATORS - {"oracle+replan"} | {"oracle"}, (panel, scope)
            references = rows[rows["policy"] != "rlhfless"]
            assert references["parameter"].isna().all()
            assert len(references) == histories * (len(COMPARATORS) - 1)
    drawn = FIGURES["15"].plot(FIGURES["15"].fast, found("15")).data
    (shown,) = {tuple(trace.x) for trace in drawn if trace.mode == "markers"}
    assert shown == ("naive, released", "random", "RLHFuse", "RLHFless", "ours", "oracle")
    for trace in drawn:
        if trace.mode == "markers" and trace.xaxis == "x14":
            own = figure_15.reference(found("15"), "window" if "run" in trace.name else "lambda", "rlhfuse", "step")
            assert trace.y[2] == own[trace.name]["share"]


def test_no_share_of_figures_13_15_and_17_is_above_the_bound_and_the_naive_system_has_none() -> None:
    for name in ("13", "15", "17"):
        rows = table(name)
        rows = rows[rows["policy"] != "bound"]
        assert rows["share"].notna().all(), name
        assert (rows["share"] < 1).all(), name
        assert np.allclose(rows[rows["policy"] == "static"]["share"].astype(float), 0), name
    rows = table("15")
    assert (rows["gpu_s"] >= rows["bound_gpu_s"] * (1 - 1e-9)).all()


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
    assert own["gpu_s"].max() / own["gpu_s"].min() < 1 + MARGINAL


def test_one_prefill_per_prompt_saves_all_samples_but_one() -> None:
    saved = figure_13.prefill_saved(found("13"))
    assert set(saved) >= {1, 3}
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


def test_the_papers_rule_is_cheaper_than_naive_static_even_with_a_poor_predictor() -> None:
    worth = table("14", panel="worth", policy="rlhfless", predictor="poor", scope="step")
    assert (worth["value"][worth["measure"] == "cost_saved"] > 0).all()


def test_how_steady_lengths_are_is_known_of_every_model_that_a_figure_uses() -> None:
    quality = table("14", panel="quality"), table("14", panel="elsewhere")
    used = {(a, d) for rows in quality for a, d in zip(rows["algorithm"], rows["data_set"], strict=True)}
    for name in ("10", "12", "13", "15"):
        rows = found(name).table
        rows = rows if "algorithm" in rows else rows.assign(algorithm="PPO")
        rows = rows if "data_set" in rows else rows.assign(data_set="GSM8K, drifting")
        assert set(zip(rows["algorithm"], rows["data_set"], strict=True)) <= used, name
    assert {("GRPO", f"up to {limit:,} tokens") for limit in FIGURES["16"].setting.response_limits} <= used
    moved = table("14", panel="elsewhere").pivot_table(index="data_set", columns="measure", values="value")
    assert (moved["within_50"] < moved["within_100"]).all()
    assert moved.loc["up to 8,192 tokens", "within_50"] < moved.loc["up to 2,048 tokens", "within_50"] < 0.7
    assert moved.loc["GSM8K, drifting", "within_50"] < 0.7


def test_bars_are_told_apart_without_colour() -> None:
    for name in ("12", "13", "14"):
        figure = FIGURES[name]
        bars = [bar for bar in figure.plot(figure.fast, found(name)).data if bar.type == "bar"]
        looks = {(bar.legendgroup or bar.name): bar.marker.pattern.shape for bar in bars}
        assert len(looks) > 1
        assert len(set(looks.values())) == len(looks), name


def test_scaling_follows_lengths_that_drift_by_a_step_and_costs_grow_with_them() -> None:
    """Min-max scaling compares actor counts of one step with each other, so it follows the drift far less than lengths grow."""
    steps = table("13", panel="scaling", scope="step", policy="rlhfless").sort_values("mean_tokens")
    grown = steps["mean_tokens"].iloc[-1] / steps["mean_tokens"].iloc[0]
    actors = steps["actors"].astype(float)
    assert actors.iloc[-1] > actors.iloc[0]
    assert actors.iloc[-1] / actors.iloc[0] < grown / 1.5
    assert (np.diff(steps["gpu_s"]) > 0).all()
