"""Devices of a pipeline as threads of the test's process, models and losses for them: the same ``Device``, no processes."""

from __future__ import annotations

import copy
import pickle
import queue
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from learning_samples import TOKENIZER
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from rlhfless.training.algorithms.batch import Part
from rlhfless.training.algorithms.critic import Critic, make_critic
from rlhfless.training.logprobs import logits_to_logprobs
from rlhfless.training.models.tiny_model import tiny_qwen2
from rlhfless.training.pipeline.worker import Device, DeviceStart
from rlhfless.training.worker_group import WorkerGroup


class QueueLinks:
    """Messages between threads, in the order of sending; see ``Links``."""

    def __init__(self, rank: int, queues: Mapping[tuple[int, int], queue.SimpleQueue[Tensor]]) -> None:
        self.rank, self.queues = rank, queues

    def expect(self, incoming: Mapping[int, Sequence[tuple[Hashable, Tensor]]]) -> None:
        self.waiting = {peer: list(expected) for peer, expected in incoming.items()}
        self.arrived: dict[Hashable, Tensor] = {}

    def receive(self, name: Hashable) -> Tensor:
        peer = next((p for p, expected in self.waiting.items() if name in [each for each, _ in expected]), None)
        while name not in self.arrived:
            assert peer is not None
            first, buffer = self.waiting[peer].pop(0)
            self.arrived[first] = buffer.copy_(self.queues[peer, self.rank].get(timeout=60))
        return self.arrived.pop(name)

    def send(self, peer: int, tensor: Tensor) -> None:
        self.queues[self.rank, peer].put(tensor)

    def flush(self) -> None:
        assert not any(self.waiting.values()), "a message was sent that nobody needs"


class ThreadGroup(WorkerGroup):
    """Devices as threads; see ``WorkerGroup``."""

    def __init__(self) -> None:
        super().__init__("threads")
        self.devices: list[Device] = []

    def __bool__(self) -> bool:
        return bool(self.devices)

    def start(self, main: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        queues: defaultdict[tuple[int, int], queue.SimpleQueue[Tensor]] = defaultdict(queue.SimpleQueue)
        self.devices = [Device(rank, _own(start), QueueLinks(rank, queues)) for rank, start in arguments]  # type: ignore[arg-type]

    def order(self, name: str, argument: Any = None, seed: int = 0) -> list[Any]:
        with ThreadPoolExecutor(len(self.devices)) as pool:
            return [pickle.dumps(told) for told in pool.map(lambda device: device.run(pickle.loads(argument)), self.devices)]

    def end(self) -> None:
        self.devices = []


def _own(start: DeviceStart) -> DeviceStart:
    """The stages as a process has them: modules of its own on the same weights."""
    stages = copy.deepcopy(dict(start.stages))
    for key, stage in stages.items():
        for ours, theirs in zip(stage.parameters(), start.stages[key].parameters(), strict=True):
            ours.data, ours.grad = theirs.data, None
    return replace(start, stages=stages)


class LogprobLoss:
    """Some loss of the actor that differs from token to token."""

    def sum(self, logprobs: Tensor) -> Tensor:
        return (logprobs * logprobs.detach().sin()).sum()

    def __call__(self, logits: Tensor, each: Part) -> tuple[Tensor, float]:
        loss = self.sum(logits_to_logprobs(logits, each.input_ids))
        return loss, float(loss.detach())

    def look(self, logits: Tensor, each: Part) -> Tensor:
        return logits_to_logprobs(logits, each.input_ids)


class SquareLoss:
    """Some loss of the critic."""

    def sum(self, values: Tensor) -> Tensor:
        return (values - 0.3).square().sum()

    def __call__(self, values: Tensor, each: Part) -> tuple[Tensor, float]:
        loss = self.sum(values)
        return loss, float(loss.detach())

    def look(self, values: Tensor, each: Part) -> Tensor:
        return values


LOSSES = {"actor": LogprobLoss(), "critic": SquareLoss()}


def actor_and_critic(layers: int = 4, kind: str = "qwen2") -> tuple[Any, Critic]:
    """Two models of so many blocks; that of Qwen2 has tied embeddings, that of Llama has not."""
    if kind == "qwen2":
        actor: Any = tiny_qwen2(TOKENIZER, 0, hidden=32, layers=layers, heads=2, kv_heads=1, intermediate=64)
    else:
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
        actor = LlamaForCausalLM(LlamaConfig(vocab_size=TOKENIZER.vocab_size, num_hidden_layers=layers, **sizes)).eval()
    critic = make_critic(actor, "model")
    generator = torch.Generator().manual_seed(1)
    nn.init.normal_(critic.head.weight, std=0.1, generator=generator)
    return actor, critic


def micro_batches(count: int) -> list[Part]:
    """Tokens of noise, two widths in turn."""
    generator = torch.Generator().manual_seed(2)
    widths = [16 + 16 * (k % 2) for k in range(count)]
    ids = [torch.randint(2, TOKENIZER.vocab_size, (2, width), generator=generator) for width in widths]
    return [Part([], x, torch.ones(2, x.shape[1] - 1, dtype=torch.bool)) for x in ids]
