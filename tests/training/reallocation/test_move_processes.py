"""Weights that real processes move (gloo): bit-equal there and back, the same passes in both layouts, one that ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import gloo_ranks  # noqa: E402
from error_messages import refused  # noqa: E402

from rlhfless.training.config import LearnerError  # noqa: E402
from rlhfless.training.worker_group import WorkerGroup  # noqa: E402

COUNT = 4


def started(count: int, folder: Path) -> WorkerGroup:
    group = WorkerGroup("group")
    group.start(gloo_ranks.main, [(rank, count, str(folder / "meeting")) for rank in range(count)])
    return group


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    group = started(COUNT, tmp_path_factory.mktemp("gloo"))
    yield group
    group.end()


@pytest.mark.full
def test_weights_are_bit_equal_there_and_back(ranks: WorkerGroup) -> None:
    """Two and four processes, uneven shapes, four number formats in one buffer."""
    cases = [(seed, ranks) for seed in range(30) for ranks in (2, COUNT)]
    assert ranks.order("there_and_back", cases) == [[]] * COUNT


@pytest.mark.parametrize(
    ("kind", "tp", "cut"),
    [
        *(pytest.param(*of, marks=pytest.mark.full) for of in [("policy", 2, 20), ("head", 2, 20)]),
        *(pytest.param(*of, marks=pytest.mark.nightly) for of in [("untied", 2, 20), ("model", 2, 40), ("model", 1, 0)]),
    ],
)
def test_a_model_computes_the_same_in_both_layouts(ranks: WorkerGroup, kind: str, tp: int, cut: int) -> None:
    """Placements are transformers' own; tied embeddings are one weight, and biases of column-wise layers are cut with them.

    Each of two layers has q, k, v with biases, o, gate, up and down. 37 tokens are not divisible by 2: they stay whole.
    """
    for found in ranks.order("models", (kind, tp)):
        assert found["equal"]
        assert found["back"]
        assert max(found["differs"]) < 1e-5 < found["spread"]
        assert found["kept"]
        assert len(found["cut"]) == cut
        assert tp == 1 or any(name.endswith("q_proj.bias") for name in found["cut"])


@pytest.mark.full
def test_a_process_that_is_killed_while_weights_move_is_one_sentence(ranks: WorkerGroup) -> None:
    """The last test of these processes: it ends them."""
    threading.Timer(2.0, os.kill, (ranks.pids[2], signal.SIGKILL)).start()  # they move weights until then, and for ever
    with refused(LearnerError, "process 2", "SIGKILL", "'large'"):
        ranks.order("large", 64)
    assert not ranks.pids


@pytest.mark.nightly
def test_a_connection_that_breaks_is_one_sentence_of_the_move(tmp_path: Path) -> None:
    with refused(LearnerError, "weights were not moved", "last checkpoint"):
        started(2, tmp_path).order("left", 1)
