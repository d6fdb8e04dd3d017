"""The figures' numbers for all tests of this folder.

Whichever test asks first makes them, so each may take as long as all figures: the limit is for a test that hangs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from paper_samples import Paper

HERE = Path(__file__).parent
HANGS_S = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that read figures' numbers the time in which all of them can be made on a busy machine."""
    for item in items:
        if item.path.parent == HERE and "paper" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(HANGS_S))


@pytest.fixture(scope="session")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Paper:
    """Numbers of the figures, made once in a run, by whichever process asks first."""
    own = tmp_path_factory.getbasetemp()
    return Paper((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "paper")
