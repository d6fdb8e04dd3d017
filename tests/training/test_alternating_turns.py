"""Contenders of a benchmark take turns, and what they took is told as ratios with intervals."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from process_cpu import tree_cpu_s
from turns import ratio, take_turns, told


def count(name: str, turns: Connection) -> None:
    """Say how often it was this contender's turn, and whose it is in the end."""
    number = 0
    while turns.recv():
        number += 1
        turns.send(number)
    turns.send(name)


def test_everybody_works_once_per_round_and_who_begins_changes() -> None:
    rounds, last = take_turns({name: partial(count, name) for name in ("a", "b")}, 3)
    assert [(row["a"], row["b"], row["first"]) for row in rounds] == [(1, 1, "a"), (2, 2, "b"), (3, 3, "a")]
    assert last == {"a": "a", "b": "b"}


def leave(turns: Connection) -> None:
    turns.recv()
    os._exit(3)


def test_a_contender_that_ends_is_noticed() -> None:
    with pytest.raises(EOFError):
        take_turns({"a": leave}, 1)


def test_a_ratio_is_the_geometric_mean_of_pairs_with_students_interval() -> None:
    found = ratio([2.0, 8.0], [1.0, 1.0])
    half = 12.71 * math.log(
        2.0
    )  # logarithms of 2 and 8 differ from their mean by log 2: a deviation of sqrt(2) log 2, over sqrt(2)
    assert found["ratio"] == pytest.approx(4.0)
    assert math.log(found["high"] / 4.0) == pytest.approx(half) == pytest.approx(math.log(4.0 / found["low"]))
    assert ratio([3.0], [2.0]) == {"ratio": pytest.approx(1.5)}
    assert told({"ratio": 1.5}) == "1.50"


def test_cpu_seconds_are_those_of_ended_children_too() -> None:
    before, own = tree_cpu_s(), time.process_time()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert tree_cpu_s() - before >= 0.25 + (time.process_time() - own) - 0.05
