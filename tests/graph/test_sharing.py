"""How processors are shared among samples."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from lowbit.graph import io, sharing
from lowbit.graph.sharing import sharing_of, sharing_of_steps


@pytest.mark.parametrize(("size", "samples", "threads"), [(224, 4, 1), (320, 2, 2)])
def test_samples_of_large_images_run_one_by_one(
    size: int, samples: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "cpu_count", lambda: 4)

    found = sharing_of({"x": np.zeros((1, 3, size, size), np.float32)})

    assert (found.samples, found.threads) == (samples, threads)


@pytest.mark.parametrize(
    ("batch", "enlarged", "one_by_one", "in_steps"),
    [
        ("1", 32, False, False),
        ("1", 64, True, False),
        ("n", 64, True, False),
        ("n", 65, True, True),
        ("64", 16, True, True),
        ("n", 16, False, False),
    ],
)
def test_samples_of_which_large_maps_are_computed_run_one_by_one(
    batch: str, enlarged: int, *, one_by_one: bool, in_steps: bool
) -> None:
    size = 32 * enlarged
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{batch},4,32,32] x) => (float[{batch},4,4] y)
        <float[4] by = {{1.0, 1.0, {enlarged}.0, {enlarged}.0}}, float[{batch},4,{size},{size}] m> {{
            m = Resize<mode="nearest"> (x, , by)
            y = Resize<mode="nearest"> (m, , by) }}"""
    model = io.load(onnx.parser.parse_model(text))
    sample = {"x": np.zeros((1, 4, 32, 32), np.float32)}

    whole = sharing_of(sample, model)
    assert whole.one_by_one == one_by_one
    assert not sharing_of(sample).one_by_one
    # A few nodes at a time hold less; above 64 MB a tensor is too large for that too.
    assert sharing_of_steps(whole, model).one_by_one == in_steps


def test_only_what_is_looked_at_in_large_samples_keeps_its_layout() -> None:
    large = sharing_of({"x": np.zeros((2, 3, 320, 320), np.float32)})

    assert [large.lean(level) for level in ("none", "exact", "all")] == ["none", "exact", "plain"]
    assert sharing_of(None).lean("all") == "all"
