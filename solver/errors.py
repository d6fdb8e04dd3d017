"""The one exception of the solver for wrong input.

Knows nothing of planning. Every message is one sentence: what is wrong, where, and what would be right.
"""

from __future__ import annotations


class PlanningError(ValueError):
    """The problem as stated cannot be planned; the message names the value to blame and what would be right."""
