from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from lowbit.data import InputInfo
from lowbit.data.sources import FeedSpool, Spool


def test_folder_goes_with_its_owner() -> None:
    spool = Spool()
    folder = spool.folder
    (folder / "file").write_text("x")

    del spool
    gc.collect()

    assert not folder.exists()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,), (1, 0, 2), (2, 3)])
def test_feeds_come_back_as_they_were(dtype: type, shape: tuple[int, ...]) -> None:
    spool = FeedSpool([InputInfo("a/b", np.dtype(dtype), None)])
    feeds = [{"a/b": np.full(shape, value).astype(dtype)} for value in (0, 1)]

    for feed in feeds:
        spool.append(feed)

    assert len(spool) == 2
    for index, feed in enumerate(feeds):
        got = spool.load(index)["a/b"]
        assert got.dtype == dtype
        assert got.shape == shape
        assert got.tobytes() == feed["a/b"].tobytes()
