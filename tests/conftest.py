"""Settings of all tests, and the notebooks' one run.

Knows hypothesis, signals and the garbage collector. Every run tries the same examples, so that a change is judged by what it
changes; ``make test-search`` tries examples that nobody has seen, and an example that fails there goes into its test with
``@example``.

Several processes run the tests; ``side_by_side`` says which runs what. A test is of one of three tiers, each with a target in
the Makefile: no mark, ``full``, ``nightly``.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from shared_run import made_once, shared_folder
from side_by_side import in_order, pytest_xdist_make_scheduler  # noqa: F401 (a hook)
from skip_summary import pytest_sessionfinish  # noqa: F401 (a hook)
from tiers import check_tier

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: the processes share the cores

# jsonschema builds a grammar when it is imported; neither this process nor those that it starts shall spend seconds on that.
WITHOUT_GRAMMAR = str(Path(__file__).parent / "support" / "without_grammar")
if WITHOUT_GRAMMAR not in sys.path:
    sys.path.insert(0, WITHOUT_GRAMMAR)
    os.environ["PYTHONPATH"] = os.pathsep.join([WITHOUT_GRAMMAR, *filter(None, [os.environ.get("PYTHONPATH")])])

gc.disable()  # until all tests are imported: what is imported stays

settings.register_profile("same", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("search", deadline=None, print_blob=True)
settings.register_profile("mutants", settings.get_profile("same"), phases=(Phase.explicit, Phase.generate))  # no shrinking
settings.load_profile("same")

# Ray runs its workers at nice 15, so that they starve where other tests keep the cores busy.
os.environ.setdefault("RAY_worker_niceness", "0")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background starts programs so, and theirs; tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def executed_notebook(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Executes a shipped notebook with small parameters, once in a test run, whichever processes ask for it.

    Returns:
        Name (``06_what_if``) to the executed copy; its page lies beside it as ``page.html``.
    """
    from small_notebooks import SMALL, execute

    folder = shared_folder(tmp_path_factory) / "executed"

    def executed(name: str) -> Path:
        return made_once(folder / name, lambda place: execute(name, place, SMALL[name])) / "page.ipynb"

    return executed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests in order, and refuse a test of two tiers."""
    in_order(items)
    for item in items:
        check_tier(item)


def pytest_collection_finish() -> None:
    """Keep the objects of all imported modules out of garbage collections, which take a second each with them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Give the objects back, as some libraries report at the end what is left of theirs."""
    gc.unfreeze()
