"""KV states between vLLM and whoever hands responses over: what was taken out, and what is to be taken in.

Knows tensors and names of responses; nothing of vLLM, whose connector (``kv_connector.py``) leaves and fetches them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class BlocksKV:
    """The KV state of the first tokens of a context.

    Attributes:
        layers: of every layer, by its name: (blocks, ...) its blocks as vLLM lays them out, in order.
        block_tokens: of each block, all of which are full.
    """

    layers: Mapping[str, Tensor]
    block_tokens: int

    @property
    def tokens(self) -> int:
        """Of the context, that it covers."""
        return self.block_tokens * min((len(blocks) for blocks in self.layers.values()), default=0)


@dataclass
class KVMailbox:
    """Where KV states lie in a process with one replica, by name of the response.

    Attributes:
        wanted: whose state is to be taken out when vLLM drops it. out: those that were. coming: to be taken in.
    """

    wanted: set[str] = field(default_factory=set)
    out: dict[str, BlocksKV] = field(default_factory=dict)
    coming: dict[str, BlocksKV] = field(default_factory=dict)


desk = KVMailbox()
