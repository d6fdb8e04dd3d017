"""Explains one response of a plan: its history and prediction, its outcome, and the reason for its assignment.

The reason is a computed experiment. The response alone is moved to each of the other actors, at most the ``MAX_TRIED`` nearest
in length. The planning model times each changed plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
import pandas as pd

from rlhfless.errors import InputIndexError
from rlhfless.widgets.what_if import WhatIf, WhatIfPlan
from solver.model.plan import Plan
from solver.timing.build_plan import timed

MAX_TRIED = 12  # other actors, the nearest in length first
AS_GOOD = 5e-6  # a smaller change reads 0.000%
TEXTS = ("prompt", "response")


@dataclass(frozen=True, eq=False)
class ResponseDetails:
    """A response and its assignment.

    Attributes:
        prompt_id, sample: which response. texts: ``prompt`` and ``response`` as far as the log has them; untrusted.
        predicted_tokens, response_tokens: predicted and true length. actor: the plan's assignment.
        rank, of: it is the rank-th longest of ``of`` responses on the actor, by prediction; shortest, longest: predicted tokens
            on the actor.
        start_s, end_s: of its generation, from the start of the step.
        history: ``step, samples, mean_tokens, longest_tokens`` of the prompt's earlier visits.
        elsewhere: ``actor, time_s, gpu_seconds, change`` of the plan with this response alone moved, by the predicted lengths
            and before any hand-over. ``change`` is relative, of ``T^w C^(1-w)``, and positive is worse. There are at most
            ``MAX_TRIED`` of the ``other_actors``, the nearest in length.
        chosen: why the plan may leave such an improvement, as a sentence.
    """

    prompt_id: str
    sample: int
    texts: dict[str, str]
    predicted_tokens: int
    response_tokens: int
    actor: int
    rank: int
    of: int
    shortest: int
    longest: int
    start_s: float
    end_s: float
    history: pd.DataFrame
    elsewhere: pd.DataFrame
    other_actors: int
    chosen: str

    @property
    def reason(self) -> str:
        """The reason for its assignment, in a sentence or two of plain text."""
        text = (
            f"Actor {self.actor} has {self.of} responses of {self.shortest:,} to {self.longest:,} predicted tokens. This one "
            f"({self.predicted_tokens:,} tokens) is number {self.rank} of them, the longest first."
        )
        if self.elsewhere.empty:
            return text + " There is no other actor."
        best, worst = (self.elsewhere.loc[getattr(self.elsewhere["change"], name)()] for name in ("idxmin", "idxmax"))
        move = f"Moving it to actor {int(best['actor'])}"
        count = len(self.elsewhere)
        tried = "the other actors" if count == self.other_actors else f"the {count} other actors nearest in length"
        if abs(best["change"]) < AS_GOOD:
            rest = f"; none of {tried} would improve it" if count > 1 else ""
            return f"{text} {move} would leave the plan as good{rest}."
        if best["change"] < 0:
            return f"{text} {move} would improve the plan by {-best['change']:.3%}, by the predicted lengths. {self.chosen}"
        if count == 1:
            return f"{text} {move}, the only other actor, would worsen the plan by {best['change']:.3%}."
        return (
            f"{text} Moving it to any of {tried} would worsen the plan: by {best['change']:.3%} (actor {int(best['actor'])}) "
            f"to {worst['change']:.3%} (actor {int(worst['actor'])})."
        )


def response_details(what_if: WhatIf, planned: WhatIfPlan, response: int) -> ResponseDetails:
    """Return the details of a response of the plan, and the effect of moving it.

    Args:
        response: its index in the step's workload, which is its row in ``planned.trace.rollouts``.

    Raises:
        InputIndexError: there is no such response.
    """
    if not isinstance(response, Integral) or not 0 <= response < len(planned.logged[0].predicted):
        raise InputIndexError(f"there is no response {response!r:.80}; they are 0 to {len(planned.logged[0].predicted) - 1}")
    plan, lengths = planned.plan, planned.logged[0].predicted.response_tokens
    actor = next(i for i, a in enumerate(plan.actors) if response in a.responses)
    on_actor = lengths[list(plan.actors[actor].responses)]
    row = planned.trace.rollouts.iloc[response]
    return ResponseDetails(
        str(row["prompt_id"]),
        int(row["sample"]),
        {name: row[name] for name in TEXTS if isinstance(row.get(name), str)},
        int(lengths[response]),
        int(row["response_tokens"]),
        actor,
        int((on_actor > lengths[response]).sum()) + 1,
        len(on_actor),
        int(on_actor.min()),
        int(on_actor.max()),
        float(row["start_s"]),
        float(row["end_s"]),
        _history(what_if, str(row["prompt_id"])),
        _elsewhere(planned, response, actor),
        len(plan.actors) - 1,
        _chosen(plan),
    )


def _chosen(plan: Plan) -> str:
    if "why" in plan.notes:
        return str(plan.notes["why"])
    if plan.gap is not None:
        return f"That is within the plan's gap to the best one for these lengths, {plan.gap:.2%}."
    return "The plan was chosen on scenarios of lengths, which differ from the predicted ones."


def _history(what_if: WhatIf, prompt_id: str) -> pd.DataFrame:
    rows = what_if.rollouts
    earlier = rows[(rows["step"] < what_if.step) & (rows["prompt_id"].astype(str) == prompt_id)]
    visits = earlier.groupby("step")["response_tokens"]
    return visits.agg(samples="size", mean_tokens="mean", longest_tokens="max").reset_index()


def _elsewhere(planned: WhatIfPlan, response: int, actor: int) -> pd.DataFrame:
    setting, plan, predicted = planned.setting, planned.plan, planned.logged[0].predicted
    cluster, latency = setting.offered
    problem, lengths = replace(setting.problem(predicted), cluster=cluster, latency=latency), predicted.response_tokens
    kept = timed(plan, problem)
    groups = [[i for i in a.responses if i != response] for a in plan.actors]
    distance = {i: abs(float(np.mean(lengths[g])) - float(lengths[response])) for i, g in enumerate(groups) if i != actor and g}
    rows = []
    for other in sorted(distance, key=distance.__getitem__)[:MAX_TRIED]:
        moved = [[*group, response] if i == other else group for i, group in enumerate(groups)]
        actors = (replace(a, responses=tuple(group)) for a, group in zip(plan.actors, moved, strict=True) if group)
        tried = timed(replace(plan, actors=tuple(actors)), problem)
        change = setting.objective.product(tried.makespan_s / kept.makespan_s, tried.gpu_seconds / kept.gpu_seconds) - 1
        rows.append((other, tried.makespan_s, tried.gpu_seconds, float(change)))
    return pd.DataFrame(rows, columns=["actor", "time_s", "gpu_seconds", "change"])
