"""Settings of all tests, and the notebooks' one run.

Knows hypothesis, signals and which notebooks need what. Every run tries the same examples, so that a change is judged by what
it changes; ``make test-search`` tries examples that nobody has seen, and an example that fails there goes into its test with
``@example``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NEEDS = {"04_cluster": "ray", "06_your_logs": "tokenizers"}

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background starts programs so, and theirs; tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def executed_notebook(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Executes a shipped notebook, once for all tests that look at it.

    Returns:
        Name (``08_paper/01_figures``) to the executed copy; the page that it wrote lies beside it as ``page.html``.
    """
    made: dict[str, Path] = {}

    def execute(name: str) -> Path:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
        if name not in made:
            from rlhfless.notebook import run_notebook

            made[name] = run_notebook(NOTEBOOKS / f"{name}.ipynb", tmp_path_factory.mktemp("executed") / "page.html")
        return made[name]

    return execute
