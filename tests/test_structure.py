"""The shape of the source: class names, lengths of files, classes over several files, parameters of functions.

No class name is defined twice, and no file has more than ``MOST_LINES`` lines. A class that is cut into files, by inheritance
from a class that is a base of nothing else, hides one large object; a function with more than ``MOST_PARAMETERS`` parameters
hides a record. The exceptions of the last two are listed, and the lists may only become shorter.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_LINES, MOST_PARAMETERS = 350, 8
SPREAD = frozenset(
    {
        "DrainingFold",
        "Gsm8kTask",
        "LazyState",
        "LazyView",
        "VirtualOrders",
        "VirtualStep",
        "LostActorHandling",
        "WallStep",
        "Zoom",
    }
)
MANY_PARAMETERS = frozenset(
    {
        "rlhfless/cli/import_log.py:import_",
        "rlhfless/cli/plan.py:plan",
        "rlhfless/cli/profile.py:profile",
        "rlhfless/cli/simulate.py:simulate",
        "rlhfless/executor/distributed/dispatch.py:__init__",
        "rlhfless/executor/distributed/executor.py:__init__",
        "rlhfless/executor/distributed/pool/pool.py:run_step",
        "rlhfless/executor/executor.py:__init__",
        "rlhfless/executor/step/record.py:allocate",
        "rlhfless/executor/virtual/executor.py:__init__",
        "rlhfless/executor/virtual/executor.py:run_step",
        "rlhfless/executor/virtual/lazy_state.py:__init__",
        "rlhfless/latency/measure.py:measure_profile",
        "rlhfless/latency/profile.py:compose_profile",
        "rlhfless/paper/comparison.py:compare",
        "rlhfless/training/loop.py:__init__",
        "rlhfless/training/tasks/dataset.py:__init__",
        "solver/planning/pareto_front.py:pareto_front",
        "solver/planning/plan_generation.py:plan_generation",
        "solver/planning/random_split.py:random_split",
        "solver/planning/random_split.py:sized_split",
        "solver/prefix_sharing/deduplicate.py:deduplicate",
        "solver/prefix_sharing/placement.py:place",
        "solver/replanning/running_responses.py:valued",
        "solver/timing/build_plan.py:assemble",
    }
)
"""File and function."""


@cache
def trees() -> dict[str, ast.Module]:
    """Syntax trees of the source by path."""
    files = (file for package in ("solver", "rlhfless") for file in (ROOT / package).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    """Its classes, those within others included."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def doubled(sources: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Class names that are defined more than once, with their files."""
    found = defaultdict(list)
    for file, tree in sources.items():
        for node in classes(tree):
            found[node.name].append(file)
    return {name: files for name, files in found.items() if len(files) > 1}


def spread(sources: dict[str, ast.Module]) -> set[str]:
    """Classes that are cut into files: they are the only one with a base that stands in another file and has state or methods
    for nobody else. Protocols, abstract bases and bases with several classes below them are no cuts."""
    where = {node.name: (file, node) for file, tree in sources.items() for node in classes(tree)}
    bases = {name: [b.id for b in node.bases if isinstance(b, ast.Name) and b.id in where] for name, (_, node) in where.items()}
    heirs = Counter(base for own in bases.values() for base in own)
    return {
        name
        for name, own in bases.items()
        for base in own
        if heirs[base] == 1 and where[base][0] != where[name][0] and not _is_interface(where[base][1])
    }


def _is_interface(node: ast.ClassDef) -> bool:
    """Whether it is a Protocol, an abstract base, an error or a record that others extend."""
    names = {b.id if isinstance(b, ast.Name) else b.attr if isinstance(b, ast.Attribute) else "" for b in node.bases}
    names |= {b.value.id for b in node.bases if isinstance(b, ast.Subscript) and isinstance(b.value, ast.Name)}
    return bool(names & {"Protocol", "ABC", "Exception", "ValueError", "RuntimeError", "TypedDict"}) or node.name.endswith(
        "Error"
    )


def parameters(sources: dict[str, ast.Module]) -> set[str]:
    """Functions with too many parameters, ``self`` not counted; constructors written out are counted, records have none."""
    found = set()
    for file, tree in sources.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                own = [one for one in own if one.arg not in ("self", "cls")]
                if len(own) > MOST_PARAMETERS:
                    found.add(f"{file}:{node.name}")
    return found


def test_no_class_name_is_defined_twice() -> None:
    assert doubled(trees()) == {}


def test_no_file_is_too_long() -> None:
    files = (file for package in ("solver", "rlhfless") for file in (ROOT / package).rglob("*.py"))
    lines = {file.relative_to(ROOT).as_posix(): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {file: count for file, count in lines.items() if count > MOST_LINES} == {}


def test_classes_over_several_files_become_fewer() -> None:
    assert spread(trees()) == SPREAD, "take a class that is whole again off the list; add none"


def test_functions_with_many_parameters_become_fewer() -> None:
    assert parameters(trees()) == MANY_PARAMETERS, "take a function that has fewer off the list; add none"


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"a.py": "class A: pass", "b.py": "class A: pass"}, {"A": ["a.py", "b.py"]}),
        ({"a.py": "class A: pass", "b.py": "class B: pass"}, {}),
    ],
)
def test_a_name_that_is_defined_twice_is_found(sources: dict[str, str], found: dict[str, list[str]]) -> None:
    assert doubled({file: ast.parse(text) for file, text in sources.items()}) == found


def test_a_class_that_is_cut_is_found_and_an_interface_is_none() -> None:
    cut = {"a.py": "class Part:\n def f(self): ...", "b.py": "class Whole(Part): ..."}
    assert spread({file: ast.parse(text) for file, text in cut.items()}) == {"Whole"}
    two = {**cut, "c.py": "class Other(Part): ..."}
    assert spread({file: ast.parse(text) for file, text in two.items()}) == set()
    interface = {"a.py": "class Part(Protocol):\n def f(self): ...", "b.py": "class Whole(Part): ..."}
    assert spread({file: ast.parse(text) for file, text in interface.items()}) == set()


def test_a_function_of_nine_parameters_is_found() -> None:
    nine = ", ".join("abcdefghi")
    source = {"a.py": ast.parse(f"def f({nine}): ...\nclass C:\n def g(self, {nine[3:]}): ...")}
    assert parameters(source) == {"a.py:f"}
