"""Transfers that overlap on a node's link share its bandwidth: never more than there is, none lost, nothing changed without."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from executor_samples import Orders, Restless, Step, assert_sound, plan_of, random_step, uniform_step
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.engine.simulated.disturbances import FaultInjectingFactory
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.executor.step.shared_links import NodeLinks
from rlhfless.latency.effects import Contention, Effects, StartDelays
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import validate
from solver import Cluster, PlanningError
from solver.model.runtime_rules import Move

CARRIES = st.sampled_from([0.4, 1.0, 1.5, 2.0, 3.0])
SECONDS = st.floats(0.01, 5, allow_nan=False)
TRANSFERS = st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(0, 2), st.floats(0, 6), SECONDS), max_size=10)


def sent(links: NodeLinks, link: tuple[str, int], from_s: float = 0.0, to_s: float = math.inf) -> float:
    """Seconds at full speed that the link carries in that time."""
    return sum(t.rate * max(0.0, min(t.end_s, to_s) - max(t.start_s, from_s)) for t in links.shares[link])


@given(CARRIES, TRANSFERS)
@settings(max_examples=100, deadline=None)
def test_no_link_carries_more_than_it_can_and_all_is_sent(carries, transfers):
    links, asked = NodeLinks(carries), {}
    for source, target, start_s, alone_s in transfers:
        before = {link: len(shares) for link, shares in links.shares.items()}
        end_s = start_s + alone_s + links.delay_s(source, target, start_s, alone_s)
        ways = [("in", target)] if source is None else [("out", source), ("in", target)]
        for link in [] if source == target else ways:
            own = links.shares[link][before.get(link, 0) :]
            assert sum((t.end_s - t.start_s) * t.rate for t in own) == pytest.approx(alone_s)
            assert all(0 < t.rate <= 1 and start_s <= t.start_s <= t.end_s for t in own)
            assert own[-1].end_s == pytest.approx(end_s)
            asked[link] = asked.get(link, 0.0) + alone_s
        assert source != target or end_s == start_s + alone_s
    for link, shares in links.shares.items():
        times = sorted({t for one in shares for t in (one.start_s, one.end_s)})
        for begin_s, end_s in itertools.pairwise(times):
            assert sent(links, link, begin_s, end_s) <= carries * (end_s - begin_s) * (1 + 1e-9) + 1e-9
        assert sent(links, link) == pytest.approx(asked.get(link, 0.0))


@given(CARRIES, TRANSFERS)
@settings(max_examples=100, deadline=None)
def test_no_bandwidth_is_left_unused_while_somebody_waits(carries, transfers):
    """Before a transfer on one link ends, it is sent at full speed or the link is full."""
    links, promised = NodeLinks(carries), []
    for _, target, start_s, alone_s in transfers:
        own = len(links.shares["in", target])
        end_s = start_s + alone_s + links.delay_s(None, target, start_s, alone_s)
        promised.append((target, start_s, end_s, links.shares["in", target][own:]))
    for target, start_s, end_s, own in promised:
        times = {t for one in links.shares["in", target] for t in (one.start_s, one.end_s)}
        for begin_s, until_s in itertools.pairwise(sorted({start_s, end_s, *(t for t in times if start_s < t < end_s)})):
            if until_s - begin_s < 1e-9:
                continue
            middle_s = (begin_s + until_s) / 2
            rate = sum(t.rate for t in own if t.start_s <= middle_s < t.end_s)
            used = sum(t.rate for t in links.shares["in", target] if t.start_s <= middle_s < t.end_s)
            assert rate == pytest.approx(1.0) or used == pytest.approx(carries)


@given(CARRIES, SECONDS, st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_more_transfers_at_once_never_take_less_and_what_was_promised_stays(carries, alone_s, count):
    links = NodeLinks(carries)
    ends_s = [alone_s + links.delay_s(i, 9, 0.0, alone_s) for i in range(count)]
    assert ends_s == sorted(ends_s)
    assert ends_s[-1] >= max(alone_s, count * alone_s / carries) * (1 - 1e-9)
    assert ends_s[-1] <= (count / carries + 1) * alone_s  # the last ones cannot use all that is free


@given(TRANSFERS, st.floats(0, 6), SECONDS)
@settings(max_examples=100, deadline=None)
def test_one_more_before_never_brings_a_transfer_sooner_over_one_link(transfers, start_s, alone_s):
    with_it, without = NodeLinks(1.0), NodeLinks(1.0)
    with_it.delay_s(None, 0, start_s, alone_s)
    for _, _, own_start_s, own_alone_s in transfers:
        more = with_it.delay_s(None, 0, own_start_s, own_alone_s)
        assert more >= without.delay_s(None, 0, own_start_s, own_alone_s) - 1e-9


# --- steps -------------------------------------------------------------------------------------------------------------------


def migrations(step: Step, orders: dict, links: NodeLinks | None) -> dict[int, tuple[float, float]]:
    """(start, end) of every KV cache that is sent; actors 0 and 1 are on the first node, 2 and 3 on the second."""
    plan = plan_of([[0, 1], [2, 3], [4], [5]], Orders(orders))
    record = run_step(plan, step.requests(), SimulatedEngine, step.latency, step.cluster, migration="move", links=links)
    assert sorted(record.completions) == list(range(6))
    return {json.loads(s["detail"])["response"]: (s["start_s"], s["end_s"]) for s in record.spans if s["phase"] == "migrate"}


def test_caches_from_two_actors_of_a_node_share_its_link():
    step = uniform_step([20] * 6, transfer_base_s=0.2)
    orders = {0.35: [Move(0, 2), Move(2, 3)]}  # one response of each actor of the first node to the second
    alone = migrations(step, dict(orders), None)
    shared = migrations(step, dict(orders), NodeLinks(1.0))
    assert alone[0] == shared[0]
    assert shared[2][0] == alone[2][0]
    assert shared[2][1] - alone[2][1] == pytest.approx(0.2)
    assert migrations(step, dict(orders), NodeLinks(2.0)) == alone
    within = {0.35: [Move(0, 1), Move(4, 3)]}
    assert migrations(step, dict(within), NodeLinks(1.0)) == migrations(step, dict(within), None)


@pytest.mark.parametrize("carries", [0.5, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(6))
def test_every_rule_stays_valid_and_much_bandwidth_is_as_if_it_were_off(seed, carries):
    step, rule = random_step(seed, transfer_base_s=0.05), Restless(seed)
    plan = plan_of(np.array_split(np.arange(len(step.truth)), 4), rule)
    given_ = (plan, step.requests(), SimulatedEngine, step.latency, step.cluster)
    record = run_step(*given_, links=NodeLinks(carries))
    assert_sound(record, step, cuts_only=False)
    if carries == 100.0:
        plain = run_step(*given_)
        assert [record.rollout_times(i) for i in range(len(step.truth))] == [
            plain.rollout_times(i) for i in range(len(step.truth))
        ]
        assert record.spans == plain.spans
        assert record.allocations == plain.allocations


def test_weights_that_come_late_share_the_link_with_what_is_under_way():
    """Of two actors of a node that start late at different moments the second waits for the first one's copy."""
    step = uniform_step([5] * 4, start_s=1.0, sync_s=3.0)
    plan = plan_of([[0], [1], [2], [3]])
    ready = {}
    for name, links in {"alone": None, "shared": NodeLinks(1.0)}.items():
        make = FaultInjectingFactory(Effects(starts=StartDelays(0.5, 0.5), seed=3))
        record = run_step(plan, step.requests(), make, step.latency, step.cluster, links=links)
        ready[name] = [
            max(s["end_s"] for s in record.spans if s["phase"] == "sync" and s["holder"] == f"actor-{i}") for i in range(4)
        ]
        assert [c.start_s for _, c in sorted(record.completions.items())] == ready[name]
    for node in (0, 1):
        first, second = sorted(ready["alone"][2 * node : 2 * node + 2])
        assert second - first < 3.0
        assert sorted(ready["shared"][2 * node : 2 * node + 2]) == pytest.approx([first, first + 3.0])
    plain = run_step(plan, step.requests(), SimulatedEngine, step.latency, step.cluster)
    together = run_step(plan, step.requests(), SimulatedEngine, step.latency, step.cluster, links=NodeLinks(1.0))
    assert together.spans == plain.spans  # one copy for those that begin at the same moment


@pytest.mark.full
def test_a_simulation_switches_it_on_and_off():
    step = random_step(1, prompts=12, transfer_base_s=0.5)
    lengths = {(s, p): 3 + 17 * ((p * 7 + s) % 12) for s in range(2) for p in range(12)}
    rows = [
        {
            "run": "r", "step": s, "prompt_id": f"p{p}", "sample": 0, "prompt_tokens": 9, "response_tokens": tokens,
            "finish_reason": "stop",
        }
        for (s, p), tokens in lengths.items()
    ]  # fmt: skip
    setting = SimulationConfig(
        Cluster(4, 1, 1), replace(step.latency, max_batch=32, kv_capacity_tokens=1 << 40), max_response_tokens=200, tau=0.3
    )
    times = {}
    for carries in (None, 1e9, 0.02):
        effects = None if carries is None else Effects(contention=Contention(carries))
        result = simulate(validate("rollouts", rows), replace(setting, effects=effects, migration="move"), ["random+tau"])
        times[carries] = result.table["time_s"].sum()
    assert times[1e9] == times[None] < times[0.02]


def test_what_makes_no_sense_is_refused():
    with refused(PlanningError):
        Contention(0)
    step = uniform_step([3])
    with refused(PlanningError, "'profile'", "'measured'"):
        run_step(
            plan_of([[0]]),
            step.requests(),
            SimulatedEngine,
            step.latency,
            step.cluster,
            charging="measured",
            links=NodeLinks(1),
        )
