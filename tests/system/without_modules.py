"""Runs a module as a script, ``python without_modules.py NAMES MODULE ARGUMENTS``, where some modules cannot be imported.

NAMES is a list with commas: top-level modules, as if they were not installed or the system did not have them.
"""

from __future__ import annotations

import importlib.abc
import runpy
import sys
from importlib.machinery import ModuleSpec
from typing import Any


class Missing(importlib.abc.MetaPathFinder):
    """Finds no module of the names, and says so as Python does."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Refuse what is missing, and leave the rest to others."""
        if fullname.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


if __name__ == "__main__":
    missing = frozenset(sys.argv[1].split(","))
    for name in [name for name in sys.modules if name.partition(".")[0] in missing]:
        del sys.modules[name]
    sys.meta_path.insert(0, Missing(missing))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
