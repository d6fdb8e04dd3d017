"""Errors in a notebook: one sentence, whatever raised them, and no frame of ours."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest

import rlhfless
import solver
from rlhfless import errors
from rlhfless.errors import ClosedError, InputError, InputIndexError, InputTypeError, MissingExtra, UserError
from rlhfless.latency import PriceError, ProfileError
from rlhfless.predict import PredictionError
from rlhfless.scheduling import PolicyError
from rlhfless.trace import TraceError
from rlhfless.training.config import LearnerError, TrainError
from solver import PlanningError

IPython = pytest.importorskip("IPython", reason="IPython is not installed")
Show = Callable[[str], str]


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Show]:
    """What a cell that fails shows in a notebook, run in a folder of its own."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell()
    shell.run_cell("import rlhfless as rl")

    def show(cell: str) -> str:
        with capture_output() as captured:
            result = shell.run_cell(cell)
        assert not result.success, captured.stdout
        return str(captured.stdout + captured.stderr)

    yield show
    shell.reset(new_session=False)


def assert_one_sentence(text: str, *named: str) -> None:
    assert len(text.strip().splitlines()) == 1, text
    for of_ours in ("Traceback", "site-packages", "Cell In", ".py"):
        assert of_ours not in text, text
    for name in named:
        assert name in text, text


def csv(text: str, name: str = "theirs.csv") -> None:
    Path(name).write_text(text)


def test_a_log_that_is_not_there(shown: Show) -> None:
    assert_one_sentence(shown("rl.load('none.csv')"), "TraceError", "none.csv")


@pytest.mark.parametrize("name", ["x" * 300, "a\\0b"], ids=["too long", "with a null"])
def test_a_name_that_no_file_can_have(name: str, shown: Show) -> None:
    assert_one_sentence(shown(f"rl.load('{name}')"), "log", "needed")


def test_a_table_without_our_columns(shown: Show) -> None:
    csv("iteration,question,length\n0,why,12\n")
    assert_one_sentence(shown("rl.load('theirs.csv')"), "TraceError", "theirs.csv", "mapping=")


def test_a_table_with_a_wrong_cell(shown: Show) -> None:
    csv("step,prompt_id,response_tokens\n0,a,many\n")
    assert_one_sentence(shown("rl.load('theirs.csv')"), "theirs.csv", "'many'")


def test_a_parquet_file_that_pyarrow_cannot_read(shown: Show) -> None:
    Path("theirs.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    assert_one_sentence(shown("rl.load('theirs.parquet')"), "TraceError", "theirs.parquet")


def test_a_parquet_column_that_pandas_cannot_hold(shown: Show) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "step": [0],
        "prompt_id": ["a"],
        "response_tokens": [3],
        "when": pa.array([1], pa.timestamp("us", "Mars/Phobos")),
    }
    pq.write_table(pa.table(columns), "theirs.parquet")
    assert_one_sentence(shown("rl.load('theirs.parquet')"), "TraceError", "theirs.parquet")


@pytest.mark.parametrize("error", [pd.errors.OutOfBoundsDatetime("far away"), KeyError("half"), TypeError("no\nlines")])
def test_an_error_of_a_library_that_no_importer_foresaw_is_a_sentence_too(
    error: Exception, shown: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pd.util, "hash_pandas_object", Mock(side_effect=error))
    csv("step,prompt_id,sample,response_tokens\n0,a,0,3\n")
    assert_one_sentence(shown("rl.load('theirs.csv')"), "theirs.csv", type(error).__name__)


def test_wrong_arguments(shown: Show) -> None:
    csv("step,prompt_id,response_tokens\n0,a,12\n0,b,15\n")
    assert_one_sentence(shown("rl.load('theirs.csv', gpus=15, verbose=False).plan()"), "InputError", "15")
    assert_one_sentence(shown("rl.load('theirs.csv', profile='h900')"), "ProfileError", "h900")
    assert_one_sentence(shown("rl.load('theirs.csv', verbose=False).plan(step=7)"), "InputError", "7")
    assert_one_sentence(shown("rl.load('theirs.csv', verbose=False).plan()"), "theirs.csv", "how many GPUs", "gpus=N")
    assert_one_sentence(shown("rl.load('theirs.csv', gpus=8, verbose=False).plan(policy='mine').plan"), "PolicyError", "mine")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("none.csv", "none.csv"),
        ("theirs.csv --gpus many", "many"),
        ("theirs.csv --colour red", "--colour"),
        ("'theirs.csv", "quote"),
        ("", "LOG"),
        ("theirs.csv --map step", "--map step"),
        ("theirs.csv", "theirs.csv"),
    ],
)
def test_the_magic(line: str, named: str, shown: Show) -> None:
    csv("iteration,question,length\n0,why,12\n")
    assert_one_sentence(shown(f"%load_ext rlhfless\n%rlhfless {line}"), named)


WITH_A_STEP = """
import solver, rlhfless.executor
from rlhfless.engine import Request, SimulatedEngine
from rlhfless.executor import tokens_hash, repeat
latency, cluster = rl.load_profile("cpu-tiny-qwen2"), solver.Cluster(1, 2, 1, "cpu")
workload = solver.Workload([6], [0, 0], [40, 50], max_response_tokens=100)
plan = solver.random_split(solver.PlanningProblem(workload, cluster, latency), actors=1)
requests = [Request(i, 6, 100, target_tokens=tokens) for i, tokens in enumerate([40, 50])]
executor = rl.Executor(SimulatedEngine, cluster, latency=latency)
"""
WRONG_CALLS = (
    ("from rlhfless.engine import Sampling; Sampling(temperature=-1)", ValueError, ("InputError", "temperature", "-1")),
    ("from rlhfless.training import ArithmeticTask; ArithmeticTask(prompts=0)", ValueError, ("InputError", "prompts", "0")),
    ("from rlhfless.training import ArithmeticTask; ArithmeticTask(prompts='8')", ValueError, ("InputError", "prompts", "'8'")),
    ("import pandas as pd; from rlhfless.plots import plot_plane; plot_plane(pd.DataFrame({'policy': ['a']}))", ValueError,
     ("InputError", "time_s")),
    ("from rlhfless.widgets import live; live(3)", TypeError, ("InputTypeError", "int", "Trainer")),
    (f"{WITH_A_STEP}from rlhfless.widgets import live; live(executor, 3)", TypeError, ("InputTypeError", "(plan, requests)")),
    (f"{WITH_A_STEP}executor.close(); executor.run(plan, requests)", RuntimeError, ("ClosedError", "closed")),
    (f"{WITH_A_STEP}executor.run(plan, [Request(i, 6, 100) for i in range(2)])", ValueError, ("InputError", "target_tokens")),
    (f"{WITH_A_STEP}tokens_hash(executor.run(plan, requests))", ValueError, ("InputError", "response 0", "token ids")),
    (f"{WITH_A_STEP}repeat(executor, plan, requests, steps=2)", ValueError, ("InputError", "actor_pool")),
    ("from rlhfless.executor import StepFailed; StepFailed.of(KeyError('x'))", TypeError, ("InputTypeError", "KeyError")),
    (f"{WITH_A_STEP}pool = rlhfless.executor.ProcessPool(['cpu'] * 2)\nrl.Executor(print, cluster, latency=latency, "
     "actor_pool=pool).run(plan, requests)", TypeError, ("InputTypeError", "print", "TorchEngineFactory")),
)  # fmt: skip


@pytest.mark.parametrize(("cell", "kind", "named"), WRONG_CALLS)
def test_a_wrong_call_is_a_sentence_and_the_kind_of_error_that_python_has_for_it(
    cell: str, kind: type[Exception], named: tuple[str, ...], shown: Show
) -> None:
    assert_one_sentence(shown(cell), *named)
    assert issubclass(getattr(errors, named[0]), kind)


CLASSES = (
    PlanningError, TraceError, ProfileError, PriceError, PredictionError, PolicyError, TrainError, LearnerError, MissingExtra,
    InputError, InputTypeError, InputIndexError, ClosedError,
)  # fmt: skip


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_class_is_shown_as_its_sentence(error: type[Exception], shown: Show) -> None:
    cell = f"from {error.__module__} import {error.__name__}\nraise {error.__name__}('it is 3; 4 is needed')"
    assert shown(cell).strip() == f"{error.__name__}: it is 3; 4 is needed"


def test_every_public_error_is_one_for_users() -> None:
    found = set()
    for package in (rlhfless, solver):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.ispkg:
                front = importlib.import_module(module.name)
                names = [name for name in getattr(front, "__all__", ()) if name.endswith(("Error", "Failed", "Extra"))]
                found |= {getattr(front, name) for name in names}
    classes = {one for one in found if isinstance(one, type) and issubclass(one, Exception)}
    assert {TraceError, PolicyError, ProfileError} <= classes
    assert all(issubclass(one, UserError | PlanningError) for one in classes), classes


def test_frames_of_a_users_own_function_stay(shown: Show, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(row):\n    return row['no such']\n")
    text = shown(
        "import sys; sys.path.insert(0, '.')\nimport mine\nfrom rlhfless.errors import InputError\n"
        "try:\n    mine.reward({})\nexcept KeyError as error:\n    raise InputError('the reward failed') from error"
    )
    assert text.startswith("InputError: the reward failed")
    assert "mine.py" in text
    assert "row['no such']" in text
    assert "Traceback" not in text
