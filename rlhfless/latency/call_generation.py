"""Makes latency models of generation from the tables of a step's calls, so that a step plan has one source of seconds."""

from __future__ import annotations

import numpy as np

from rlhfless.latency.calls import WEIGHT_BYTES, CallTable
from solver.model.affine_fit import fit_iterations
from solver.model.errors import PlanningError, as_given, is_number
from solver.model.iteration_table import IterationTable
from solver.model.latency import LatencyModel

MAX_BATCH = 256  # slots of an actor
FITTED_CONTEXT = 8192.0  # tokens of a response up to which the affine fit is made
PREFILLED = (1, 8)  # sequences between which prefill is read


def generation_latency(costs: CallTable, role: str = "actor", memory_share: float = 0.9) -> dict[int, LatencyModel]:
    """Return the latency model of an actor for each tensor-parallel size that has a table and memory for a KV cache.

    The iteration table and its affine fit are those of the measured decode operators. Prefill is linear between passes over 1
    and 8 prompts of the batch's length.

    Args:
        costs: costs of the step's calls.
        role: the role that generates.
        memory_share: share of a GPU's memory that weights and KV cache may use.

    Raises:
        PlanningError: the role has no model, the share is out of range, or no size has enough memory.

    Example:
        >>> from rlhfless.latency import CallTable, StepBatch, generation_latency
        >>> costs = CallTable("h100", {"actor": "qwen2.5-7b"}, StepBatch(256, 128, 384))
        >>> sorted(generation_latency(costs))
        [1, 2, 4, 8]
    """
    if not (is_number(memory_share, 0) and 0 < memory_share <= 1):
        raise PlanningError(f"memory_share is {as_given(memory_share)}; a share above 0 and up to 1 is needed")
    model, found = costs.model(role), {}
    host_s = costs.options.host_s_per_layer * model.layers
    for tp, times in model.times.items():
        free_bytes = memory_share * costs.gpu_memory_bytes - WEIGHT_BYTES * model.parameters / tp
        capacity = int(free_bytes // model.kv_bytes_per_token(tp))
        if capacity < costs.batch.tokens:
            continue
        table = IterationTable(
            times.decode.batch, times.decode.context_tokens, np.maximum(times.decode.iteration_s, max(host_s, 1e-12))
        )
        max_batch = int(min(MAX_BATCH, table.batch[-1]))
        rows, columns = np.nonzero(
            (table.batch[:, None] <= max_batch)
            & (table.context_tokens <= FITTED_CONTEXT)
            & (table.batch[:, None] * table.context_tokens <= capacity)
        )
        (base_s, per_response_s, per_kv_token_s), errors = fit_iterations(
            table.batch[rows], table.context_tokens[columns], table.iteration_s[rows, columns]
        )
        prompt = costs.batch.prompt_tokens
        few_s, many_s = (times.prefill_s(sequences, prompt) for sequences in PREFILLED)
        per_token_s = max(0.0, many_s - few_s) / (PREFILLED[1] - PREFILLED[0]) / prompt
        found[tp] = LatencyModel(
            f"{model.name} tp{tp} on {costs.kind}", tp, float(base_s), float(per_response_s), float(per_kv_token_s), table,
            prefill_base_s=max(0.0, few_s - per_token_s * prompt), prefill_per_token_s=per_token_s, max_batch=max_batch,
            kv_capacity_tokens=capacity, kind=costs.kind, fit_mean_error=float(errors.mean()),
            fit_max_error=float(errors.max()), kv_bytes_per_token=float(model.kv_bytes_per_token(tp) * tp),
            weight_bytes=float(WEIGHT_BYTES * model.parameters),
        )  # fmt: skip
    if not found:
        raise PlanningError(
            f"model {model.name!r} has no room for the KV cache of one response on {costs.kind!r} GPUs; a smaller model, or "
            "GPUs with more memory, are needed"
        )
    return found
