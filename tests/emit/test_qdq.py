"""The emitted graph: valid, in order, complete, and named as tools expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.api import prepare
from lowbit.calibrate.collect import collect
from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.config.specs import IntegerSpec, ProductBias
from lowbit.emit.emit import emit_qdq
from lowbit.graph import io
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning import make_plan
from lowbit.scales.solve import resolve
from lowbit.scales.stored import nearest

_LEVELS = (
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
)
_RNG = np.random.default_rng(0)


def _config(
    activation: IntegerFormat = IntegerFormat.INT8,
    weight: IntegerFormat = IntegerFormat.INT8,
    **options: Any,
) -> QuantConfig:
    per_channel = options.pop("per_channel", False)
    fields = {
        "activation": IntegerSpec(format=activation),
        "weight": IntegerSpec(format=weight, per_channel=per_channel),
        "bias": ProductBias(),
        "target": "onnxruntime",
        "head": "int8",
    }
    return QuantConfig(**{**fields, **options})


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, list[int]],
    outputs: Sequence[str],
    constants: dict[str, np.ndarray],
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, inputs.get(n)) for n in outputs],
        [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _conv(name: str, source: str, weight: str, bias: str | None, output: str) -> onnx.NodeProto:
    inputs = [source, weight, *([bias] if bias else [])]
    return helper.make_node("Conv", inputs, [output], name=name, kernel_shape=[1, 1])


def _chain(opset: int = 17) -> onnx.ModelProto:
    return _model(
        [
            _conv("c1", "x", "w1", "b1", "h"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
            _conv("c2", "r", "w2", "b2", "y"),
        ],
        {"x": [1, 4, 5, 5]},
        ["y"],
        {
            "w1": _RNG.normal(size=(4, 4, 1, 1)),
            "b1": _RNG.normal(size=4),
            "w2": _RNG.normal(size=(4, 4, 1, 1)),
            "b2": _RNG.normal(size=4),
        },
        opset,
    )


def _feeds(model: onnx.ModelProto, count: int = 3) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        {
            value.name: rng.normal(
                size=[d.dim_value for d in value.type.tensor_type.shape.dim]
            ).astype(np.float32)
            for value in model.graph.input
        }
        for _ in range(count)
    ]


def _emit(model: onnx.ModelProto, config: QuantConfig) -> onnx.ModelProto:
    ready = prepare(ir.from_proto(model), config)
    plan = make_plan(ready.adapted, config, ready.target)
    stats = collect(ready.observed, plan, _feeds(model))
    params = resolve(ready.adapted, plan, stats, ready.target)
    weights = nearest(ready.adapted, plan, params)
    emitted = io.to_proto(emit_qdq(ready.adapted, plan, params, weights, domain=config.domain))
    _assert_in_order(emitted)
    return emitted


def _assert_in_order(model: onnx.ModelProto) -> None:
    known = {v.name for v in model.graph.input} | {t.name for t in model.graph.initializer}
    for node in model.graph.node:
        assert all(name in known for name in node.input if name), node.name
        assert not known & set(node.output), node.name
        known |= set(node.output)
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def _run(
    model: onnx.ModelProto, feed: dict, level: Any = _LEVELS[0], *, exact: bool = True
) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    # Fused kernels of processors without VNNI saturate; what is compared here is the model.
    options.add_session_config_entry("session.x64quantprecision", "1" if exact else "0")
    running = ort.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in model.graph.output]
    return dict(zip(names, running.run(names, feed), strict=True))


def _assert_close(model: onnx.ModelProto, emitted: onnx.ModelProto, decibels: float = 25) -> None:
    """The emitted model computes what the float one does, at every optimization level."""
    onnx.checker.check_model(emitted, full_check=True)
    feed = _feeds(model)[0]
    want = _run(model, feed)
    for level in _LEVELS:
        got = _run(emitted, feed, level)
        assert list(got) == list(want)
        for name, expected in want.items():
            noise = np.square(got[name] - expected).mean() + 1e-30
            assert 10 * np.log10(np.square(expected).mean() / noise) > decibels, (level, name)


def _pairs(model: onnx.ModelProto, op: str = "DequantizeLinear") -> dict[str, onnx.NodeProto]:
    return {node.output[0]: node for node in model.graph.node if node.op_type == op}


def test_a_chain_is_valid_and_close_at_every_optimization_level() -> None:
    model = _chain()

    emitted = _emit(model, _config())

    _assert_close(model, emitted)
    assert [v.name for v in emitted.graph.input] == ["x"]
    assert [v.name for v in emitted.graph.output] == ["y"]
    assert {"x_DequantizeLinear_Output", "r_DequantizeLinear_Output"} <= set(_pairs(emitted))


def test_every_stored_constant_is_an_integer_behind_a_dequantizer() -> None:
    emitted = _emit(_chain(), _config())

    kinds = {t.name: t.data_type for t in emitted.graph.initializer}
    assert kinds["w1_quantized"] == TensorProto.INT8
    assert kinds["b1_quantized"] == TensorProto.INT32
    assert not {"w1", "b1", "w2", "b2"} & set(kinds)


@pytest.mark.parametrize(
    ("activation", "opset", "domain", "expected"),
    [
        (IntegerFormat.INT8, 17, "auto", ""),
        (IntegerFormat.INT16, 17, "auto", "com.microsoft"),
        (IntegerFormat.UINT16, 17, "auto", "com.microsoft"),
        (IntegerFormat.INT16, 21, "auto", ""),
        (IntegerFormat.INT8, 17, "com.microsoft", "com.microsoft"),
        (IntegerFormat.INT16, 21, "com.microsoft", "com.microsoft"),
        (IntegerFormat.INT8, 17, "ai.onnx", ""),
    ],
)
def test_16_bit_pairs_are_microsofts_below_operator_set_21(
    activation: IntegerFormat, opset: int, domain: str, expected: str
) -> None:
    model = _chain(opset)

    emitted = _emit(model, _config(activation, domain=domain))

    pair = _pairs(emitted, "QuantizeLinear")["x_QuantizeLinear_Output"]
    assert pair.domain == expected
    _assert_close(model, emitted)


def test_per_channel_weights_name_their_axis() -> None:
    model = _chain()

    emitted = _emit(model, _config(per_channel=True))

    pairs = _pairs(emitted)
    axis = {a.name: a.i for a in pairs["w1_DequantizeLinear_Output"].attribute}
    assert axis == {"axis": 0}
    assert not pairs["x_DequantizeLinear_Output"].attribute
    scales = {t.name: numpy_helper.to_array(t) for t in emitted.graph.initializer}
    assert scales["w1_scale"].shape == (4,)
    _assert_close(model, emitted)


@pytest.mark.parametrize("fmt", [IntegerFormat.INT4, IntegerFormat.UINT4])
@pytest.mark.parametrize("per_channel", [True, False])
def test_four_bit_weights_are_packed_and_run(fmt: IntegerFormat, per_channel: bool) -> None:
    model = _chain(21)

    emitted = _emit(model, _config(weight=fmt, per_channel=per_channel))

    stored = {t.name: t for t in emitted.graph.initializer}["w1_quantized"]
    assert stored.data_type == (TensorProto.INT4 if fmt.signed else TensorProto.UINT4)
    _assert_close(model, emitted, 5)


def test_an_output_that_is_read_inside_keeps_its_name_and_is_quantized_for_both() -> None:
    model = _model(
        [_conv("c1", "x", "w", None, "mid"), _conv("c2", "mid", "w2", None, "y")],
        {"x": [1, 4, 5, 5]},
        ["mid", "y"],
        {"w": _RNG.normal(size=(4, 4, 1, 1)), "w2": _RNG.normal(size=(4, 4, 1, 1))},
    )

    emitted = _emit(model, _config())

    assert _pairs(emitted)["mid"].op_type == "DequantizeLinear"
    assert next(n for n in emitted.graph.node if n.name == "c2").input[0] == "mid"
    _assert_close(model, emitted)


def test_an_input_that_is_an_output_stays_what_it_is() -> None:
    model = _model(
        [_conv("c1", "x", "w", None, "y")],
        {"x": [1, 4, 5, 5]},
        ["x", "y"],
        {"w": _RNG.normal(size=(4, 4, 1, 1))},
    )

    emitted = _emit(model, _config())

    assert [v.name for v in emitted.graph.input] == ["x"]
    assert [v.name for v in emitted.graph.output] == ["x", "y"]
    _assert_close(model, emitted)


def test_shared_weights_are_stored_once_and_shared_biases_once_a_node() -> None:
    model = _model(
        [_conv("c1", "x", "w", "b", "h"), _conv("c2", "h", "w", "b", "y")],
        {"x": [1, 4, 5, 5]},
        ["y"],
        {"w": _RNG.normal(size=(4, 4, 1, 1)), "b": _RNG.normal(size=4)},
    )

    emitted = _emit(model, _config())

    stored = [t for t in emitted.graph.initializer if t.data_type == TensorProto.INT8 and t.dims]
    biases = [t for t in emitted.graph.initializer if t.data_type == TensorProto.INT32 and t.dims]
    assert len(stored) == 1
    assert len(biases) == 2
    onnx.checker.check_model(emitted, full_check=True)
    for level in _LEVELS:
        # Up to 1.31 onnxruntime converts a shared weight twice when asked for exact kernels.
        _run(emitted, _feeds(model)[0], level, exact=False)


@pytest.mark.parametrize("beta", [0.5, 2.0, -1.5, 0.0])
@pytest.mark.parametrize("preset", ["A8W8", "XINT8", "U8S8_PERCHANNEL"])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (1,), ()])
def test_the_factor_of_a_gemms_bias_is_folded_into_it(
    beta: float, preset: str, shape: tuple[int, ...]
) -> None:
    model = _model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc", beta=beta, alpha=0.7)],
        {"x": [1, 4]},
        ["y"],
        {"w": _RNG.normal(size=(4, 5)), "b": np.abs(_RNG.normal(size=shape)) + 2.0},
    )

    emitted = _emit(model, msgspec.structs.replace(find_preset(preset), head="int8"))

    _assert_close(model, emitted, 20)


def test_names_that_are_taken_are_not_taken_again() -> None:
    """Tensors of the model may be called what emission would call its own."""
    model = _model(
        [
            _conv("x_QuantizeLinear", "x", "w", "b", "x_scale"),
            _conv("c2", "x_scale", "x_scale_scale", "w_bias", "x_DequantizeLinear_Output"),
            _conv("w", "x_DequantizeLinear_Output", "w_quantized", "b", "y"),
        ],
        {"x": [1, 4, 5, 5]},
        ["y"],
        {
            "w": _RNG.normal(size=(4, 4, 1, 1)),
            "x_scale_scale": _RNG.normal(size=(4, 4, 1, 1)),
            "w_quantized": _RNG.normal(size=(4, 4, 1, 1)),
            "b": _RNG.normal(size=4),
            "w_bias": _RNG.normal(size=4),
        },
    )

    emitted = _emit(model, _config())

    _assert_close(model, emitted, 20)


def test_pairs_before_float_data_movement_are_microsofts_at_operator_set_21() -> None:
    """There onnxruntime's optimizer would turn standard ones into an invalid graph."""
    model = _model(
        [
            _conv("c1", "x", "w", None, "h"),
            helper.make_node("Transpose", ["h"], ["t"], name="move", perm=[0, 2, 3, 1]),
            helper.make_node("Exp", ["t"], ["y"], name="exp"),
        ],
        {"x": [1, 4, 6, 6]},
        ["y"],
        {"w": _RNG.normal(size=(4, 4, 1, 1)) / 4},
        21,
    )

    emitted = _emit(model, _config(exclude=("move",)))

    domains = {name: pair.domain for name, pair in _pairs(emitted).items()}
    assert domains["h_DequantizeLinear_Output"] == "com.microsoft"
    assert domains["x_DequantizeLinear_Output"] == ""
    _assert_close(model, emitted, 20)


def test_followers_use_the_parameters_of_their_leader() -> None:
    model = _model(
        [
            _conv("c1", "x", "w", None, "h"),
            helper.make_node("MaxPool", ["h"], ["p"], name="pool", kernel_shape=[2, 2]),
            _conv("c2", "p", "w2", None, "y"),
        ],
        {"x": [1, 4, 6, 6]},
        ["y"],
        {"w": _RNG.normal(size=(4, 4, 1, 1)), "w2": _RNG.normal(size=(4, 4, 1, 1))},
    )

    emitted = _emit(model, _config())

    pairs = _pairs(emitted)
    assert (
        pairs["p_DequantizeLinear_Output"].input[1:] == pairs["h_DequantizeLinear_Output"].input[1:]
    )
    _assert_close(model, emitted)


def test_the_float_model_is_not_changed() -> None:
    config, model = _config(), _chain()
    ready = prepare(ir.from_proto(model), config)
    before = io.to_proto(ready.adapted).SerializeToString()
    plan = make_plan(ready.adapted, config, ready.target)
    stats = collect(ready.observed, plan, _feeds(model))
    params = resolve(ready.adapted, plan, stats, ready.target)

    emit_qdq(ready.adapted, plan, params, nearest(ready.adapted, plan, params))

    assert io.to_proto(ready.adapted).SerializeToString() == before


def test_a_quantized_model_says_how_it_was_made() -> None:
    model = _chain()

    result = lowbit.quantize(model, data=_feeds(model), preset="A8W8")

    properties = {p.key: p.value for p in result.model.metadata_props}
    assert properties["lowbit.preset"] == "A8W8"
    assert properties["lowbit.target"] == "ryzen-ai"
    assert properties["lowbit.version"] == lowbit.__version__
    read_back = msgspec.json.decode(properties["lowbit.config"], type=QuantConfig)
    # What the preset tries is in it only if it was kept.
    tried = ("equalize", "smooth", "correct")
    kept = {field: getattr(result.config, field) for field in tried}
    assert read_back == msgspec.structs.replace(find_preset("A8W8"), **kept)
    assert "sha256" in properties["lowbit.data"]
    assert result.model.producer_name == "lowbit"
