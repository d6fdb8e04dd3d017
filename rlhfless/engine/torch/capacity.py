"""Computes slots and KV capacity of an actor from its memory: what fits in addition to the weights.

The rows of the KV cache have one length, so slots are rows. This holds under ``preempt`` too, where every row has cells for the
longest context. A cache with all the slots counted here fits, whatever the batch. Growing to that size may fail: old and new
rows are both in memory while the old ones are copied (``KVCache.reserve_rows``).
"""

from __future__ import annotations

from rlhfless.engine.torch.row_model import RowModel
from solver.model.admission import Admission

OTHER_SHARE = 0.1  # of the memory, for activations and what the libraries take


def admission_within(model: RowModel, memory_bytes: int, *, max_slots: int = 256, rule: str = "reserve") -> Admission:
    """Return slots and KV tokens of an actor with ``memory_bytes`` on its (emulated) GPU; planner and engine use the same
    values.

    Args:
        max_slots: maximum number of slots, however much memory there is. rule: ``reserve`` or ``preempt``.

    Raises:
        MemoryError: the weights and one response do not fit; the message states the required memory.
    """
    a_row = model.cells * model.kv_bytes_per_token
    room = int(memory_bytes * (1 - OTHER_SHARE)) - model.weight_bytes
    rows = min(max_slots, room // a_row)
    if rows < 1:
        needed = (model.weight_bytes + a_row) / (1 - OTHER_SHARE)
        raise MemoryError(
            f"{memory_bytes / 2**30:.3f} GiB are too little memory for an actor: weights of "
            f"{model.weight_bytes / 2**30:.3f} GiB and a context of {model.cells} tokens need {needed / 2**30:.3f} GiB; "
            "give more memory or shorten the longest context"
        )
    return Admission(rows, rows * model.cells, rule)
