"""Garbage collection is paused for a while, and freed memory goes back to the system."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from lowbit.graph import memory
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


@pytest.fixture
def fresh() -> Iterator[None]:
    memory._trim.cache_clear()
    yield
    memory._trim.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_memory_is_released_by_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    class Library:
        def __init__(self, name: None) -> None:
            assert name is None, "the program itself"
            self.malloc_trim = kept.append

    monkeypatch.setattr("ctypes.CDLL", Library)

    memory.release_memory()

    assert kept == [0], "nothing of what is free is kept"


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("error", [OSError, AttributeError, TypeError])
def test_another_c_library_keeps_its_memory(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(_: None) -> None:
        raise error

    monkeypatch.setattr("ctypes.CDLL", fail)

    memory.release_memory()
