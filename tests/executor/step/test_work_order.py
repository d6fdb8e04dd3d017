"""The order of work items: each after those that it waits for, the lowest index first, however many wait for the same."""

from __future__ import annotations

from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.executor.step.work_order import groups_of, in_order
from solver import PlanningError


@given(st.integers(1, 12).flatmap(lambda count: st.tuples(*(
    st.lists(st.integers(0, max(0, item - 1)), max_size=item and 4).map(tuple) for item in range(count)
))))  # fmt: skip
def test_every_item_comes_after_those_that_it_waits_for(waits: tuple[tuple[int, ...], ...]) -> None:
    ordered = in_order(waits)
    place = {item: number for number, item in enumerate(ordered)}
    assert sorted(ordered) == list(range(len(waits)))
    assert all(place[before] < place[item] for item, items in enumerate(waits) for before in items)
    assert ordered == in_order([(*items,) for items in waits]), "tuples that are equal count as the same"
    groups, numbers = groups_of(waits)
    assert [groups[number] for number in numbers] == list(waits)
    assert len(set(groups)) == len(groups)


def test_a_circle_is_refused_and_names_an_item() -> None:
    with refused(PlanningError, "work item 1 waits for itself"):
        in_order([(), (2,), (1,)])
    assert in_order([(3,), (), (3,), (1,)]) == [1, 3, 0, 2]
