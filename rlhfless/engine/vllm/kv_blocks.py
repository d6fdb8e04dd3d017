"""KV states exported from and imported into vLLM, stored by response name between the engine and vLLM's connector.

The connector is in ``kv_connector.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rlhfless.engine.protocol import Request


@dataclass(frozen=True)
class BlocksKV:
    """The KV state of the first tokens of a context.

    Attributes:
        layers: of every layer, by its name: (blocks, ...) its blocks in vLLM's memory layout, in order.
        block_tokens: tokens of each block, all of which are full.
    """

    layers: Mapping[str, Tensor]
    block_tokens: int

    @property
    def tokens(self) -> int:
        """Return how many tokens of the context it covers."""
        return self.block_tokens * min((len(blocks) for blocks in self.layers.values()), default=0)


@dataclass(frozen=True, eq=False)
class StoredKV:
    """A KV state that stays in vLLM's process, for another emulated actor there.

    Attributes:
        number: of the state in that process. tokens: of the context that it covers.
    """

    number: int
    tokens: int


@dataclass
class KVMailbox:
    """KV states in a process with one replica, by name of the response.

    Attributes:
        wanted: responses whose state is to be exported when vLLM drops it. out: exported states. coming: states to import.
    """

    wanted: set[str] = field(default_factory=set)
    out: dict[str, BlocksKV] = field(default_factory=dict)
    coming: dict[str, BlocksKV] = field(default_factory=dict)


kv_mailbox = KVMailbox()


def kv_wrong(request: Request, takes_kv: bool) -> str | None:
    """Return what is wrong with the KV states of a request; None: nothing.

    Args:
        takes_kv: whether the actor can continue from KV states.
    """
    if request.cached_tokens or not (request.kv is None or (takes_kv and isinstance(request.kv, BlocksKV | StoredKV))):
        return "comes with KV state that this vLLM engine cannot load; recompute it"
    return None
