"""Times step plans whose calls may be divided: the parts of every option, and the period of a plan with some calls divided.

Searches time a plan with its prompts joined to a few blocks, over a few steps. A block's responses count as complete when the
last of them is, so the period is rarely too short. What is returned is timed with every prompt, until steps repeat.

**Generation** may take a little longer than it could, with fewer GPU-seconds: actors then give GPUs back earlier. So a layout
of a generate call is several options, one for each amount of slack (``with_slack``).

**Memory.** Calls that are divided may take turns on a GPU, so it holds the working bytes of all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from solver.layouts.generation import GenerationPlans, PlannedGeneration
from solver.layouts.graph import INFERENCE, TRAIN, Call
from solver.layouts.layout import Layout
from solver.layouts.options import CallCosts, CallOptions, FloatArray, FreedEarly, IntArray
from solver.layouts.parts import CallParts, PromptShares
from solver.layouts.parts_schedule import PartsSchedule
from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.plurals import counted
from solver.model.step_levers import OVERLAP, STREAMING


class DividedCosts(CallCosts, Protocol):
    """Costs of training calls that may run in parts (streaming)."""

    def updates(self, call: Call, layout: Layout) -> tuple[int, float]:
        """Return the number of optimizer updates of a training call per step, and the seconds of each, which do not depend on
        the responses.
        """
        ...


SLACKS = (1.02, 1.05, 1.1, 1.2, 1.5)  # of generation plans: times the seconds of the fastest, for fewer GPU-seconds
BLOCKS = 48  # that prompts are joined to in a search
STEPS = 4  # that a search times
DIVIDES = {OVERLAP: INFERENCE, STREAMING: TRAIN}  # kind of calls, by lever


@dataclass(frozen=True, eq=False)
class LeverSpace:
    """Plans of ``options`` in which calls may be divided.

    Args:
        costs: that the options were made of. generation: plans of every generate call, by name.
        slacks: by generate call, of each option. shares: of prompts. memory_bytes: of a GPU.
    """

    options: CallOptions
    costs: CallCosts
    generation: Mapping[str, GenerationPlans]
    slacks: Mapping[int, tuple[float, ...]]
    shares: PromptShares
    memory_bytes: float

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return self.shares.prompts

    def calls_of(self, levers: tuple[str, ...]) -> tuple[int, ...]:
        """Return the calls that the levers may divide: those that follow a generation, of the levers' kinds."""
        kinds = {DIVIDES[lever] for lever in levers if lever in DIVIDES}
        calls = self.options.graph.calls
        return tuple(at for at, call in enumerate(calls) if call.kind in kinds and self.shares.of_call[at].any())

    def check(self, calls: tuple[int, ...]) -> None:
        """Refuse calls that cannot be divided, and costs that do not say what a training's optimizer takes.

        Raises:
            PlanningError: the sentence says what is missing.
        """
        for name, plans in self.generation.items():
            if plans.generation.workload.passes is not None:
                raise PlanningError(
                    f"the workload of {name!r} has passes, but parts follow responses of one token per pass; give what drafts "
                    "accept as drafts= instead"
                )
        for call in calls:
            if self.options.graph.calls[call].kind != TRAIN:
                continue
            if not callable(getattr(self.costs, "updates", None)):
                raise PlanningError(
                    "costs have no method updates, which says what the optimizer steps of a streamed training take; add it, or "
                    "leave out lever streaming"
                )
            updates, _ = self.updates(call, 0)
            if updates > self.prompts:
                raise PlanningError(
                    f"call {self.options.graph.calls[call].name!r} has {updates} mini-batches, but there are "
                    f"{counted(self.prompts, 'prompt')}; use fewer mini-batches, or leave out lever streaming"
                )

    def updates(self, call: int, option: int) -> tuple[int, float]:
        """Return the optimizer steps of a call in an option, and the seconds of each; none if it trains nothing."""
        of, layout = self.options.graph.calls[call], self.options.layouts[call][option]
        if of.kind != TRAIN:
            return 0, 0.0
        found = self.costs.updates(of, layout)  # type: ignore[attr-defined]
        if not (isinstance(found, tuple) and len(found) == 2 and is_whole(found[0], 1) and is_number(found[1], 0)):
            raise PlanningError(
                f"updates of call {of.name!r} are {as_given(found)}; the number of optimizer steps, and seconds of each, are "
                "needed"
            )
        return int(found[0]), float(found[1])

    def parts(self, call: int, option: int) -> CallParts:
        """Return the parts of a call in an option."""
        key = call, option
        if key not in self._parts:
            layout, seconds = self.options.layouts[call][option], float(self.options.seconds[call][option])
            shares = self.shares.of_call[call], self.shares.samples[call]
            self._parts[key] = CallParts.of(seconds, layout, *shares, *self.updates(call, option))
        return self._parts[key]

    @cached_property
    def _parts(self) -> dict[tuple[int, int], CallParts]:
        return {}

    @cached_property
    def _complete(self) -> dict[tuple[int, int, int, float], FloatArray]:
        return {}

    def complete_s(self, plan: IntArray) -> dict[int, FloatArray]:
        """Return by generate call the (G,) seconds from its start until all responses of each prompt are complete."""
        found = {}
        for call, slacks in self.slacks.items():
            layout, slack = self.options.layouts[call][plan[call]], slacks[plan[call]]
            key = call, layout.mesh.gpus, layout.strategy.tp, slack
            if key not in self._complete:
                name = self.options.graph.calls[call].name
                self._complete[key] = self.shares.complete_s(name, self.generation[name].completion_s(layout, slack))
            found[call] = self._complete[key]
        return found

    def planned(self, call: int, option: int) -> PlannedGeneration:
        """Return the generation plan of an option of a generate call."""
        name, layout = self.options.graph.calls[call].name, self.options.layouts[call][option]
        found = self.generation[name].of(layout, self.slacks[call][option])
        assert found is not None, "options can generate"
        return found

    def schedule(self, plan: IntArray, divided: frozenset[int]) -> PartsSchedule:
        """Return the schedule of a plan with all its prompts."""
        parts = {call: self.parts(call, int(plan[call])) for call in sorted(divided)}
        return PartsSchedule(self.options, plan, parts, self.complete_s(plan))

    def rough_period_s(self, plan: IntArray, divided: frozenset[int]) -> float:
        """Return about the period, with prompts joined to blocks."""
        complete_s = self.complete_s(plan)
        parts = {call: self.parts(call, int(plan[call])) for call in sorted(divided)}
        joined = self._blocks(parts, np.max(list(complete_s.values()), axis=0))
        latest = {call: np.zeros(int(joined.max()) + 1) for call in complete_s}
        for call, seconds in complete_s.items():
            np.maximum.at(latest[call], joined, seconds)
        rough = {call: of.joined(joined) for call, of in parts.items()}
        times = PartsSchedule(self.options, plan, rough, latest).times(STEPS)
        start_s, _ = times.of_task(min(complete_s))
        return float(start_s[-1] - start_s[-2])

    def _blocks(self, parts: Mapping[int, CallParts], complete_s: FloatArray) -> IntArray:
        """Return (G,) the block of each prompt: those of the same mini-batches that complete after one another."""
        batches = np.stack([np.zeros(self.prompts, np.int64), *(np.array(of.batch_of) for of in parts.values())], axis=1)
        batch = np.unique(batches, axis=0, return_inverse=True)[1].reshape(-1)
        each = max(2, BLOCKS // (int(batch.max()) + 1))
        block = np.zeros(self.prompts, np.int64)
        first = 0
        for one in range(int(batch.max()) + 1):
            own = np.flatnonzero(batch == one)
            own = own[np.argsort(complete_s[own], kind="stable")]
            count = min(each, len(own))
            block[own] = first + np.arange(len(own)) * count // len(own)
            first += count
        return block

    def peak_bytes(self, plan: IntArray, divided: frozenset[int]) -> FloatArray:
        """Return (N,) bytes that each GPU needs."""
        options, occupied = self.options, self.options.blocks(plan[None])[0]
        kept, working, turns = (np.zeros(options.gpus) for _ in range(3))
        for call, table in enumerate(options.memory):
            keeps, works, copy = table[plan[call]]
            train = options.graph.trained_by[call]
            if train is not None:
                copy = options.copies(call, plan[call : call + 1], plan[train : train + 1])[0]
            kept += occupied[call] * keeps
            own = occupied[call] * (works + copy)
            if call in divided:
                turns += own
            else:
                np.maximum(working, own, out=working)
        return np.asarray(kept + np.maximum(working, turns))

    def fits(self, plan: IntArray, divided: frozenset[int]) -> bool:
        """Return whether every GPU has enough bytes."""
        return self.memory_bytes == math.inf or float(self.peak_bytes(plan, divided).max()) <= self.memory_bytes

    def least_s(self, plan: IntArray, divided: frozenset[int]) -> float:
        """Return a lower bound on the period of this plan, for any order: GPU-seconds, and what follows the last response."""
        options, graph = self.options, self.options.graph
        durations = options.durations(plan[None])[0]
        gpus = options.meeting(plan[None])[1][0]
        gpu_s = durations * gpus
        for call, freed in options.freed_early.items():
            gpu_s[call] = freed.release_s[plan[call]].sum()
        bound_s = float(gpu_s.sum()) / options.gpus
        complete_s = self.complete_s(plan)
        for generate in complete_s:
            train = graph.trained_by[generate]
            if train is None:
                continue
            last = int(complete_s[generate].argmax())
            moved = options.reallocated.index(generate) + len(graph.calls)
            after_s = self.longest(
                generate, train, [self._tail_s(call, plan, divided, last, durations) for call in range(len(plan))]
            )
            bound_s = max(bound_s, float(durations[moved] + durations[generate] + after_s))
        return bound_s

    def _tail_s(self, call: int, plan: IntArray, divided: frozenset[int], prompt: int, durations: FloatArray) -> float:
        """Return the seconds of a call after the last prompt is there."""
        if call not in divided:
            return float(durations[call])
        parts = self.parts(call, int(plan[call]))
        return float(parts.least_s[prompt]) + parts.update_s

    def longest(self, first: int, last: int, seconds: list[float]) -> float:
        """Return the longest path from after a call to the end of another, 0 if none leads there."""
        graph = self.options.graph
        path = {first: 0.0}
        for call in graph.order:
            before = [path[one] for one in graph.after[call] if one in path]
            if before and call != first:
                path[call] = max(before) + seconds[call]
        return path.get(last, 0.0)


def with_slack(
    options: CallOptions, generation: Mapping[str, GenerationPlans]
) -> tuple[CallOptions, dict[int, tuple[float, ...]]]:
    """Return options in which generation may have slack, behind those without, and the slack of each by generate call."""
    layouts, seconds, memory = list(options.layouts), list(options.seconds), list(options.memory)
    slacks, freed_early = dict[int, tuple[float, ...]](), dict(options.freed_early)
    for call, freed in options.freed_early.items():
        plans = generation[options.graph.calls[call].name]
        found = [(at, 1.0) for at in range(len(layouts[call]))]
        found += [(at, slack) for slack in SLACKS for at in range(len(layouts[call])) if plans.of(layouts[call][at], slack)]
        of = [at for at, _ in found]
        release_s = freed.release_s[of]
        took = seconds[call][of]
        for row, (at, slack) in enumerate(found):
            layout = layouts[call][at]
            planned = plans.of(layout, slack)
            assert planned is not None, "only options that can generate are left"
            release_s[row, layout.mesh.first : layout.mesh.last] = planned.release_s
            took[row] = planned.plan.makespan_s
        layouts[call], seconds[call], memory[call] = tuple(layouts[call][at] for at in of), took, memory[call][of]
        freed_early[call] = FreedEarly(release_s, freed.least_s[of], freed.least_gpu_s[of])
        slacks[call] = tuple(slack for _, slack in found)
    every = replace(options, layouts=tuple(layouts), seconds=tuple(seconds), memory=tuple(memory), freed_early=freed_early)
    return every, slacks
