"""Which contexts vLLM may have computed before: those whose first block of tokens it has met."""

from __future__ import annotations

from collections.abc import Callable

from rlhfless.engine.common.sequence import SequenceState


class FirstBlocks:
    """First blocks of the contexts that vLLM has computed, or computes.

    Args:
        block_tokens: tokens of a block of its KV cache.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens, self._known = block_tokens, set[bytes]()

    def note(self, s: SequenceState) -> None:
        """Note that vLLM computes the context of a response."""
        self._known.add(self._of(s))

    def uncached(self) -> Callable[[SequenceState], int]:
        """Return a function with the fewest tokens of a context that vLLM may have to compute.

        vLLM shares equal beginnings, block by block. Only it knows how many blocks, so a context whose first block it knows may
        lack its last token only. It queues what it gets too early.
        """
        known = set(self._known)

        def uncached(s: SequenceState) -> int:
            block = self._of(s)
            if block in known:
                return 1
            known.add(block)
            return s.context_tokens - (0 if s.kv is None else s.kv.tokens)

        return uncached

    def _of(self, s: SequenceState) -> bytes:
        return s.tokens(0, self._block_tokens).tobytes()
