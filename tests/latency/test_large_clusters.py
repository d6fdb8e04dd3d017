"""The study of large clusters: what its memory is, what its length model gives, and which numbers its tables sum up."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import large_clusters as study
from large_cluster_tables import STEPS, markdown


def test_what_two_h100_leave_beside_a_70b_model():
    """160 GB (171 of the driver's bytes), 138 GB of weights: what is left depends on what else is set aside."""
    profile, everything = study.memory((2048, 8192))
    assert profile["kv_tokens"] == 22_565
    assert profile["slots_at_limit"] == {2048: 8, 8192: 2}
    assert profile["kv_gb"] == pytest.approx(7.4, abs=0.01)
    assert everything["kv_gb"] == pytest.approx(2 * 81_559 * 2**20 / 1e9 - 2 * 68.976648192, abs=0.01)


def test_lengths_stay_within_the_limit_and_grow_with_the_epochs():
    rows = study.rollouts(512, 2048)
    assert rows.groupby("step").size().tolist() == [512] * study.EPOCHS
    assert rows["response_tokens"].between(1, 2048).all()
    assert (rows["finish_reason"] == "length").equals(rows["response_tokens"] == 2048)
    means = rows.groupby("step")["response_tokens"].mean()
    assert means.is_monotonic_increasing
    assert rows.equals(study.rollouts(512, 2048))


@cache
def row(policy: str, nodes: int = 1, limit: int = 64, batch: int = 8, **how):
    return study.measure(study.Cell("scaling", nodes, limit, batch, policy, "as it is", how))


@pytest.mark.parametrize("policy", ["static", "random"])
def test_a_row_is_the_sum_over_the_steps_with_history(policy):
    found = row(policy)
    result = study.simulate(study.rollouts(8, 64), study.setting(1, 64), [policy])
    (summed,) = result.summary().to_dict("records")
    assert summed["steps"] == 2
    assert (found["time_s"], found["gpu_seconds"]) == pytest.approx((summed["time_s"], summed["gpu_seconds"]))
    assert found["bound_gpu_seconds"] == pytest.approx(summed["bound_cost_at_time"])
    assert 0 < found["planning_cpu_ms"] <= found["worst_planning_cpu_ms"] <= 1e3 * found["cpu_s"]


def test_no_effect_ever_helps_a_static_cluster():
    plain = row("static", 2, 64, 16)["time_s"]
    took = {name: row("static", 2, 64, 16, **how)["time_s"] for name, how in study.effects_of(2).items()}
    assert min(took.values()) >= plain
    for name in ("network, tree", "starts: 20 s at the median", "prefill in calls of its own"):
        assert took[name] > plain, f"{name} is felt"


def test_every_size_and_policy_is_a_row_once():
    found = study.cells(study.NODES, study.LIMITS, study.BATCH, study.STRESS)
    assert len({(c.part, c.nodes, c.limit, c.batch, c.policy, c.label) for c in found}) == len(found)
    sizes = {(c.nodes, c.limit) for c in found if c.part in ("scaling", "policies")}
    assert sizes == {(nodes, limit) for nodes in study.NODES for limit in study.LIMITS}
    largest = {c.policy for c in found if c.part == "policies"}
    assert largest == set(study.POLICIES)


def test_tables_hold_what_the_rows_say_and_scaling_ends_with_the_largest_cluster():
    rows = [{**row(policy), "nodes": nodes} for nodes in (1, 2) for policy in ("static", "random")]
    text = markdown({"scaling": rows[:2], "policies": rows[2:], "memory": study.memory((64,))})
    lines = text.splitlines()
    assert lines[0] == "| tokens | nodes | static | random |"
    for at, nodes in ((2, 1), (3, 2)):
        cells = [f"{r['time_s']:.0f} s, {r['gpu_seconds'] / 1e3:.1f}k" for r in rows if r["nodes"] == nodes]
        assert lines[at] == f"| 64 | {nodes} | {' | '.join(cells)} |"
    shares, by_limit = (line for line in lines if line.startswith("| `random` |"))
    own = [r for r in rows if r["policy"] == "random"]
    worst = (max(r[what] / 1e3 / (r["time_s"] / STEPS) for r in own) for what in ("planning_cpu_ms", "worst_planning_cpu_ms"))
    assert shares == f"| `random` | {' | '.join(f'{share:.2%}' for share in worst)} |"
    assert by_limit.count("|") == 3
