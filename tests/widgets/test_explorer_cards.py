"""The cards of a plan: each stands against the static schedule and against the plan before it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from log_samples import log

from rlhfless.plots.style import signed_share
from rlhfless.widgets import Settings, WhatIf
from rlhfless.widgets.explorer_cards import gap, plan_cards

CPU = Settings("cpu-tiny-qwen2", gpus=8, time_weight=0.2, usd_per_gpu_hour=1.5)
NAMES = ["actors", "executed time", "planned time", "GPU-seconds", "cost", "gap to the lower bound"]


@pytest.fixture(scope="module")
def what_if() -> WhatIf:
    return WhatIf(log())


def cards_of(html: str) -> dict[str, list[str]]:
    """Name of every card, with its number and changes."""
    cards = [re.findall(r">([^<>]+)</(?:span|b)>", card) for card in html.split('role="listitem"')[1:]]
    return {name: said for name, *said in cards}


def test_every_card_stands_against_static_and_against_the_last_move(what_if: WhatIf) -> None:
    planned, before, static = what_if.plan(CPU), what_if.plan(replace(CPU, time_weight=1.0)), what_if.static(CPU)
    cards = cards_of(plan_cards(planned, static, before))
    assert list(cards) == NAMES
    for number, against_static, against_last in cards.values():
        assert number
        assert against_static.endswith(" against static")
        assert against_last.endswith(" against the last move")
    share = signed_share(planned.gpu_seconds / static.gpu_seconds - 1)
    assert cards["GPU-seconds"][1] == f"{share} against static"
    assert cards["actors"][1] == f"\u2212{len(static.plan.actors) - len(planned.plan.actors)} against static"
    assert cards["executed time"][2] == f"{signed_share(planned.time_s / before.time_s - 1)} against the last move"


def test_the_first_plan_has_no_last_move_and_free_gpus_no_cost(what_if: WhatIf) -> None:
    free = replace(CPU, usd_per_gpu_hour=0.0)
    cards = cards_of(plan_cards(what_if.plan(free), what_if.static(free), None))
    assert list(cards) == [name for name in NAMES if name != "cost"]
    assert all(len(said) == 2 for said in cards.values())


def test_words_and_signs_mark_what_is_better(what_if: WhatIf) -> None:
    planned, static = what_if.plan(CPU), what_if.static(CPU)
    assert planned.gpu_seconds < static.gpu_seconds
    html = str(plan_cards(planned, static, planned))
    assert re.search(r'GPU-seconds</span><b>[^<]*</b><span class="better">', html)
    assert html.count("unchanged against the last move") == len(NAMES)


def test_the_gap_of_a_plan_is_its_own_and_that_of_static_is_to_the_same_bound(what_if: WhatIf) -> None:
    planned, static = what_if.plan(CPU), what_if.static(CPU)
    assert gap(planned, planned) == pytest.approx(planned.plan.gap)
    assert gap(static, planned) > gap(planned, planned)
    assert gap(planned, static) != gap(planned, static), "the static schedule has no bound: unknown"


def test_static_is_what_the_policy_does_and_is_computed_once_while_weights_move(what_if: WhatIf) -> None:
    others = what_if.alternatives(what_if.plan(CPU))
    assert others is not None
    row = others.results.set_index("policy").loc["static"]
    static = what_if.static(CPU)
    assert (row["time_s"], row["gpu_seconds"]) == (static.time_s, static.gpu_seconds)
    assert what_if.static(replace(CPU, time_weight=0.9, tau=0.3)) is static
    assert what_if.static(replace(CPU, gpus=4)).gpu_seconds != static.gpu_seconds
