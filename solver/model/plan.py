"""Defines ``Plan``: which actors to start and which responses each generates, with predicted times, costs and lower bound.

How a plan is found or executed plays no part.
"""

from __future__ import annotations

import html
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from solver.model.acceptance import Acceptance
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError, as_given
from solver.model.html_tables import rows_table
from solver.model.plurals import counted
from solver.model.runtime_rules import RuntimeRule

if TYPE_CHECKING:
    import pandas as pd

RELEASE = ("done", "generation", "step")


def check_plan(plan: Any) -> None:
    """Refuse anything but a plan (a PlanningError)."""
    if not isinstance(plan, Plan):
        raise PlanningError(f"plan is {as_given(plan)}; a Plan is needed")


def check_release(release: str) -> None:
    """Refuse a release policy that is not one of ``RELEASE`` (a PlanningError)."""
    if not isinstance(release, str) or release not in RELEASE:
        raise PlanningError(f"release {as_given(release)} is unknown; choose one of {', '.join(RELEASE)}")


@dataclass(frozen=True)
class ActorPlan:
    """One actor of a plan.

    Attributes:
        kind: GPU kind; gpu_ids: its GPUs, all in ``node``.
        responses: indices into the workload, in admission order; prompts: the prompts they belong to, each once.
        max_batch: slots.
        start_s: when its GPUs are allocated, in seconds from the start of the step.
        prefixes: prompts of which it receives KV cache from the prefill actor instead of computing it. prefix_tokens: how many
            tokens of each of these, from its beginning; the whole prompt when equal to its length.
        release: its GPUs are released when it is ``done``, at the end of ``generation``, or of the ``step``.
        predicted_s: when its last response is complete, in seconds from the start of the step.
        market, usd_per_gpu_s: how its GPUs are paid for.
        prewarmed: it starts without the cold start.
        receive_s: seconds that it waits, once started and synced, until its ``prefixes`` have arrived.
        shares_prompts: samples of one prompt on this actor share one prefill.

    Raises:
        PlanningError: ``prefix_tokens`` has not one entry for each of ``prefixes``.
    """

    kind: str
    gpu_ids: tuple[int, ...]
    node: int
    responses: tuple[int, ...]
    prompts: tuple[int, ...]
    max_batch: int
    start_s: float = 0.0
    prefixes: tuple[int, ...] = ()
    prefix_tokens: tuple[int, ...] = ()
    release: str = "done"
    predicted_s: float = 0.0
    market: str = "on-demand"
    usd_per_gpu_s: float = 0.0
    prewarmed: bool = False
    receive_s: float = 0.0
    shares_prompts: bool = False

    def __post_init__(self) -> None:
        if len(self.prefixes) != len(self.prefix_tokens):
            raise PlanningError(
                f"an actor has {len(self.prefixes)} prefixes and {len(self.prefix_tokens)} prefix_tokens; one of each is needed"
            )


@dataclass(frozen=True)
class Prefill:
    """The prefixes that a prefill actor, on GPUs of its own or on the learner's, computes once for all actors that
    receive them.

    Attributes:
        prompts: of which a prefix is computed; prefix_tokens: how many tokens of each of these, from its beginning.
        computed_tokens: of all these prefixes together, what they share counted once.
        done_s: when the last of them is computed, from the start of the step.
    """

    prompts: tuple[int, ...]
    prefix_tokens: tuple[int, ...]
    computed_tokens: int
    done_s: float


@dataclass(frozen=True)
class Reference:
    """Time and cost of the whole step for the right-sized random split, relative to which ``T^w C^(1-w)`` is shown.

    Over scenarios these are its means, so the split's own value is not 1 there.
    """

    actors: int
    time_s: float
    gpu_s: float
    usd: float = 0.0

    def norms(self, cost: str) -> tuple[float, float]:
        """Return T_ref and C_ref, the latter in the unit ``cost`` (``gpu_s`` or ``usd``)."""
        return self.time_s, self.gpu_s if cost == "gpu_s" else self.usd


@dataclass(frozen=True)
class HistoryEntry:
    """One line of a plan's history: after ``at_s`` seconds ``solver`` reached ``value`` with the bound ``lower_bound``."""

    solver: str
    at_s: float
    value: float
    lower_bound: float


@dataclass(frozen=True)
class Moved:
    """What one part of planning changed: it lowered the value by ``value_by`` and raised the bound by ``bound_by``.

    ``value_by`` is infinite for the part that found the first plan that meets the limit.
    """

    solver: str
    value_by: float
    bound_by: float


@dataclass(frozen=True)
class Plan:
    """A generation plan of one step: the actors, and the responses of each.

    Times and costs are those of the planning model: predicted lengths (or the mean over their scenarios) and linear latency.
    ``solver.evaluate`` returns the same numbers. ``value`` is what the objective minimises: ``T^w C^(1-w)`` relative to
    ``reference``, the cost under a deadline, or the time under a budget. No plan has a value below ``lower_bound``; it refers
    to the planning model, not to the true lengths, and is None for policies without a bound. ``prefill`` is None if every actor
    prefills its own prompts; otherwise an actor without responses is the prefill actor. ``drafting`` is None without
    speculative decoding; ``acceptance`` is the expected acceptance of drafted tokens.
    """

    actors: tuple[ActorPlan, ...]
    policy: str
    makespan_s: float
    gpu_seconds: float
    cost_usd: float
    reference: Reference | None = None
    value: float | None = None
    lower_bound: float | None = None
    status: str = "heuristic"
    solve_s: float = 0.0
    history: tuple[HistoryEntry, ...] = ()
    prefill: Prefill | None = None
    rule: RuntimeRule | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    drafting: Drafting | None = None
    acceptance: Acceptance | None = None

    @property
    def gap(self) -> float | None:
        """Return the gap ``(value - lower_bound) / value``; None without a bound."""
        if self.value is None or self.lower_bound is None:
            return None
        return max(0.0, (self.value - self.lower_bound) / self.value) if self.value > 0 else 0.0

    @property
    def prefill_actor(self) -> int | None:
        """Return the index of the actor that only computes ``prefill``; None if there is none."""
        if self.prefill is None:
            return None
        return next((i for i, actor in enumerate(self.actors) if not actor.responses), None)

    def moved(self) -> tuple[Moved, ...]:
        """Return the improvement by each part of planning, from ``history``, in order.

        The first line is the initial plan. Parts that ran without an improvement are included.
        """
        rows = {line.solver: Moved(line.solver, 0.0, 0.0) for line in self.history}
        for before, line in itertools.pairwise(self.history):
            row, falls = rows[line.solver], 0.0 if line.value == before.value else before.value - line.value
            rows[line.solver] = Moved(line.solver, row.value_by + falls, row.bound_by + line.lower_bound - before.lower_bound)
        return tuple(rows.values())

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready object with every field; a value in the history is None until a plan meets the limit.

        ``drafting`` and ``predicted_survival`` are in plans with drafts only.
        """
        drafts: dict[str, Any] = {} if self.drafting is None else {"drafting": self.drafting.to_dict()}
        if self.drafting is not None and self.acceptance is not None:
            drafts["predicted_survival"] = self.acceptance.survival.tolist()
        return {
            "policy": self.policy,
            "status": self.status,
            "makespan_s": self.makespan_s,
            "gpu_seconds": self.gpu_seconds,
            "cost_usd": self.cost_usd,
            "value": self.value,
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "solve_s": self.solve_s,
            "rule": self.rule.name if self.rule else None,
            "reference": None if self.reference is None else vars(self.reference),
            "history": [{**vars(line), "value": line.value if math.isfinite(line.value) else None} for line in self.history],
            "prefill": None if self.prefill is None else vars(self.prefill),
            "notes": dict(self.notes),
            "actors": [vars(actor) for actor in self.actors],
            **drafts,
        }

    def to_json(self) -> str:
        """Return the plan as one JSON object."""
        return json.dumps(self.to_dict(), default=list)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per actor (needs pandas)."""
        import pandas as pd

        rows = [
            {
                "actor": i,
                "kind": a.kind,
                "node": a.node,
                "gpu_ids": list(a.gpu_ids),
                "responses": len(a.responses),
                "prompts": len(a.prompts),
                "max_batch": a.max_batch,
                "start_s": a.start_s,
                "predicted_s": a.predicted_s,
                "release": a.release,
            }
            for i, a in enumerate(self.actors)
        ]
        return pd.DataFrame(rows)

    def _head(self) -> list[str]:
        """Return the lines of the plan's ``repr`` above its actors: policy, times, costs, bound."""
        gpus = sum(len(a.gpu_ids) for a in self.actors)
        price = f", {self.cost_usd:.4f} USD" if self.cost_usd else ""
        lines = [
            f"Plan by {self.policy!r}: {counted(len(self.actors), 'actor')} on {counted(gpus, 'GPU')}, "
            f"{counted(sum(len(a.responses) for a in self.actors), 'response')}",
            f"  makespan {self.makespan_s:.2f} s, {self.gpu_seconds:.1f} GPU-seconds{price} (predicted)",
        ]
        ends = [f"{actor.predicted_s:.2f}" for actor in self.actors]
        if ends and max(map(float, ends)) < float(f"{self.makespan_s:.2f}"):  # as shown
            lines.append("  all times are means over scenarios of lengths, which do not all have the same last actor")
        if self.reference is not None:
            ref = self.reference
            lines.append(
                f"  right-sized random split: {counted(ref.actors, 'actor')}, {ref.time_s:.2f} s, {ref.gpu_s:.1f} GPU-seconds"
            )
        if self.gap is not None:
            lines.append(
                f"  {self.status}: minimised to {self.value:.5f}, and no plan is below {self.lower_bound:.5f} "
                f"(gap {self.gap:.2%}, by the planning model): "
                "T^w C^(1-w) relative to that split, or under a limit the time or the cost"
            )
        if self.rule is not None:
            lines.append(f"  the rule {self.rule.name!r} may move responses while the step runs")
        if self.drafting is not None:
            lines.append(f"  drafts: {self.drafting.length}, at most {self.drafting.max_draft_tokens} tokens")
        return lines

    def __repr__(self) -> str:
        lines = self._head()
        shown = self.actors[: max(0, 9 - len(lines))]
        mixed = len({(a.kind, a.market) for a in self.actors}) > 1
        lines += [
            f"  actor {i}: {f'{a.market} {a.kind} ' if mixed else ''}GPUs {','.join(map(str, a.gpu_ids))}, "
            f"{counted(len(a.responses), 'response')}, done at {a.predicted_s:.2f} s"
            for i, a in enumerate(shown)
        ]
        if len(self.actors) > len(shown):
            lines.append(f"  ... and {counted(len(self.actors) - len(shown), 'more actor')}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            (str(i), a.kind, ",".join(map(str, a.gpu_ids)), f"{len(a.responses):,}", f"{a.predicted_s:.2f}")
            for i, a in enumerate(self.actors)
        ]
        head = "".join(f"<div>{html.escape(line)}</div>" for line in self._head())
        table = rows_table("Actors", ("actor", "kind", "GPU ids", "responses", "done at (s)"), rows)
        return f"<div>{head}{table}</div>"
