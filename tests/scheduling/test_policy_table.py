"""The table of policies says of each what its maker makes, what plots draw and what the page on planning lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planning_inputs import planning_inputs

from rlhfless.plots.palette import POLICY_STYLES
from rlhfless.report.study import GIVEN_BACK, RESERVED
from rlhfless.run import run
from rlhfless.scheduling import (
    GROUPS,
    POLICY_TABLE,
    SchedulingPolicy,
    ladder,
    make_policy,
    policies,
    policy_names,
)
from rlhfless.scheduling.rules import LocalCut
from rlhfless.system import colours
from rlhfless.widgets.what_if import POLICIES as WIDGET
from solver import Cluster, LatencyModel, Objective, Workload

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"
LATENCY = LatencyModel("l40s", 2, 5.6e-3, 2.2e-5, 2.5e-8, prefill_per_token_s=1e-5, start_s=2.0, max_batch=64)


def made() -> dict[str, SchedulingPolicy]:
    """Every policy of the table, by its name there."""
    made_by_name = policy_names(*(group for group in GROUPS if group != "ladder"))
    named = {name: make_policy(name.replace("N", "4")) for name in made_by_name}
    rungs = [rung for dispatch in ("static", "least-loaded") for drafts in (False, True) for rung in ladder(dispatch, drafts)]
    return {rung.name: rung for rung in rungs} | named


def test_the_table_has_every_policy_once_and_no_other() -> None:
    assert made().keys() == POLICY_TABLE.keys()
    assert {info.group for info in POLICY_TABLE.values()} == GROUPS.keys()
    assert [policy.name for policy in made().values()] == [name.replace("N", "4") for name in made()]


@pytest.mark.parametrize("name", POLICY_TABLE)
def test_a_row_says_whether_lengths_are_known(name: str) -> None:
    info, policy = POLICY_TABLE[name], made()[name]
    assert info.needs_truth == policy.clairvoyant == (info.group == "oracle" or name.startswith("oracle"))


def test_lists_of_policies_are_columns_of_the_table() -> None:
    """So a new row is in all of them."""
    groups = ("dispatch", "published", "simple", "ours", "oracle")
    few = {name for name, info in POLICY_TABLE.items() if info.typical}
    assert {POLICY_TABLE[name].group for name in few} == set(groups)
    assert set(policy_names(*groups, typical=True)) == few
    assert set(run.POLICIES) == {name for name in few if not POLICY_TABLE[name].needs_truth}
    assert set(WIDGET) == few
    assert set(GIVEN_BACK) - set(RESERVED) == {name for name in GIVEN_BACK if POLICY_TABLE[name].own_trade_off}
    assert set(GIVEN_BACK) == {name for name in POLICY_TABLE if POLICY_TABLE[name].group in ("published", "simple", "ours")}


def test_a_trade_off_of_its_own_does_not_know_the_time_weight() -> None:
    """Its rule hands responses over as soon as so many are complete, whatever the time weight."""
    work = Workload.grid(np.full(8, 30), np.linspace(20, 400, 32).astype(int).reshape(8, 4), max_response_tokens=400)
    for name in (name for name, info in POLICY_TABLE.items() if info.own_trade_off):
        rules = [
            make_policy(name).plan(*planning_inputs(work, Cluster(1, 8, 2), LATENCY, objective=Objective(weight))).rule
            for weight in (0.3, 1.0)
        ]
        assert isinstance(rules[0], LocalCut)
        assert rules[0] == rules[1]


def test_markers_are_of_the_colours_for_any_vision_and_differ() -> None:
    palette = {value for name, value in vars(colours).items() if name.isupper()}
    drawn = [(info.colour, info.symbol) for info in POLICY_TABLE.values() if info.colour]
    assert all(bool(info.colour) == bool(info.symbol) for info in POLICY_TABLE.values())
    assert {colour for colour, _ in drawn} <= palette
    assert len(set(drawn)) == len(drawn)
    assert {name: POLICY_STYLES[name] for name, info in POLICY_TABLE.items() if info.colour} == {
        name: (info.colour, info.symbol) for name, info in POLICY_TABLE.items() if info.colour
    }


def test_the_page_has_the_table() -> None:
    rows = [f"| `{row.Index}` | {row.sentence} | {row.to_do} |" for row in policies().itertuples()]
    assert "\n".join(rows) in PAGE.read_text()
