"""Package fronts: they name what users need and show nothing else; notebooks, README and docs import from them.

``solver`` is the exception: it names what describes a problem, plans it and judges a plan, and the rest is imported from its
module."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRONTS = (
    "rlhfless", "rlhfless.trace", "rlhfless.latency", "rlhfless.predict", "rlhfless.engine", "rlhfless.executor",
    "rlhfless.scheduling", "rlhfless.simulate", "rlhfless.analysis", "rlhfless.plots", "rlhfless.training", "rlhfless.run",
    "rlhfless.report", "rlhfless.widgets", "solver", "solver.layouts", "solver.pipeline",
    "rlhfless.scheduling.published",
)  # fmt: skip
NEEDS = {"VllmEngineFactory": "vllm", "TrlRecorder": "transformers"}
"""Names whose loading needs an optional package."""
# a command's module is its front: only the one that runs is imported
INNER = re.compile(r"^\s*(?:>>> )?(?:from|import)\s+(rlhfless(?!\.scheduling\.published\s|\.cli\.)(?:\.\w+){2,})", re.MULTILINE)
OF_THE_SOLVER = re.compile(r"^\s*(?:>>> )?from\s+(solver(?:\.\w+)+)\s+import\s+([\w, ]+)", re.MULTILINE)


def sources() -> Iterator[tuple[str, str]]:
    """Notebooks, README, docs and their scripts by path, with their text; of notebooks the cells' sources."""
    for path in sorted(
        (*ROOT.glob("notebooks/**/*.ipynb"), *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/*.py"))
    ):
        text = path.read_text("utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        yield path.relative_to(ROOT).as_posix(), text


@pytest.mark.parametrize("front", FRONTS)
def test_a_front_shows_its_names_and_no_others(front: str) -> None:
    module = importlib.import_module(front)
    assert dir(module) == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name])
        assert getattr(module, name) is not None


@pytest.mark.parametrize("front", FRONTS)
def test_what_a_front_offers_is_documented(front: str) -> None:
    module = importlib.import_module(front)
    for name in module.__all__:
        value = getattr(module, name) if name not in NEEDS else None
        if callable(value) and hasattr(value, "__module__") and str(value.__module__).split(".")[0] in ("rlhfless", "solver"):
            assert value.__doc__, f"{front}.{name}"


def test_tab_completion_offers_these_names() -> None:
    completer = pytest.importorskip("IPython.core.completer")
    import rlhfless
    import rlhfless.trace

    shell = completer.IPCompleter(namespace={"rl": rlhfless, "trace": rlhfless.trace})
    shell.use_jedi = False
    for name, module in (("rl", rlhfless), ("trace", rlhfless.trace)):
        offered = [completion.split(".")[-1] for completion in shell.complete(f"{name}.")[1]]
        assert sorted(offered) == sorted(module.__all__)


def test_notebooks_and_docs_import_from_fronts_only() -> None:
    deeper = {path: INNER.findall(text) for path, text in sources() if INNER.search(text)}
    assert not deeper, f"import from a package's front, such as rlhfless.trace: {deeper}"


def test_the_rule_sees_every_form_of_an_import() -> None:
    for line in ("from rlhfless.trace.io import read_trace", "    import rlhfless.plots.style",
                 ">>> from rlhfless.run.run import Run"):  # fmt: skip
        assert INNER.search(line), line
    for line in (
        "from rlhfless.trace import read_trace",
        "import solver",
        "import rlhfless.trace as trace",
        "from rlhfless import load",
    ):
        assert not INNER.search(line), line


def test_the_front_of_the_solver_is_the_way_to_plan() -> None:
    """Who plans for the first time has these names to read, and no others."""
    import solver

    problem = {"Workload", "Cluster", "MixedCluster", "GpuPool", "LatencyModel", "Objective", "NonGenerationPhases"}
    planning = {"PlanningProblem", "PlanningError", "Plan", "plan", "plan_of", "random_split", "evaluate"}
    assert set(solver.__all__) == problem | planning | {"pareto_front", "bound"}


def test_notebooks_and_docs_import_from_the_front_of_the_solver_what_it_has() -> None:
    import solver

    deeper = {
        path: (module, name)
        for path, text in sources()
        for module, names in OF_THE_SOLVER.findall(text)
        for name in re.findall(r"\w+", names)
        if name in solver.__all__ and name not in getattr(importlib.import_module(module), "__all__", ())
    }
    assert not deeper, f"import from solver: {deeper}"


def test_lazy_fronts_name_what_type_checkers_see() -> None:
    """The names under TYPE_CHECKING are those of ``__all__``."""
    for front in ("rlhfless", "rlhfless.engine", "rlhfless.report"):
        tree = ast.parse((ROOT / front.replace(".", "/") / "__init__.py").read_text("utf-8"))
        guarded = next(node for node in tree.body if isinstance(node, ast.If))
        named = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert named == set(importlib.import_module(front).__all__), front
