"""Stage fusion and streaming learning: work on finished responses while others are decoded (``analysis.phase_savings``)."""

from __future__ import annotations

from dataclasses import replace

from rlhfless.analysis.phase_savings import PhaseSavings
from rlhfless.analysis.what_ifs.outcome import WayOutcome
from rlhfless.errors import InputError

NAMES = {False: "stage fusion", True: "streaming learning"}
CHANGES = {
    False: "GPUs that wait for the last responses prepare finished ones.",
    True: "GPUs that wait for the last responses prepare finished ones and accumulate gradients of finished groups.",
}
"""By whether gradients are accumulated, too. The optimizer still steps once, after all responses."""


def way(base: WayOutcome, saved: PhaseSavings) -> WayOutcome:
    """Return the run with this overlap; its GPUs, its data and its bound are those of the run under its own dispatch.

    Args:
        base: the run under its own dispatch. saved: of whole steps, as ``phase_savings`` found on the same steps.

    Raises:
        InputError: the saving is not below 1.
    """
    if not saved.mean < 1:
        raise InputError(f"saved has a mean of {saved.mean}; a share below 1 of the time is needed")
    kept = 1 - saved.mean
    return replace(
        base, name=NAMES[saved.learns], change=CHANGES[saved.learns], time_s=kept * base.time_s, gpu_s=kept * base.gpu_s,
        parameters={"low": saved.low, "high": saved.high},
    )  # fmt: skip
