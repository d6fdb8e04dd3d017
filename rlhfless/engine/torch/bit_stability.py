"""Measures the smallest row count from which this machine's matrix kernels give a row the same bits in every batch.

Kernel libraries do not document it, so it is measured on the model's forward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhfless.engine.torch.attention import AttentionForm
from rlhfless.engine.torch.kv_cache import blocks
from rlhfless.engine.torch.model import one_thread
from rlhfless.engine.torch.prefill import CPU_PASS_TOKENS, tokens_by_themselves
from rlhfless.engine.torch.row_model import RowModel

PROBED_ROWS = (*range(1, 65), 96, 128, 200, CPU_PASS_TOKENS)


def measure_stable_rows(model: RowModel) -> None:
    """Measure ``model.stable_rows`` once, if the model promises the same bits in every batch."""
    if model.bit_stable and model.stable_rows is None:
        with torch.inference_mode(), one_thread(model.device):
            model.stable_rows = fewest_stable_rows(model)


def fewest_stable_rows(model: RowModel) -> int:
    """Return the fewest rows from which on the number of rows changes no bit of a row's logits; 0 if there is none.

    On CPUs it is usually 4 (one to three rows use another kernel).
    """
    sizes = [n for n in PROBED_ROWS if n <= model.max_tokens]
    max_rows = sizes[-1]
    tokens = torch.randint(model.vocabulary, (max_rows,), generator=torch.Generator().manual_seed(0)).to(model.device)
    positions = torch.arange(max_rows, device=model.device)
    cache = model.new_cache()
    cache.reserve_rows(1)
    row = torch.zeros(max_rows, dtype=torch.int64, device=model.device)
    width = blocks(max_rows)

    def logits(rows: int) -> Tensor:  # always the last ones, so that a row also changes its place
        mask = cache.mask(positions[-rows:], width)  # the first cells are written already
        parts = [slice(0, rows)] if rows == max_rows else [slice(0, 1), slice(1, rows)][:rows]  # padding does not attend

        def attend(layer: int, queries: Tensor, form: AttentionForm) -> Tensor:
            return torch.cat([tokens_by_themselves(cache, layer, 0, width, queries[part], mask[part]) for part in parts])

        return model.logits(model.compute(cache, tokens[-rows:], positions[-rows:], row[-rows:], attend))

    expected = logits(max_rows)
    stable = max_rows
    for rows in reversed(sizes):
        if not torch.equal(logits(rows), expected[-rows:]):
            break
        stable = rows
    return stable if stable < max_rows else 0
