"""The first section of a report: what limits the run, by arithmetic on what was logged; its headline simulates nothing."""

from __future__ import annotations

import re

from rlhfless.diagnosis import Diagnosis
from rlhfless.diagnosis.diagnosis import LEAST, NOTHING
from rlhfless.diagnosis.levers import line_in_words
from rlhfless.plots import plot_overview
from rlhfless.plots.export.html_page import Page


def diagnosis_section(page: Page, said: Diagnosis) -> None:
    """Add the verdict, one step as logged, the table of levers, and what the log cannot say; of several runs one by one."""
    page.section(said.heading if not said.runs else "What limits these runs")
    if said.runs:
        for finding in said.findings:
            page.text(finding.sentence)
        for run in said.runs:
            page.heading(f"Run {run.run}")
            _of_run(page, run)
        for note in said.notes:
            page.text(_sentence(note))
    else:
        _of_run(page, said)


def _of_run(page: Page, said: Diagnosis) -> None:
    first, *others = [one.sentence for one in said.shown] or [NOTHING]
    for note in said.of_another_framework:
        page.text(_sentence(note))
    if said.gpus.sentence:
        page.text(f"GPUs: {said.gpus.sentence}.")
    page.headline(first)
    if said.simulated:
        page.text(f"Simulated: {said.simulated}")
    for sentence in others:
        page.text(sentence)
    for wanted in ("The run", "Cost", "Idle"):
        if texts := [text for heading, text in said.lines() if heading == wanted]:
            page.text(f"{wanted}: {'; '.join(texts)}.")
    if len(said.step):
        page.figure(plot_overview(said.step))
    if said.levers:
        _levers(page, said)
    for note in said.notes:
        page.text(_sentence(note))
    if said.cannot_say:
        page.heading("What this log cannot say")
        for text in said.cannot_say:
            page.text(_sentence(text))


def _sentence(text: str) -> str:
    """Return a note as a sentence; names of the log, such as ``perf/mfu/actor``, stay as they are."""
    first = text.split(maxsplit=1)[0]
    begins = text[0] if re.search(r"[/_.=-]", first.rstrip(".,;:")) else text[0].upper()
    return f"{begins}{text[1:].rstrip('.')}."


def _levers(page: Page, said: Diagnosis) -> None:
    worth = [one for one in said.levers if one.most >= LEAST]
    known = any(one.expected for one in worth)
    in_words = [line_in_words(one, said.framework) for one in worth]
    lines = any(in_words)
    most = "saves at most" if any(one.simulated_most is not None for one in worth) else "saves at most (arithmetic)"
    head = ["change", most, *(["expected (simulated)"] if known else []), "what it costs you",
            *(["what to set in your framework"] if lines else [])]  # fmt: skip
    rows = []
    for one, line in zip(worth, in_words, strict=True):
        row = [one.name, one.at_most_in_words, *([one.expected_in_words] if known else []), one.price]
        rows.append([*row, line] if lines else row)
    if small := ", ".join(one.name for one in said.levers if one.most < LEAST):
        row = [small, f"less than {LEAST:.0%}", *([""] if known else []), "not worth it here"]
        rows.append([*row, ""] if lines else row)
    page.table("What you could change; savings do not add up", head, rows, text_columns=len(head))
