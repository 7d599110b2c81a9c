"""Interpolation as a matrix, against onnxruntime's Resize."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from lowbit.ops.resizing import resizing_matrix

WAYS = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MODES = [("linear", way, "floor") for way in WAYS]
MODES += [("nearest", way, nearest) for way, nearest in itertools.product(WAYS, NEAREST)]


def _attributes(mode: str, way: str, nearest: str) -> dict[str, str]:
    return {"mode": mode, "coordinate_transformation_mode": way, "nearest_mode": nearest}


@pytest.mark.parametrize(("size", "wanted"), [(5, 10), (6, 9), (8, 3), (4, 1)])
@pytest.mark.parametrize(("mode", "way", "nearest"), MODES)
def test_a_matrix_gives_what_resize_gives(
    mode: str, way: str, nearest: str, size: int, wanted: int
) -> None:
    attributes = _attributes(mode, way, nearest)
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    sizes = numpy_helper.from_array(np.int64([1, 1, wanted, 3]), "sizes")
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, rows, 3])
        for name, rows in (("x", size), ("y", wanted))
    )
    graph = helper.make_graph([node], "g", [x], [y], [sizes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    values = np.random.default_rng(0).normal(0, 1, (1, 1, size, 3)).astype(np.float32)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": values})

    matrix = resizing_matrix(ir.node("Resize", [], attributes), size, wanted)

    assert matrix is not None
    np.testing.assert_allclose(matrix @ values[0, 0], want[0, 0], atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "cubic"},
        {"antialias": 1},
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        {"mode": "nearest", "nearest_mode": "other"},
    ],
)
def test_other_ways_are_not_known(changes: dict[str, object]) -> None:
    attributes = {**_attributes("linear", "half_pixel", "floor"), **changes}

    assert resizing_matrix(ir.node("Resize", [], attributes), 4, 8) is None
