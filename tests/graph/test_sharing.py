"""How processors are shared among samples."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.graph import sharing
from lowbit.graph.sharing import sharing_of


@pytest.mark.parametrize(("size", "samples", "threads"), [(224, 4, 1), (320, 2, 2)])
def test_samples_of_large_images_run_one_by_one(
    size: int, samples: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "cpu_count", lambda: 4)

    found = sharing_of({"x": np.zeros((1, 3, size, size), np.float32)})

    assert (found.samples, found.threads) == (samples, threads)


def test_only_what_is_looked_at_in_large_samples_keeps_its_layout() -> None:
    large = sharing_of({"x": np.zeros((2, 3, 320, 320), np.float32)})

    assert [large.lean(level) for level in ("none", "exact", "all")] == ["none", "exact", "plain"]
    assert sharing_of(None).lean("all") == "all"
