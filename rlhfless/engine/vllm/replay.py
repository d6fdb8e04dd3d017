"""Replays the passes of an emulated actor in vLLM, alone and back to back, to measure them.

The same contexts join at the same passes, with KV states of as many tokens where they came with one, and leave after as many.
So vLLM feeds the same tokens in the same chunks. It finds the same prefixes in its cache, because the cache is empty when a
replay begins and shares within it only. Sampled tokens are those of made-up seeds. Where that changes what is cached (a
response that was evicted and comes back), a pass may feed other tokens; ``Replayed.differing`` counts such passes.

What is timed is vLLM's work on the host and on the device. A replay does not plan: the CPU time of our own scheduler is added,
as it was when the step was decided.
"""

from __future__ import annotations

import numpy as np

from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.torch.replay import WARM_UP_ITERATIONS
from rlhfless.engine.vllm import emulation
from rlhfless.engine.vllm.emulation_server import Ran, ReplayedPass
from rlhfless.engine.vllm.iteration import NewResponse
from rlhfless.engine.vllm.kv_blocks import StoredKV


def replay(journal: EngineJournal, sampling: Sampling, stop_ids: tuple[int, ...], max_tokens: int) -> Replayed:
    """Run all of the journal's passes, after its first ``WARM_UP_ITERATIONS`` have been run once to warm up.

    Args:
        max_tokens: longest context of the replica.
    """
    passes = passes_of(journal, max_tokens)
    warm_up = emulation.replay(passes[:WARM_UP_ITERATIONS], sampling, stop_ids)
    ran = emulation.replay(passes, sampling, stop_ids)
    seconds = np.zeros((len(journal), 2))
    for k, one in enumerate(ran):
        computed = sum(one.fed.values())
        decode = one.drawn / (one.drawn + computed) if one.drawn else 0.0
        taken_s = one.seconds + journal.host_s[k]
        seconds[k] = taken_s * (1 - decode), taken_s * decode
    return Replayed(seconds, sum(one.seconds for one in warm_up), differing(journal, ran))


def passes_of(journal: EngineJournal, max_tokens: int) -> list[ReplayedPass]:
    """Return the passes of a journal, which has a batch for each; a response's name says at which pass it joined."""
    names: dict[int, str] = {}
    passes = []
    for change in journal.changes:
        left = [names.pop(response) for response in change.left if response in names]
        joined = []
        for new in change.joined:
            name = names[new.response] = f"{new.response}-{change.iteration}"
            ids = journal.contexts[new.response, change.iteration]
            kv = StoredKV(0, new.cached_tokens) if new.cached_tokens else None
            joined.append(
                NewResponse(name, ids.tolist(), new.response, max_tokens - len(ids), new.forced, kv, new.context_tokens)
            )
        passes.append(ReplayedPass(left, joined, [names[response] for response, _ in change.chunks]))
    return passes


def differing(journal: EngineJournal, ran: list[Ran]) -> int:
    """Return how many passes fed other tokens than those of the journal, or to other responses."""
    expected = [(change.batch, [tokens for _, tokens in change.chunks]) for change in journal.changes]
    return sum(wanted != (one.drawn, list(one.fed.values())) for wanted, one in zip(expected, ran, strict=True))
