"""Which layers Quark's equalization takes, and that the model computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from chains import chain, node, outputs

from lowbit.config.transforms import QuarkCle
from lowbit.errors import ConfigError
from lowbit.quark.cle import _find_layers as find_layers
from lowbit.quark.cle import find_patterns
from lowbit.transforms import equalize


def names(model: ir.Model) -> list[tuple[str, ...]]:
    patterns = find_patterns(find_layers(model.graph, ()))
    return [tuple(str(layer.node.outputs[0].name) for layer in pattern) for pattern in patterns]


def separable() -> ir.Model:
    return chain(
        node("Conv", "x w1 b1", "a"),
        node("Relu", "a", "ar"),
        node("Conv", "ar w2 b2", "d", group=6),
        node("Relu", "d", "dr"),
        node("Conv", "dr w3 b3", "y"),
        w1=(6, 3, 3, 3), b1=(6,), w2=(6, 1, 3, 3), b2=(6,), w3=(4, 6, 1, 1), b3=(4,),
    )  # fmt: skip


def test_the_first_pair_also_comes_last() -> None:
    assert names(separable()) == [("a", "d"), ("a", "d", "y"), ("d", "y"), ("a", "d")]


@pytest.mark.parametrize("steps", [1, 3, -1])
@pytest.mark.parametrize("append_bias", [True, False])
@pytest.mark.parametrize("use_threshold", [True, False])
def test_the_function_does_not_change(steps: int, append_bias: bool, use_threshold: bool) -> None:
    model = separable()
    config = QuarkCle(steps=steps, append_bias=append_bias, use_threshold=use_threshold)

    result = equalize(model, config)

    assert "2 pairs and 1 triples" in result.notes[0]
    before = outputs(model)
    np.testing.assert_allclose(outputs(result.model), before, rtol=0, atol=1e-5 * abs(before).max())


def test_the_model_given_is_not_changed() -> None:
    model = separable()
    before = {v.name: v.const_value.numpy().copy() for v in model.graph.initializers.values()}

    equalize(model, QuarkCle())

    for value in model.graph.initializers.values():
        np.testing.assert_array_equal(value.const_value.numpy(), before[value.name])


def test_nothing_to_do_gives_the_same_weights() -> None:
    model = chain(node("Conv", "x w", "y"), w=(2, 3, 1, 1))

    result = equalize(model, QuarkCle(steps=-1))

    np.testing.assert_array_equal(outputs(result.model), outputs(model))
    assert "0 pairs" in result.notes[0]


def test_kept_nodes_are_left_out() -> None:
    model = separable()

    assert find_patterns(find_layers(model.graph, {"a_node", "y_node"})) == []


_TWO = {"w1": (6, 3, 1, 1), "w2": (4, 6, 1, 1)}


@pytest.mark.parametrize(
    ("between", "passes"),
    [
        (node("LeakyRelu", "a", "b"), True),
        (node("Pad", "a pads", "b"), True),
        (node("Pad", "a pads one", "b"), False),
        (node("ReduceMean", "a", "b", axes=[2, 3]), True),
        (node("ReduceMean", "a", "b", axes=[-1]), True),
        (node("ReduceMean", "a", "b", axes=[0]), False),
        (node("MaxPool", "a", "b", kernel_shape=[2, 2]), False),
        (node("Clip", "a zero six", "b"), False),
    ],
)
def test_what_a_pair_may_have_between(between: onnx.NodeProto, passes: bool) -> None:
    model = chain(
        node("Conv", "x w1", "a"), between, node("Conv", "b w2", "y"), **_TWO,
        pads=[0, 0, 1, 1, 0, 0, 1, 1], one=np.float32(1), zero=np.float32(0), six=np.float32(6),
    )  # fmt: skip

    assert names(model) == ([("a", "y"), ("a", "y")] if passes else [])
    result = equalize(model, QuarkCle())
    np.testing.assert_allclose(outputs(result.model), outputs(model), rtol=1e-4, atol=1e-4)


def test_a_second_reader_ends_a_pair() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Conv", "a w2", "b"), node("Conv", "a w3", "c"),
        node("Sub", "b c", "y"), **_TWO, w3=(4, 6, 1, 1),
    )  # fmt: skip

    assert names(model) == []


def test_grouped_convolutions_are_left_out() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Conv", "a w2", "y", group=2),
        w1=(6, 3, 1, 1), w2=(4, 3, 1, 1),
    )  # fmt: skip

    assert names(model) == []


def test_gemm_layers_of_either_orientation() -> None:
    model = chain(
        node("Flatten", "x", "f"),
        node("Gemm", "f w1 b1", "a", transB=1),
        node("Gemm", "a w2 b2", "y"),
        w1=(5, 192), b1=(5,), w2=(5, 4), b2=(4,),
    )  # fmt: skip

    result = equalize(model, QuarkCle())

    assert names(model) == [("a", "y"), ("a", "y")]
    np.testing.assert_allclose(outputs(result.model), outputs(model), rtol=1e-4, atol=1e-3)


def test_replacing_relu6_is_said() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Clip", "a zero six", "b"), node("Conv", "b w2", "y"),
        **_TWO, zero=np.float32(0), six=np.float32(6),
    )  # fmt: skip

    result = equalize(model, QuarkCle(replace_relu6=True))

    assert [n.op_type for n in result.model.graph] == ["Conv", "Relu", "Conv"]
    assert "computes something else" in result.notes[1]
    assert "1 pairs" in result.notes[0]


def test_fewer_steps_than_minus_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="steps is -2"):
        QuarkCle(steps=-2)
