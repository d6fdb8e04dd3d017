"""The process in which one vLLM replica decodes for all emulated actors of the virtual clock, one actor's pass at a time.

``emulation.py`` is the other end of the pipe. KV states that go from actor to actor stay here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.vllm import worker_backend
from rlhfless.engine.vllm.adapter import Replica
from rlhfless.engine.vllm.iteration import NewResponse, StepOutput
from rlhfless.engine.vllm.kv_blocks import BlocksKV, StoredKV
from rlhfless.engine.vllm.start_up import VllmSettings
from rlhfless.latency.timing import stopwatch
from rlhfless.system.child import HeartbeatConnection, serve

REPLAYS = -1  # the actor that replays passes, and is none of a plan's


class About(NamedTuple):
    """What engines have to know of the replica; see ``Replica``."""

    vocabulary: int
    token_budget: int
    block_tokens: int
    hands_over: bool


class ReplayedPass(NamedTuple):
    """A pass that is run again.

    Attributes:
        left: names of responses that are gone before it. joined: those that join it.
        charged: names of the responses of which it computes contexts.
    """

    left: Sequence[str]
    joined: Sequence[NewResponse]
    charged: Sequence[str]


class Ran(NamedTuple):
    """A pass that was run again: its seconds, responses that got a token, and tokens of contexts that it fed, by name."""

    seconds: float
    drawn: int
    fed: Mapping[str, int]


class EmulationServer:
    """Executes what emulated actors ask of the replica."""

    def __init__(self, replica: Replica, device: str) -> None:
        self._replica, self._device = replica, device
        self._kv: dict[int, BlocksKV] = {}
        self._numbers = self._salts = 0

    @property
    def ready(self) -> About:
        """Return what engines have to know of the replica."""
        r = self._replica
        return About(r.vocabulary, r.token_budget, r.block_tokens, r.hands_over)

    def load(self, folder: str, version: int) -> None:
        """Load the weights of a step."""
        self._replica.load(Path(folder), version)

    def step(
        self,
        actor: int,
        forgotten: Sequence[int],
        aborted: Sequence[str],
        new: Sequence[NewResponse],
        sampling: Sampling,
        stop_ids: Sequence[int],
    ) -> tuple[list[StepOutput], dict[str, int]]:
        """Run one pass over the batch of an actor; returns what it drew, and the tokens that it fed by name.

        Args:
            forgotten: numbers of KV states that nobody wants any more.
            aborted: responses that leave before it; new: those that join.
        """
        self._forget(forgotten)
        self._replica.select(actor)
        if aborted:
            self._replica.abort(aborted)
        for response in new:
            kv = response.kv
            known = response._replace(kv=self._kv[kv.number]) if isinstance(kv, StoredKV) else response
            self._replica.add(known, sampling, stop_ids)
        return self._replica.step(), self._replica.fed_tokens

    def leave(
        self, actor: int, forgotten: Sequence[int], aborted: Sequence[str], names: Sequence[str], keep: bool
    ) -> dict[str, StoredKV]:
        """Remove responses of an actor; returns the KV states of ``names``, which stay here, if they are to be kept."""
        self._forget(forgotten)
        self._replica.select(actor)
        self._replica.abort(aborted)
        if not keep:
            self._replica.abort(names)
            return {}
        stored = {}
        for name, kv in self._replica.hand_over(names).items():
            self._numbers += 1
            self._kv[self._numbers], stored[name] = kv, StoredKV(self._numbers, kv.tokens)
        return stored

    def sleep(self) -> None:
        """Free the memory of weights and KV cache until weights are loaded again."""
        self._kv.clear()
        self._replica.sleep()

    def replay(self, passes: Sequence[ReplayedPass], sampling: Sampling, stop_ids: Sequence[int]) -> list[Ran]:
        """Run passes again, back to back, as they would be run for the only actor of the process.

        Args:
            stop_ids: never drawn where a length was forced; nothing else ends a response before it is gone.
        """
        replica, now_s = self._replica, stopwatch(self._device)
        self._salts += 1
        salt = f"replay-{self._salts}"  # nothing is cached when it begins
        replica.select(REPLAYS)
        ran, here = list[Ran](), set[str]()
        for one in passes:
            gone = here.intersection(one.left)
            replica.abort(sorted(gone))
            joined = [self._imported(response)._replace(salt=salt) for response in one.joined]
            here = (here - gone) | {response.name for response in joined}
            begin_s = now_s()
            for response in joined:
                replica.add(response, sampling, stop_ids if response.forced else ())
            drawn = replica.step()
            seconds = now_s() - begin_s
            fed = {name: replica.fed_tokens.get(name, 0) for name in one.charged}
            ran.append(Ran(seconds, len(drawn), fed))
        replica.abort(sorted(here))
        return ran

    def _imported(self, response: NewResponse) -> NewResponse:
        """Return a response that came with a KV state with another one of as many tokens; what is in it does not matter."""
        if not isinstance(response.kv, StoredKV):
            return response
        from rlhfless.engine.vllm.kv_connector import caches

        block_tokens = self._replica.block_tokens
        blocks = response.kv.tokens // block_tokens
        layers = {name: torch.zeros_like(cache[:1]).expand(blocks, *cache.shape[1:]) for name, cache in caches.items()}
        return response._replace(kv=BlocksKV(layers, block_tokens))

    def _forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._kv.pop(number, None)


def main(pipe: Connection, device: str, settings: VllmSettings, folder: str, version: int) -> None:
    """Start vLLM, say that it runs, and answer calls until the other end of the pipe closes."""
    worker_backend.Backend().use_device(device)
    serve(
        HeartbeatConnection(pipe),
        lambda: EmulationServer(worker_backend.replica_for(settings, Path(folder), version), device),
    )
