"""Colours, hatches and markers of every plot: one per phase, one per policy.

People with any colour vision can distinguish the colours (``rlhfless.system.colours``). A hatch or a marker shape repeats the
distinction for print without colour. Greys are legible on white and on dark paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rlhfless.scheduling import POLICY_TABLE
from rlhfless.system.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW

__all__ = ["BLUE", "BOUND", "BUSY", "BUSY_SCALE", "COLOURS", "GREEN", "GREY", "IDLE", "OCCUPANCY", "OCCUPANCY_SCALE",
           "ORANGE", "OUTLINE", "PHASE_STYLES", "POLICY_STYLES", "PURPLE", "SELECTED", "SKY", "SYMBOLS", "VERMILLION",
           "YELLOW", "PhaseStyle", "PolicyStyle", "ink_on", "line_looks", "policy_styles"]  # fmt: skip

IDLE, OUTLINE = "rgba(127,127,127,0.25)", "rgba(127,127,127,0.65)"
"""Fill and outline of GPUs that are held and do nothing; see-through, so that they are pale on white and on dark paper."""

BUSY = BLUE
BOUND = GREY
SELECTED = {"symbol": "star", "size": 15, "color": YELLOW, "line": {"width": 1.5, "color": "#000000"}}
"""Marker of what a user selected: legible on bars of every colour, on white and on dark paper."""

OCCUPANCY = ((0.0, 0.2), (0.02, 0.3), (0.1, 0.5), (0.3, 0.75), (1.0, 1.0))
"""Share of an actor's slots that are in use, and how opaque the blue of that share is. Small shares are far apart, as most of a
long-tailed step runs with few slots in use."""

OCCUPANCY_SCALE = tuple((share, f"rgba(0,114,178,{opaque})") for share, opaque in OCCUPANCY)
"""The same as a colour scale, from an empty batch to a full one: see-through blue to blue."""

BUSY_SCALE = ((0.0, IDLE), (0.001, "rgba(0,114,178,0.12)"), (1.0, "rgba(0,114,178,1.0)"))
"""The same over allocated time, from held and idle to a full batch all the time."""


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
    **{name: PolicyStyle(info.colour, info.symbol) for name, info in POLICY_TABLE.items() if info.colour},
    "this plan": PolicyStyle(VERMILLION, "star-diamond"),
    "bound": PolicyStyle(BOUND, "line-ew-open"),
    "megatron": PolicyStyle(GREY, "square"),
    "verl": PolicyStyle(GREEN, "cross"),
    "real": PolicyStyle(BLUE, "x"),
}
"""Of the table of policies, of the plan that is looked at, of a bound, and of published plans of a step's model calls."""

COLOURS = (GREEN, VERMILLION, SKY, PURPLE, ORANGE, BLUE, GREY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("x", "cross", "hourglass", "triangle-left", "diamond-wide")
_FURTHER_STYLES = tuple(
    PolicyStyle(COLOURS[i % 7], SYMBOLS[i % 5])
    for i in range(35)  # 5 and 7 have no common factor: neighbours differ in both, and all 35 differ
)


def ink_on(colour: str) -> str:
    """Return white or black, whichever has more contrast on an opaque colour ``#RRGGBB``, by WCAG's formula.

    Example:
        >>> ink_on("#0072B2"), ink_on("#F0E442")
        ('#FFFFFF', '#000000')
    """
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#FFFFFF" if 1.05 / (luminance + 0.05) >= (luminance + 0.05) / 0.05 else "#000000"


def policy_styles(policies: list[str]) -> dict[str, PolicyStyle]:
    """Return a style for every policy; a policy without a fixed style gets colour and marker by its position."""
    unknown = [policy for policy in policies if policy not in POLICY_STYLES]
    return {p: POLICY_STYLES.get(p) or _FURTHER_STYLES[unknown.index(p) % len(_FURTHER_STYLES)] for p in policies}


def line_looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the line and the marker of every name, as plotly has them: of a policy, or by position. Dashes differ, too."""
    return {
        name: {
            "line": {"color": style.colour, "dash": DASHES[place % len(DASHES)], "width": 2},
            "marker": {"color": style.colour, "symbol": style.symbol, "size": 8},
        }
        for place, (name, style) in enumerate(policy_styles(list(names)).items())
    }
