"""Layers to refine: which they are, what they read, and what they become in the quantized model."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chain_models import chain, smooth
from helpers.emitted_models import build, conv, int8_config, normal
from helpers.staged import quantized, random_feeds
from onnx import helper

from lowbit.config.presets import find_preset
from lowbit.config.specs import (
    BLOCKS,
    FloatSpec,
    IntegerSpec,
    Requantization,
    Rule,
    TensorOverride,
)
from lowbit.graph.session import session
from lowbit.graph.submodels import Extractor
from lowbit.numerics.affine import QParams, dequantize
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.ops.linear import LAYERS
from lowbit.refine import layers as refined_layers
from lowbit.refine.layers import (
    LayerInput,
    LayerResult,
    RefinedConstants,
    RefinedLayer,
    find_layers,
    float_bias,
    float_weights,
    replaced_constants,
    settled_bias,
    unrefined,
)
from lowbit.scales.formats import rounded_values
from lowbit.state import Quantized, extended

_CONFIG = int8_config()


def _mixed() -> onnx.ModelProto:
    """Return layers of every kind, some of which cannot be refined."""
    nodes = [
        conv("plain", "x", "w0", "b0", "p"),
        helper.make_node("Relu", ["p"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w1"], ["s"], name="padded", auto_pad="SAME_UPPER"),
        conv("first", "s", "w2", None, "t"),
        conv("second", "t", "w2", None, "u"),
        helper.make_node("InstanceNormalization", ["u", "g", "b1"], ["v"], name="norm"),
        helper.make_node("Flatten", ["v"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b2"], ["h"], name="dense", beta=0.5),
        helper.make_node("Sigmoid", ["h"], ["y"], name="gate"),
    ]
    constants = {
        "w0": normal(4, 4, 1, 1, seed=0),
        "b0": normal(4, seed=1),
        "w1": normal(4, 4, 3, 3, seed=2),
        "w2": normal(4, 4, 1, 1, seed=3),
        "g": np.abs(normal(4, seed=4)) + 0.5,
        "b1": normal(4, seed=5),
        "w3": normal(100, 3, seed=6),
        "b2": normal(3, seed=7),
    }
    return build(nodes, {"x": [1, 4, 5, 5]}, ["y"], constants)


def _state(config=_CONFIG, model: onnx.ModelProto | None = None) -> Quantized:
    model = model or _mixed()
    return quantized(model, config, random_feeds(model))


def _layers(state: Quantized, *op_types: str, integers: bool = True) -> dict[str, RefinedLayer]:
    layers, _ = find_layers(state, op_types, integers=integers)
    return {layer.node: layer for layer in layers}


@pytest.mark.usefixtures("shared_weights")
def test_linear_layers_are_found_in_the_order_of_the_graph_and_others_are_named() -> None:
    layers, skipped = find_layers(_state(), ())

    assert [layer.node for layer in layers] == ["plain", "dense"]
    assert skipped == [
        ("padded", "its padding depends on the input"),
        ("first", "its weight is shared with another layer"),
        ("second", "its weight is shared with another layer"),
    ]


@pytest.mark.usefixtures("shared_weights")
def test_normalizations_are_refined_where_they_are_asked_for() -> None:
    assert list(_layers(_state(), *LAYERS)) == ["plain", "norm", "dense"]
    assert list(_layers(_state(), "Gemm")) == ["dense"]
    # An operator without weights is none.
    assert _layers(_state(), "Relu") == {}


def test_layers_the_float_model_does_not_compute_are_named() -> None:
    state = _state()
    other = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[1,4,5,5] x) => (float[1,4,5,5] p) { p = Neg(x) }"
    )

    layers, skipped = find_layers(extended(state, Quantized, calibrated_model=other), ())

    assert [layer.node for layer in layers] == ["plain"]
    assert ("dense", "the float model does not compute its output") in skipped


@pytest.mark.usefixtures("shared_weights")
def test_excluded_layers_are_not_refined() -> None:
    state = _state(msgspec.structs.replace(_CONFIG, exclude=("plain",)))

    assert list(_layers(state)) == ["dense"]


@pytest.mark.usefixtures("shared_weights")
@pytest.mark.parametrize("spec", [FloatSpec(format=FloatFormat.BFLOAT16), BLOCKS["MX9"]])
def test_weights_in_other_formats_are_refined_only_by_what_can(spec) -> None:
    state = _state(msgspec.structs.replace(_CONFIG, rules=(Rule(name="plain", weight=spec),)))

    assert list(_layers(state)) == ["dense"]
    layer = _layers(state, integers=False)["plain"]
    assert layer.params is None
    assert layer.spec == spec
    stored = float_weights(state, layer)
    np.testing.assert_array_equal(
        layer.values(stored), rounded_values(stored, spec, layer.weight.axis)
    )
    with pytest.raises(TypeError, match="the weights of plain are no integers"):
        _ = layer.weight_params
    with pytest.raises(TypeError, match="which is not an integer"):
        _ = layer.limits


def test_a_layer_knows_its_tensors_in_both_models() -> None:
    """Run the quantized model: what is named is what the node reads and computes."""
    state = _state()
    layer = _layers(state)["plain"]
    names = [layer.input.name, layer.weight_name, layer.bias_name, layer.output]

    with session(state.emitted.model, names) as running:
        x, weight, bias, output = running.run(names, random_feeds(_mixed())[0])

    assert x.dtype == np.int8
    geometry = layer.geometry
    at = np.arange(geometry.count(output.shape))
    patches = geometry.patches(layer.input.floats(x), at, output.shape)
    found = geometry.matrix(weight) @ patches + bias.reshape(1, -1, 1)
    np.testing.assert_allclose(found, geometry.values(output, at), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(weight, layer.values(state.weights.tensors["w0"]()))
    assert layer.limits == (-127, 127)
    assert (layer.op_type, layer.output) == ("Conv", "p")


def test_inputs_are_kept_as_integers_where_there_are_any() -> None:
    params = QParams(np.float32(0.5), np.int8(-3), IntegerFormat.INT8)

    floats = LayerInput("q", params).floats(np.int8([-3, 0, 127, -128]))

    np.testing.assert_array_equal(floats, [0.0, 1.5, 65.0, -62.5])
    assert floats.dtype == np.float32
    np.testing.assert_array_equal(LayerInput("q").floats(np.float32([0.25])), [0.25])


def test_inputs_of_other_formats_are_read_as_floats() -> None:
    spec = FloatSpec(format=FloatFormat.FLOAT16)
    state = _state(
        msgspec.structs.replace(_CONFIG, tensors=(TensorOverride(tensor="x", spec=spec),))
    )

    found = _layers(state)["plain"].input

    assert found == LayerInput("x_DequantizeLinear_Output")


def test_inputs_that_stay_in_float_keep_their_name() -> None:
    state = _state(msgspec.structs.replace(_CONFIG, activation=None, bias=None))

    assert _layers(state)["plain"].input == LayerInput("x")
    assert _layers(state)["dense"].input == LayerInput("f")


@pytest.mark.parametrize("keep", [None, "float"])
def test_a_requantized_input_is_that_of_the_second_pair(keep: str | None) -> None:
    """Or that of the first, if the second is kept in float."""
    override = TensorOverride(tensor="r2", spec=IntegerSpec(format=IntegerFormat.INT16))
    if keep == "float":
        override = TensorOverride(tensor="r2", keep="float")
    config = int8_config(
        requantize=(Requantization(tensor="r0", consumers=("conv1",), name="r2"),),
        tensors=(override,),
        target="onnxruntime",
    )
    state = quantized(chain(2), config, smooth(2))
    layer = _layers(state)["conv1"]
    nodes = {node.name: node for node in state.emitted.model.graph}

    with session(state.emitted.model, [layer.input.name]) as running:
        (x,) = running.run([layer.input.name], smooth(1)[0])

    assert x.dtype == (np.int8 if keep else np.int16)
    read = nodes["conv1"].inputs[0].name
    with session(state.emitted.model, [read]) as running:
        (expected,) = running.run([read], smooth(1)[0])
    np.testing.assert_allclose(layer.input.floats(x), expected, rtol=1e-6)


def test_the_activation_and_the_rounding_after_a_layer_are_known() -> None:
    # On a target that has no float outputs.
    state = _state(msgspec.structs.replace(_CONFIG, target="ryzen-ai"))
    layers = _layers(state)

    # The Relu is fused to its convolution; the Sigmoid's input is quantized first.
    assert layers["plain"].activation.name == "Clip"
    assert layers["dense"].activation.name == "none"
    for node, tensor in (("plain", "r"), ("dense", "h")):
        params, quantizer = state.params.tensors[tensor], layers[node].quantizer
        y = np.linspace(-300, 300, 41) * float(params.scale)
        codes = np.clip(np.rint(y / float(params.scale)), -128, 127)
        np.testing.assert_allclose(quantizer.apply(y), codes * float(params.scale), rtol=1e-6)


def test_what_several_nodes_read_has_no_activation_of_its_own() -> None:
    nodes = [
        conv("c", "x", "w", None, "h"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Add", ["h", "r"], ["y"], name="sum"),
    ]
    model = build(nodes, {"x": [1, 4, 5, 5]}, ["y"], {"w": normal(4, 4, 1, 1)})

    layer = _layers(_state(model=model))["c"]

    assert layer.activation.name == "none"


def test_a_softmax_over_the_channels_is_an_activation() -> None:
    """Those of a matrix product lie on the last axis, those of a convolution do not."""
    nodes = [
        conv("c", "x", "w0", None, "h"),
        helper.make_node("Softmax", ["h"], ["p"], name="over_width", axis=-1),
        helper.make_node("MatMul", ["p", "w1"], ["m"], name="dense"),
        helper.make_node("Softmax", ["m"], ["y"], name="over_channels", axis=-1),
    ]
    constants = {"w0": normal(4, 4, 1, 1), "w1": normal(5, 3)}
    model = build(nodes, {"x": [1, 4, 5, 5]}, ["y"], constants)

    layers = _layers(_state(msgspec.structs.replace(_CONFIG, activation=None, bias=None), model))

    assert layers["c"].activation.name == "none"
    assert layers["dense"].activation.name == "Softmax"


def test_a_bias_that_stays_in_float_is_fixed() -> None:
    state = _state(msgspec.structs.replace(_CONFIG, bias=None))

    layers = _layers(state)

    for node, name, factor in (("plain", "b0", 1.0), ("dense", "b2", 0.5)):
        expected = state.adapted.graph.initializers[name].const_value.numpy() * factor
        np.testing.assert_allclose(layers[node].fixed_bias, expected, rtol=1e-6)
        assert (layers[node].bias, layers[node].bias_name) == (None, None)
        assert float_bias(state, layers[node]) is None
    assert _layers(_state())["plain"].fixed_bias is None


def test_the_float_bias_is_the_corrected_one_if_there_is_one() -> None:
    state = _state()
    layer = _layers(state)["dense"]
    original = state.adapted.graph.initializers["b2"].const_value.numpy()
    np.testing.assert_allclose(float_bias(state, layer), original * 0.5, rtol=1e-6)

    values = np.float32([1.0, 2.0, 3.0])
    params = dataclasses.replace(state.params, bias_values={"dense": values})

    corrected = extended(state, Quantized, params=params)
    np.testing.assert_array_equal(float_bias(corrected, layer), values)


@pytest.mark.parametrize("preset", ["A8W8", "XINT8"])
def test_a_settled_bias_is_what_the_quantized_model_would_add(preset: str) -> None:
    config = msgspec.structs.replace(find_preset(preset), head="int8")
    state = quantized(chain(2), config, smooth(4))
    layer = _layers(state)["conv1"]
    bias = float_bias(state, layer)

    same = settled_bias(state, layer, bias)

    with session(state.emitted.model, [layer.bias_name]) as running:
        (stored,) = running.run([layer.bias_name], smooth(1)[0])
    np.testing.assert_allclose(same, stored, rtol=1e-6)
    larger = settled_bias(state, layer, bias + 10)
    # In int8 and powers of two, 10 needs a scale of 2 ** -3; in int32 it is as fine as before.
    error = np.abs(larger - bias - 10).max()
    assert error <= (2.0**-4 if preset == "XINT8" else 1e-4)


def test_a_layer_without_a_bias_has_none_to_settle() -> None:
    state = _state(msgspec.structs.replace(_CONFIG, bias=None))

    with pytest.raises(ValueError, match="plain has no bias"):
        settled_bias(state, _layers(state)["plain"], np.zeros(4, np.float32))


def test_refined_constants_are_made_when_they_are_asked_for(monkeypatch) -> None:
    state = _state()
    layer = _layers(state)["plain"]
    stored, bias = np.full((4, 4, 1, 1), 11, np.int8), np.float32([1.0, -1.0, 0.5, 0.0])
    result = LayerResult("plain", stored, bias, 1.0, 0.5, kept=True)
    made = []
    values = RefinedLayer.values
    monkeypatch.setattr(RefinedLayer, "values", lambda *given: made.append(1) or values(*given))
    constants = RefinedConstants(state)
    assert not constants

    constants.add(layer, result)

    assert layer.weight_name in constants
    assert not made
    expected = replaced_constants(state, layer, result)
    assert set(constants) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(constants[name], array)


def test_replaced_constants_are_what_the_node_reads_from_then_on() -> None:
    """Run the quantized model with them: it computes with the refined weights and bias."""
    state = _state()
    layer = _layers(state)["plain"]
    stored = np.full((4, 4, 1, 1), 11, np.int8)
    bias = np.float32([1.0, -1.0, 0.5, 0.0])
    result = LayerResult("plain", stored, bias, 1.0, 0.5, kept=True)

    constants = replaced_constants(state, layer, result)

    assert set(constants) == {layer.weight_name, layer.bias_name}
    inputs = {value.name: None for value in state.emitted.model.graph.inputs}
    running = Extractor(state.emitted.model).session(inputs, ["p"], constants)
    feed = random_feeds(_mixed())[0]
    (found,) = running.run(["p"], feed)
    with session(state.emitted.model, ["x_DequantizeLinear_Output"]) as plain:
        (x,) = plain.run(["x_DequantizeLinear_Output"], feed)
    weight = dequantize(stored, state.params.tensors["w0"])[:, :, 0, 0]
    expected = np.einsum("oc,nchw->nohw", weight, x) + bias.reshape(1, 4, 1, 1)
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_without_a_bias_only_the_weights_are_replaced() -> None:
    state = _state()
    layer = _layers(state)["plain"]
    result = LayerResult("plain", state.weights.tensors["w0"](), None, 1.0, 1.0, kept=False)

    assert set(replaced_constants(state, layer, result)) == {layer.weight_name}


def test_what_is_not_kept_is_what_was_stored_before() -> None:
    state = _state()
    layer = _layers(state)["dense"]
    tuned = LayerResult("dense", np.zeros((100, 3), np.int8), None, 3.0, 1.0, kept=True)

    back = unrefined(state, layer, tuned.before)

    np.testing.assert_array_equal(back.stored, state.weights.tensors["w3"]())
    np.testing.assert_array_equal(back.bias, float_bias(state, layer))
    assert (back.before, back.after, back.kept) == (3.0, 3.0, False)


@pytest.mark.parametrize(("op", "replaced"), [("Sigmoid", True), ("GlobalAveragePool", False)])
def test_a_replaced_function_is_told_from_a_rounded_average(op: str, replaced: bool) -> None:
    weight = np.random.default_rng(3).normal(size=(4, 4, 1, 1)).astype(np.float32)
    inits = [onnx.numpy_helper.from_array(weight, name) for name in ("w0", "w1")]
    middle = [helper.make_node(op, ["a"], ["s"], "middle")]
    if op == "Sigmoid":
        middle.append(helper.make_node("Mul", ["a", "s"], ["m"], "product"))
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w0"], ["a"], "first"),
            *middle,
            helper.make_node("Conv", [middle[-1].output[0], "w1"], ["y"], "second"),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 4, 7, 7])],
        [helper.make_tensor_value_info("y", 1, None)],
        inits,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rng = np.random.default_rng(4)
    feeds = [{"x": rng.normal(size=(1, 4, 7, 7)).astype(np.float32)} for _ in range(4)]
    state = quantized(model, find_preset("XINT8"), feeds)
    layers = {layer.node: layer for layer in find_layers(state, ())[0]}

    assert state.float_names  # the device computes both otherwise
    assert layers["second"].reads_other_curve is replaced
    assert not layers["first"].reads_other_curve


def _residual_stream(blocks: int) -> onnx.ModelProto:
    """Return a model whose sums all go back to its first sigmoid."""
    rng = np.random.default_rng(5)
    names = [f"w{index}" for index in range(blocks)]
    weights = [rng.normal(0, 0.3, (4, 4, 1, 1)).astype(np.float32) for _ in names]
    nodes, source = [helper.make_node("Sigmoid", ["x"], ["s"], "front")], "s"
    for index, name in enumerate(names):
        nodes += [
            helper.make_node("Conv", [source, name], [f"c{index}"], f"conv{index}"),
            helper.make_node("Add", [source, f"c{index}"], [f"a{index}"], f"add{index}"),
        ]
        source = f"a{index}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 4, 3, 3])],
        [helper.make_tensor_value_info(source, 1, [1, 4, 3, 3])],
        [onnx.numpy_helper.from_array(w, n) for n, w in zip(names, weights, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_nodes_are_looked_at_as_often_in_a_deep_graph_as_in_a_shallow_one(monkeypatch) -> None:
    """Each sum was followed back to the front: the time grew with the square of the number of layers."""
    calls: list[ir.Node] = []
    real = refined_layers.has_constant_weight

    def counted(node: ir.Node) -> bool:
        calls.append(node)
        return real(node)

    monkeypatch.setattr(refined_layers, "has_constant_weight", counted)
    visits = []
    for blocks in (4, 16):
        rng = np.random.default_rng(6)
        feeds = [{"x": rng.normal(size=(1, 4, 3, 3)).astype(np.float32)} for _ in range(2)]
        state = quantized(_residual_stream(blocks), find_preset("XINT8"), feeds)
        calls.clear()
        layers, _ = find_layers(state, ())
        assert all(layer.reads_other_curve for layer in layers)
        visits.append(len(calls) / len(state.adapted.graph))

    assert visits[1] <= visits[0]
