"""Small graphs for emission, and what an emitted model must be: valid, in order, and close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from helpers.staged import quantized, random_feeds
from lowbit.config.config import QuantConfig
from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.graph import io
from lowbit.numerics.formats import IntegerFormat

LEVELS = (
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return weights that depend on shape and seed alone."""
    return np.random.default_rng((seed, *shape)).normal(size=shape)


def int8_config(
    activation: IntegerFormat = IntegerFormat.INT8,
    weight: IntegerFormat = IntegerFormat.INT8,
    **options: Any,
) -> QuantConfig:
    """Return a configuration in integers for onnxruntime, with other options over it."""
    per_channel = options.pop("per_channel", False)
    fields = {
        "activation": IntegerSpec(format=activation),
        "weight": IntegerSpec(format=weight, per_channel=per_channel),
        "bias": AccumulatorBias(),
        "target": "onnxruntime",
        "head": "int8",
    }
    return QuantConfig(**{**fields, **options})


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, list[int]],
    outputs: Sequence[str],
    constants: dict[str, np.ndarray],
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model of these nodes, all in float32."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, inputs.get(n)) for n in outputs],
        [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def conv(name: str, source: str, weight: str, bias: str | None, output: str) -> onnx.NodeProto:
    """Return a convolution of one pixel."""
    inputs = [source, weight, *([bias] if bias else [])]
    return helper.make_node("Conv", inputs, [output], name=name, kernel_shape=[1, 1])


def conv_chain(opset: int = 17) -> onnx.ModelProto:
    """Return two convolutions with a Relu between."""
    return build(
        [
            conv("c1", "x", "w1", "b1", "h"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
            conv("c2", "r", "w2", "b2", "y"),
        ],
        {"x": [1, 4, 5, 5]},
        ["y"],
        {
            "w1": normal(4, 4, 1, 1, seed=0),
            "b1": normal(4, seed=1),
            "w2": normal(4, 4, 1, 1, seed=2),
            "b2": normal(4, seed=3),
        },
        opset,
    )


def emit_model(model: onnx.ModelProto, config: QuantConfig) -> onnx.ModelProto:
    """Return the quantized model, whose nodes are in order and named uniquely."""
    emitted = io.to_proto(quantized(model, config, random_feeds(model)).emitted.model)
    _assert_in_order(emitted)
    return emitted


def _assert_in_order(model: onnx.ModelProto) -> None:
    known = {v.name for v in model.graph.input} | {t.name for t in model.graph.initializer}
    for node in model.graph.node:
        assert all(name in known for name in node.input if name), node.name
        assert not known & set(node.output), node.name
        known |= set(node.output)
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def run_at(
    model: onnx.ModelProto, feed: dict, level: Any = LEVELS[0], *, exact: bool = True
) -> dict[str, np.ndarray]:
    """Return the outputs at one of onnxruntime's optimization levels."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    # Fused kernels of processors without VNNI saturate; what is compared here is the model.
    options.add_session_config_entry("session.x64quantprecision", "1" if exact else "0")
    running = ort.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in model.graph.output]
    return dict(zip(names, running.run(names, feed), strict=True))


def assert_close(model: onnx.ModelProto, emitted: onnx.ModelProto, decibels: float = 25) -> None:
    """The emitted model computes what the float one does, at every optimization level."""
    onnx.checker.check_model(emitted, full_check=True)
    feed = random_feeds(model)[0]
    want = run_at(model, feed)
    for level in LEVELS:
        got = run_at(emitted, feed, level)
        assert list(got) == list(want)
        for name, expected in want.items():
            noise = np.square(got[name] - expected).mean() + 1e-30
            assert 10 * np.log10(np.square(expected).mean() / noise) > decibels, (level, name)


def pairs_of(model: onnx.ModelProto, op: str = "DequantizeLinear") -> dict[str, onnx.NodeProto]:
    """Return the nodes of one operator by their output."""
    return {node.output[0]: node for node in model.graph.node if node.op_type == op}
