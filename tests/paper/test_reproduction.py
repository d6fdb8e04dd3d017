"""The figures of the paper, shown one by one, are those that the command writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rlhfless.paper.reproduction as reproduction
from rlhfless.paper import FIGURES, Sources, described


@pytest.mark.full
def test_a_figure_and_its_caption_come_from_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = FIGURES["3c"]
    figure = replace(figure, fast=replace(figure.fast, samples_per_prompt=(4,), prompt_tokens=figure.fast.prompt_tokens[:2]))
    monkeypatch.setattr(reproduction, "FIGURES", {"3c": figure})
    begun: list[str] = []
    paper = reproduction.reproduce(fast=True, on_figure=begun.append)
    assert begun == ["3c"]
    setting = figure.of(True)
    numbers = figure.numbers(setting, Sources.of(None))
    assert paper.plot("3c").to_json() == figure.plot(setting, numbers).to_json()
    for heading, text in described(figure, setting, numbers):
        assert f"**{heading}:** {text}" in paper.caption("3c")
    stated = paper.claims.to_html()
    assert "paper says" in stated
    assert "22 %" in stated
