"""One response of a plan: its history, its texts, and what moving it alone would do."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from error_messages import refused
from log_samples import log

import rlhfless as rl
from rlhfless.errors import InputIndexError
from rlhfless.widgets import Settings, WhatIf, response_details
from rlhfless.widgets.explorer_panels import response_html


@pytest.fixture(scope="module")
def what_if() -> WhatIf:
    return WhatIf(rl.load(log(prompts=24, samples=8), 8, "cpu-tiny-qwen2", verbose=False))


def test_every_response_is_told_of_where_the_plan_has_it(what_if: WhatIf) -> None:
    planned = what_if.plan(Settings("cpu-tiny-qwen2", gpus=8, time_weight=1.0))
    assert len(planned.plan.actors) > 1
    rows = planned.trace.rollouts
    for actor, own in enumerate(planned.plan.actors):
        for response in own.responses[::40]:
            one = response_details(what_if, planned, response)
            assert (one.actor, one.of) == (actor, len(own.responses))
            assert one.shortest <= one.predicted_tokens <= one.longest
            assert one.response_tokens == rows["response_tokens"][response]
            assert 1 <= one.rank <= one.of
            assert one.history["step"].tolist() == [0, 1]
            assert one.history["samples"].tolist() == [8, 8]
            assert one.texts["prompt"] == rows["prompt"][response]
            assert str(actor) in one.reason


@pytest.mark.parametrize("weight", [0.5, 0.9])
def test_a_move_changes_the_weighted_product_of_time_and_cost(what_if: WhatIf, weight: float) -> None:
    planned = what_if.plan(Settings("cpu-tiny-qwen2", gpus=8, time_weight=weight))
    plan = planned.plan
    assert len(plan.actors) > 1
    for response in (0, 50, 191):
        details = response_details(what_if, planned, response)
        elsewhere = details.elsewhere
        assert len(elsewhere) == len(plan.actors) - 1
        assert details.actor not in elsewhere["actor"].tolist()
        times, costs = elsewhere["time_s"] / plan.makespan_s, elsewhere["gpu_seconds"] / plan.gpu_seconds
        assert elsewhere["change"].tolist() == pytest.approx((times**weight * costs ** (1 - weight) - 1).tolist())


@pytest.mark.full
def test_a_response_that_was_handed_over_says_who_completed_it() -> None:
    what_if = WhatIf(rl.load(rl.example(), verbose=False))
    planned = what_if.plan(Settings())
    actors = planned.trace.rollouts["actor"].str.removeprefix("actor-").astype(int).tolist()
    assigned = {i: actor for actor, one in enumerate(planned.plan.actors) for i in one.responses}
    moved = [i for i, actor in assigned.items() if actors[i] != actor]
    assert moved, "the last step folds"
    for response in (moved[0], next(i for i, actor in assigned.items() if actors[i] == actor)):
        assert planned.executed_on(response) == actors[response]
        html = response_html(what_if, planned, actors[response], response)
        handed_over = f"It migrated from actor {assigned[response]} to actor {actors[response]}"
        assert (handed_over in html) == (response in moved)


def test_a_plan_of_one_actor_has_no_elsewhere(what_if: WhatIf) -> None:
    planned = what_if.plan(Settings("cpu-tiny-qwen2", gpus=1))
    one = response_details(what_if, planned, 3)
    assert one.elsewhere.empty
    assert "no other actor" in one.reason


def test_the_reason_says_how_many_actors_were_tried(what_if: WhatIf, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = what_if.plan(Settings("cpu-tiny-qwen2", gpus=8, time_weight=1.0))
    others = len(planned.plan.actors) - 1
    assert others > 2
    every = [response_details(what_if, planned, response) for response in range(0, 192, 8)]
    assert all(one.other_actors == len(one.elsewhere) == others for one in every)
    assert not any("nearest in length" in one.reason for one in every)
    assert all("the other actors" in one.reason or "improve the plan by" in one.reason for one in every)
    worse = [i for i, one in enumerate(every) if "Moving it to any of the other actors would worsen the plan" in one.reason]
    monkeypatch.setattr("rlhfless.widgets.response_reason.MAX_TRIED", 2)
    for i in worse:
        some = response_details(what_if, planned, 8 * i)
        assert (len(some.elsewhere), some.other_actors) == (2, others)
        assert "Moving it to any of the 2 other actors nearest in length would worsen the plan: by " in some.reason


@pytest.mark.parametrize(
    ("changes", "others", "said"),
    [
        ([0.0], 1, "Moving it to actor 1 would leave the plan as good."),
        ([0.0, 0.02], 2, "Moving it to actor 1 would leave the plan as good; none of the other actors would improve it."),
        ([0.02, -1e-7], 5, "the plan as good; none of the 2 other actors nearest in length would improve it."),
        ([0.02], 1, "Moving it to actor 1, the only other actor, would worsen the plan by 2.000%."),
        ([-0.01, 0.02], 2, "actor 1 would improve the plan by 1.000%, by the predicted lengths. Nothing helped."),
        ([0.02, 0.01], 2, "any of the other actors would worsen the plan: by 1.000% (actor 2) to 2.000% (actor 1)."),
    ],
)
def test_the_reason_is_what_was_tried(what_if: WhatIf, changes: list[float], others: int, said: str) -> None:
    one = response_details(what_if, what_if.plan(Settings("cpu-tiny-qwen2", gpus=8)), 0)
    elsewhere = pd.DataFrame({"actor": range(1, len(changes) + 1), "change": changes})
    told = replace(one, elsewhere=elsewhere, other_actors=others, chosen="Nothing helped.")
    assert told.reason.endswith(said)


@pytest.mark.parametrize("response", [192, -1, 1.5, "longest"])
def test_a_response_that_is_not_there_is_refused(what_if: WhatIf, response: int) -> None:
    planned = what_if.plan(Settings("cpu-tiny-qwen2", gpus=1))
    with refused(InputIndexError, repr(response), "191"):
        response_details(what_if, planned, response)
