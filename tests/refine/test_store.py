import pathlib

import numpy as np

from lowbit.refine.store import DiskStore, MemoryStore, SpillingStore


def test_what_is_kept_in_memory_keeps_nothing_else_alive() -> None:
    whole, store = np.arange(100, dtype=np.float32), MemoryStore()

    store.put(0, "x", whole[10:12])
    whole[:] = 0

    assert store.get(0, "x").base is None
    np.testing.assert_array_equal(store.get(0, "x"), [10, 11])


def test_what_does_not_fit_in_memory_goes_to_files_and_comes_back(tmp_path: pathlib.Path) -> None:
    arrays = [np.full(100, k, np.float32) for k in range(6)]
    store = SpillingStore(DiskStore(tmp_path), room=2 * arrays[0].nbytes)

    for k, array in enumerate(arrays):
        store.put(k, "x", array)
    assert len(list(tmp_path.iterdir())) == 4
    store.drop(0, "x")
    store.put(7, "y", arrays[5])

    assert len(list(tmp_path.iterdir())) == 4
    for k in range(1, 6):
        np.testing.assert_array_equal(store.get(k, "x"), arrays[k])
        store.drop(k, "x")
    assert not list(tmp_path.iterdir())
    np.testing.assert_array_equal(store.get(7, "y"), arrays[5])
