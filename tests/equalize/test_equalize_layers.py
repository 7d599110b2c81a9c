"""Layers in one shape, whatever the operator's own layout."""

from __future__ import annotations

import numpy as np
import pytest
from chains import chain, node

from lowbit.transforms.layers import find_layer, give_constant


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


def test_one_bias_for_all_becomes_one_a_channel() -> None:
    model = chain(
        node("Flatten", "x", "f"), node("Gemm", "f w b", "y"), w=(192, 4), b=[np.float32(3)]
    )

    layer = find_layer(list(model.graph)[1])

    np.testing.assert_array_equal(layer.bias, [3, 3, 3, 3])


def test_what_is_not_a_layer() -> None:
    model = chain(
        node("Conv", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r r", "m"),
        node("MatMul", "m w3", "n"), node("Flatten", "n", "f"),
        node("Gemm", "f f", "y", transA=1),
        w=(2, 3, 1, 1), w3=(2, 8, 8),
    )  # fmt: skip

    found = [node.op_type for node in model.graph if find_layer(node) is not None]

    assert found == ["Conv"]


def test_an_input_that_is_not_there_cannot_be_replaced() -> None:
    model = chain(node("Conv", "x w", "y"), w=(2, 3, 1, 1))
    conv = next(iter(model.graph))
    conv.resize_inputs(3)

    with pytest.raises(ValueError, match="no input 2"):
        give_constant(model.graph, conv, 2, np.zeros(2, np.float32))
