"""The cards of a plan: each stands against the static schedule, a random split and the plan before it."""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pytest
from dashboard_cards import cards_of
from log_samples import log

import rlhfless as rl
from rlhfless.plots.style import signed_share
from rlhfless.widgets import Settings, WhatIf
from rlhfless.widgets.explorer_cards import plan_cards

CPU = Settings("cpu-tiny-qwen2", gpus=8, time_weight=0.2, usd_per_gpu_hour=1.5)
NAMES = ["actors", "time", "predicted time", "GPU-seconds", "cost", "above the lower bound"]


def above_bound(row: pd.Series) -> float:
    return float(row["gpu_seconds"] / row["bound_gpu_seconds"] - 1)


@pytest.fixture(scope="module")
def what_if() -> WhatIf:
    return WhatIf(rl.load(log(), 8, "cpu-tiny-qwen2", verbose=False))


def test_every_card_stands_against_static_random_and_the_last_move(what_if: WhatIf) -> None:
    planned, before = what_if.plan(CPU), what_if.plan(replace(CPU, time_weight=1.0))
    static, random = planned.executed_under("static"), planned.executed_under("random")
    cards = cards_of(plan_cards(planned, before, 0.1))
    assert list(cards) == NAMES
    for shown, against_static, against_random, against_last in cards.values():
        assert shown
        assert against_static.endswith(" against static")
        assert against_random.endswith(" against random")
        assert against_last.endswith(" against the last move")
    own = planned.executed
    share = signed_share(own["gpu_seconds"] / static["gpu_seconds"] - 1)
    assert cards["GPU-seconds"][1] == f"{share} against static"
    assert cards["actors"][1] == f"\u2212{static['actors'] - own['actors']} against static"
    share = signed_share(own["time_s"] / before.executed["time_s"] - 1)
    assert cards["time"][3] == f"{share} against the last move"
    points = 100 * (above_bound(planned.executed) - above_bound(random))
    assert cards["above the lower bound"][2].removeprefix("\u2212").startswith(f"{abs(points):.1f} points") or points == 0


def test_the_first_plan_has_no_last_move_and_free_gpus_no_cost(what_if: WhatIf) -> None:
    free = replace(CPU, usd_per_gpu_hour=0.0)
    cards = cards_of(plan_cards(what_if.plan(free), None, 0.1))
    assert list(cards) == [name for name in NAMES if name != "cost"]
    assert all(len(said) == 3 for said in cards.values())


def test_words_and_signs_mark_what_is_better(what_if: WhatIf) -> None:
    planned = what_if.plan(CPU)
    assert planned.executed["gpu_seconds"] < planned.executed_under("static")["gpu_seconds"]
    html = str(plan_cards(planned, planned, 0.1))
    assert re.search(r'GPU-seconds</span><b>[^<]*</b><span class="better">', html)
    assert html.count("unchanged against the last move") == len(NAMES)


def test_a_step_that_needs_nothing_has_no_share_above_its_bound(what_if: WhatIf) -> None:
    planned = what_if.plan(CPU)
    nothing = replace(planned, table=planned.table.assign(bound_gpu_seconds=0.0))
    assert cards_of(plan_cards(nothing, None, 0.1))["above the lower bound"][0] == "unknown"
