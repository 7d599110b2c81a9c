"""The garbage collector is off for a while, and then what it was before."""

from __future__ import annotations

import gc

import pytest

from lowbit.graph.memory import garbage_collection_paused


def test_the_collector_comes_back_even_after_an_error() -> None:
    @garbage_collection_paused()
    def fail() -> None:
        raise KeyError(gc.isenabled())

    with pytest.raises(KeyError, match="False"):
        fail()

    assert gc.isenabled()


def test_inside_another_or_where_it_was_off_it_stays_off() -> None:
    with garbage_collection_paused():
        with garbage_collection_paused():
            pass
        assert not gc.isenabled()

    assert gc.isenabled()
