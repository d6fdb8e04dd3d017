"""What the paper claims as an order or a trend holds in its figures made again, or the findings say what holds instead.

All with small settings and without logs, so that every machine checks the same. The verdicts that readers see are those of the
figures. ``findings``; the tests below say what they stand on.
"""

from __future__ import annotations

import numpy as np
import pytest
from error_messages import refused
from paper_samples import VERDICTS, Paper

from rlhfless.paper import FIGURES, Numbers, figures_02_to_09, figures_10_to_13, figures_14_to_16
from rlhfless.paper.figure import verdict
from rlhfless.paper.runs import ELASTIC, LOOKS


@pytest.mark.full
def test_the_verdicts_are_those_that_were_looked_at(paper: Paper) -> None:
    names = dict.fromkeys(name for name, _ in VERDICTS if name != "16")  # test_paper_command.py has figure 16
    decided = {(name, one.what): one.holds for name in names for one in FIGURES[name].findings(paper.found(name))}
    assert decided == {stated: holds for stated, holds in VERDICTS.items() if stated[0] != "16"}


def test_a_verdict_is_yes_only_where_all_cases_hold() -> None:
    assert [verdict(cases) for cases in ([True, True], [True, False], [False])] == ["yes", "in part", "no"]
    with refused(AssertionError):
        verdict([])


@pytest.mark.full
def test_a_claim_falls_with_its_numbers(paper: Paper) -> None:
    rows = paper.found("15").table.copy()
    rows.loc[rows["panel"] == "lambda", "time_s"] *= -1
    turned = {one.what: one.holds for one in FIGURES["15"].findings(Numbers(rows))}
    assert turned["a larger lambda is faster"] == "no"
    assert turned["tau from which a smaller one saves no further cost"] == "in part"
    fewer = paper.found("13").table.copy()
    fewer.loc[(fewer["policy"] == "dedup") & (fewer["samples_per_prompt"] == 3), "prefill_tokens"] += 1
    prefill = {one.what: one.holds for one in FIGURES["13"].findings(Numbers(fewer))}
    assert prefill["computing each prompt once saves (G - 1) / G of the prefill tokens"] == "in part"


@pytest.mark.full
def test_figure_10_shows_with_which_learner_the_papers_factors_are_in_reach(paper: Paper) -> None:
    numbers, drawn = paper.found("10"), paper.plot("10")
    faster, on_all, cheaper, count = figures_10_to_13.cells_within_bounds(numbers)
    speed, cost, *_ = FIGURES["10"].findings(numbers)
    assert f"1.35x is possible in {faster}, {on_all} and" in speed.bound
    assert f"44.8 % is possible in {cheaper} of {count} cells" in cost.bound
    limits = {
        name: [trace for trace in drawn.data if trace.name == look.label] for name, look in figures_10_to_13.LIMITS.items()
    }
    most = figures_10_to_13.cells(numbers).query("policy == 'bound'")
    for name, cells in (("most_speedup", faster), ("most_speedup_on_all", on_all)):
        assert np.allclose(limits[name][0].y, 1 / most[name])
        assert cells == int((np.array(limits[name][0].y) <= 1 / 1.35).sum())
    assert [len(drawn) for drawn in limits.values()] == [2, 1, 2], "generation alone has no learner"


@pytest.mark.full
def test_elastic_plain_shows_that_a_larger_learner_is_outside_the_first_bound_and_within_the_second(paper: Paper) -> None:
    cells = paper.table("10", panel="cell", scope="step").set_index(["algorithm", "data_set"])
    of = {str(policy): own for policy, own in cells.groupby("policy")}
    plain, lossy, released = of["elastic"], of["elastic-90"], of["static-generation"]
    assert (plain["speedup"] > plain["most_speedup"]).any(), "so no bound of the naive learner may be said of any policy"
    assert (plain["speedup"] <= plain["most_speedup_on_all"]).all()
    assert np.allclose(plain["gpu_s"], released["gpu_s"]), "the same GPU-seconds of learning on more GPUs"
    assert (plain["time_s"] < released["time_s"]).all()
    assert ((lossy["time_s"] > plain["time_s"]) & (lossy["gpu_s"] > plain["gpu_s"])).all()
    alone = paper.table("10", panel="cell", scope="generation").set_index(["algorithm", "data_set", "policy"])["time_s"]
    rest = cells.set_index("policy", append=True)["time_s"] - alone
    naive, on_all, less = (rest.xs(policy, level="policy") for policy in ("static", "elastic", "elastic-90"))
    assert np.allclose(naive / on_all, 16 / 8), "perfect scaling from 8 GPUs to 16"
    assert np.allclose(less / on_all, 1 / 0.9), "10 % lost by one doubling"


@pytest.mark.full
def test_no_step_of_figures_11_and_13_is_below_their_bounds(paper: Paper) -> None:
    for scope in ("step", "generation"):
        steps, curve = paper.table("11", row="step", scope=scope), paper.table("11", row="bound", scope=scope)
        least = np.interp(steps["time_s"], curve["time_s"], curve["gpu_s"])
        assert (steps["gpu_s"] >= least * (1 - 1e-9)).all()
        assert (steps["time_s"] >= curve["time_s"].min()).all()
        drift = paper.table("13", panel="scaling", scope=scope)
        bound = drift[drift["policy"] == "bound"].set_index("step")
        others = drift[~drift["policy"].isin(["bound", "bound-on-all", "elastic"])]
        for what in ("time_s", "gpu_s"):
            assert (others[what].astype(float) >= others["step"].map(bound[what])).all(), (scope, what)
    rows = paper.table("13", panel="scaling", scope="step").set_index(["policy", "step"])
    plain, naive, on_all = (rows.loc[policy] for policy in ("elastic", "bound", "bound-on-all"))
    assert (plain["time_s"] >= on_all["time_s"]).all()
    assert (plain["gpu_s"] >= on_all["gpu_s"]).all()
    assert np.allclose(on_all["gpu_s"].astype(float), naive["gpu_s"].astype(float)), "the least cost needs no assumption"


COMPARATORS = {
    "static",
    "static-generation",
    "elastic",
    "random",
    "rlhfuse",
    "rlhfless",
    "solver+replan",
    "oracle+replan",
    "bound",
}


@pytest.mark.full
def test_figure_13_compares_every_comparator_in_whole_steps_and_in_generation_alone(paper: Paper) -> None:
    rows = paper.table("13", panel="scaling")
    for scope in ("step", "generation"):
        assert set(rows[rows["scope"] == scope]["policy"]) - {"bound-on-all"} == COMPARATORS, scope
        naive, released = (paper.table("13", panel="scaling", scope=scope, policy=p) for p in ("static", "static-generation"))
        held = naive["gpu_s"].to_numpy() - released["gpu_s"].to_numpy()
        assert (held > 1 if scope == "step" else held == 0).all(), "the naive system holds its GPUs through the step"
    drawn = paper.plot("13").data
    assert sum(trace.name == LOOKS["rlhfuse"].label for trace in drawn) == 3, "time, cost and actors"


@pytest.mark.full
def test_figure_15_has_every_comparator_in_whole_steps_and_in_generation_alone(paper: Paper) -> None:
    for scope in ("step", "generation"):
        for panel, histories in (("window", 1), ("tau", 3), ("lambda", 3)):
            rows = paper.table("15", panel=panel, scope=scope)
            assert set(rows["policy"]) == COMPARATORS - {"oracle+replan"} | {"oracle"}, (panel, scope)
            references = rows[rows["policy"] != "rlhfless"]
            assert references["parameter"].isna().all()
            assert len(references) == histories * (len(COMPARATORS) - 1)
    drawn = [trace for trace in paper.plot("15").data if trace.mode == "markers" and trace.xaxis == "x14"]
    assert drawn
    for trace in drawn:
        panel = "window" if "run" in trace.name else "lambda"
        own = figures_14_to_16.curves(paper.found("15"), panel, "step", "rlhfuse")[trace.name]
        shown = dict(zip(trace.x, trace.y, strict=True))
        assert set(shown) == set(figures_14_to_16.SHORT.values())
        assert shown["RLHFuse"] == own["share"].iloc[0]


@pytest.mark.full
def test_no_share_of_figures_13_15_and_17_is_above_the_bound_and_the_naive_system_has_none(paper: Paper) -> None:
    for name in ("13", "15", "17"):
        rows = paper.table(name)
        rows = rows[~rows["policy"].isin(["bound", "bound-on-all", "elastic"])]
        assert rows["share"].notna().all(), name
        assert (rows["share"] < 1).all(), name
        assert np.allclose(rows[rows["policy"] == "static"]["share"].astype(float), 0), name
    rows = paper.table("15")
    assert (rows["gpu_s"] >= rows["bound_gpu_s"] * (1 - 1e-9)).all()


@pytest.mark.full
def test_no_policy_is_below_the_bound_in_any_cell(paper: Paper) -> None:
    cells = paper.table("10")
    rows = cells[cells["policy"] != "bound"]
    assert (rows["gpu_s"] >= rows["bound_gpu_s"] * (1 - 1e-9)).all()
    assert (rows["cost_saved"] <= rows["most_cost_saved"]).all()
    assert (rows["speedup"] <= rows["most_speedup_on_all"]).all()
    naive = rows[~rows["policy"].isin(list(ELASTIC))]
    assert (naive["share"] < 1).all()
    assert (naive["speedup"] <= naive["most_speedup"]).all()


@pytest.mark.full
def test_holding_gpus_through_the_step_costs_and_changes_no_time(paper: Paper) -> None:
    keys = ["algorithm", "data_set", "scope"]
    held = paper.table("10", panel="cell", policy="static").set_index(keys)
    released = paper.table("10", panel="cell", policy="static-generation").set_index(keys)
    assert np.allclose(held["time_s"], released["time_s"])
    whole = held.index.get_level_values("scope") == "step"
    assert (held["gpu_s"][whole] > released["gpu_s"][whole] * 1.05).all()
    assert np.allclose(held["gpu_s"][~whole], released["gpu_s"][~whole])


@pytest.mark.full
def test_true_lengths_save_more_than_predictions(paper: Paper) -> None:
    for scope in ("step", "generation"):
        share = paper.table("10", panel="cell", scope=scope).groupby("policy")["share"].mean()
        assert share["oracle"] > share["solver"]
        assert share["oracle"] > share["rlhfless"]


@pytest.mark.full
def test_ours_takes_more_of_the_possible_than_the_papers_rule(paper: Paper) -> None:
    share = paper.table("10", panel="cell", scope="step").groupby("policy")["share"].mean()
    assert share["solver+replan"] > share["rlhfless"]


@pytest.mark.full
def test_larger_batches_leave_more_room_above_three_static_actors(paper: Paper) -> None:
    batches = figures_10_to_13.by_batch(paper.found("10"))
    assert (np.diff(batches["possible"]) > 0).all()
    assert (np.diff(batches["best_static"]) >= 0).all()
    assert (batches["ours"] <= batches["possible"]).all()


@pytest.mark.full
def test_smaller_tau_is_slower_and_any_cut_cheaper_than_none(paper: Paper) -> None:
    for own in figures_14_to_16.curves(paper.found("15"), "tau").values():
        assert (np.diff(own["time_s"]) < 0).all(), "time falls with tau"
        assert all(figures_14_to_16.saved(own, tau, 1.0) > 0.01 for tau in own["parameter"] if tau < 1)


@pytest.mark.full
def test_tau_below_a_half_saves_nothing_more_on_gsm8k_and_goes_on_saving_on_longer_responses(paper: Paper) -> None:
    for label, own in figures_14_to_16.curves(paper.found("15"), "tau").items():
        if "GSM8K" in label:
            assert figures_14_to_16.saved(own, 0.3, 0.5) < 0.02, label  # 1.1 % at most was measured
        else:
            assert (np.diff(own["gpu_s"]) > 0).all(), label


@pytest.mark.full
def test_a_larger_lambda_is_faster(paper: Paper) -> None:
    for own in figures_14_to_16.curves(paper.found("15"), "lambda").values():
        assert own["time_s"].iloc[-1] < own["time_s"].iloc[0]
        assert own["gpu_s"].iloc[-1] > own["gpu_s"].iloc[0]
        assert (np.diff(own["time_s"]) <= 0.02 * own["time_s"].max()).all()


@pytest.mark.full
def test_windows_differ_marginally(paper: Paper) -> None:
    (own,) = figures_14_to_16.curves(paper.found("15"), "window").values()
    assert own["gpu_s"].max() / own["gpu_s"].min() < 1 + figures_14_to_16.MARGINAL


@pytest.mark.full
def test_one_prefill_per_prompt_saves_all_samples_but_one(paper: Paper) -> None:
    saved = figures_10_to_13.prefill_saved(paper.found("13"))
    assert set(saved) >= {1, 3}
    for samples, share in saved.items():
        assert share == pytest.approx((samples - 1) / samples, abs=1e-12)


@pytest.mark.full
def test_ranking_with_a_local_cut_is_cheaper_than_the_global_cut(paper: Paper) -> None:
    (saved,) = figures_10_to_13.cut_saved(paper.found("12")).values()
    assert saved > 0


def test_redundant_prefill_grows_with_samples_and_with_prompts(paper: Paper) -> None:
    share = paper.table("3c").pivot(index="prompt_tokens", columns="samples_per_prompt", values="redundant_share")
    assert (share[1] == 0).all()
    assert (np.diff(share.to_numpy(), axis=1) > 0).all()
    assert (np.diff(share[4]) > 0).all()


def test_grouping_needs_the_truth(paper: Paper) -> None:
    saved = paper.table("7b", actors=8).set_index(["data_set", "samples_per_prompt", "split"])["saved"].unstack("split")
    assert (saved["true"] > saved["prompt"] - 1e-9).all()
    assert (saved["true"] > saved["predicted"]).all()
    assert (saved["bound"] >= saved["true"] - 1e-9).all()


def test_transfers_are_hidden_behind_the_longest_group(paper: Paper) -> None:
    done, others = figures_02_to_09.hidden_transfers(paper.found("9"))
    assert done == others == 5


@pytest.mark.full
def test_the_papers_rule_is_cheaper_than_naive_static_even_with_a_poor_predictor(paper: Paper) -> None:
    worth = paper.table("14", panel="worth", policy="rlhfless", predictor="poor", scope="step")
    assert (worth["value"][worth["measure"] == "cost_saved"] > 0).all()


@pytest.mark.full
def test_how_steady_lengths_are_is_known_of_every_model_that_a_figure_uses(paper: Paper) -> None:
    quality = paper.table("14", panel="quality"), paper.table("14", panel="elsewhere")
    used = {(a, d) for rows in quality for a, d in zip(rows["algorithm"], rows["data_set"], strict=True)}
    for name in ("10", "12", "13", "15"):
        rows = paper.found(name).table
        rows = rows if "algorithm" in rows else rows.assign(algorithm="PPO")
        rows = rows if "data_set" in rows else rows.assign(data_set="GSM8K, drifting")
        assert set(zip(rows["algorithm"], rows["data_set"], strict=True)) <= used, name
    assert {("GRPO", f"up to {limit:,} tokens") for limit in figures_14_to_16.TOKEN_LIMITS} <= used
    moved = paper.table("14", panel="elsewhere").pivot_table(index="data_set", columns="measure", values="value")
    assert (moved["within_50"] < moved["within_100"]).all()
    assert moved.loc["up to 8,192 tokens", "within_50"] < moved.loc["up to 2,048 tokens", "within_50"] < 0.7
    assert moved.loc["GSM8K, drifting", "within_50"] < 0.7


@pytest.mark.full
def test_bars_are_told_apart_without_colour(paper: Paper) -> None:
    for name in ("12", "13", "14"):
        drawings = FIGURES[name].drawings(paper.found(name)).values()
        bars = [bar for drawing in drawings for bar in drawing.data if bar.type == "bar"]
        looks = {bar.name: bar.marker.pattern.shape for bar in bars}
        assert len(looks) > 1
        assert len(set(looks.values())) == len(looks), name


@pytest.mark.full
def test_scaling_follows_lengths_that_drift_by_a_step_and_costs_grow_with_them(paper: Paper) -> None:
    """Min-max scaling compares actor counts of one step with each other, so it follows the drift far less than lengths grow."""
    steps = paper.table("13", panel="scaling", scope="step", policy="rlhfless").sort_values("mean_tokens")
    grown = steps["mean_tokens"].iloc[-1] / steps["mean_tokens"].iloc[0]
    actors = steps["actors"].astype(float)
    assert actors.iloc[-1] > actors.iloc[0]
    assert actors.iloc[-1] / actors.iloc[0] < grown / 1.5
    assert (np.diff(steps["gpu_s"]) > 0).all()
