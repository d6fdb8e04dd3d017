"""Costs of model calls: against the formulas written anew, units against a profile, memory by hand, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.latency import (
    CallTable,
    CostOptions,
    ProfileError,
    StepBatch,
    list_call_kinds,
    load_call_tables,
    load_profile,
)  # fmt: skip
from solver import Cluster
from solver.layouts import Call, Layout, Mesh, StepPlan, Strategy, grpo, plan_step, strategies
from solver.model.errors import PlanningError

CALLS = Path(__file__).parents[2] / "data" / "calls"
MODELS = {"actor": "llama2-13b", "critic": "llama2-7b", "reference": "llama2-70b", "reward": "qwen2.5-3b"}
BATCH = StepBatch(256, 128, 384, 4)
KINDS = ("generate", "inference", "train")


def call(kind: str, role: str = "actor") -> Call:
    return Call("call", role, kind)


def on(cut: Strategy, first: int = 0) -> Layout:
    return Layout(Mesh(first, cut.gpus), cut)


def read(file: dict[str, Any], model: str, tp: int, table: str, row: float, column: float) -> float:
    """A table's value by four products: linear between its points, proportional above."""
    head = file["prefill" if table != "decode_s" else "decode"]
    rows, columns = head["sequences" if table != "decode_s" else "batch"], list(head.values())[1]
    values = file["models"][model]["tables"][str(tp)].get(table)
    if values is None:
        return 0.0
    beyond = max(1, row / rows[-1]) * max(1, column / columns[-1])
    row, column = min(row, rows[-1]), min(max(column, columns[0]), columns[-1])
    i = max(k for k in range(len(rows) - 1) if rows[k] <= row)
    j = max(k for k in range(len(columns) - 1) if columns[k] <= column)
    u, v = (row - rows[i]) / (rows[i + 1] - rows[i]), (column - columns[j]) / (columns[j + 1] - columns[j])
    found = 0.0
    for di, weight in ((0, 1 - u), (1, u)):
        for dj, other in ((0, 1 - v), (1, v)):
            found += weight * other * values[i + di][j + dj]
    return found * beyond


def by_hand(kind: str, gpu: str, model: str, cut: Strategy, batch: StepBatch, options: CostOptions) -> float:
    """The formulas of "What a call costs" in docs/whole_steps.md, of a call whose passes are not split."""
    file = json.loads((CALLS / f"{gpu}.json").read_text("utf-8"))
    n, layers, hidden = (file["models"][model][name] for name in ("parameters", "layers", "hidden"))
    dp, tp, pp = cut.dp, cut.tp, cut.pp

    def forward(sequences: int, tokens: int, share: float) -> float:
        reduce_s = read(file, model, tp, "all_reduce_s", sequences, tokens)
        return read(file, model, tp, "prefill_s", sequences, tokens) - (1 - share) * reduce_s

    def hop(tokens: int) -> float:
        link = file["node_bytes_per_s"] if tp * pp <= 8 else file["network_bytes_per_s"]
        return 1e-5 + 2 * tokens * hidden / link if pp > 1 else 0.0

    s, g = batch.prompt_tokens + batch.response_tokens, batch.response_tokens
    b = math.ceil(batch.responses / dp / pp)
    if kind == "inference":
        return (2 * pp - 1) * (forward(b, s, options.all_reduce_share) / pp + hop(b * s))
    if kind == "generate":
        contexts = range(batch.prompt_tokens + 1, s)
        decode = sum(read(file, model, tp, "decode_s", b, c) for c in contexts) / len(contexts)
        first = (2 * pp - 1) * (forward(b, batch.prompt_tokens, 1.0) / pp + hop(b * batch.prompt_tokens))
        return first + (g - 1) * (max(decode, options.host_s_per_layer * layers) + pp * hop(b))
    m = 2 * pp if pp > 1 else 1
    b = math.ceil(batch.responses / dp / m / batch.mini_batches)
    link = file["node_bytes_per_s"] if dp * tp * pp <= 8 else file["network_bytes_per_s"]
    one = (pp + m - 1) * (4 * forward(b, s, options.all_reduce_share) / pp + 2 * hop(b * s))
    gradients = 4 * n / tp / pp * (dp - 1) / dp / link
    return batch.mini_batches * (one + gradients + 2 * 20 * n / tp / pp / dp / file["memory_bytes_per_s"])


CUTS = [cut for gpus in (1, 2, 4, 8, 16, 64) for cut in strategies(gpus, 8)]
WHOLE = CostOptions(host_s_per_layer=0.4e-3, all_reduce_share=0.7, micro_batch_tokens=1 << 40)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS), gpu=st.sampled_from(["a100", "h100", "l40s"]), model=st.sampled_from(sorted(MODELS.values())),
    cut=st.sampled_from(CUTS), responses=st.integers(16, 200), prompt=st.integers(128, 300), response=st.integers(2, 60),
)  # fmt: skip
def test_seconds_are_the_formulas_on_the_files_numbers(
    kind: str, gpu: str, model: str, cut: Strategy, responses: int, prompt: int, response: int
) -> None:
    batch = StepBatch(4 * responses, prompt, response, 4)
    costs = CallTable(gpu, {"actor": model}, batch, WHOLE)
    seconds = costs.seconds(call(kind), on(cut))
    if math.isinf(seconds):
        assert cut.dp * cut.pp * (8 if kind == "train" else 1) > 4 * responses
    else:
        assert seconds == pytest.approx(by_hand(kind, gpu, model, cut, batch, WHOLE), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from(CUTS), st.integers(0, 4), st.integers(0, 4))
def test_more_work_never_takes_less(kind: str, cut: Strategy, small: int, more: int) -> None:
    """More responses, longer ones and a slower host take at least as long, by the measured tables up to 8 % of noise."""
    few, many = StepBatch(128 << small, 128, 128), StepBatch(128 << small + more, 128, 128 << more)
    times = [CallTable("h100", MODELS, batch).seconds(call(kind), on(cut)) for batch in (few, many)]
    assert times[0] <= times[1] * 1.08
    slow = CallTable("h100", MODELS, few, CostOptions(host_s_per_layer=1.0)).seconds(call(kind), on(cut))
    assert slow >= times[0] * (1 - 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from(CUTS))
def test_what_is_hidden_split_or_fetched_changes_as_it_says(kind: str, cut: Strategy) -> None:
    reference = call(kind, "reference")
    costs = CallTable("a100", MODELS, BATCH)
    seconds = costs.seconds(reference, on(cut))
    if math.isinf(seconds):
        return
    hidden = replace(costs, options=CostOptions(all_reduce_share=0.0)).seconds(reference, on(cut))
    assert hidden <= seconds
    assert (hidden == seconds) == (cut.tp == 1 or kind == "generate")
    fetched = replace(costs, options=CostOptions(offload_bytes_per_s=1e9)).seconds(reference, on(cut))
    assert fetched == pytest.approx(seconds + 2 * 68_976_648_192 / cut.tp / cut.pp / 1e9)
    split = replace(costs, options=CostOptions(micro_batch_tokens=4096))
    assert split.seconds(reference, on(cut)) >= seconds * 0.9
    assert sum(split.memory(reference, on(cut))) <= sum(costs.memory(reference, on(cut)))
    kept = replace(costs, options=CostOptions(recompute=False))
    if kind == "train":
        assert kept.seconds(reference, on(cut)) < seconds
        assert kept.memory(reference, on(cut)).working > costs.memory(reference, on(cut)).working
    else:
        assert kept.memory(reference, on(cut)) == costs.memory(reference, on(cut))


def test_decode_times_are_those_of_the_profile_of_the_same_gpus() -> None:
    """Two files from one database: seconds, batches and contexts mean the same."""
    profile, times = load_profile("h100-llama2-70b-tp2"), load_call_tables("h100").times("llama2-70b", 2)
    assert profile.table is not None
    for batch, context in ((1, 128), (16, 1024), (64, 600), (256, 2000)):
        assert float(times.decode_s(batch, context)) == pytest.approx(float(profile.table(batch, batch * context)), rel=0.05)


def test_beyond_a_table_times_are_proportional() -> None:
    times = load_call_tables("h100").times("llama2-7b", 1)
    assert times.prefill_s(512, 512) == pytest.approx(4 * times.prefill_s(128, 512))
    assert times.prefill_s(4, 32768) == pytest.approx(2 * times.prefill_s(4, 16384))
    assert float(times.decode_s(1024, 1024)) == pytest.approx(2 * float(times.decode_s(512, 1024)))
    assert times.decode_s(8, [1024, 65536])[0] == float(times.decode_s(8, 1024))


N7, N13 = 6_738_415_616, 13_015_864_320


def test_memory_of_a_training_by_hand() -> None:
    """7 B on 8 GPUs as 2 x 2 x 2: 4 mini-batches of 4 micro-batches, of 8 sequences or 4,096 tokens; 2 are in flight."""
    memory = CallTable("a100", MODELS, BATCH).memory(call("train", "critic"), on(Strategy(2, 2, 2)))
    assert memory.kept == 4 * N7 / 4 + 20 * N7 / 4 / 2
    tokens = 8 * 512
    assert memory.working == 2 * (32 / 2) * (2 * tokens * 4096 / 2) + 34 * tokens * 4096 / 2
    assert memory.copy == 0
    actor = CallTable("a100", MODELS, BATCH).memory(call("train"), on(Strategy(2, 2, 2)))
    assert actor.kept == 24 * N13 / 4 - 10 * N13 / 4
    assert actor.working == 2 * 20 * tokens * 5120 + 17 * tokens * 5120 + 6 * tokens * 32000 / 2


def test_memory_of_generation_and_inference_by_hand() -> None:
    costs = CallTable("a100", MODELS, BATCH)
    generation = costs.memory(call("generate"), on(Strategy(4, 2, 1)))
    kv = 64 * 512 * 2 * 2 * 40 * 20 * 128  # responses, tokens, key and value in bf16, layers, heads of a GPU, width
    assert generation == (0.0, kv + 34 * 64 * 128 * 5120 / 2 + 6 * 64 * 32000 / 2, 2 * N13 / 2)
    reward = costs.memory(call("inference", "reward"), on(Strategy(1, 8, 1)))
    assert reward == (0.0, 34 * 16384 * 2048 / 8, 2 * 3_085_938_688 / 8)  # passes of 16,384 tokens, no logits
    reference = costs.memory(call("inference", "reference"), on(Strategy(1, 8, 1)))
    assert reference.working == 34 * 16384 * 8192 / 8 + 6 * 16384 * 32000 / 8


def test_a_kv_head_is_on_one_gpu_at_least() -> None:
    model = load_call_tables("h100").model("qwen2.5-3b")  # 2 KV heads
    assert [model.kv_bytes_per_token(tp) for tp in (1, 2, 4, 8)] == [36_864, 18_432, 18_432, 18_432]


def test_reallocation_by_hand() -> None:
    costs = CallTable("a100", MODELS, BATCH)
    tp8, dp8 = on(Strategy(1, 8, 1)), on(Strategy(8, 1, 1))
    assert costs.reallocate("critic", tp8, tp8) == (0.0, 0.0)
    assert costs.reallocate("critic", dp8, tp8) == (0.0, 0.0)  # every GPU has the whole model
    seconds, sent = costs.reallocate("critic", tp8, dp8)
    assert (seconds, sent) == pytest.approx((7 / 8 * 2 * N7 / 170e9, 7 * 2 * N7))
    seconds, sent = costs.reallocate("critic", tp8, on(Strategy(1, 4, 2), first=8))
    assert (seconds, sent) == pytest.approx((2 * N7 / 8 / 20e9, 2 * N7))
    quick = replace(costs, options=CostOptions(node_bytes_per_s=340e9, network_bytes_per_s=40e9))
    assert quick.reallocate("critic", tp8, dp8)[0] == pytest.approx(costs.reallocate("critic", tp8, dp8)[0] / 2)


def test_layouts_without_a_table_or_with_too_many_parts_cannot_run() -> None:
    costs = CallTable("h100", {"actor": "qwen2.5-7b"}, StepBatch(8, 128, 128, 2))
    assert math.isinf(costs.seconds(call("inference"), on(Strategy(1, 8, 1))))  # 28 heads
    assert math.isinf(costs.seconds(call("generate"), on(Strategy(16, 1, 1))))
    assert math.isinf(costs.seconds(call("train"), on(Strategy(8, 1, 1))))
    assert math.isfinite(costs.seconds(call("train"), on(Strategy(4, 1, 1))))


def test_a_step_is_planned_with_measured_costs() -> None:
    models = {"actor": "qwen2.5-3b", "reference": "qwen2.5-3b", "reward": "qwen2.5-3b"}
    costs = CallTable("l40s", models, StepBatch(64, 128, 128), gpus_per_node=4)
    plan = plan_step(grpo(), Cluster(1, 4, 1, "l40s"), costs, memory_bytes=costs.gpu_memory_bytes)
    assert plan.lower_bound_s <= plan.period_s
    assert max(plan.peak_bytes) <= costs.gpu_memory_bytes == 46068 << 20
    took = {one.name: costs.seconds(Call(one.name, one.role, one.kind), one.layout) for one in plan.calls}
    assert took == {one.name: one.seconds for one in plan.calls}


def grpo_on(cluster: Cluster, kind: str = "h100") -> StepPlan:
    """A plan with tables of nodes of 8 GPUs."""
    models = {"actor": "qwen2.5-3b", "reference": "qwen2.5-3b", "reward": "qwen2.5-3b"}
    return plan_step(grpo(), cluster, CallTable(kind, models, StepBatch(64, 128, 128)), gap=0.3)


def test_tables_are_of_the_clusters_nodes_and_gpus() -> None:
    """A part of a node is inside it, GPUs without a stated kind are any, and a kind may be named with its memory."""
    for cluster, kind in (
        (Cluster(1, 4, 1), "h100"),
        (Cluster(1, 2, 1, "h100"), "h100"),
        (Cluster(1, 2, 1, "a100-80g"), "a100"),
    ):
        assert grpo_on(cluster, kind).gpus == cluster.gpus


def test_every_shipped_file_says_where_it_comes_from() -> None:
    for kind in list_call_kinds():
        tables = load_call_tables(kind)
        for name in ("origin", "command", "date", "licence", "precision"):
            assert tables.source[name]
        assert {"backward", "optimizer", "network_bytes_per_s", "node_bytes_per_s"} <= set(tables.source["assumptions"])
        for model in tables.models.values():
            for times in model.times.values():
                assert np.all(times.prefill_alone.iteration_s <= times.prefill.iteration_s)


@pytest.mark.parametrize(
    ("make", "error", "parts"),
    [
        (lambda: load_call_tables("v100"), ProfileError, ("'v100'", "a100, h100, l40s")),
        (lambda: load_call_tables(7), ProfileError, ("7", "a100, h100, l40s")),
        (lambda: CallTable("b200", MODELS, BATCH), ProfileError, ("'b200'", "a100, h100, l40s")),
        (lambda: CallTable("h100", {"actor": "gpt-2"}, BATCH), ProfileError, ("'gpt-2'", "llama2-13b")),
        (lambda: load_call_tables("h100").times("qwen2.5-7b", 8), ProfileError, ("'qwen2.5-7b'", "8", "1, 2, 4")),
        (lambda: CallTable("h100", {}, BATCH), PlanningError, ("{}",)),
        (lambda: CallTable("h100", "llama2-7b", BATCH), PlanningError, ("'llama2-7b'",)),
        (lambda: CallTable("h100", MODELS, 256), PlanningError, ("batch is 256",)),
        (lambda: CallTable("h100", MODELS, BATCH, {"recompute": True}), PlanningError, ("CostOptions",)),
        (lambda: CallTable("h100", MODELS, BATCH, gpus_per_node=6), PlanningError, ("6",)),
        (lambda: CallTable("h100", MODELS, BATCH).model("teacher"), PlanningError, ("'teacher'", "actor, critic")),
        (lambda: StepBatch(0, 128, 128), PlanningError, ("responses is 0",)),
        (lambda: StepBatch(8, 128, 12.5), PlanningError, ("response_tokens is 12.5",)),
        (lambda: StepBatch(8, 128, math.nan), PlanningError, ("nan",)),
        (lambda: StepBatch(10, 128, 128, 4), PlanningError, ("4 mini-batches", "10 responses", "is 2")),
        (lambda: StepBatch(2, 128, 128, 4), PlanningError, ("is 2",)),
        (lambda: StepBatch(1, 128, 128, 4), PlanningError, ("1 response;",)),
        (lambda: load_call_tables(["h100"]), ProfileError, ("['h100']", "a100, h100, l40s")),
        (lambda: CallTable(["h100"], MODELS, BATCH), ProfileError, ("['h100']", "a100, h100, l40s")),
        (lambda: CallTable("h100", {"actor": ["llama2-7b"]}, BATCH), ProfileError, ("['llama2-7b']", "llama2-13b")),
        (lambda: load_call_tables("h100").times("llama2-7b", [2]), ProfileError, ("[2]", "1, 2, 4, 8")),
        (lambda: grpo_on(Cluster(2, 4, 1)), PlanningError, ("nodes of 8 GPUs", "have 4", "gpus_per_node=4")),
        (lambda: grpo_on(Cluster(1, 8, 1, "l40s")), PlanningError, ("'h100'", "'l40s'")),
        (lambda: CostOptions(recompute="no"), PlanningError, ("'no'",)),
        (lambda: CostOptions(host_s_per_layer=-1), PlanningError, ("-1",)),
        (lambda: CostOptions(all_reduce_share=1.5), PlanningError, ("1.5",)),
        (lambda: CostOptions(micro_batch_tokens=0), PlanningError, ("micro_batch_tokens is 0",)),
        (lambda: CostOptions(offload_bytes_per_s=0), PlanningError, ("offload_bytes_per_s is 0",)),
        (lambda: CostOptions(network_bytes_per_s=math.inf), PlanningError, ("inf",)),
        (lambda: CostOptions(scalar_roles="critic"), PlanningError, ("'critic'",)),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make: Any, error: type[Exception], parts: tuple[str, ...]) -> None:
    with refused(error, *parts):
        make()


@pytest.mark.parametrize(("mini_batches", "fits"), [(5, 4), (7, 6), (10**12, 12)])
def test_mini_batches_that_do_not_divide_are_refused_with_the_next_that_do(mini_batches: int, fits: int) -> None:
    with refused(PlanningError, f"{mini_batches:,} mini-batches", "12 responses", f"is {fits}"):
        StepBatch(12, 128, 128, mini_batches)
