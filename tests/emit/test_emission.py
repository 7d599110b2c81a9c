"""The names under which tensors are found in the emitted graph, and what stands there."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from helpers.emitted_models import build as build_model
from helpers.emitted_models import conv, conv_chain, int8_config, normal
from helpers.staged import quantized, random_feeds
from onnx import helper

from lowbit.config.config import QuantConfig
from lowbit.config.specs import BLOCKS, FloatSpec, Requantization, Spec, TensorOverride
from lowbit.emit.emission import Emission, EmitOptions
from lowbit.graph.session import session
from lowbit.numerics.affine import dequantize
from lowbit.numerics.formats import FloatFormat
from lowbit.ops.traits import OPERATORS
from lowbit.scales.formats import rounded_values
from lowbit.state import Quantized

_FP16 = FloatSpec(format=FloatFormat.FLOAT16)


def _uniform(spec: Spec, **options: Any) -> QuantConfig:
    fields = {"activation": spec, "weight": spec, "bias": spec, "target": "ryzen-ai-float"}
    return QuantConfig(**fields, head="int8", **options)


def _values(state: Quantized, model: onnx.ModelProto, names: list[str]) -> dict[str, np.ndarray]:
    """Return the values of that name in the emitted graph, constants among them."""
    graph = state.emitted.model.graph
    constants = {n: v.const_value.numpy() for n, v in graph.initializers.items() if n in names}
    computed = [n for n in dict.fromkeys(names) if n not in constants]
    with session(state.emitted.model, computed) as running:
        found = running.run(computed, random_feeds(model)[0])
    return {**constants, **dict(zip(computed, found, strict=True))}


@pytest.mark.parametrize("per_channel", [False, True])
def test_what_is_read_of_integers_is_what_is_stored_dequantized(per_channel: bool) -> None:
    model = conv_chain()
    state = quantized(model, int8_config(per_channel=per_channel), random_feeds(model))

    tensors, biases = state.emitted.tensors, state.emitted.biases

    assert set(tensors) == set(state.plan.by_name()) >= {"x", "r", "y", "w1", "w2"}
    assert set(biases) == {row.node for row in state.plan.biases} == {"c1", "c2"}
    names = [n for row in (*tensors.values(), *biases.values()) for n in (row.stored, row.read)]
    values = _values(state, model, names)
    for name, row in tensors.items():
        expected = dequantize(values[row.stored], state.params.tensors[name])
        np.testing.assert_allclose(values[row.read], expected, rtol=1e-6)
    for node, row in biases.items():
        expected = dequantize(values[row.stored], state.params.biases[node])
        np.testing.assert_allclose(values[row.read], expected, rtol=1e-6)
        np.testing.assert_array_equal(values[row.stored], state.weights.biases[node])


def test_consumers_read_what_is_named() -> None:
    model = conv_chain()
    state = quantized(model, int8_config(), random_feeds(model))

    nodes = {node.name: node for node in state.emitted.model.graph}
    tensors = state.emitted.tensors
    assert [value.name for value in nodes["c2"].inputs] == [
        tensors["r"].read,
        tensors["w2"].read,
        state.emitted.biases["c2"].read,
    ]
    # A graph output keeps its name: it is what is read.
    assert tensors["y"].read == "y"


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        (_uniform(_FP16), True),
        (_uniform(_FP16, casts=True), True),
        (_uniform(_FP16, half_weights=True), True),
        (_uniform(msgspec.structs.replace(_FP16, scaled=True), casts=True), True),
        (_uniform(BLOCKS["MX9"]), False),
    ],
)
def test_what_is_read_of_other_formats_is_what_numpy_rounds(
    config: QuantConfig, stored: bool
) -> None:
    model = conv_chain()
    state = quantized(model, config, random_feeds(model))

    tensors = state.emitted.tensors

    values = _values(state, model, [row.read for row in tensors.values()])
    weights = {t.name: t for t in state.plan.weights()}
    for name, row in weights.items():
        original = state.adapted.graph.initializers[name].const_value.numpy()
        scale = state.params.scales.get(name, 1.0)
        expected = rounded_values(original, row.spec, row.axis, scale)
        np.testing.assert_allclose(values[tensors[name].read], expected, rtol=2e-3)
    # Blocks have no form in which an activation is stored.
    assert (tensors["x"].stored is not None) == stored
    assert all(tensors[name].stored is not None for name in weights)


def test_the_names_of_a_requantized_tensor_are_two() -> None:
    config = int8_config(
        requantize=(Requantization(tensor="r", consumers=("c2",), name="r2"),),
        tensors=(TensorOverride(tensor="r2", spec=_FP16),),
    )
    model = conv_chain()
    state = quantized(model, config, random_feeds(model))

    tensors = state.emitted.tensors
    nodes = {node.name: node for node in state.emitted.model.graph}
    assert nodes["c2"].inputs[0].name == tensors["r2"].read != tensors["r"].read
    values = _values(state, model, [tensors["r"].read, tensors["r2"].read])
    np.testing.assert_array_equal(
        values[tensors["r2"].read], rounded_values(values[tensors["r"].read], _FP16, None)
    )


def test_a_bias_that_two_nodes_share_has_two_names() -> None:
    model = build_model(
        [conv("c1", "x", "w", "b", "h"), conv("c2", "h", "w", "b", "y")],
        {"x": [1, 4, 5, 5]},
        ["y"],
        {"w": normal(4, 4, 1, 1), "b": normal(4)},
    )

    state = quantized(model, int8_config(), random_feeds(model))

    biases = state.emitted.biases
    assert biases["c1"].read != biases["c2"].read
    assert state.emitted.tensors["w"].stored == "w_quantized"


def test_names_in_the_way_are_gone_round_and_told() -> None:
    model = build_model(
        [
            helper.make_node("Tanh", ["x"], ["x_QuantizeLinear_Output"], name="first"),
            conv("c1", "x_QuantizeLinear_Output", "w", None, "x_DequantizeLinear_Output"),
            conv("c2", "x", "w", None, "z"),
            helper.make_node("Add", ["x_DequantizeLinear_Output", "z"], ["y"], name="sum"),
        ],
        {"x": [1, 4, 5, 5]},
        ["y"],
        {"w": normal(4, 4, 1, 1)},
    )

    state = quantized(model, int8_config(), random_feeds(model))

    row = state.emitted.tensors["x"]
    values = _values(state, model, [row.stored, row.read])
    expected = dequantize(values[row.stored], state.params.tensors["x"])
    np.testing.assert_allclose(values[row.read], expected, rtol=1e-6)
    assert (row.stored, row.read) == ("x_QuantizeLinear_Output_1", "x_DequantizeLinear_Output_1")


def test_an_emission_knows_the_activations_of_its_plan() -> None:
    model = conv_chain()
    state = quantized(model, int8_config(), random_feeds(model))

    emission = Emission.of(state.adapted.clone(), state.plan, state.params, EmitOptions())

    assert emission.planned == {"x", "r", "y"}
    assert emission.options == EmitOptions(
        domain="auto", casts=False, half_weights=False, operators=OPERATORS
    )
