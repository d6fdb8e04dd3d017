"""The places of a pass with drafts: each token once, after those that it attends to, in attention calls that hold them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from rlhfless.engine.torch.fed_places import FedPlaces


@given(st.lists(st.integers(0, 8), min_size=1, max_size=12), st.integers(12, 40))
@settings(max_examples=100, deadline=None)
def test_every_token_has_its_place_and_its_call(drafted, pass_tokens):
    places = FedPlaces.of(tuple(drafted), pass_tokens)
    fed = list(zip(places.rows.tolist(), places.columns.tolist(), strict=True))
    by_row = [(row, column) for row, most in enumerate(drafted) for column in range(most + 1)]
    assert [fed[k] for k in places.by_row] == by_row
    assert [by_row[k] for k in places.order] == fed
    assert places.ends == [by_row.index((row, most)) + 1 for row, most in enumerate(drafted)]
    assert all(fed.index((row, column - 1)) < k for k, (row, column) in enumerate(fed) if column)
    calls = [call for one in places.passes for call in one]
    assert [call.begin for call in calls] == [0, *(call.end for call in calls[:-1])]
    assert calls[-1].end == len(fed)
    for one in places.passes:
        assert one[-1].end - one[0].begin <= pass_tokens
        for call in one:
            rows = [row for row, _ in fed[call.begin : call.end]]
            if call.first == call.last:
                assert set(rows) == {call.first}
            else:
                assert len({column for _, column in fed[call.begin : call.end]}) == 1
                assert rows == [call.first + k for k in ([*range(len(rows))] if call.among is None else call.among.tolist())]


def test_columns_that_few_rows_have_are_called_by_row():
    (calls,) = FedPlaces.of((8, 1, 1, 1), 256).passes
    assert [(call.begin, call.end, call.first, call.last) for call in calls] == [(0, 4, 0, 3), (4, 8, 0, 3), (8, 15, 0, 0)]
