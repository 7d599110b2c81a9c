"""The shift that rounding weights causes, against the mean over data of running both."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.staged import solved
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.calibrate.channels import ChannelTotals
from lowbit.calibrate.statistics import Stats, TensorStats
from lowbit.config.config import QuantConfig
from lowbit.config.specs import BLOCKS, AccumulatorBias, FloatSpec, IntegerSpec, Spec
from lowbit.graph.session import session
from lowbit.numerics.affine import dequantize
from lowbit.numerics.exact_sums import exact_sums
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.refine.bias_correction import corrected_biases
from lowbit.scales.stored import Weights
from lowbit.state import Solved

_CONFIG = QuantConfig(
    activation=IntegerSpec(format=IntegerFormat.INT8),
    weight=IntegerSpec(format=IntegerFormat.INT4),
    bias=AccumulatorBias(),
    target="onnxruntime",
    head="int8",
)
# Rounding to four bits makes the shift large; 4-bit weights exist from this operator set on.
_OPSET = 21

CASES = {
    "conv": ("Conv", (6, 4, 3, 3), {"kernel_shape": [3, 3]}, 6),
    "grouped": ("Conv", (6, 2, 3, 3), {"kernel_shape": [3, 3], "group": 2}, 6),
    "depthwise": ("Conv", (4, 1, 3, 3), {"kernel_shape": [3, 3], "group": 4}, 4),
    "transposed": ("ConvTranspose", (4, 5, 1, 1), {"kernel_shape": [1, 1]}, 5),
    "transposed grouped": ("ConvTranspose", (4, 3, 1, 1), {"kernel_shape": [1, 1], "group": 2}, 6),
    "transposed strided": (
        "ConvTranspose",
        (4, 3, 2, 2),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        3,
    ),
    "gemm": ("Gemm", (7, 5), {}, 5),
    "gemm transposed": ("Gemm", (5, 7), {"transB": 1, "alpha": 0.5, "beta": 2.0}, 5),
}


def _model(case: str) -> onnx.ModelProto:
    op, shape, attributes, outputs = CASES[case]
    rng = np.random.default_rng(len(case))
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "b"], ["y"], name="layer", **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, _input_shape(op))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), "w"),
            numpy_helper.from_array(rng.normal(size=outputs).astype(np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


def _input_shape(op: str) -> list[int]:
    return [3, 7] if op == "Gemm" else [1, 4, 9, 9]


def _feeds(op: str) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    shape = _input_shape(op)
    # Constant images: borders then see the same means as the inside, so that sums agree exactly.
    means = rng.normal(2.0, 1.0, size=(6, *shape[:2], *[1] * (len(shape) - 2)))
    return [{"x": np.broadcast_to(m, shape).astype(np.float32)} for m in means]


def _means(model: ir.Model, feeds: list, weight: np.ndarray | None = None) -> np.ndarray:
    model = model.clone()
    if weight is not None:
        model.graph.initializers["w"].const_value = ir.tensor(weight.astype(np.float32), name="w")
    with session(model) as running:
        rows = [running.run(["y"], feed)[0] for feed in feeds]
    y = np.stack(rows).astype(np.float64)
    axis = 2 if y.ndim > 3 else y.ndim - 1
    return y.mean(axis=tuple(i for i in range(y.ndim) if i != axis))


def _corrected(state: Solved) -> dict[str, np.ndarray]:
    return corrected_biases(state.adapted, state.plan, state.params, state.stats, state.weights)


@pytest.mark.parametrize("case", CASES)
def test_correction_takes_off_the_mean_shift_of_every_channel(case: str) -> None:
    op = CASES[case][0]
    feeds = _feeds(op)
    state = solved(_model(case), _CONFIG, feeds)
    rounded = dequantize(state.weights.tensors["w"](), state.params.tensors["w"])

    corrected = _corrected(state)["layer"]

    shift = _means(state.adapted, feeds, rounded) - _means(state.adapted, feeds)
    beta = CASES[case][2].get("beta", 1.0)
    original = state.adapted.graph.initializers["b"].const_value.numpy()
    assert np.abs(shift).max() > 0.01
    np.testing.assert_allclose(corrected, original * beta - shift, atol=2e-4)


def test_nodes_whose_input_was_not_observed_are_left_alone() -> None:
    state = solved(_model("conv"), _CONFIG, _feeds("Conv"))
    arguments = (state.adapted, state.plan, state.params)

    assert corrected_biases(*arguments, Stats({}), state.weights) == {}
    no_weights = Weights({}, state.weights.biases)
    assert corrected_biases(*arguments, state.stats, no_weights) == {}


@pytest.mark.parametrize("spec", [FloatSpec(format=FloatFormat.BFLOAT16), BLOCKS["MX6"]])
def test_biases_beside_weights_that_are_no_integers_are_left_alone(spec: Spec) -> None:
    """A bias with a scale of its own may be stored as integers beside any weight."""
    bias = IntegerSpec(format=IntegerFormat.INT16)
    config = msgspec.structs.replace(_CONFIG, weight=spec, bias=bias, target="ryzen-ai-float")

    state = solved(_model("conv"), config, _feeds("Conv"))

    assert [row.node for row in state.plan.biases] == ["layer"]
    assert _corrected(state) == {}


def test_a_float_counterpart_is_what_the_mean_output_is_to_be_that_of() -> None:
    """Where the device reads x' for x, the shift is that of W' x' against W x."""
    feeds = _feeds("Conv")
    state = solved(_model("conv"), _CONFIG, feeds)
    known = state.stats.tensors["x"]
    offset = np.linspace(-0.5, 0.5, 4)
    other = Stats({**state.stats.tensors, "f": _with_channels(known, known.channels - offset)})

    corrected = corrected_biases(
        state.adapted, state.plan, state.params, other, state.weights, {"x": "f"}
    )["layer"]

    plain = _corrected(state)["layer"]
    weight = state.adapted.graph.initializers["w"].const_value.numpy().astype(np.float64)
    np.testing.assert_allclose(plain - corrected, weight.sum(axis=(2, 3)) @ offset, atol=1e-5)


def _with_channels(stats: TensorStats, channels: np.ndarray) -> TensorStats:
    return dataclasses.replace(stats, totals=ChannelTotals(exact_sums(channels), None, 1))


def test_a_layer_makes_up_for_what_the_device_computes_otherwise() -> None:
    """The mean output of a layer after a hard sigmoid is that of the float model."""
    rng = np.random.default_rng(4)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1"),
        helper.make_node("Sigmoid", ["c1"], ["s1"], "sigmoid"),
        helper.make_node("Mul", ["c1", "s1"], ["m1"], "swish"),
        helper.make_node("Conv", ["m1", "w2", "b2"], ["y"], "conv2"),
    ]
    constants = {
        "w1": rng.normal(0, 0.1, (6, 3, 1, 1)),
        "b1": np.full(6, 2.0),  # where the hard gate is lower than the true one by 0.05
        "w2": rng.uniform(0.5, 1.0, (4, 6, 1, 1)),
        "b2": rng.normal(size=4),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 16, 16])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = [{"x": rng.normal(0, 2, (1, 3, 16, 16)).astype(np.float32)} for _ in range(8)]

    def mean(proto: onnx.ModelProto) -> np.ndarray:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(proto.SerializeToString(), options)
        return np.mean([session.run(None, f)[0].mean(axis=(0, 2, 3)) for f in feeds], axis=0)

    result = lowbit.quantize(model, data=feeds, preset="XINT8")

    step = float(result.params.tensors["y"].scale)
    assert np.abs(mean(result.model) - mean(model)).max() < step / 4
