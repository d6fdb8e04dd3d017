"""The figures of the paper, shown one by one, are those that the command writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rlhfless.paper.reproduction as reproduction
from rlhfless.paper import FIGURES, Runs, Sources


@pytest.mark.full
def test_a_figure_and_its_text_come_from_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = replace(FIGURES["3c"], fast={"samples_per_prompt": (4,), "prompt_tokens": (105, 1024)})
    monkeypatch.setattr(reproduction, "FIGURES", {"3c": figure})
    begun: list[str] = []
    paper = reproduction.reproduce(fast=True, on_figure=begun.append)
    assert begun == ["3c"]
    numbers = figure.compute(Runs(Sources.of(None)), fast=True)
    assert paper.plot("3c").to_json() == figure.plot(numbers).to_json()
    for heading, text in figure.text.lines():
        assert f"**{heading}:** {text}" in paper.text("3c")
    table = paper.findings.to_html()
    for cell in ("ours", "bound", "22 %"):
        assert cell in table
