"""Three MatMul of which one does not suit 8 bits, to search for mixed precision."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit import IntegerFormat, IntegerSpec, QuantConfig
from lowbit.config.mixed_precision import LayerOption, MixedPrecision

INT16 = IntegerSpec(format=IntegerFormat.INT16)
INT8 = IntegerSpec(format=IntegerFormat.INT8)
TO_INT8 = LayerOption(inputs=INT8, weight=INT8)


def three_layers() -> onnx.ModelProto:
    """Return three MatMul, of which the second has weights that 8 bits do not suit, and a Transpose."""
    random = np.random.default_rng(5)
    weights = [random.normal(0, 0.3, (12, 12)).astype(np.float32) for _ in range(3)]
    weights[1][0, 0] = 20.0
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["m0"], "first"),
        helper.make_node("Relu", ["m0"], ["r0"], "relu"),
        helper.make_node("MatMul", ["r0", "w1"], ["m1"], "second"),
        helper.make_node("Transpose", ["m1"], ["t1"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["t1", "w2"], ["m2"], "third"),
        helper.make_node("Add", ["m2", "t1"], ["y"], "add"),
    ]
    graph = helper.make_graph(
        nodes,
        "three",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [12, 12])],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def three_layers_feeds(count: int = 6) -> list[dict[str, np.ndarray]]:
    """Return inputs for it."""
    random = np.random.default_rng(6)
    return [{"x": random.normal(size=(12, 12)).astype(np.float32)} for _ in range(count)]


def config_with(**settings) -> QuantConfig:
    """Return 16 bits throughout, with layers that may have 8 bits."""
    search = MixedPrecision(**{"options": (TO_INT8,), **settings})
    return QuantConfig(activation=INT16, weight=INT16, mixed_precision=search)


def quantize_mixed(own_metric=None, **settings) -> lowbit.api.Result:
    """Return the run of that configuration, with a metric of one's own perhaps."""
    return lowbit.quantize(
        three_layers(), data=three_layers_feeds(), config=config_with(**settings), metric=own_metric
    )
