"""What the chaos benchmark does to a pool's actors, and what it counts.

Knows processes, signals and records; nothing of plans or engines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
from chaos_learning import CountingLearner

from rlhfless.executor import StepRecord
from rlhfless.executor.distributed.pool.pool import ActorPool

GONE_S = 30.0  # that what is ending may take to be gone


@dataclass
class Counts:
    """What came of the signals so far."""

    signals: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    lost_actors: int = 0
    retries: int = 0
    moves: int = 0
    lost: int = 0
    doubled: int = 0
    different: int = 0
    given_up: int = 0
    streams: bool = False
    not_learned: int = 0
    learned_again: int = 0
    other_gradients: int = 0
    learned_early: int = 0
    left_behind: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Signals sent to actors at work."""
        return self.signals.total()

    @property
    def learning(self) -> dict[str, int]:
        """What came of streaming: responses not learned from, learned from again, or before generation ended; wrong sums."""
        names = ("not_learned", "learned_again", "other_gradients", "learned_early")
        return {name: getattr(self, name) for name in names}

    def enter(
        self, policy: str, quiet: StepRecord, loud: StepRecord, entered: Counter[int], sent: Sequence[signal.Signals]
    ) -> None:
        """Add a disturbed step."""
        expected, found = token_bytes(quiet), token_bytes(loud)
        named = Counter(e["name"] for e in loud.events)
        self.steps += 1
        self.signals.update(kind.name for kind in sent)
        self.lost_actors += named["lost"]
        self.retries += sum(len(json.loads(e["detail"])["responses"]) for e in loud.events if e["name"] == "retry")
        self.moves += loud.moves
        self.lost += len(expected.keys() - found.keys())
        self.doubled += sum(n - 1 for n in entered.values())
        self.different += sum(tokens != expected[i] for i, tokens in found.items())
        self.rows.append(
            {
                "policy": policy, "signals": [kind.name for kind in sent], "lost_actors": named["lost"],
                "undisturbed_s": quiet.makespan_s, "undisturbed_gpu_s": gpu_seconds(quiet),
                "added_s": loud.makespan_s - quiet.makespan_s, "added_gpu_s": gpu_seconds(loud) - gpu_seconds(quiet),
            }
        )  # fmt: skip

    def enter_learning(self, quiet: CountingLearner, loud: CountingLearner, record: StepRecord) -> None:
        """Add what a disturbed step learned, beside the undisturbed one."""
        self.not_learned += len(quiet.learned.keys() - loud.learned.keys())
        self.learned_again += sum(n - 1 for n in loud.learned.values())
        self.other_gradients += (loud.gradient, loud.finished) != (quiet.gradient, 1)
        last_s = max(completion.time_s for completion in record.completions.values())
        self.learned_early += sum(len(ran.item.responses) for ran in record.work if ran.end_s < last_s)

    def summary(self) -> dict[str, Any]:
        """Sums, and what a lost actor adds."""
        felt = [r for r in self.rows if r["lost_actors"]]
        actors = sum(r["lost_actors"] for r in felt)
        added = {f"added_{what}_per_lost_actor": sum(r[f"added_{what}"] for r in felt) / actors if actors else None
                 for what in ("s", "gpu_s")}  # fmt: skip
        return {
            "kills": self.kills, "signals": dict(self.signals), "steps": self.steps, "lost_actors": self.lost_actors,
            "retries": self.retries, "moves": self.moves, "lost": self.lost, "doubled": self.doubled,
            "different": self.different, **(self.learning if self.streams else {}),
            "given_up": self.given_up, "left_behind": self.left_behind, **added,
            "undisturbed_s": float(np.mean([r["undisturbed_s"] for r in self.rows])) if self.rows else None,
            "undisturbed_gpu_s": float(np.mean([r["undisturbed_gpu_s"] for r in self.rows])) if self.rows else None,
        }  # fmt: skip


def write_counts(options: argparse.Namespace, began_s: float, found: dict[str, Any], rows: list[Any], **versions: str) -> None:
    """Write what was counted so far to ``options.out``, if it is a file: for a run that is stopped."""
    if options.out is not None:
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg(), **versions}
        asked = {name: value for name, value in vars(options).items() if name != "out"}
        whole = {**about, "options": asked, "took_s": time.monotonic() - began_s, **found, "rows": rows}
        options.out.write_text(json.dumps(whole, indent=1) + "\n")


class Striker(threading.Thread):
    """Sends signals to actors at work, each at its time after the start of this thread."""

    def __init__(self, pool: ActorPool[Any], delays_s: Sequence[float], kinds: Sequence[signal.Signals], seed: int) -> None:
        super().__init__(daemon=True)
        self.pool, self.plan = pool, sorted(zip(delays_s, kinds, strict=True))
        self.rng, self.over = np.random.default_rng(seed), threading.Event()
        self.sent: list[signal.Signals] = []
        self.stopped: list[int] = []

    def run(self) -> None:
        began = time.monotonic()
        for delay_s, kind in self.plan:
            if self.over.wait(max(0.0, began + delay_s - time.monotonic())):
                return
            working = [pid for pid in self.pool.working if pid not in self.stopped]
            if working:
                pid = int(self.rng.choice(working))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, kind)
                    self.sent.append(kind)
                    if kind == signal.SIGSTOP:
                        self.stopped.append(pid)

    def finish(self) -> None:
        """No more signals; what was stopped and is still there goes on."""
        self.over.set()
        self.join()
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def counted() -> Iterator[Counter[int]]:
    """How often each response is entered into a record, whatever the record makes of it."""
    found: Counter[int] = Counter()
    enter = StepRecord.enter

    def entered(self: StepRecord, together: Any) -> None:
        found.update(r for _, completions in together for r in completions.responses.tolist())
        enter(self, together)

    StepRecord.enter = entered  # type: ignore[method-assign]
    try:
        yield found
    finally:
        StepRecord.enter = enter  # type: ignore[method-assign]


@contextlib.contextmanager
def left_behind(counts: Counts) -> Iterator[None]:
    """Counts processes of this program and shared memory that were not there before."""
    resource_tracker.ensure_running()  # which lives as long as the program
    before = _there()
    yield
    ends_s = time.monotonic() + GONE_S
    while (more := _there() - before) and time.monotonic() < ends_s:
        time.sleep(0.05)
    counts.left_behind = sorted(more)


def _there() -> set[str]:
    """Processes that this one started, and theirs, and what it laid out in shared memory (on Linux)."""
    memory = {str(path) for path in Path("/dev/shm").glob(f"rlhfless-{os.getpid()}-*")}
    return memory | {f"process {pid} ({name})" for pid, name in descendants(os.getpid()).items()}


def descendants(pid: int) -> dict[int, str]:
    """Processes that a process started, and theirs, with their names; none that has ended (on Linux)."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, rest = entry.read_text().rsplit(")", 1)
            state, parent = rest.split()[:2]
            if state != "Z":
                parents[int(entry.parent.name)], names[int(entry.parent.name)] = int(parent), name.split("(", 1)[1]
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return {one: names[one] for one in found}


def gpu_seconds(record: StepRecord) -> float:
    """Of the step's own actors."""
    return float(sum((a["end_s"] - a["start_s"]) * len(a["gpu_ids"]) for a in record.allocations if a["role"] != "warm"))


def token_bytes(record: StepRecord) -> dict[int, bytes]:
    """Of each response, its tokens."""
    return {i: np.asarray(c.token_ids, dtype=np.int64).tobytes() for i, c in record.completions.items()}
