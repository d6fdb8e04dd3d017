"""Names of a package's front that are loaded when they are first used, so that importing the package stays fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from rlhfless.errors import missing_module

OF_TRL = {"GRPOTrainer": "Trainer", "PPOTrainer": "Trainer", "GRPOConfig": "TrainConfig", "PPOConfig": "TrainConfig"}
"""Class of TRL -> ours."""


def lazy_names(package: str, module_of: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package with these names and no others.

    Args:
        package: its ``__name__``. module_of: the module that defines each name, relative to ``rlhfless``.

    ``__getattr__`` raises ``MissingExtra`` where the module needs an optional package that is not installed.
    """

    def load(name: str) -> Any:
        if name not in module_of:
            if (ours := OF_TRL.get(name)) in module_of:
                here = f"here it is {package}.{ours}, which takes the options by their names"
                raise AttributeError(f"module {package!r} has no attribute {name!r}; {here}", name=name)
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(module_of))}", name=name
            )
        try:
            return getattr(importlib.import_module(f"rlhfless.{module_of[name]}"), name)
        except ModuleNotFoundError as error:
            if (missing := missing_module(f"{package}.{name}", error)) is None:
                raise
            raise missing from None

    return load, lambda: sorted(module_of)
