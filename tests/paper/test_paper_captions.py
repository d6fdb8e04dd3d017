"""What stands under the figures and beside their axes is said from their numbers, and says where lengths come from."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from paper_samples import Paper, small

from rlhfless.paper import FIGURES, Numbers, figure_11, figure_14, figure_15

QUICK = ("3c", "4a", "4b", "7b", "9")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name not in QUICK)) for name in FIGURES])
def test_every_caption_says_its_five_things(name: str, paper: Paper) -> None:
    lines = paper.caption(name).lines()
    assert len(lines) == 5
    for heading, text in lines:
        assert text.endswith("."), heading
        assert not set("{}") & set(text), heading
        assert not re.search(r"\bnan", text.lower()), heading


@pytest.mark.full
def test_captions_and_labels_say_which_lengths_are_a_log_and_which_a_model(paper: Paper) -> None:
    figure, models = small("10"), paper.found("10")
    assert all("(model)" in label for label in paper.plot("10").data[0].x)
    assert "has no prompt lengths" not in paper.caption("10").modelled
    for name in ("10", "12", "14", "15", "17"):
        rows = paper.found(name).table
        logged = rows.assign(basis="log")  # figure 12 has the log beside the model, the others in its place
        rows = pd.concat([rows, logged], ignore_index=True) if name == "12" else logged
        said = small(name).caption(small(name).fast, Numbers(rows)).modelled
        assert said.endswith("The GSM8K log has no prompt lengths: they count as 0 in prefill and learning."), name
    logged = Numbers(models.table.assign(basis="log"))
    assert any("GSM8K (log)" in label for label in figure.plot(figure.fast, logged).data[0].x)


@pytest.mark.full
def test_what_a_smaller_tau_saves_is_said_from_the_numbers(paper: Paper) -> None:
    more = figure_15.saved_below_half(paper.found("15"))
    assert figure_15.sides(more) in paper.caption("15").differs
    assert figure_15.sides({"a": 0.02, "b": 0.0}) == "Further savings of 1% or more on a alone."
    assert figure_15.sides({"a": 0.02, "b": 0.01}) == "Further savings of 1% or more on a, b."
    assert figure_15.sides({"a": -0.02}) == "No further saving of 1% or more on any of them."


@pytest.mark.full
def test_figures_11_and_14_tell_generation_alone_too(paper: Paper) -> None:
    for name, shown in (("11", figure_11.whole(paper.found("11"), "generation").loc["scaling"]),
                        ("14", figure_14.gains(paper.found("14"), "rlhfless", "poor", "generation").iloc[0])):  # fmt: skip
        text = paper.caption(name).differs
        assert f"{shown['speedup']:.2f}x and {shown['cost_saved']:.0%}" in text[text.index("Generation alone: ") :], name
