"""The figures of a page as JSON: what its own script unpacks."""

from __future__ import annotations

import re

from rlhfless.plots.export.packed import unpacked


def figures_json(page: str) -> str:
    """Return ``{"figure-1":[{"data": ...}], ...}`` of a page as it was written."""
    found = re.search(r'^figures: "([^"]*)"', page, re.MULTILINE)
    assert found, "the page has no figures"
    return unpacked(found[1])
