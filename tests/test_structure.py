"""The shape of the source: class names, lengths of files, classes over several files, parameters of functions.

No class name is defined twice, and no file has more than ``MOST_LINES`` lines. A class that is cut into files, by inheritance
from a class that is a base of nothing else, hides one large object; a function with more than ``MOST_PARAMETERS`` parameters
hides a record. The exceptions of the last two are listed, and the lists may only become shorter. Commands of ``rlhfless/cli``
have a parameter for each of their options, so they are not counted.
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
SPREAD: frozenset[str] = frozenset()
MANY_PARAMETERS = frozenset(
    {
        "rlhfless/executor/distributed/pool/pool.py:ActorPool.run_step",
        "rlhfless/executor/virtual/executor.py:run_step",
        "rlhfless/training/loop.py:Trainer.__init__",
        "rlhfless/training/tasks/dataset.py:DatasetTask.__init__",
        "solver/prefix_sharing/deduplicate.py:deduplicate",
    }
)
"""File, and function with its class."""


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
    for nobody else. Protocols, abstract bases, bases with several classes below them, and those that are made themselves are no
    cuts."""
    made = {_name(node.func) for tree in sources.values() for node in ast.walk(tree) if isinstance(node, ast.Call)}
    where = {node.name: (file, node) for file, tree in sources.items() for node in classes(tree)}
    bases = {name: [base for base in map(_name, node.bases) if base in where] for name, (_, node) in where.items()}
    heirs = Counter(base for own in bases.values() for base in own)
    return {
        name
        for name, own in bases.items()
        for base in own
        if heirs[base] == 1 and base not in made and where[base][0] != where[name][0] and not _is_interface(where[base][1])
    }


def _name(base: ast.expr) -> str:
    """The name of a base: of ``Part``, ``module.Part`` and ``Part[int]``."""
    if isinstance(base, ast.Subscript):
        return _name(base.value)
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def _is_interface(node: ast.ClassDef) -> bool:
    """Whether it is a Protocol, a base with an abstract method, an error or a record that others extend."""
    names = set(map(_name, node.bases))
    abstract = any(_name(mark) == "abstractmethod" for part in node.body if isinstance(part, ast.FunctionDef)
                   for mark in part.decorator_list)  # fmt: skip
    others = names & {"Protocol", "Exception", "ValueError", "RuntimeError", "TypedDict"}
    return bool(others) or ("ABC" in names and abstract) or node.name.endswith("Error")


def parameters(sources: dict[str, ast.Module]) -> set[str]:
    """Functions with too many parameters, ``self`` not counted; constructors written out are counted, records have none."""
    return {f"{file}:{name}" for file, tree in sources.items() for name in _long(tree, "") if not _is_command(file, name, tree)}


def _is_command(file: str, name: str, tree: ast.Module) -> bool:
    """Whether it is a command of the command line: click passes every option as a parameter."""
    marks = [
        mark for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name for mark in node.decorator_list
    ]
    return file.startswith("rlhfless/cli/") and any(_name(m.func) == "command" for m in marks if isinstance(m, ast.Call))


def _long(within: ast.AST, prefix: str) -> Iterator[str]:
    """Names of the functions with too many parameters, with their classes: ``Trainer.__init__``."""
    for node in ast.iter_child_nodes(within):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if len([one for one in every if one.arg not in ("self", "cls")]) > MOST_PARAMETERS:
                yield prefix + node.name
        named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _long(node, f"{prefix}{node.name}." if named else prefix)  # type: ignore[attr-defined]


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
    for base in ("Part[int]", "a.Part"):
        assert spread({"a.py": ast.parse(cut["a.py"]), "b.py": ast.parse(f"class Whole({base}): ...")}) == {"Whole"}
    without_methods = {"a.py": "class Part(ABC):\n def f(self): ...", "b.py": "class Whole(Part): ..."}
    assert spread({file: ast.parse(text) for file, text in without_methods.items()}) == {"Whole"}
    made = {**cut, "c.py": "part = Part()"}
    assert spread({file: ast.parse(text) for file, text in made.items()}) == set()
    interface = {"a.py": "class Part(Protocol):\n def f(self): ...", "b.py": "class Whole(Part): ..."}
    assert spread({file: ast.parse(text) for file, text in interface.items()}) == set()


def test_a_function_of_nine_parameters_is_found() -> None:
    nine = ", ".join("abcdefghi")
    source = f"def f({nine}): ...\nclass C:\n def g(self, {nine[3:]}): ...\n def __init__(self, {nine}): ..."
    assert parameters({"a.py": ast.parse(source)}) == {"a.py:f", "a.py:C.__init__"}
    command = ast.parse(f"@main.command('f')\n@click.option('--a')\ndef f({nine}): ...\ndef g({nine}): ...")
    assert parameters({"rlhfless/cli/a.py": command}) == {"rlhfless/cli/a.py:g"}
    assert parameters({"a.py": command}) == {"a.py:f", "a.py:g"}, "elsewhere it is a function like any other"
