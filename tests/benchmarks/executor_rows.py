"""Simulated rows of ``executor_speed.py``: what each of them runs, and how two trees run them in turn.

Plans are made by this tree and given to every tree as bytes, so that an older tree with another interface for planning runs
them, too. Each tree makes its own requests, latency model and rule. As a script this runs the rows that it is told to.

    python tests/benchmarks/executor_rows.py INPUTS    # rows by their numbers on standard input, a line of JSON for each
"""

from __future__ import annotations

import heapq
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SAMPLES, LIMIT, PROFILE = 8, 2048, "l40s-qwen2.5-3b-tp2"
GPUS = 2  # of an actor
SHORT_S, OFTEN = 0.3, 5
AIMS = {"none": 1_000_000, "tau": 100_000, "draining fold": 100_000, "replan": 100_000}
ACTORS = {2048: (8, 66), 16384: (16, 66)}  # of rows with a rule, by responses
TIMED = ("add", "advance", "cut", "peek_next_event_s", "running", "waiting", "token_arrays")
TIMED_BEFORE = ("next_completions_s", "generated_arrays")  # what engines of older trees were asked instead

Row = dict[str, Any]


class Input(NamedTuple):
    """A step: prompt tokens and lengths, its plan without its rule, and the rule with its price of time."""

    rule: str
    prompt_tokens: Any
    lengths: Any
    plan: Any
    price: float
    levels: tuple[str, ...] = ("run_step",)

    @property
    def responses(self) -> int:
        """Return how many there are."""
        return int(self.lengths.size)

    @property
    def actors(self) -> int:
        """Return how many the plan starts."""
        return len(self.plan.actors)


def inputs(prompts: int) -> list[Input]:
    """Return the steps that are measured, the largest of ``prompts`` prompts; needs this tree's interface for planning."""
    from dataclasses import replace

    from rlhfless.latency import load_profile
    from rlhfless.scheduling import PlanningOptions, make_policy
    from solver import Cluster, Workload
    from solver.generation.random_split import random_split
    from solver.model.problem import PlanningProblem

    latency, made = load_profile(PROFILE), []
    for responses, counts in ACTORS.items():
        rng, largest = np.random.default_rng(0), responses == max(ACTORS)
        count = max(prompts * responses // max(ACTORS), 2)
        lengths = np.clip(rng.lognormal(5.3, 0.8, (count, SAMPLES)).astype(int), 1, LIMIT)
        tokens = rng.integers(50, 200, count)
        work = Workload.grid(tokens, lengths, max_response_tokens=LIMIT)
        for rule in AIMS:
            if rule in ("none", "tau"):
                if largest:
                    problem = PlanningProblem(work, Cluster(8, 8, GPUS), latency)
                    policy = make_policy("random" if rule == "none" else "rlhfless")
                    plan = policy.plan(problem, PlanningOptions())
                    levels = ("1 engine", "engines", "run_step", "run_step, read")
                    made.append(Input(rule, tokens, lengths, replace(plan, rule=None), 0.0, levels[rule == "tau" :]))
                if rule == "none":
                    continue
            for actors in (13,) if rule == "tau" else counts:
                problem = PlanningProblem(work, Cluster(-(-actors * GPUS // 8), 8, GPUS), latency)
                plan = random_split(problem, actors=min(actors, count))
                price = problem.objective.cost_of_a_second(plan.makespan_s, plan.gpu_seconds) / GPUS  # as ``Fold`` does
                made.append(Input(rule, tokens, lengths, plan, price))
    return made


def rows_of(steps: Sequence[Input]) -> list[Row]:
    """Return the rule, the responses, the actors and the level of each row."""
    rows = [{"rule": "none", "responses": steps[-1].responses, "actors": None, "level": "requests to rows"}]
    return rows + [
        {"rule": s.rule, "responses": s.responses, "actors": s.actors, "level": level} for s in steps for level in s.levels
    ]


def runners(steps: Sequence[Input]) -> Iterator[Callable[[], Row]]:
    """Yield the functions that run each row once; they return ``seconds`` of this process, ``moves`` and ``looks``."""
    from rlhfless.engine.protocol import Request
    from rlhfless.engine.simulated.requests import Requests

    kept: dict[int, Any] = {}

    def requests_of(step: Input) -> Any:
        if step.responses not in kept:
            prompt, lengths = np.repeat(step.prompt_tokens, SAMPLES).tolist(), step.lengths.ravel().tolist()
            columns = enumerate(zip(prompt, lengths, strict=True))
            listed = [Request(i, p, LIMIT, target_tokens=n) for i, (p, n) in columns]
            kept[step.responses] = listed, Requests(listed)
        return kept[step.responses]

    yield lambda: {"seconds": _seconds(lambda: Requests(requests_of(steps[-1])[0]))}
    for step in steps:
        for level in step.levels:
            yield lambda step=step, level=level: _run(step, level, requests_of(step)[1])


def least_us(repeats: int = 20_000) -> Row:
    """Return the least microseconds per piece of work, each in a loop by itself: ``iteration``, the time of an iteration of a
    batch that is asked for five; ``record``, what a record and the receiver's engine keep of a move."""
    from rlhfless.engine.protocol import Request
    from rlhfless.engine.simulated.requests import changed, row_of
    from rlhfless.executor import StepRecord
    from rlhfless.latency import load_profile
    from solver.model.runtime_rules import Move

    table, record, heap = load_profile(PROFILE).table, StepRecord("run", 0, None, 0.0), list[tuple[float, int]]()
    request = Request(7, 100, LIMIT, target_tokens=300, generated_tokens=50)

    def iterations() -> None:
        for _ in range(repeats // 5):
            table.added_up_s(0.0, 100, 40_000, 5)

    def moves() -> None:
        for number in range(repeats):
            move, at_s = Move(7, 12), float(number)
            record.event(at_s, "move", "actor-3", responses=1, to={"actor-12": [move.response]})
            what = {"kv_tokens": 150.0, "bytes": 5_529_600, "from_actor": "actor-3", "response": 7}
            record.span("actor-3", "migrate", at_s, at_s + 1, **what)
            record.span("actor-12", "transfer", at_s, at_s + 1, background=True, **what)
            heapq.heappush(heap, (at_s, row_of(changed(request, available_s=at_s))[0]))
            heapq.heappop(heap)

    return {
        name: 1e6 * min(_seconds(of) for _ in range(3)) / repeats for name, of in (("iteration", iterations), ("record", moves))
    }


def _seconds(once: Callable[[], object]) -> float:
    began = time.process_time()
    once()
    return time.process_time() - began


def _run(step: Input, level: str, requests: Any) -> Row:
    """Run a step once at a level."""
    from dataclasses import replace

    from rlhfless.engine.simulated.engine import SimulatedEngine
    from rlhfless.executor import run_step
    from rlhfless.latency import load_profile
    from solver import Cluster
    from solver.model.admission import Admission

    latency = load_profile(PROFILE)
    cluster = Cluster(-(-step.actors * GPUS // 8), 8, GPUS)
    if step.rule == "none" and level in ("1 engine", "engines"):
        parts = [requests] if level == "1 engine" else [requests.take(actor.responses) for actor in step.plan.actors]

        def decode() -> None:
            for part in parts:
                engine = SimulatedEngine(latency, Admission(latency.max_batch, latency.kv_capacity_tokens))
                engine.add(part)
                assert len(engine.advance(math.inf).completions) == len(part)

        return {"seconds": _seconds(decode)}
    plan, records = replace(step.plan, rule=_rule(step, latency)), []

    def run(engine: type = SimulatedEngine) -> None:
        records.append(run_step(plan, requests, engine, latency, cluster))
        if level == "run_step, read":
            assert records[0].spans
            assert len(records[0].completions) == len(records[0].actor_of)

    engines, inside = _timed(SimulatedEngine)
    seconds = _seconds(lambda: run(engines)) if level == "engines" else _seconds(run)
    seconds = inside[0] if level == "engines" else seconds
    return {"seconds": seconds, "moves": records[0].moves, "looks": getattr(records[0].rule, "looks", 0)}


class _Counting:
    """A rule that counts how often it is asked to decide."""

    looks = 0

    def decide(self, now_s: float, state: Any) -> Any:
        """Count, and decide as the rule does."""
        self.looks += 1
        return super().decide(now_s, state)  # type: ignore[misc]


def _rule(step: Input, latency: Any) -> Any:
    """Return the rule of a step, made by the tree that runs it, which counts how often it is asked."""
    if step.rule == "none":
        return None
    rule = _plain_rule(step, latency)
    rule.__class__ = type("Counting", (_Counting, type(rule)), {})
    return rule


def _plain_rule(step: Input, latency: Any) -> Any:
    if step.rule == "tau":
        from rlhfless.scheduling.rules import LocalCut

        return LocalCut(0.7)
    if step.rule == "replan":
        from solver import Workload
        from solver.lengths.survival import from_scenarios
        from solver.replanning.replan import Replan

        work = Workload.grid(step.prompt_tokens, step.lengths, max_response_tokens=LIMIT)
        return Replan(from_scenarios(work), latency, step.price)
    from rlhfless.scheduling.rules import DrainingFold

    return DrainingFold(step.price, latency.affine, step.responses, step.actors)


def _timed(engine: type) -> tuple[type, list[float]]:
    """Return the engines with stopwatches, and the seconds inside of them all."""
    inside = [0.0]

    def timed(name: str) -> Callable[..., Any]:
        inner = getattr(engine, name)

        def call(self: Any, *args: Any) -> Any:
            began, before = time.process_time(), inside[0]
            found = inner(self, *args)
            inside[0] = before + time.process_time() - began  # what it calls of its own is in it once
            return found

        return call

    return type("Timed", (engine,), {name: timed(name) for name in (*TIMED, *TIMED_BEFORE) if hasattr(engine, name)}), inside


class Tree:
    """A process that runs rows with the packages of one folder.

    Raises:
        RuntimeError: the packages of another folder would be imported.
    """

    def __init__(self, folder: Path, steps: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(steps)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        found = Path(self._answer()["package"])
        if folder.resolve() not in found.resolve().parents:
            raise RuntimeError(f"{folder} was to be measured, but rlhfless is imported from {found}")

    def _answer(self) -> Row:
        assert self._process.stdout is not None
        answer: Row = json.loads(self._process.stdout.readline())
        return answer

    def run(self, row: int) -> Row:
        """Return ``seconds``, ``moves`` and ``looks`` of a row, or its ``error``."""
        assert self._process.stdin is not None
        print(row, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measured(steps: Sequence[Input], folders: Sequence[Path], rounds: int) -> Iterator[Row]:
    """Yield the rows, which the packages of all folders run in turn: the best ``seconds`` of each, ``moves`` and ``looks``.

    Rows that take less than ``SHORT_S`` run ``OFTEN`` times as many rounds. Where a tree cannot run a row, its seconds are None
    and ``errors`` says why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "steps.pickle"
        file.write_bytes(pickle.dumps(list(steps)))
        trees = [Tree(folder, file) for folder in folders]
        for number, row in enumerate(rows_of(steps)):
            if number == 0:
                [tree.run(1) for tree in trees]  # imports and caches
            runs = [[tree.run(number) for tree in trees] for _ in range(rounds)]
            if all(one.get("seconds", 0.0) < SHORT_S for one in runs[0]):
                runs += [[tree.run(number) for tree in trees] for _ in range(rounds * (OFTEN - 1))]
            errors = [one.get("error") for one in runs[0]]
            seconds = [
                None if error else min(one["seconds"] for one in of_tree)
                for error, of_tree in zip(errors, zip(*runs, strict=True), strict=True)
            ]
            counts = {name: [one.get(name) for one in runs[0]] for name in ("moves", "looks")}
            yield {**row, "seconds": seconds, **counts, "errors": errors}
        for tree in trees:
            tree.close()


def main() -> None:
    """Run the rows whose numbers come on standard input."""
    import rlhfless

    print(json.dumps({"package": rlhfless.__file__}), flush=True)
    steps: list[Input] = []
    functions: list[Callable[[], Row]] = []
    for line in sys.stdin:
        try:
            if not functions:
                steps = pickle.loads(Path(sys.argv[1]).read_bytes())
                functions = list(runners(steps))
            print(json.dumps(functions[int(line)]()), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main()
