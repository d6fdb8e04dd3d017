"""Drafts of a log's own texts, for simulating what they would have saved: what every response accepts at every position.

A step's drafts come from earlier steps and from what the group decodes, so nothing of the future is used. What to expect of a
step was measured on the step before it that has texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from rlhfless.analysis.draft_groups import DraftSource, Encode, draft_groups
from rlhfless.engine.simulated.accepted_runs import DraftedRuns, MeasuredRuns
from solver.model.acceptance import Acceptance


@dataclass(frozen=True, eq=False)
class LogDrafts:
    """What drafts accept on a log with texts; see ``rlhfless.simulate.SimulatedDrafts``. Each step is measured once.

    Args:
        rollouts: of the whole run, with the column ``response`` of texts. encode: returns the tokens of a text.
        source: what drafts are made from. max_draft_tokens: longest draft.
    """

    rollouts: pd.DataFrame
    encode: Encode
    source: DraftSource = field(default_factory=DraftSource)
    max_draft_tokens: int = 8
    _measured: dict[int, dict[tuple[str, int], DraftedRuns]] = field(default_factory=dict, repr=False)

    def runs(self, step: int, rows: pd.DataFrame) -> MeasuredRuns:
        """Return what the responses of a step accept, in the order of its rows.

        Raises:
            InputError: the log has no texts.
        """
        measured = self._of_step(step)
        keys = zip(rows["prompt_id"].astype(str), rows["sample"].tolist(), strict=True)
        return MeasuredRuns({i: measured[key] for i, key in enumerate(keys) if key in measured})

    def expected(self, step: int) -> Acceptance | None:
        """Return the survival of the step before that has texts; None where there is none."""
        texts = self.rollouts.loc[self.rollouts["response"].notna(), "step"] if "response" in self.rollouts else pd.Series()
        earlier = texts[texts < step]
        if not len(earlier):
            return None
        accepted = np.concatenate([runs.accepted for runs in self._of_step(int(earlier.max())).values()])
        return Acceptance([float(np.mean(accepted >= n)) for n in range(1, self.max_draft_tokens + 1)])

    def _of_step(self, step: int) -> dict[tuple[str, int], DraftedRuns]:
        if step not in self._measured:
            so_far = self.rollouts[self.rollouts["step"] <= step]
            so_far = so_far[so_far["prompt_id"].isin(so_far.loc[so_far["step"] == step, "prompt_id"])]
            if self.source.history == "last":
                earlier = so_far["step"].where(so_far["step"] < step).groupby(so_far["prompt_id"]).transform("max")
                so_far = so_far[(so_far["step"] == step) | (so_far["step"] == earlier)]
            self._measured[step] = {
                (str(group.name.prompt_id), int(sample)): runs
                for group in draft_groups(so_far, self.encode, self.source, [step])
                for sample, runs in zip(group.name.samples, group.runs(self.max_draft_tokens), strict=True)
            }
        return self._measured[step]
