"""Functions of work items for actors of a scripted world: they take time on the actor's clock, and say what they were given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from scripted_engine import HERE

from rlhfless.executor import Gpus, WorkItem

CALLS: list[str] = []
"""Names of the items whose functions were called, in order; a test clears it."""


def act(name: str, seconds: float, completions: Sequence[Any], results: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Take some time; return the name, and what came in: tokens of the responses, names of the items before."""
    HERE[-1].sleep(seconds * HERE[-1].slowness)
    CALLS.append(name)
    return name, (*(c.response_tokens for c in completions), *(result[0] for result in results))


def fail(completions: Sequence[Any], results: Sequence[Any]) -> None:
    """Fail."""
    raise ValueError("no such token")


def die(completions: Sequence[Any], results: Sequence[Any]) -> None:
    """Kill the process, which says nothing any more."""
    CALLS.append("die")
    actor = HERE[-1]
    actor.end("was killed by SIGKILL", 0)
    actor.send = lambda message: None


def die_once(completions: Sequence[Any], results: Sequence[Any]) -> Any:
    """Kill the process the first time."""
    return act("learn", 0.01, completions, results) if "die" in CALLS else die(completions, results)


def hang(completions: Sequence[Any], results: Sequence[Any]) -> None:
    """Stop the process."""
    CALLS.append("hang")
    stop()


def hang_once(completions: Sequence[Any], results: Sequence[Any]) -> Any:
    """Stop the process the first time."""
    return act("learn", 0.01, completions, results) if "hang" in CALLS else hang(completions, results)


def stop() -> None:
    """Stop the process, which says nothing any more."""
    actor = HERE[-1]
    actor.suffer("stop")
    actor.send = lambda message: None


def acting(kind: str, name: str, seconds: float = 0.01, *, limit_s: float | None = None, **more: Any) -> WorkItem:
    """An item with that function; a silent process is lost after a time that ``limit_s`` says."""
    return WorkItem(kind, limit_s, partial(act, name, seconds), **more)


def group_work(groups: Sequence[Sequence[int]], learner: Gpus, released: Gpus, limit_s: float | None = 0.01) -> list[WorkItem]:
    """Every response is prepared on released GPUs, groups are learned from on the learner's, and the optimizer steps last."""
    responses = [r for group in groups for r in group]
    work = [acting("prepare", f"prepare {r}", gpus=released, responses=(r,), limit_s=limit_s) for r in responses]
    for number, group in enumerate(groups):
        of_group = tuple(responses.index(r) for r in group)
        work.append(acting("learn", f"learn {number}", 0.02, gpus=learner, items=of_group, limit_s=limit_s))
    every = tuple(range(len(responses), len(work)))
    return [*work, acting("learn", "optimizer", gpus=learner, items=every, after_s=0.05, limit_s=limit_s)]
