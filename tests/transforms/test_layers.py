"""Layers in one shape, whatever the operator's own layout."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chains import chain, node, outputs
from onnx import TensorProto, helper, numpy_helper

from lowbit.graph import io
from lowbit.graph.editing import constant
from lowbit.graph.session import session
from lowbit.ops.channels import ChannelLayout
from lowbit.transforms.layers import (
    WeightedLayer,
    find_layer,
    input_ranges,
    multiply_inputs,
    output_ranges,
)


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes", "kernel"),
    [
        ("Conv", (6, 3, 2, 2), {}, (1, 6, 3, 4)),
        ("Conv", (6, 1, 2, 2), {"group": 3}, (3, 2, 1, 4)),
        ("ConvTranspose", (3, 4, 2, 2), {}, (1, 4, 3, 4)),
        ("ConvTranspose", (3, 2, 2, 2), {"group": 3}, (3, 2, 1, 4)),
    ],
)
def test_kernels_share_the_memory_of_the_weight(op_type, shape, attributes, kernel) -> None:
    model = chain(node(op_type, "x w", "y", **attributes), w=shape)

    layer = find_layer(next(iter(model.graph)))

    assert layer.kernel.shape == kernel
    assert np.shares_memory(layer.kernel, layer.weight)
    assert layer.outputs == kernel[0] * kernel[1]
    assert layer.inputs == 3


def test_one_bias_for_all_becomes_one_per_channel() -> None:
    model = chain(
        node("Flatten", "x", "f"), node("Gemm", "f w b", "y"), w=(192, 4), b=[np.float32(3)]
    )

    layer = find_layer(list(model.graph)[1])

    np.testing.assert_array_equal(layer.bias, [3, 3, 3, 3])


def test_nodes_that_are_no_layers() -> None:
    model = chain(
        node("Conv", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r r", "m"),
        node("MatMul", "m w3", "n"), node("Flatten", "n", "f"),
        node("Gemm", "f f", "y", transA=1),
        w=(2, 3, 1, 1), w3=(2, 8, 8),
    )  # fmt: skip

    found = [node.op_type for node in model.graph if find_layer(node) is not None]

    assert found == ["Conv"]


def test_ranges_are_by_channel_over_groups() -> None:
    kernel = np.arange(2 * 3 * 2 * 4, dtype=np.float32).reshape(2, 3, 2, 4) - 20

    produced, consumed = output_ranges(kernel), input_ranges(kernel)

    np.testing.assert_array_equal(produced, np.abs(kernel).max((2, 3)).reshape(-1))
    np.testing.assert_array_equal(consumed, np.abs(kernel).max((1, 3)).reshape(-1))
    assert (produced.size, consumed.size) == (6, 4)


def _only(op_type: str, **attributes: object) -> tuple[ir.Model, WeightedLayer]:
    shapes = {"Conv": (6, 3, 2, 2), "ConvTranspose": (3, 6, 2, 2), "Gemm": (192, 6)}
    shapes["MatMul"] = (8, 6)
    shape = shapes[op_type]
    if attributes.get("group"):
        shape = (6, 1, 2, 2) if op_type == "Conv" else (3, 2, 2, 2)
    if attributes.get("transB"):
        shape = shape[::-1]
    bias = "" if op_type == "MatMul" else " b"
    nodes = [node("Flatten", "x", "f")] if op_type == "Gemm" else []
    source = "f" if op_type == "Gemm" else "x"
    model = chain(*nodes, node(op_type, f"{source} w{bias}", "y", **attributes), w=shape, b=(6,))
    layer = find_layer(list(model.graph)[-1])
    assert layer is not None
    return model, layer


LAYERS = [
    ("Conv", {}),
    ("Conv", {"group": 3}),
    ("ConvTranspose", {}),
    ("ConvTranspose", {"group": 3}),
    ("Gemm", {}),
    ("Gemm", {"transB": 1}),
    ("Gemm", {"alpha": 0.5, "beta": 2.0}),
    ("MatMul", {}),
]


def _run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    with session(model) as running:
        return running.run(["y"], {"x": x})[0]


@pytest.mark.parametrize(("op_type", "attributes"), LAYERS)
def test_scaled_outputs_are_what_the_layer_computes_times_the_factors(
    op_type: str, attributes: dict[str, object]
) -> None:
    model, layer = _only(op_type, **attributes)
    x = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    before = _run(model, x)
    factors = np.linspace(0.5, 3, 6, dtype=np.float32)

    layer.scale_outputs(factors)
    layer.write(model.graph)

    layout = layer.output_layout()
    assert layout is not None
    shape = [1] * layout.rank
    shape[layout.axis] = 6
    want = before * factors.reshape(shape)
    np.testing.assert_allclose(_run(model, x), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("op_type", "attributes"), LAYERS)
def test_scaled_inputs_make_up_for_divided_ones(
    op_type: str, attributes: dict[str, object]
) -> None:
    model, layer = _only(op_type, **attributes)
    x = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    before = _run(model, x)
    factors = np.linspace(0.5, 3, layer.inputs, dtype=np.float32)

    layer.scale_inputs(factors)
    layer.write(model.graph)

    shape = {"Gemm": (1, 3, 8, 8), "MatMul": (8,)}.get(op_type, (1, 3, 1, 1))
    np.testing.assert_allclose(
        _run(model, x / factors.reshape(shape)), before, rtol=1e-4, atol=1e-3
    )


def test_a_shared_weight_is_known_and_kept_by_the_other_layer() -> None:
    model = chain(
        node("Conv", "x w", "a"), node("Conv", "a w", "y"), w=(3, 3, 1, 1),
    )  # fmt: skip
    first, second = (find_layer(n) for n in model.graph)
    before = second.weight.copy()

    first.scale_outputs(np.float32([2, 3, 4]))
    first.write(model.graph)

    assert first.has_shared_weight is False, "it has one of its own now"
    np.testing.assert_array_equal(find_layer(list(model.graph)[1]).weight, before)


def test_layers_say_where_the_channels_of_their_outputs_lie() -> None:
    assert _only("Conv")[1].output_layout() == ChannelLayout(1, 4)
    assert _only("ConvTranspose", group=3)[1].output_layout() == ChannelLayout(1, 4)
    assert _only("Gemm")[1].output_layout() == ChannelLayout(1, 2)
    assert _only("MatMul")[1].output_layout() == ChannelLayout(3, 4)


def test_the_layout_of_an_unknown_shape_is_not_known() -> None:
    _, layer = _only("MatMul")
    layer.node.outputs[0].shape = None

    assert layer.output_layout() is None


@pytest.mark.parametrize(
    ("op_type", "layout", "channels", "expected"),
    [
        ("Conv", ChannelLayout(1, 4), 3, True),
        ("Conv", ChannelLayout(1, 4), 4, False),
        ("Conv", ChannelLayout(3, 4), 3, False),
        ("Conv", ChannelLayout(1, 4, repeat=3), 1, False),
        ("Gemm", ChannelLayout(1, 2), 192, True),
        ("Gemm", ChannelLayout(1, 2, repeat=64), 3, True),
        ("Gemm", ChannelLayout(0, 2), 192, False),
        ("MatMul", ChannelLayout(3, 4), 8, True),
        ("MatMul", ChannelLayout(1, 4), 8, False),
    ],
)
def test_layers_consume_channels_where_they_sum(
    op_type: str, layout: ChannelLayout, channels: int, *, expected: bool
) -> None:
    assert _only(op_type)[1].consumes(layout, channels) is expected


def test_one_mul_serves_all_layers_that_read_a_tensor() -> None:
    model = chain(
        node("Neg", "x", "n"), node("MatMul", "n w", "a"), node("MatMul", "n v", "b"),
        node("Add", "a b", "y"), w=(8, 6), v=(8, 6),
    )  # fmt: skip
    before, scale = outputs(model), np.linspace(1, 2, 8, dtype=np.float32)
    nodes = [n for n in model.graph if n.op_type == "MatMul"]
    layers = [find_layer(n) for n in nodes]

    multiply_inputs(model.graph, nodes, scale, "smooth")
    for layer in layers:
        layer.scale_inputs(1 / scale)
        layer.write(model.graph)

    assert [n.op_type for n in model.graph] == ["Neg", "Mul", "MatMul", "MatMul", "Add"]
    np.testing.assert_allclose(outputs(model), before, rtol=1e-4, atol=1e-4)


def test_the_tensor_a_layer_reads_is_named() -> None:
    _, layer = _only("Gemm")

    assert layer.source == "f"


def test_large_weights_outside_the_file_are_scaled_when_they_are_read(tmp_path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(600, 512)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 600])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 512])],
        [numpy_helper.from_array(weight, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin")
    models = [io.load(tmp_path / "m.onnx") for _ in range(2)]
    outside, inside = (
        find_layer(model.graph[0], hold=hold)
        for model, hold in zip(models, (False, True), strict=True)
    )
    assert outside is not None
    assert inside is not None

    for layer, model in zip((outside, inside), models, strict=True):
        for _ in range(2):
            layer.scale_outputs(np.linspace(0.3, 3, 512, dtype=np.float32))
            layer.scale_inputs(np.linspace(0.7, 2, 600, dtype=np.float32))
        layer.write(model.graph)

    assert outside.held is None
    assert inside.held is not None
    written = [constant(model.graph[0].inputs[1]) for model in models]
    assert np.array_equal(written[0], written[1])
    assert np.array_equal(outside.kernel, inside.kernel)
    assert not np.array_equal(written[0], weight)
