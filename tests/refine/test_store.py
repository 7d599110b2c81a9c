import numpy as np

from lowbit.refine.store import MemoryStore


def test_what_is_kept_in_memory_keeps_nothing_else_alive() -> None:
    whole, store = np.arange(100, dtype=np.float32), MemoryStore()

    store.put(0, "x", whole[10:12])
    whole[:] = 0

    assert store.get(0, "x").base is None
    np.testing.assert_array_equal(store.get(0, "x"), [10, 11])
