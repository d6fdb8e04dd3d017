"""Names of levers, as callers and the command line give them."""

from __future__ import annotations

from error_messages import refused

from solver.model.errors import PlanningError
from solver.model.step_levers import LEVERS, lever_names


def test_levers_have_names() -> None:
    assert lever_names("all") == LEVERS
    assert lever_names("none") == ()
    assert lever_names(["streaming", "cut"]) == lever_names(" streaming, cut") == ("cut", "streaming")
    with refused(PlanningError, "levers are b''"):
        lever_names(b"")
