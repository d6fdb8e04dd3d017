"""The figures of the paper, shown one by one, are those that the command writes."""

from __future__ import annotations

import pytest

import rlhfless.paper.reproduction as reproduction
from rlhfless.paper import FIGURES, Sources, described


def test_a_figure_and_its_caption_come_from_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "FIGURES", {"3c": FIGURES["3c"]})
    begun: list[str] = []
    paper = reproduction.reproduce(fast=True, on_figure=begun.append)
    assert begun == ["3c"]
    figure, setting = FIGURES["3c"], FIGURES["3c"].of(True)
    numbers = figure.numbers(setting, Sources.of(None))
    assert paper.plot("3c").to_json() == figure.plot(setting, numbers).to_json()
    for heading, text in described(figure, setting, numbers):
        assert f"**{heading}:** {text}" in paper.caption("3c")
    stated = paper.claims.to_html()
    assert "paper says" in stated
    assert "22 %" in stated
