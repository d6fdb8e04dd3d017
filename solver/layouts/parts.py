"""Defines ``CallParts``: a model call that runs in parts, one for each prompt, as the responses of the prompt complete.

A call's copies (dp) are servers, each of equal neighbouring GPUs of its mesh. A prompt's part runs on one of them, or on
several where no other part is waiting: they share its responses. Its seconds on one are the prompt's share of the step's
tokens, times what all copies together work on responses. So parts take the GPU-seconds of the whole call. Smaller batches are
assumed to be as efficient as large ones, and responses of a prompt to be shared evenly.

A training divides its forward and backward passes, whose gradients add up. Its optimizer steps run on the whole mesh, one after
the prompts of each mini-batch. Mini-batches are neighbouring prompts, so they are known before any response completes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from solver.layouts.graph import GENERATE, Graph
from solver.layouts.layout import Layout
from solver.layouts.options import FloatArray, IntArray
from solver.model.errors import PlanningError
from solver.model.plurals import counted
from solver.model.workload import Workload


@dataclass(frozen=True)
class CallParts:
    """How a call is divided.

    Attributes:
        part_s: seconds of each prompt's part on one server. servers: equal ranges of GPUs that the mesh is cut into.
        most: servers that may share each prompt's part: as many as it has responses, and as there are.
        batch_of: mini-batch of each prompt; 0 in a call that trains nothing.
        updates: optimizer steps, one after each mini-batch; 0 in a call that trains nothing. update_s: seconds of each.
    """

    part_s: tuple[float, ...]
    servers: int
    most: tuple[int, ...]
    batch_of: tuple[int, ...]
    updates: int = 0
    update_s: float = 0.0

    @classmethod
    def of(
        cls, seconds: float, layout: Layout, share: FloatArray, samples: IntArray, updates: int = 0, update_s: float = 0.0
    ) -> CallParts:
        """Return the parts of a call that takes so many seconds as a whole.

        Args:
            share: (G,) of the tokens that each prompt has; they add up to 1. samples: (G,) its responses.
            updates, update_s: of a training.
        """
        servers = layout.strategy.dp
        passes_s = max(0.0, seconds - updates * update_s)
        batches = np.arange(len(share)) * max(1, updates) // len(share)
        part_s, most = (passes_s * servers * share).tolist(), np.minimum(samples, servers).tolist()
        return cls(tuple(part_s), servers, tuple(most), tuple(batches.tolist()), updates, update_s)

    @property
    def least_s(self) -> FloatArray:
        """Return (G,) seconds of each prompt's part on as many servers as may share it."""
        return np.asarray(np.array(self.part_s) / np.array(self.most))

    def joined(self, block: IntArray) -> CallParts:
        """Return the call with prompts joined to blocks, given (G,) numbers of blocks; those of a block have one mini-batch."""
        blocks = int(block.max()) + 1
        part_s, most = np.bincount(block, self.part_s, blocks), np.bincount(block, self.most, blocks)
        batch_of = np.zeros(blocks, np.int64)
        batch_of[block] = self.batch_of
        most = np.minimum(most, self.servers).astype(int)
        return replace(self, part_s=tuple(part_s.tolist()), most=tuple(most.tolist()), batch_of=tuple(batch_of.tolist()))

    def gpu_seconds(self, gpus: int) -> float:
        """Return the GPU-seconds on a mesh of so many GPUs."""
        return gpus * (sum(self.part_s) / self.servers + self.updates * self.update_s)


class PromptShares:
    """Which share of a call's tokens, prompts included, each prompt has, and how many responses.

    Args:
        workloads: of every generate call, by name. They have the same number of prompts with responses.

    Raises:
        PlanningError: they have different numbers of prompts.
    """

    def __init__(self, graph: Graph, workloads: Mapping[str, Workload]) -> None:
        self.group = {name: np.unique(one.prompt_of, return_inverse=True)[1] for name, one in workloads.items()}
        prompts = {name: int(group.max()) + 1 for name, group in self.group.items()}
        if len(set(prompts.values())) > 1:
            said = ", ".join(f"{counted(number, 'prompt')} of {name}" for name, number in prompts.items())
            raise PlanningError(f"generate calls have different prompts ({said}); levers need the same prompts in all of them")
        self.prompts = next(iter(prompts.values()))
        tokens = {
            name: np.bincount(self.group[name], one.prompt_tokens[one.prompt_of] + one.response_tokens, self.prompts)
            for name, one in workloads.items()
        }
        from_ = _generated_from(graph)
        samples = {name: np.bincount(group, minlength=self.prompts) for name, group in self.group.items()}
        self.of_call: list[FloatArray] = []  # (G,) shares by call; zeros for a call that no generation precedes
        self.samples: list[IntArray] = []  # (G,) responses by call
        for call in range(len(graph.calls)):
            self.samples.append(sum((samples[graph.calls[at].name] for at in sorted(from_[call])), np.zeros(self.prompts, int)))
            total = sum((tokens[graph.calls[at].name] for at in sorted(from_[call])), np.zeros(self.prompts))
            self.of_call.append(np.asarray(total / max(float(total.sum()), 1e-300)))

    def complete_s(self, name: str, completion_s: FloatArray) -> FloatArray:
        """Return (G,) when all responses of each prompt are complete, given (R,) completions of a generate call."""
        latest = np.zeros(self.prompts)
        np.maximum.at(latest, self.group[name], completion_s)
        return latest


def _generated_from(graph: Graph) -> list[set[int]]:
    """Return for every call the generate calls that it follows, within its step."""
    found: list[set[int]] = [set() for _ in graph.calls]
    for call in graph.order:
        for before in graph.after[call]:
            found[call] |= found[before] | ({before} if graph.calls[before].kind == GENERATE else set())
    return found
