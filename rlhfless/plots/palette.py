"""Colours, hatches and markers of every plot: one per phase, one per policy.

The colours are those of Okabe and Ito, which people with any colour vision can distinguish. A hatch or a marker shape repeats
the distinction for print without colour. Greys are legible on white and on dark paper.
"""

from __future__ import annotations

from typing import NamedTuple

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"

IDLE = "#D9D9D9"
"""GPUs that are held and do nothing."""

BUSY = BLUE
BOUND = GREY
BUSY_SCALE = ((0.0, IDLE), (0.001, "#DCEBF5"), (1.0, BLUE))
"""Share of time that GPUs are busy, from held and idle to busy all the time."""


class PhaseStyle(NamedTuple):
    """Fill and hatch of a phase."""

    colour: str
    hatch: str


class PolicyStyle(NamedTuple):
    """Colour and marker of a policy."""

    colour: str
    symbol: str


PHASE_STYLES: dict[str, PhaseStyle] = {
    "start": PhaseStyle(ORANGE, "/"),
    "sync": PhaseStyle(PURPLE, "\\"),
    "prefill": PhaseStyle(GREEN, "."),
    "transfer": PhaseStyle(SKY, "-"),
    "decode": PhaseStyle(BLUE, ""),
    "migrate": PhaseStyle(VERMILLION, "x"),
    "prepare": PhaseStyle(YELLOW, "|"),
    "learn": PhaseStyle("#5B5B5B", "+"),
}

POLICY_STYLES: dict[str, PolicyStyle] = {
    "static": PolicyStyle(GREY, "circle"),
    "right-sizing": PolicyStyle(SKY, "square-open"),
    "random": PolicyStyle(SKY, "square"),
    "release": PolicyStyle(SKY, "square"),
    "least-loaded": PolicyStyle(PURPLE, "diamond"),
    "least-loaded, held": PolicyStyle(PURPLE, "diamond-open"),
    "rlhfuse": PolicyStyle(ORANGE, "triangle-up"),
    "rlhfless": PolicyStyle(VERMILLION, "triangle-down"),
    "fold": PolicyStyle(GREEN, "pentagon"),
    "spread": PolicyStyle(SKY, "diamond-tall"),
    "spreading": PolicyStyle(SKY, "diamond-tall"),
    "solver": PolicyStyle(BLUE, "star"),
    "folding": PolicyStyle(GREEN, "pentagon"),
    "this plan": PolicyStyle(BLUE, "star-diamond"),
    "re-planning": PolicyStyle(BLUE, "hexagram"),
    "true lengths": PolicyStyle(YELLOW, "hexagram"),
    "solver+replan": PolicyStyle(BLUE, "hexagram"),
    "oracle": PolicyStyle(YELLOW, "star-triangle-up"),
    "oracle+replan": PolicyStyle(YELLOW, "hexagram"),
}

_FURTHER_STYLES = tuple(
    PolicyStyle(colour, symbol)
    for symbol in ("x", "cross", "hourglass")
    for colour in (GREEN, VERMILLION, SKY, PURPLE, ORANGE, BLUE, GREY)
)


def policy_styles(policies: list[str]) -> dict[str, PolicyStyle]:
    """Return a style for every policy; a policy without a fixed style gets colour and marker by its position."""
    unknown = [policy for policy in policies if policy not in POLICY_STYLES]
    return {p: POLICY_STYLES.get(p) or _FURTHER_STYLES[unknown.index(p) % len(_FURTHER_STYLES)] for p in policies}
