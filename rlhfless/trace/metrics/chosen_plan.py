"""Which plan of a step ran, and why, as the trace has it."""

from __future__ import annotations

from rlhfless.trace.io import Trace
from solver.model.plurals import counted


def chosen_of(trace: Trace, step: int) -> str:
    """Return in short what the plan of a step is, and why; the empty text where the plan does not say so.

    Where actors of several sizes were planned, it says how much higher time and cost, weighed, were with each of the others.
    """
    plan = next((plan for plan in trace.plans if plan.get("step") == step), {})
    notes = plan.get("notes") or {}
    others = [
        f"{abs(value - 1):.0%} {'higher' if value >= 1 else 'lower'} with {counted(int(gpus), 'GPU')} per actor"
        for gpus, value in sorted((notes.get("sizes") or {}).items(), key=lambda size: int(size[0]))
        if value != 1.0
    ]
    sizes = f"time and cost, weighed, would be {', '.join(others)}" if others else ""
    return "; ".join(filter(None, [str(notes.get("chosen", "")), sizes]))
