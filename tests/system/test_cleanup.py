"""Cleaning up: every action is called, and the error that came first is the one that is seen."""

from __future__ import annotations

import pytest

from rlhfless.system.cleanup import clean_up


def fails(error: BaseException, done: list[str], name: str) -> object:
    def action() -> None:
        done.append(name)
        raise error

    return action


def test_later_errors_are_notes_of_the_first() -> None:
    done: list[str] = []
    with pytest.raises(KeyError) as raised:
        clean_up(fails(KeyError("first"), done, "a"), fails(OSError("disk"), done, "b"), lambda: done.append("c"))
    assert done == ["a", "b", "c"]
    assert ["OSError: disk" in note for note in raised.value.__notes__] == [True]


def test_errors_of_cleaning_up_are_notes_of_what_came_before() -> None:
    error, done = ValueError("cause"), list[str]()
    clean_up(fails(OSError("disk"), done, "a"), lambda: done.append("b"), after=error)
    assert done == ["a", "b"]
    assert ["OSError: disk" in note for note in error.__notes__] == [True]


def test_an_interrupt_ends_the_program_after_all_actions() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        clean_up(fails(KeyboardInterrupt(), done, "a"), lambda: done.append("b"), after=ValueError("cause"))
    assert done == ["a", "b"]


def test_without_errors_nothing_is_raised() -> None:
    clean_up()
    clean_up(lambda: None, after=ValueError("cause"))
