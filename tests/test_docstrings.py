"""Public docstrings have short sentences: more than ``MOST_WORDS`` words have to be read twice.

Sentences with a formula, code blocks and examples are exempt.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_WORDS = 32
FORMULA = re.compile(r"[=<>^]|\w_\w+\(| [+*/] ")
SECTION = re.compile(r"(Args|Returns|Raises|Example|Examples|Attributes|Yields):$")
ENTRY = re.compile(r"^\*{0,2}\w+(, \*{0,2}\w+)*: ")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def is_public(name: str) -> bool:
    """Whether it begins with no underscore, or with two."""
    return not name.startswith("_") or name.startswith("__")


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and docstring of the module and of everything public in it."""
    todo: list[tuple[str, Documented]] = [("module", tree)]
    while todo:
        name, node = todo.pop()
        if text := ast.get_docstring(node):
            yield name, text
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and is_public(child.name):
                todo.append((child.name, child))


def sentences(docstring: str) -> Iterator[str]:
    """Sentences of a docstring without those of code blocks and examples; an entry of ``Args:`` begins one."""
    paragraph: list[str] = []
    within_section = False
    for line in [*docstring.splitlines(), ""]:
        text, indent = line.strip(), len(line) - len(line.lstrip())
        within_section = within_section and (indent > 0 or not text)
        is_code = text.startswith((">>>", "...")) or (indent >= 4 and not within_section)
        begins = text.startswith(("- ", "* ")) or (within_section and indent == 4)
        if not text or is_code or begins or SECTION.match(text):
            joined = ENTRY.sub("", " ".join(paragraph))
            yield from (part for part in re.split(r"(?<=[.!?:])[)\"']?\s+", joined) if part)
            paragraph = []
        if SECTION.match(text):
            within_section = True
        elif text and not is_code:
            paragraph.append(text)


def long_sentences(tree: ast.Module) -> list[str]:
    """Public sentences with too many words and without a formula, each after the name of what it documents."""
    every = ((name, sentence) for name, text in docstrings(tree) for sentence in sentences(text))
    return [f"{name}: {one}" for name, one in every if len(one.split()) > MOST_WORDS and not FORMULA.search(one)]


@pytest.mark.parametrize("package", ["solver", "rlhfless"])
def test_public_docstrings_have_short_sentences(package: str) -> None:
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted((ROOT / package).rglob("*.py"))}
    found = [f"{file.relative_to(ROOT)}: {one}" for file, tree in trees.items() for one in long_sentences(tree)]
    assert found == [], "cut these sentences in two"


LONG = " ".join(["word"] * (MOST_WORDS + 1))


@pytest.mark.parametrize(
    ("docstring", "count"),
    [
        (f"{LONG}.", 1),
        (f"Short.\n\n    Args:\n        a: {LONG}.\n        b: short.", 1),
        (f"One. {LONG[: len(LONG) // 2]}. {LONG[len(LONG) // 2 :]}.", 0),
        (f"{LONG} with x = 1.", 0),
        (f"Short.\n\n        {LONG}\n\n    Short.", 0),
        (f"Short.\n\n    Example:\n        >>> {LONG}", 0),
    ],
)
def test_long_sentences_are_found_but_no_formulas_and_no_code(docstring: str, count: int) -> None:
    assert len(long_sentences(ast.parse(f'def f():\n    """{docstring}"""'))) == count
    assert long_sentences(ast.parse(f'def _f():\n    """{docstring}"""')) == []
