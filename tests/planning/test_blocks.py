"""Attention networks are quantized at the inputs of their linear layers, and nowhere else."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.attention_models import Network, block, feeds
from helpers.fused_models import fused_block
from helpers.planned_models import plan_for
from helpers.runtime_versions import skip_before_opset

import lowbit
from lowbit.config.specs import Rule
from lowbit.normalize.normalize import normalize
from lowbit.ops.linear import has_constant_weight
from lowbit.planning import Plan
from lowbit.planning.blocks import find_float_parts

NORMS = ("layer", "layer written out", "rms", "rms by reciprocal", "rms by power")
GELUS = ("erf", "erf, half first", "tanh", "sigmoid")


def _planned(model: onnx.ModelProto, target: str = "onnxruntime", **options: object) -> Plan:
    return plan_for(normalize(ir.from_proto(model)), target, **options)


def _layer_inputs(model: onnx.ModelProto) -> dict[str, set[str]]:
    """Return what the linear layers of a normalized model read, with the layers' names."""
    found: dict[str, set[str]] = {}
    for node in normalize(ir.from_proto(model)).graph:
        if has_constant_weight(node) and node.inputs[0] is not None:
            found.setdefault(str(node.inputs[0].name), set()).add(str(node.name))
    return found


@pytest.mark.parametrize("target", ["onnxruntime", "ryzen-ai", "ryzen-ai-cnn"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gelu", GELUS)
def test_layers_quantize_their_inputs_for_themselves(norm: str, gelu: str, target: str) -> None:
    model = block(norm=norm, gelu=gelu)

    plan = _planned(model, target)

    assert {row.name: set(row.consumers or ()) for row in plan.activations()} == _layer_inputs(
        model
    )
    assert len(plan.weights()) == 6


def test_weights_have_a_scale_per_channel_where_the_target_has_that() -> None:
    assert all(row.axis == 1 for row in _planned(block()).weights())
    assert all(row.axis is None for row in _planned(block(), "ryzen-ai-cnn").weights())


def test_a_rule_on_a_node_holds_against_its_part() -> None:
    model = block()
    softmax = next(node.name for node in model.graph.node if node.op_type == "Softmax")
    plain = _planned(model)

    plan = _planned(model, rules=(Rule(name=softmax, activation=plain.activations()[0].spec),))

    assert f"{softmax}_out" in plan.by_name()
    assert f"{softmax}_out" not in plain.by_name()


def test_residual_sums_read_what_is_not_quantized() -> None:
    model = block()
    result = lowbit.quantize(model, data=feeds(model), preset="U8S8_PERCHANNEL")

    for node in result.quantized.graph:
        read = [v.producer() for v in node.inputs if v is not None]
        if any(n is not None and n.op_type == "DequantizeLinear" for n in read):
            assert node.op_type in ("MatMul", "Gemm", "DequantizeLinear")
    assert result.report.sqnr_db > 30


def _between_convs(op: str) -> onnx.ModelProto:
    net = Network()
    x = net.input("x", [1, 4, 8, 8])
    kernel = net.random.normal(0, 0.3, (4, 4, 3, 3))
    y = net.add("Conv", x, net.constant(kernel), pads=[1, 1, 1, 1])
    if op == "gelu":
        z = net.gelu(y, "erf")
    elif op == "attention":
        flat = net.add("Reshape", y, net.constant([1, 4, 64], np.int64))
        turned = net.add("Transpose", flat, perm=[0, 2, 1])
        scores = net.add("Softmax", net.add("MatMul", turned, flat), axis=-1)
        z = net.add(
            "Reshape", net.add("MatMul", flat, scores), net.constant([1, 4, 8, 8], np.int64)
        )
    else:
        z = net.add("Add", x, net.add("Mul", y, net.add("Sigmoid", y)))
    return net.model(net.add("Conv", z, net.constant(kernel)))


def test_a_network_of_convolutions_keeps_its_placement() -> None:
    model = normalize(ir.from_proto(_between_convs("silu")))

    found = find_float_parts(model.graph, ("masks", "blocks"))

    assert not found.nodes
    assert not found.tensors


def test_a_gelu_between_convolutions_has_no_quantizer_inside() -> None:
    model = _between_convs("gelu")
    inside = {node.output[0] for node in model.graph.node[1:-2]}

    names = {row.name for row in _planned(model).tensors}

    assert not names & inside
    assert {model.graph.node[0].output[0], model.graph.node[-2].output[0]} <= names


def test_attention_between_convolutions_has_its_scores_in_float() -> None:
    model = _between_convs("attention")
    by_type = {node.op_type: node for node in model.graph.node}

    plan = _planned(model).by_name()

    assert by_type["Softmax"].input[0] not in plan
    assert by_type["Softmax"].output[0] not in plan
    assert by_type["Transpose"].output[0] in plan
    assert all(node.output[0] in plan for node in model.graph.node if node.op_type == "Conv")


@pytest.mark.parametrize("kind", ["bert", "llama", "standard"])
@pytest.mark.parametrize("preset", ["A8W8", "DYNAMIC8", "W8"])
def test_fused_blocks_are_planned_without_data_as_they_are_quantized(
    kind: str, preset: str
) -> None:
    model = fused_block(kind)
    inputs = _layer_inputs(model)

    plan = lowbit.plan(model, preset=preset)

    found = {row.name: set(row.consumers or ()) for row in plan.activations()}
    assert found == ({} if preset == "W8" else inputs)
    assert len(plan.weights()) == sum(map(len, inputs.values())) == {"bert": 4}.get(kind, 7)


@pytest.mark.parametrize("kind", ["bert", "llama", "standard"])
def test_fused_blocks_hold_in_integers(kind: str) -> None:
    random = np.random.default_rng(3)
    data = [{"x": random.normal(size=(1, n, 16)).astype(np.float32)} for n in (3, 5, 8, 4)]
    model = fused_block(kind)
    skip_before_opset(max(i.version for i in model.opset_import if not i.domain))

    result = lowbit.quantize(model, data=data, preset="A8W8")

    assert result.plan.weights() == lowbit.plan(model, preset="A8W8").weights()
    assert result.report.sqnr_db > 30
