"""Sums gradients of several terms of a loss whose factors are known only at the end of a step, such as a batch's divisor.

Gradients are linear in the terms, so the sums give the gradient of the whole batch, up to the order of summation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None


class GradientSums:
    """The gradients of named terms, summed over ``add``; each term takes the memory of one more gradient.

    Args:
        parameters: the weights that are trained; ``add`` clears their ``grad``.
    """

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._sums: dict[str, list[Tensor | None]] = {}
        self.values: dict[str, float] = {}
        """The terms themselves, summed."""

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add the gradient of each term, a number with a graph."""
        for left, (name, term) in enumerate(terms.items(), 1 - len(terms)):
            for parameter in self._parameters:
                parameter.grad = None
            term.backward(retain_graph=left < 0)  # type: ignore[no-untyped-call]
            self._put(name, [parameter.grad for parameter in self._parameters])
            for parameter in self._parameters:
                parameter.grad = None
            self.values[name] = self.values.get(name, 0.0) + float(term.detach())

    @torch.no_grad()
    def accumulate(self, other: GradientSums) -> None:
        """Add sums of the same weights; their gradients become part of these."""
        for name, gradients in other._sums.items():
            self._put(name, gradients)
            self.values[name] = self.values.get(name, 0.0) + other.values[name]

    def _put(self, name: str, gradients: list[Tensor | None]) -> None:
        sums = self._sums.setdefault(name, [None] * len(self._parameters))
        for index, (gradient, so_far) in enumerate(zip(gradients, sums, strict=True)):
            sums[index] = gradient if so_far is None else so_far if gradient is None else so_far.add_(gradient)

    @torch.no_grad()
    def combine(self, factors: Mapping[str, float]) -> None:
        """Set the weights' ``grad`` to the sum of factor x gradient over the terms; terms without a factor are left out."""
        for index, parameter in enumerate(self._parameters):
            terms = [(factor, self._sums[name][index]) for name, factor in factors.items() if name in self._sums]
            parts = [gradient * factor for factor, gradient in terms if gradient is not None]
            parameter.grad = sum(parts[1:], parts[0]) if parts else None
