"""What happens when an object is gone, and an exception comes in the middle of it."""

from __future__ import annotations

from typing import Any

import pytest

from muster import _endings


class Owner:
    pass


class Entry:
    watched = False


def test_an_ending_comes_into_its_list_and_is_dealt_with_at_once() -> None:
    ended: list[Any] = []
    seen: list[Any] = []

    def flush() -> None:
        seen.append(ended[0].entry)
        _endings.forget(ended.pop())

    owner, entry = Owner(), Entry()
    _endings.when_gone(owner, entry, ended, _endings.flusher(flush))
    assert entry.watched and entry in _endings.waiting(Entry)
    del owner
    assert seen == [entry] and not ended
    assert entry not in _endings.waiting(Entry)


def test_what_interrupts_a_finalizer_is_raised_where_the_object_went() -> None:
    ended: list[Any] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    owner, entry = Owner(), Entry()
    _endings.when_gone(owner, entry, ended, _endings.flusher(interrupted))

    def let_go(held: list[Owner]) -> None:
        held.clear()
        len(held)  # at the latest here

    held = [owner]
    del owner
    with pytest.raises(KeyboardInterrupt):
        let_go(held)
    assert [ending.entry for ending in ended] == [entry], "whoever looks next finds it"
    _endings.forget(ended.pop())
