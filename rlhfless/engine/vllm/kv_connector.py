"""vLLM connector that exports KV states of responses that leave, and imports those that arrive with a response.

It implements vLLM's connector interface ``KVConnectorBase_V1``, which vLLM documents and calls experimental, and uses the
mailbox of ``kv_blocks.py``. The connector is loaded by name in the process of the replica: once for vLLM's scheduler and once
for its worker. Whole blocks are copied as they are in memory, so the layout within a block does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

from rlhfless.engine.vllm.kv_blocks import BlocksKV, kv_mailbox

NAME = "name"  # of a response, among what vLLM is given with it

caches: dict[str, torch.Tensor] = {}
"""(blocks, ...) by layer: vLLM's own, as its worker registered them."""


@dataclass
class Loads(KVConnectorMetadata):  # type: ignore[misc]
    """KV states that the worker imports before an iteration: name, first block of its KV state, and vLLM's blocks for it."""

    loads: list[tuple[str, int, list[int]]] = field(default_factory=list)


class HandOver(KVConnectorBase_V1):  # type: ignore[misc]
    """Connector of one replica (see the file header). Responses without a name are ignored."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._block_tokens: int = vllm_config.cache_config.block_size
        self._begins: dict[str, int] = {}  # of responses that come with a state: tokens that are in the prefix cache
        self._coming: dict[str, tuple[str, int, int]] = {}  # by vLLM's name: ours, first block, blocks

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: nothing waits for exported states."""
        return False

    # --- the scheduler's side ---------------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the tokens that came with the response, beyond those in the prefix cache; the last token is always
        computed.
        """
        kv = kv_mailbox.coming.get(_name(request))
        if kv is None:
            return 0, False
        self._begins[request.request_id] = num_computed_tokens
        usable = min(kv.tokens, (request.num_tokens - 1) // self._block_tokens * self._block_tokens)
        return max(0, usable - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note that vLLM allocated blocks for so many tokens that came with the response."""
        begin = self._begins.pop(request.request_id, 0)
        if num_external_tokens:
            count = num_external_tokens // self._block_tokens
            self._coming[request.request_id] = _name(request), begin // self._block_tokens, count
        else:
            kv_mailbox.coming.pop(_name(request), None)

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        """Return the imports for the next iteration."""
        loads = []
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id in self._coming:
                name, first, count = self._coming.pop(new.req_id)
                loads.append((name, first, list(new.block_ids[0][first : first + count])))
        return Loads(loads)

    def request_finished(self, request: Any, block_ids: Iterable[int]) -> tuple[bool, None]:
        """Copy the full blocks of a leaving response if its state is wanted."""
        name, full = _name(request), request.num_computed_tokens // self._block_tokens
        if name in kv_mailbox.wanted and full:
            ids = list(block_ids)[:full]
            kv_mailbox.out[name] = BlocksKV({layer: cache[ids] for layer, cache in caches.items()}, self._block_tokens)
        return False, None

    # --- the worker's side ------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Store references to vLLM's KV caches."""
        caches.clear()
        caches.update(kv_caches)

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Import the KV states that the iteration needs."""
        for name, first, ids in self._get_connector_metadata().loads:
            kv = kv_mailbox.coming.pop(name)
            for layer, cache in caches.items():
                cache[ids] = kv.layers[layer][first : first + len(ids)].to(cache.device)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: everything was imported before."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Do nothing: a state is copied when its response leaves."""

    def wait_for_save(self) -> None:
        """Do nothing: no save is pending."""


def _name(request: Any) -> str:
    return str((request.kv_transfer_params or {}).get(NAME, ""))
