"""Which tests run when: those of every change, the long ones (``full``), and those that CI leaves out (``nightly``)."""

from __future__ import annotations

import pytest

LATER = ("full", "nightly")


def check_tier(item: pytest.Item) -> None:
    """Refuse a test that is of two tiers.

    Raises:
        pytest.UsageError: it is.
    """
    marks = [name for name in LATER if item.get_closest_marker(name)]
    if len(marks) > 1:
        raise pytest.UsageError(f"{item.nodeid} is marked {' and '.join(marks)}; a test belongs to one tier")
