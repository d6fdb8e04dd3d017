"""The tools of the golden record: they notice a difference, forgive the last bits of a sum, and read what they wrote."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from before import checked_out
from compare import RELATIVE, differences, told
from error_messages import refused
from plain import Names, plain
from record import load, save

from solver import Objective

RECORD = {"step 0": {"gpus": [0, 1], "makespan_s": 2.5, "policy": "fold", "moves": 3, "cut": True, "rule": None}}


def changed(**fields: object) -> dict[str, dict[str, object]]:
    """The record with other fields."""
    return {"step 0": {**RECORD["step 0"], **fields}}


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (changed(gpus=[0, 2]), "step 0 > gpus > 1: recorded 1, now 2"),
        (changed(gpus=[1, 0]), "step 0 > gpus > 0: recorded 0, now 1"),
        (changed(gpus=[0]), "step 0 > gpus: recorded 2 values, now 1"),
        (changed(makespan_s=2.5 * (1 + 2 * RELATIVE)), "step 0 > makespan_s: recorded 2.5, now 2.500000005"),
        (changed(makespan_s="nan"), "step 0 > makespan_s: recorded 2.5, now 'nan'"),
        (changed(policy="spread"), "step 0 > policy: recorded 'fold', now 'spread'"),
        (changed(moves=3.0), "step 0 > moves: recorded 3, now 3.0"),
        (changed(cut=1), "step 0 > cut: recorded True, now 1"),
        (changed(rule="cut"), "step 0 > rule: recorded None, now 'cut'"),
        (changed(more=1), "step 0 > more: is not in the record"),
        ({}, "step 0: is missing now"),
        ([], "the record: recorded {'step 0': {'gpus': [0, 1], 'makespan_s': 2.5, 'policy': 'fold', "),
    ],
)
def test_every_difference_is_reported_with_its_place(now, line):
    assert line in told(differences(RECORD, now))


def test_the_last_bits_of_a_float_count_on_one_machine_only():
    one, other = {"logprob": 0.3}, {"logprob": math.nextafter(0.3, 1)}
    assert not list(differences(one, other))
    assert list(differences(one, other, exact=True)) == ["logprob: recorded 0.3, now 0.30000000000000004"]
    assert not list(differences(one, {"logprob": 0.3}, exact=True))
    assert list(differences({"x": 0.0}, {"x": -0.0}, exact=True))


def test_only_the_first_differences_are_reported():
    found = list(differences(list(range(30)), list(range(1, 31))))
    assert told(found, 2) == "0: recorded 0, now 1\n1: recorded 1, now 2\nand 28 more"


def test_what_was_saved_is_loaded_and_is_the_same_file_again(tmp_path: Path):
    value = {"b": [1, 2.0, None, True, "text"], "a": {"third": 1 / 3}}
    first = save("item", value, tmp_path).read_bytes()
    assert not list(differences(load("item", tmp_path), value))
    assert save("item", load("item", tmp_path), tmp_path).read_bytes() == first
    with refused(FileNotFoundError, "'other'"):
        load("other", tmp_path)


def test_a_commit_that_is_not_there_is_named():
    with (
        pytest.raises(SystemExit, match=r"^no-such-commit: "),
        checked_out("no-such-commit"),
    ):
        raise AssertionError("it was checked out")


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: float


def test_results_become_plain_data_under_their_recorded_names():
    frame = pd.DataFrame({"holder": ["a", "b"], "end_s": [1.0, np.nan], "hover": ["x", "y"], "detail": ['{"kv": 2}', None]})
    names = Names({"holder": "actor", "kv": "kv_tokens"}, frozenset({"hover"}), frozenset({"missing"}))
    value = {"table": frame, "pair": Pair(1, math.inf), 3: np.arange(2), "missing": "no steps", ("a", "b"): np.True_}
    assert plain(value, names) == {
        "table": {"actor": ["a", "b"], "end_s": [1.0, "nan"], "detail": [{"kv_tokens": 2}, None]},
        "pair": {"left": 1, "right": "inf"},
        "3": [0, 1],
        "missing": True,
        "a / b": True,
    }
    assert plain(Objective(0.5), names)["time_weight"] == 0.5
    with pytest.raises(TypeError, match="object has no plain form"):
        plain([object()], names)
