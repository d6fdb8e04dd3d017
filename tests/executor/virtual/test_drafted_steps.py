"""Whole steps of torch engines with drafts on the virtual clock: the same tokens, what the trace counts, and measured times."""

from __future__ import annotations

import json

import numpy as np
import pytest
from executor_samples import Restless
from replay_samples import executed, factory, torch_step
from scripted_drafters import ScriptedDrafter

from rlhfless.engine.common.checked_drafter import DraftsOffWarning
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.torch.replay import Replay
from rlhfless.executor.virtual.executor import VirtualStep
from solver.model.drafting import Drafting


def ids(ran: VirtualStep) -> dict[int, list[int]]:
    """Token ids by response."""
    return {i: c.token_ids.tolist() for i, c in ran.step.record.completions.items() if c.token_ids is not None}


def knowing(plain: VirtualStep) -> ScriptedDrafter:
    """Drafts what was decoded without drafts, with every fourth token wrong."""
    known = ids(plain)

    def says(response: int, so_far: list[int], most: int) -> list[int]:
        at = range(len(so_far), min(len(so_far) + most, len(known[response])))
        return [known[response][i] if (i + response) % 4 else 1 for i in at]

    return ScriptedDrafter(says)


@pytest.mark.parametrize("admission", ["reserve", "preempt"])
@pytest.mark.parametrize("length", [3, "adaptive"])
def test_moves_change_no_token_and_everything_is_counted(admission: str, length: int | str) -> None:
    """A rule that moves responses about at random, with their KV caches or without."""
    moves = saved = 0
    for seed in range(3):
        step, how = torch_step(seed), {"admission": admission, "migration": "cheaper"}
        plain = executed(step, "static", Restless(seed), **how)
        drafting = Drafting(knowing(plain), max_draft_tokens=4, length=length)  # type: ignore[arg-type]
        ran = executed(step, "static", Restless(seed), drafting=drafting, **how)
        record = ran.step.record
        assert ids(ran) == ids(plain)
        rollouts = record.trace.rollouts
        assert (rollouts["passes"] + rollouts["accepted_tokens"] == rollouts["response_tokens"]).all()
        details = [json.loads(row["detail"]) for row in record.spans if row["phase"] == "decode"]
        assert sum(d["drafted"] for d in details) == rollouts["drafted_tokens"].sum()
        assert sum(d["accepted"] for d in details) == rollouts["accepted_tokens"].sum()
        assert sum(d["fed_tokens"] for d in details) == rollouts["passes"].sum() + rollouts["drafted_tokens"].sum()
        moves, saved = moves + record.moves, saved + int(rollouts["accepted_tokens"].sum())
        for journal in ran.log.journals.values():
            again = Replay(factory().model, journal, Sampling())
            seconds = again.run(len(journal))
            assert again.journal.passes == journal.passes
            assert again.journal.finished == journal.finished
            assert np.all(seconds[:, 1] > 0)
    assert moves > 0
    assert saved > 0


def test_a_drafter_that_fails_is_an_event() -> None:
    def says(response: int, so_far: list[int], most: int) -> list[int]:
        raise RuntimeError("no more ideas")

    step = torch_step(0)
    with pytest.warns(DraftsOffWarning, match="no more ideas"):
        ran = executed(step, "static", drafting=Drafting(ScriptedDrafter(says), length=2))
    events = [row for row in ran.step.record.events if row["name"] == "drafts_off"]
    assert {row["holder"] for row in events} == {row["holder"] for row in ran.step.record.spans if row["phase"] == "decode"}
    assert all("ScriptedDrafter failed in draft()" in json.loads(row["detail"])["why"] for row in events)
    assert ids(ran) == ids(executed(step, "static"))
