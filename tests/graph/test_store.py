"""Arrays between two steps: in memory while there is room, then in files."""

import pathlib
import threading

import numpy as np
import pytest

from lowbit.errors import OutputError
from lowbit.graph.store import Store, open_store


def test_what_is_kept_in_memory_keeps_nothing_else_alive(tmp_path: pathlib.Path) -> None:
    whole, store = np.arange(100, dtype=np.float32), Store(tmp_path)

    store.put(0, "x", whole[10:12])
    whole[:] = 0

    assert store.get(0, "x").base is None
    np.testing.assert_array_equal(store.get(0, "x"), [10, 11])


def _on_disk(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_what_does_not_fit_in_memory_goes_to_a_file_and_comes_back(tmp_path: pathlib.Path) -> None:
    arrays = [np.full(128, k, np.float32) for k in range(6)]
    store = Store(tmp_path, room=2 * arrays[0].nbytes)

    for k, array in enumerate(arrays):
        store.put(k, "x", array)
    assert _on_disk(tmp_path) == 4 * 512
    store.drop(0, "x")
    store.put(7, "y", arrays[5])

    assert _on_disk(tmp_path) == 4 * 512
    for k in range(1, 6):
        np.testing.assert_array_equal(store.get(k, "x"), arrays[k])
        store.drop(k, "x")
    np.testing.assert_array_equal(store.get(7, "y"), arrays[5])
    store.close()


def test_places_in_the_file_are_used_again(tmp_path: pathlib.Path) -> None:
    """Random arrays come and go; the file is no longer than what was there at once, rounded up."""
    random = np.random.default_rng(0)
    store, kept = Store(tmp_path, room=0), dict[int, np.ndarray]()
    for k in range(300):
        if len(kept) == 8:
            sample, array = kept.popitem() if k % 2 else (min(kept), kept.pop(min(kept)))
            np.testing.assert_array_equal(store.get(sample, "x"), array)
            store.drop(sample, "x")
        kept[k] = random.integers(0, 255, random.integers(1, 1000)).astype(np.uint8)
        store.put(k, "x", kept[k])
    for sample, array in kept.items():
        np.testing.assert_array_equal(store.get(sample, "x"), array)
    assert _on_disk(tmp_path) <= 8 * sum(2**n for n in range(6, 11))
    store.close()


def test_names_and_samples_are_kept_apart_in_files(tmp_path: pathlib.Path) -> None:
    """Names of tensors may be no names of files."""
    store = Store(tmp_path, room=0)
    keys = [(0, "a/b:0"), (1, "a/b:0"), (0, "a b"), (11, "x"), (1, "1-x")]

    for k, (sample, name) in enumerate(keys):
        store.put(sample, name, np.array([k]))

    assert [store.get(*key).tolist() for key in keys] == [[k] for k in range(len(keys))]


def test_mapped_arrays_are_read_from_their_file_as_they_are_used(tmp_path: pathlib.Path) -> None:
    disk, memory = Store(tmp_path, room=0), Store(tmp_path)
    array = np.arange(12, dtype=np.float32).reshape(3, 4)

    disk.put(0, "x", array)
    memory.put(1, "x", array)

    assert isinstance(disk.mapped(0, "x"), np.memmap)
    assert not isinstance(memory.mapped(1, "x"), np.memmap)
    np.testing.assert_array_equal(disk.mapped(0, "x"), array)
    np.testing.assert_array_equal(memory.mapped(1, "x"), array)


def test_room_is_given_back_by_many_threads(tmp_path: pathlib.Path) -> None:
    array = np.zeros(25, np.float32)
    store = Store(tmp_path, room=4 * array.nbytes)

    def use(sample: int) -> None:
        for _ in range(50):
            store.put(sample, "x", array)
            store.drop(sample, "x")

    threads = [threading.Thread(target=use, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for k in range(4):
        store.put(k, "x", array)
    assert not _on_disk(tmp_path)
    store.put(4, "x", array)
    assert _on_disk(tmp_path)
    store.close()


def test_a_folder_that_takes_nothing_is_named_with_the_way_out(tmp_path: pathlib.Path) -> None:
    store = Store(tmp_path / "gone", room=0)

    with pytest.raises(OutputError, match=r"activations in .*gone: .*cache_dir with more room, or"):
        store.put(0, "x", np.zeros(3))


def test_a_store_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    parent = tmp_path / "new" / "cache"

    with open_store(parent, room=0) as store:
        store.put(0, "x", np.zeros(3))
        assert len(list(parent.glob(".lowbit-*/*.bin"))) == 1

    assert not list(parent.iterdir())


def test_two_stores_of_one_folder_do_not_meet(tmp_path: pathlib.Path) -> None:
    with open_store(tmp_path, room=0) as first, open_store(tmp_path, room=0) as second:
        first.put(0, "x", np.array([1]))
        second.put(0, "x", np.array([2]))

        assert (first.get(0, "x")[0], second.get(0, "x")[0]) == (1, 2)
