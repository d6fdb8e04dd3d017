"""Draws one step as logged as a bar of HTML, for notebooks: no script, no library."""

from __future__ import annotations

import html

import pandas as pd

COLOURS = {
    "generation": ("#0072B2", "#ffffff"),
    "waiting for generation": ("#E69F00", "#000000"),
    "rewards and log probabilities": ("#F0E442", "#000000"),
    "learning": ("#5B5B5B", "#ffffff"),
    "sending weights": ("#CC79A7", "#000000"),
}
"""Colour and ink by kind of phase."""
OTHER = ("#D9D9D9", "#000000")
NAMED = 0.12  # share of a step, from which a part has room for its name


def drawn_step(step: pd.DataFrame) -> str:
    """Return a bar of the phases of a step; the empty text without any.

    Args:
        step: rows ``phase, kind, seconds, share`` of ``Diagnosis.step``.
    """
    parts = "".join(_part(str(row.phase), str(row.kind), float(row.seconds), float(row.share)) for row in step.itertuples())
    bar = "display:flex;width:100%;max-width:60em;height:2em;margin:.3em 0"
    return f"<div role='img' aria-label='one step as logged' style='{bar}'>{parts}</div>" if parts else ""


def _part(phase: str, kind: str, seconds: float, share: float) -> str:
    colour, ink = COLOURS.get(kind, OTHER)
    name = html.escape(f"{phase.rpartition('/')[2]} {share:.0%}", quote=True)
    shown = name if share >= NAMED else ""
    style = (
        f"width:{100 * share:.2f}%;background:{colour};color:{ink};overflow:hidden;white-space:nowrap;text-overflow:ellipsis;"
        "font-size:.85em;line-height:2.3em;padding-left:.3em;box-sizing:border-box"
    )
    return f"<div title='{name}, {seconds:,.1f} s' style='{style}'>{shown}</div>"
