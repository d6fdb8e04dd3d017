"""Writes what a pipeline plan consists of as JSON and reads it again, bit for bit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from solver.model.errors import PlanningError
from solver.pipeline.operations import Operation
from solver.pipeline.problem import Chain, PipelineProblem

FORMAT = "pipeline plan 1"
NUMBERS = ("latency", "latency_bound", "peak_memory", "memory_bound")
OPERATION = re.compile(r"(\d+)([FBIW])(\d+)")


class PlanParts(NamedTuple):
    """A plan's problem, orders per device, numbers by name (``NUMBERS``), and the fields of its search."""

    problem: PipelineProblem
    orders: Sequence[Sequence[Operation]]
    numbers: Mapping[str, float]
    search: Mapping[str, Any]


def parts_to_json(parts: PlanParts) -> str:
    """Return a plan as JSON; an operation is chain, kind and stage, as in ``0F3``."""
    orders = [" ".join(f"{op.chain}{op.kind}{op.stage}" for op in order) for order in parts.orders]
    problem = asdict(parts.problem)
    return json.dumps({"format": FORMAT, "problem": problem, **parts.numbers, "search": dict(parts.search), "orders": orders})


def parts_from_json(text: str) -> PlanParts:
    """Return what ``parts_to_json`` has written.

    Raises:
        PlanningError: the text is something else or of another version, or its problem has a value out of range.
    """
    try:
        found = json.loads(text)
        if (format := found["format"]) != FORMAT:
            if not re.fullmatch(r"pipeline plan \d+", str(format)):
                raise KeyError
            raise PlanningError(
                f"the text is {format!r}, and this version reads {FORMAT!r}; use the version of RLHFless that wrote it"
            )
        numbers = {name: float(found[name]) for name in NUMBERS}
        return PlanParts(_problem(found["problem"]), [_order(line) for line in found["orders"]], numbers, dict(found["search"]))
    except PlanningError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError):
        raise PlanningError("the text is not a pipeline plan; the JSON of PipelinePlan.to_json is needed") from None


def _problem(found: dict[str, Any]) -> PipelineProblem:
    chains = [Chain(**chain) for chain in found["chains"]]
    options = {name: found[name] for name in ("transfer", "memory", "split_backward", "kept_for_weights")}
    return PipelineProblem(chains, found["devices"], **options)


def _order(line: str) -> list[Operation]:
    found = [OPERATION.fullmatch(word) for word in line.split()]
    return [Operation(int(match[1]), match[2], int(match[3])) for match in found]  # type: ignore[index]
