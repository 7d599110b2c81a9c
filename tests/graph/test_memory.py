"""Garbage collection is paused for a while, and freed memory goes back to the system."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace

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
    memory._releaser.cache_clear()
    yield
    memory._releaser.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_memory_is_released_by_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []

    class Library:
        def __init__(self, name: None) -> None:
            assert name is None, "the program itself"
            self.malloc_trim = kept.append

    monkeypatch.setattr("ctypes.CDLL", Library)

    memory.release_memory()

    assert kept == [0], "nothing of what is free is kept"


@pytest.mark.parametrize(("processors", "pools"), [(1, 1), (2, 1), (16, 4)])
def test_threads_share_a_few_pools(
    processors: int, pools: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *option: set_to.append(option))
    monkeypatch.setattr("ctypes.CDLL", lambda _: library)
    monkeypatch.setattr(memory, "cpu_count", lambda: processors)

    memory.share_pools.__wrapped__()

    assert set_to == [(-8, pools)], "M_ARENA_MAX of glibc's malloc.h"


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("error", [OSError, AttributeError, TypeError])
def test_another_c_library_keeps_its_memory(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(_: None) -> None:
        raise error

    monkeypatch.setattr("ctypes.CDLL", fail)

    memory.release_memory()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("sizes", "released"),
    [
        pytest.param([100, 90, 95, 92, 97], 1, id="steady"),
        pytest.param([100, 90, 99, 98], 2, id="grown at once"),
        pytest.param([100, 90, 95, 99, 92], 2, id="grown bit by bit"),
        pytest.param([100, 90, 84, 91, 93, 85], 2, id="grown from the least that was held"),
        pytest.param([100, 90, 80, 79], 2, id="shrunk: something large is gone"),
    ],
)
def test_memory_is_gone_through_again_only_after_much_has_changed(
    sizes: list[int], released: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In units of 8 MB: what is resident at each call, and after each time that memory was released."""
    kept: list[int] = []
    left = [size << 23 for size in sizes]
    monkeypatch.setattr(memory, "resident_bytes", lambda: left.pop(0))
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(malloc_trim=kept.append))

    while left:
        memory.release_memory()

    assert len(kept) == released


@pytest.mark.usefixtures("fresh")
def test_where_the_system_does_not_say_it_is_always_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []
    monkeypatch.setattr(memory, "resident_bytes", lambda: None)
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(malloc_trim=kept.append))

    memory.release_memory()
    memory.release_memory()

    assert len(kept) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it in /proc")
def test_a_process_knows_what_it_holds() -> None:
    before = memory.resident_bytes()
    held = b"x" * (64 << 20)
    after = memory.resident_bytes()

    assert before is not None
    assert after is not None
    assert len(held) * 0.9 < after - before < len(held) * 2


@pytest.mark.parametrize(
    ("sizes", "releases"),
    [
        ([100, 110, 105, 119], 0),  # it stays within the room
        ([100, 121, 100], 1),
        ([100, 150, 140, 60, 81], 3),  # beyond the least that it ever had
    ],
)
def test_memory_is_released_once_the_process_has_grown(monkeypatch, sizes, releases) -> None:
    released = []
    monkeypatch.setattr(memory, "release_memory", lambda: released.append(None))
    size = iter(sizes)
    now = [next(size)]
    monkeypatch.setattr(memory, "resident_bytes", lambda: now[0])
    grown = memory.GrownMemory(20)
    for now[0] in size:
        grown.release()
    assert len(released) == releases


def test_where_the_size_is_unknown_memory_is_released_each_time(monkeypatch) -> None:
    released = []
    monkeypatch.setattr(memory, "release_memory", lambda: released.append(None))
    monkeypatch.setattr(memory, "resident_bytes", lambda: None)
    grown = memory.GrownMemory()
    for _ in range(3):
        grown.release()
    assert len(released) == 3
