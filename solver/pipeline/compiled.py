"""Compiles the inner loops of the memory search with numba, where it is installed (extra ``pipeline``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from solver.pipeline import list_pass, order_kernel


class Kernels(NamedTuple):
    """The inner loops, compiled: ``list_pass.list_pass`` and ``order_kernel.anneal``."""

    list_pass: Callable[..., int]
    anneal: Callable[..., float]


LEAST_S = 0.4  # of search, for which loading compiled code takes too long


def is_compiled(seconds: float) -> bool:
    """Return whether a search of so many counted seconds is compiled; a short one is not. Imports nothing."""
    return seconds >= LEAST_S and importlib.util.find_spec("numba") is not None


def kernels_for(seconds: float) -> Kernels | None:
    """Return the compiled inner loops for a search of so many counted seconds; None for a short one, and without numba."""
    return compiled_kernels() if is_compiled(seconds) else None


@cache
def compiled_kernels() -> Kernels | None:
    """Return the inner loops compiled by numba, which keeps them on disk; None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(cache=True)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # no folder that it can write to
            return numba.njit(function)  # type: ignore[no-any-return]

    copy = _copy_of(order_kernel)
    for name in order_kernel.KERNELS:
        setattr(copy, name, compiled(getattr(copy, name)))
    return Kernels(compiled(list_pass.list_pass), copy.anneal)


def _copy_of(module: ModuleType) -> ModuleType:
    """Return a second instance of a module, whose functions call each other compiled; the first one stays plain Python."""
    spec = importlib.util.find_spec(module.__name__)
    assert spec is not None, "a module that was imported is found"
    assert spec.loader is not None, "it has a source file"
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy
