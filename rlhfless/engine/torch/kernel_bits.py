"""Names the bits that this machine's CPU kernels give, so that two machines can be compared.

Tokens of the torch engine depend on weights, prompt and seed only, but on one machine: another processor, torch build or MKL
setting adds up in another order. ``python -m rlhfless.engine.torch.kernel_bits`` prints the name.
"""

from __future__ import annotations

import hashlib
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.torch.row_attention import row_attention
from rlhfless.engine.torch.row_tiles import RowTiles
from rlhfless.system.cpu_threads import computing_with

SHAPES = ((64, 64), (512, 128), (256, 1024))  # (outputs, inputs)
ROWS, QUERIES, WIDTH = 32, (2, 4, 64), 96  # of the products; (kv_heads, queries of each, head_dim) and cells of the attention


@cache
def kernel_bits() -> str:
    """Return the rows of a tile (``row_tiles.py``) and a digest of what some kernels of a forward pass give in float32."""
    tiles, rows = RowTiles(), 1
    results = []
    with torch.inference_mode(), computing_with(1, torch.device("cpu")):
        for outputs, inputs in SHAPES:
            weight, x = _exact(outputs, inputs), _exact(ROWS, inputs)
            rows = tiles.tile(weight, None)
            results += [tiles(x, weight, None), F.rms_norm(x, (inputs,)), F.silu(x), torch.log_softmax(x, -1)]
        queries, cells = _exact(1, *QUERIES), _exact(1, QUERIES[0], WIDTH, QUERIES[2])
        results.append(row_attention(queries, cells, cells, torch.zeros(1, 1, 1, WIDTH)))
    digest = hashlib.sha256(b"".join(result.numpy().tobytes() for result in results)).hexdigest()
    return f"tiles of {rows} rows, {digest[:8]}"


def _exact(*shape: int) -> Tensor:
    """Return numbers between -1 and 1 that are the same on every machine."""
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.int64) * 7919 % 1009
    return ((numbers - 504).float() / 512).view(shape)


if __name__ == "__main__":
    print(kernel_bits())
