"""Seconds that intervals cover, together and divided among labels, against counting every second by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.trace import interval_union_s, partition_s

times = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=12)
labelled = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-3, 15), st.integers(-3, 15)), max_size=12)


@given(times)
def test_the_union_counts_every_moment_once(spans: list[tuple[int, int]]) -> None:
    starts, ends = [s for s, _ in spans], [s + d for s, d in spans]
    moments = {m for start, end in zip(starts, ends, strict=True) for m in range(start, end)}
    assert interval_union_s(starts, ends) == len(moments)


def test_intervals_that_end_before_they_start_cover_nothing() -> None:
    assert interval_union_s([3, 0], [1, 1]) == 1.0
    assert interval_union_s([], []) == 0.0


@settings(deadline=None)
@given(
    spans=labelled,
    order=st.permutations("abcx").flatmap(lambda names: st.integers(0, 4).map(lambda count: names[:count])),
    window=st.one_of(st.none(), st.tuples(st.integers(-4, 16), st.integers(-4, 16))),
)
def test_each_second_counts_for_the_first_label_that_covers_it(
    spans: list[tuple[str, int, int]], order: list[str], window: tuple[int, int] | None
) -> None:
    expected = dict.fromkeys(order, 0.0)
    for second in range(*(window or (-4, 16))):
        covering = {label for label, start, end in spans if start <= second < end}
        first = next((name for name in order if name in covering), None)
        if first is not None:
            expected[first] += 1.0
    columns = [[span[i] for span in spans] for i in range(3)]
    found = partition_s(*columns, order) if window is None else partition_s(*columns, order, window)
    assert found == expected


def test_a_label_that_is_named_twice_counts_once() -> None:
    assert partition_s(["a", "b"], [0, 1], [2, 3], ["a", "b", "a"]) == {"a": pytest.approx(2.0), "b": pytest.approx(1.0)}
