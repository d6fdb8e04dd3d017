"""Speculative decoding: drafted tokens are verified, so a response takes fewer passes; its tokens stay the same.

How much time drafts save is computed by ``analysis.draft_savings``: by what the log's texts accept where it has texts, else by
what is assumed to be accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhfless.analysis.what_ifs.changed_generation import whole_steps
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked
from rlhfless.errors import InputError
from solver.model.errors import as_given, is_number, is_whole
from solver.model.workload import Workload

MEASURED = "Drafted tokens are verified; as many are accepted as in the log's texts."
ASSUMED = "Drafted tokens are verified; how many are accepted is assumed."


def way(run: RunToChange, steps_s: Sequence[float], saved: float, draft_tokens: int, *, measured: bool) -> WayOutcome:
    """Return the run with drafts.

    The bound is that of drafts which are all accepted: a response of L tokens takes ``ceil(L / (n + 1))`` passes.

    Args:
        steps_s: (steps,) seconds of generation as logged. saved: share of them that drafts save (``analysis.draft_savings``).
        draft_tokens: drafted tokens of a pass, n. measured: whether texts of the log say what is accepted.

    Raises:
        InputError: the share is not below 1, or there is no drafted token; or the run cannot be changed.
    """
    if not is_number(saved) or not saved < 1:
        raise InputError(f"saved is {as_given(saved)}; a share below 1 is needed")
    if not is_whole(draft_tokens, 1):
        raise InputError(f"draft_tokens is {as_given(draft_tokens)}; a whole number of at least 1 is needed")
    least = [(_passes(step.truth, draft_tokens), 0.0) for step in checked(run).logged]
    parameters = {"saved": saved, "draft_tokens": float(draft_tokens)}
    words = ("drafts", MEASURED if measured else ASSUMED)
    return whole_steps(run, words, [(1 - saved) * step_s for step_s in steps_s], least=least, parameters=parameters)


def _passes(truth: Workload, draft_tokens: int) -> Workload:
    """Return the workload with as many tokens as passes are needed at least."""
    passes = -(-truth.response_tokens // (draft_tokens + 1))
    return Workload(truth.prompt_tokens, truth.prompt_of, passes, max_response_tokens=truth.max_response_tokens)
