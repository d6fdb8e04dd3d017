"""The facet drawing: every row of the table that a panel selects is drawn, and looks are the same in all panels. Figures that a
plot of the library draws have the numbers of their tables.
"""

from __future__ import annotations

import pandas as pd
import pytest
from paper_samples import Paper

from rlhfless.paper import FIGURES, OTHER_FIGURES
from rlhfless.paper.facets import Look, Panel, facets, for_each, looks_of, select
from rlhfless.paper.runs import LOOKS

TABLE = pd.DataFrame(
    {
        "scope": ["step"] * 4 + ["generation"] * 2, "policy": ["a", "a", "b", "bound", "a", "b"],
        "x": [1, 2, 1, 1, 1, 1], "y": [1.0, 2.0, 3.0, None, 5.0, 6.0],
    }
)  # fmt: skip


def test_a_panel_draws_its_rows_and_leaves_unknown_values_out() -> None:
    panels = [for_each(Panel({}, "x", "y", kind="lines"), "scope", {"step": "whole", "generation": "alone"})]
    drawn = facets(TABLE, "title", "note", panels, {"a": Look("first", "#000000")}).data
    assert [(trace.name, list(trace.y)) for trace in drawn] == [
        ("first", [1.0, 2.0]), ("b", [3.0]), ("first", [5.0]), ("b", [6.0]),
    ]  # fmt: skip
    assert [trace.showlegend for trace in drawn] == [True, True, False, False], "a name is in the legend once"
    assert drawn[0].marker.color == drawn[2].marker.color == "#000000"


def test_rows_may_have_other_numbers_of_panels_and_share_their_range() -> None:
    one = Panel({"scope": "step"}, "x", "y", printed=((2.5, "printed"),), at=(1.5,))
    drawn = facets(TABLE, "title", "note", [[one], [one, one], [one, one, one]], same_y=True)
    assert len({trace.yaxis for trace in drawn.data}) == 6
    assert drawn.layout.yaxis3.matches == "y2"
    assert sum(note.text == "printed" for note in drawn.layout.annotations) == 6
    assert len(drawn.layout.shapes) == 12


def test_values_are_told_apart_without_colour() -> None:
    looks = looks_of(["a", "b", "c", "d", "e", "f"], {"a": "first"})
    assert looks["a"].label == "first"
    for what in ("symbol", "hatch"):
        assert len({getattr(look, what) for look in looks.values()}) == 6


def test_rows_are_selected_by_a_value_or_several() -> None:
    assert select(TABLE, {"policy": ("a", "b"), "scope": "step"}).index.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", [*FIGURES, *OTHER_FIGURES])
def test_every_figure_has_a_text_of_whole_sentences(name: str) -> None:
    figure = {**FIGURES, **OTHER_FIGURES}[name]
    for heading, text in figure.text.lines():
        assert text.endswith("."), heading
        assert not set("{}") & set(text), heading


def test_figure_7b_has_the_savings_with_the_most_actors(paper: Paper) -> None:
    rows = paper.table("7b", actors=8)
    drawn = paper.plot("7b")
    assert drawn.layout.title.text == f"<b>{FIGURES['7b'].title}</b>"
    assert len(drawn.data) == 4
    for bar, split in zip(drawn.data, ("true", "prompt", "predicted", "bound"), strict=True):
        assert list(bar.x) == pytest.approx(100 * rows[rows["split"] == split]["saved"].to_numpy()), split


def test_figure_9_is_the_timeline_of_its_trace(paper: Paper) -> None:
    spans = paper.plot("9").table.query("table == 'spans'")
    table = paper.table("9").query("phase != 'held'")
    assert paper.plot("9").layout.title.text.startswith("<b>Figure 9: GPU timeline")
    assert set(spans["phase"]) == set(table["phase"])
    assert spans["end_s"].max() == pytest.approx(table["end_s"].max())


def test_figures_4a_and_4b_have_the_lengths_of_their_tables(paper: Paper) -> None:
    drawn, table = paper.plot("4a"), paper.table("4a")
    assert drawn.layout.title.text.startswith("<b>Figure 4a: Response lengths of several logs</b>")
    named = table["data_set"] + " (" + table["basis"] + ")"
    assert drawn.table["log"].tolist() == named.tolist()
    assert drawn.table[["share", "tokens"]].to_numpy().tolist() == table[["share", "tokens"]].to_numpy().tolist()
    steps, means = paper.plot("4b").table, paper.table("4b")
    assert steps["run"].tolist() == (means["data_set"] + " (" + means["basis"] + ")").tolist()
    assert steps["mean_tokens"].tolist() == means["smooth_tokens"].tolist()


@pytest.mark.full
def test_figure_13_has_whole_steps_by_length_and_both_ways_to_prefill(paper: Paper) -> None:
    drifts = paper.plot("13").table.set_index(["run", "step"]).sort_index()
    table = paper.table("13", panel="scaling", scope="step").set_index(["policy", "step"]).sort_index()
    assert drifts["time_s"].tolist() == table["time_s"].tolist()
    assert drifts["gpu_seconds"].tolist() == table["gpu_s"].tolist()
    assert drifts.loc["rlhfless", "actors"].tolist() == table.loc["rlhfless", "actors"].astype(float).tolist()
    names = {line.name for line in paper.plot("13").data}
    assert names == {LOOKS[policy].label for policy in table.index.unique("policy")}
    (_, prefill) = FIGURES["13"].drawings(paper.found("13")).values()
    tokens = paper.table("13", panel="prefill")["prefill_tokens"].astype(float)
    assert sorted(y for bar in prefill.data[:2] for y in bar.y) == pytest.approx(sorted(tokens / 1e3))


@pytest.mark.full
def test_figure_11_adds_ideas_from_the_naive_system_to_the_rule_and_ends_at_the_bound(paper: Paper) -> None:
    cost = paper.plot("11").table.query("table == 'cost'").set_index("kind")
    total = paper.table("11", row="total", scope="step").set_index("policy")["gpu_s"]
    assert cost.loc["total", "to_gpu_seconds"].tolist() == pytest.approx([total["static"], total["scaling"]])
    assert cost.loc["bound", "to_gpu_seconds"] <= total.min()


@pytest.mark.full
def test_figures_2b_and_17_have_all_gpu_seconds_of_a_step(paper: Paper) -> None:
    for name in ("2b", "17"):
        cost = paper.table(name, algorithm="GRPO", of="cost").groupby("policy", sort=False)["amount"].sum()
        drawn = paper.plot(name).table
        if name == "2b":
            assert drawn["gpu_s"].sum() == pytest.approx(cost["static"])
        else:
            assert drawn.iloc[:, 1:].sum(axis=1).to_numpy() == pytest.approx(cost.to_numpy())


@pytest.mark.full
def test_labels_say_which_lengths_are_a_log_and_which_a_model(paper: Paper) -> None:
    models = paper.found("10")
    assert all("(model)" in label for label in paper.plot("10").data[0].x)
    logged = models._replace(table=models.table.assign(basis="log"))
    assert any("GSM8K (log)" in label for label in FIGURES["10"].plot(logged).data[0].x)
