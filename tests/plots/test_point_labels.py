"""Names beside points: none covers another, and points that lie on each other share one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlhfless.plots.point_labels import LETTER_PX, LINE_PX, place_labels


def box(label, x, y):
    """Left, top, right and bottom of a name, in pixels."""
    wide = 0.5 * LETTER_PX * len(label.text)
    first = label.points[0]
    return (
        x[first] + label.dx - wide, y[first] + label.dy - 0.5 * LINE_PX, x[first] + label.dx + wide,
        y[first] + label.dy + 0.5 * LINE_PX,
    )  # fmt: skip


def overlap(a, b):
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


@pytest.mark.parametrize("seed", range(8))
def test_no_name_covers_another_and_all_are_within_the_plot(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(20, 600, 10), rng.uniform(20, 310, 10)
    labels = place_labels(x, y, [f"policy-{i}" for i in range(10)], 620, 330)
    boxes = [box(label, x, y) for label in labels]
    assert sorted(i for label in labels for i in label.points) == list(range(10))
    assert all(overlap(a, b) == 0 for a, b in itertools.combinations(boxes, 2))
    assert all(left >= 0 and top >= 0 and right <= 620 and bottom <= 330 for left, top, right, bottom in boxes)


def test_points_on_each_other_have_one_name():
    labels = place_labels([100, 102, 400], [100, 101, 100], ["random", "solver", "static"], 620, 330)
    assert sorted(label.text for label in labels) == ["random = solver", "static"]


def test_a_point_alone_has_its_name_at_its_right():
    (label,) = place_labels([100], [100], ["static"], 620, 330)
    assert label.dx > 0
    assert label.dy == 0


def test_no_name_covers_a_further_mark():
    marks = [(120.0 + 12 * i, 100.0) for i in range(8)]
    (label,) = place_labels([100], [100], ["static"], 620, 330, marks)
    left, top, right, bottom = box(label, [100], [100])
    assert not any(left <= x <= right and top <= y <= bottom for x, y in marks)
