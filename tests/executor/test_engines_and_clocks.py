"""The documented table of engines and clocks: every pair works, or is refused in a sentence that names one that works."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from executor_samples import plan_of
from small_server import small_server
from tiny_architectures import EOS, tiny
from torch_wall_samples import LATENCY, factory_of
from vllm_samples import factory_of as vllm_factory_of
from vllm_samples import model_of, needs_vllm

import rlhfless.engine
from rlhfless.engine import (
    FaultInjectingFactory,
    Request,
    ServerEngineFactory,
    SimulatedEngine,
    SimulatedEngineFactory,
    TorchEngineFactory,
    TransformersModel,
)
from rlhfless.engine.vllm.weight_folders import write_weights
from rlhfless.executor import Executor, ProcessPool, RayPool
from rlhfless.latency.effects import Effects
from solver import Cluster, PlanningError

PAGE = Path(__file__).parents[2] / "docs" / "executing_and_training.md"
TOKENS = [3, 5, 2, 4]
NAMES = {  # words of a sentence that name a column
    "virtual clock": ("virtual clock", "charging='profile'"),
    "virtual clock, measured": ("charging='measured'",),
    "ProcessPool": ("ProcessPool",),
    "RayPool": ("RayPool",),
}
SLOW, SLOWEST = {("TransformersModel", "ProcessPool")}, {("TransformersModel", "RayPool")}


def vllm_factory(folder: Path) -> Any:
    return vllm_factory_of(write_weights(model_of(3), folder, 0), 0)


ENGINES: dict[str, Callable[[Path], Any]] = {
    "SimulatedEngine": lambda folder: SimulatedEngine,
    "SimulatedEngineFactory": lambda folder: SimulatedEngineFactory(time_scale=0.5),
    "FaultInjectingFactory": lambda folder: FaultInjectingFactory(Effects()),
    "TorchEngineFactory": lambda folder: factory_of(),
    "TransformersModel": lambda folder: TorchEngineFactory(TransformersModel(tiny("gemma2")), EOS),
    "VllmEngineFactory": vllm_factory,
    "ServerEngineFactory": lambda folder: ServerEngineFactory(),
}


def table() -> dict[str, dict[str, str]]:
    """What the page says, by engine and column."""
    section = PAGE.read_text("utf-8").split("## Which engine runs on which clock\n")[1].split("\n## ")[0]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*$", section, re.M))
    columns = [name.strip("`") for name in head[1:]]
    return {name: dict(zip(columns, row[1:], strict=True)) for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def combinations() -> Iterator[Any]:
    """One for each cell. Ray and processes that import transformers take long, where they are really started.

    vLLM takes longest; ``test_vllm_emulated.py`` and ``test_vllm_wall.py`` run it with every change.
    """
    for engine, cells in table().items():
        for column, said in cells.items():
            real = column == "RayPool" or (said == "works" and ((engine, column) in SLOW or engine == "VllmEngineFactory"))
            slowest = engine == "VllmEngineFactory" or (engine, column) in SLOWEST
            tier = pytest.mark.nightly if slowest else pytest.mark.full
            marks = [tier] * real + [needs_vllm] * (engine == "VllmEngineFactory")
            yield pytest.param(engine, column, said, marks=marks, id=f"{engine}-{column.replace(', ', '-')}")


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """Of a cluster for all of them."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    from ray_samples import two_nodes

    with two_nodes() as nodes:
        yield nodes.address


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """Of a server for all of them."""
    with small_server() as server:
        yield server.url


def executor_of(engine: Any, column: str, request: pytest.FixtureRequest) -> Executor:
    """On the clock of a column."""
    latency, how = replace(LATENCY, max_batch=6), {}
    if column == "ProcessPool":
        device = request.getfixturevalue("server_url") if isinstance(engine, ServerEngineFactory) else "cpu"
        how = {"actor_pool": ProcessPool([device])}
    elif column == "RayPool":
        how = {"actor_pool": RayPool(request.getfixturevalue("ray_address"), runtime_env={})}
    elif column == "virtual clock, measured":
        how = {"charging": "measured"}
    return Executor(engine, Cluster(1, 1, 1), latency=latency, **how)  # type: ignore[arg-type]


def test_the_table_has_every_engine_and_every_clock() -> None:
    makes_engines = {name for name in rlhfless.engine.__all__ if name.endswith("Factory")} | {"SimulatedEngine"}
    assert set(table()) == makes_engines | {"TransformersModel"} == set(ENGINES)
    assert {column for cells in table().values() for column in cells} == set(NAMES)
    assert all("works" in cells.values() for cells in table().values()), "every engine works somewhere"


@pytest.mark.parametrize(("engine", "column", "said"), list(combinations()))
def test_the_table_says_what_works(engine: str, column: str, said: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    asked = [
        Request(i, 6, 30, prompt_ids=np.arange(2, 8), seed=i, prompt=i // 2, target_tokens=n) for i, n in enumerate(TOKENS)
    ]
    plan = plan_of([range(len(asked))], slots=6)

    def run() -> Any:
        with executor_of(ENGINES[engine](tmp_path), column, request) as executor:
            return executor.run(plan, asked)

    if said == "works":
        completions = run().completions
        assert {i: c.response_tokens for i, c in sorted(completions.items())} == dict(enumerate(TOKENS))
        return
    assert said == "refused"
    with refused((PlanningError, TypeError), engine) as refusal:
        run()
    works = [other for other, cell in table()[engine].items() if cell == "works"]
    assert any(word in str(refusal.value) for other in works for word in NAMES[other]), "it names one that works"
