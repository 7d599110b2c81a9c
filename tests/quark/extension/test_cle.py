"""Which layers Quark's equalization takes, and that the model computes the same."""

from __future__ import annotations

from collections.abc import Container

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chains import chain, node, outputs

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import decode_json
from lowbit.config.files import config_json
from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError
from lowbit.graph import io
from lowbit.quark.extension import cle as quark
from lowbit.quark.extension import cle_factors
from lowbit.quark.extension.cle import QuarkCle, find_patterns
from lowbit.quark.extension.cle import _find_layers as find_layers
from lowbit.transforms.implementation import Context, TransformedModel
from lowbit.transforms.layers import input_ranges, output_ranges


def equalize(model: ir.Model, config: QuarkCle, keep: Container[str] = ()) -> TransformedModel:
    context = Context(float_nodes=lambda _: keep)
    assert config.implementation().applies(model, config)
    return config.implementation().apply(model, config, context)


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


def test_float_nodes_are_skipped() -> None:
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


def test_a_second_consumer_ends_a_pair() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Conv", "a w2", "b"), node("Conv", "a w3", "c"),
        node("Sub", "b c", "y"), **_TWO, w3=(4, 6, 1, 1),
    )  # fmt: skip

    assert names(model) == []


def test_grouped_convolutions_are_skipped() -> None:
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


def scale_outputs(kernel: np.ndarray, factors: np.ndarray) -> None:
    kernel *= factors.reshape(*kernel.shape[:2], 1, 1)


def scale_inputs(kernel: np.ndarray, factors: np.ndarray) -> None:
    kernel *= factors.reshape(len(kernel), 1, -1, 1)


def _row(*weights: float) -> np.ndarray:
    return np.float32(weights).reshape(1, 1, 1, -1)


def test_a_pair_ends_with_equal_ranges() -> None:
    rng = np.random.default_rng(0)
    head = rng.normal(size=(1, 6, 3, 9)).astype(np.float32)
    tail = rng.normal(size=(1, 4, 6, 1)).astype(np.float32)

    factors = quark.pair_factors(head, None, tail, threshold=None)
    scale_outputs(head, factors)
    scale_inputs(tail, 1 / factors)

    assert factors.dtype == np.float32
    np.testing.assert_allclose(output_ranges(head), input_ranges(tail), rtol=1e-6)


def test_small_weights_are_left_alone_below_the_threshold() -> None:
    head, tail = _row(0.1), _row(0.3)

    assert quark.pair_factors(head, None, tail, threshold=0.5) == 1
    assert quark.pair_factors(head, None, tail, threshold=None) == pytest.approx(3**0.5)


def test_a_dead_channel_keeps_its_weights() -> None:
    assert quark.pair_factors(_row(0), None, _row(2), threshold=None) == 1
    assert quark.pair_factors(_row(2), None, _row(0), threshold=None) == 1


def test_a_large_bias_counts_as_a_weight() -> None:
    head, tail = _row(1), _row(1)

    assert quark.pair_factors(head, np.float32([8]), tail, threshold=None) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("weights", "bias", "shrink"),
    [
        ((1.0, 1.0), 1.0, 2),
        ((1.0, 1e-3, 1e-3), 0.5, 5),
        ((1.0, 1.0), 12.0, 5),
        ((1.0, 1.0), 20.0, 10),
        ((1.0, 1.0), 40.0, 20),
        ((0.0, 0.0), 40.0, 2),
        ((1.0, 0.0), 1.0, 2),
    ],
)
def test_bias_is_shrunk_by_how_far_it_exceeds_the_weights(
    weights: tuple[float, ...], bias: float, shrink: float
) -> None:
    assert cle_factors.bias_shrink(_row(*weights), np.float32([bias])) == shrink


def test_a_triple_ends_with_three_equal_ranges() -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(size=(1, 5, 3, 9)).astype(np.float32)
    middle = rng.normal(size=(5, 1, 1, 9)).astype(np.float32)
    last = rng.normal(size=(1, 4, 5, 1)).astype(np.float32)

    before, after = quark.triple_factors(first, middle, last)
    scale_outputs(first, 1 / before)
    scale_inputs(middle, before)
    scale_outputs(middle, 1 / after)
    scale_inputs(last, after)

    np.testing.assert_allclose(output_ranges(first), output_ranges(middle), rtol=1e-5)
    np.testing.assert_allclose(output_ranges(middle), input_ranges(last), rtol=1e-5)


def test_a_triple_with_a_dead_channel_keeps_its_weights() -> None:
    before, after = quark.triple_factors(_row(0), _row(1), _row(1))

    assert (before, after) == (1, 1)


def test_stem_channels_are_raised_to_the_largest_by_sixteen_at_most() -> None:
    kernel = np.float32([8, -4, 0.1, 1e-7, 0]).reshape(1, 5, 1, 1)

    np.testing.assert_array_equal(quark.stem_factors(kernel), [1, 2, 16, 1, 1])


_NORM = {
    f"{name}{number}": np.abs(np.random.default_rng(number).normal(size=size)).astype("f") + 0.5
    for number, size in ((1, 6), (2, 9))
    for name in ("g", "b", "m", "v")
}
_HALVES = 0.5 ** np.arange(6).reshape(-1, 1, 1, 1)
_UNEVEN = (np.random.default_rng(0).normal(size=(6, 3, 3, 3)) * _HALVES).astype("f")


def test_channels_of_the_stem_are_raised_and_normalizations_undo_it() -> None:
    model = chain(
        node("Conv", "x w1 b", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "r"),
        node("Concat", "x r", "c", axis=1), node("BatchNormalization", "c g2 b2 m2 v2", "n2"),
        node("BatchNormalization", "r g1 b1 m1 v1", "n1"), node("Relu", "n1", "q"),
        node("Concat", "n2 q", "y", axis=1), w1=_UNEVEN, b=(6,), **_NORM,
    )  # fmt: skip

    result = equalize(model, QuarkCle())

    assert result.notes[0].endswith("and the first convolution")
    ranges = np.abs(result.model.graph.initializers["w1"].const_value.numpy()).max(axis=(1, 2, 3))
    np.testing.assert_allclose(ranges[:4], ranges[0], rtol=1e-5)
    np.testing.assert_allclose(outputs(result.model), outputs(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("other", ["Sigmoid", "Neg"])
def test_another_consumer_of_the_stem_keeps_its_weights(other: str) -> None:
    model = chain(
        node("Conv", "x w1 b", "a"), node("Relu", "a", "r"),
        node("BatchNormalization", "r g1 b1 m1 v1", "n1"),
        node(other, "r", "s"), node("Add", "n1 s", "y"), w1=_UNEVEN, b=(6,), **_NORM,
    )  # fmt: skip

    result = equalize(model, QuarkCle())

    assert "first convolution" not in result.notes[0]
    np.testing.assert_array_equal(outputs(result.model), outputs(model))


def _proto() -> onnx.ModelProto:
    return io.to_proto(
        chain(
            node("Conv", "x w1 b1", "a"), node("Clip", "a zero six", "b"),
            node("Conv", "b w2", "c"), node("Relu", "c", "d"), node("Conv", "d w3", "y"),
            w1=(6, 3, 3, 3), b1=(6,), w2=(6, 6, 1, 1), w3=(4, 6, 1, 1),
            zero=np.float32(0), six=np.float32(60),
        )
    )  # fmt: skip


@pytest.mark.parametrize(("exclude", "expected"), [((), "1 pairs"), (("y_node",), "0 pairs")])
def test_excluded_layers_are_not_equalized(exclude: tuple[str, ...], expected: str) -> None:
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(2)]
    config = msgspec.structs.replace(
        find_preset("XINT8"), target="quark-npu-cnn", equalization=QuarkCle(), exclude=exclude,
        keep_only_if_better=False, refinement=None, bias_correction=False,
    )  # fmt: skip

    result = lowbit.quantize(_proto(), data=data, config=config)

    assert any(f"equalized like Quark: {expected}" in note for note in result.report.notes)


def test_a_configuration_keeps_it_in_a_file() -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), equalization=QuarkCle(steps=-1))

    assert decode_json(config_json(config), QuantConfig) == config


def test_it_is_done_whether_it_helps_or_not() -> None:
    assert not QuarkCle.is_optional


def test_a_padded_stem_with_another_value_keeps_its_weights() -> None:
    model = chain(
        node("Conv", "x w1 b", "a"), node("Pad", "a pads one", "r"),
        node("BatchNormalization", "r g1 b1 m1 v1", "y"), w1=_UNEVEN, b=(6,),
        pads=[0, 0, 1, 1, 0, 0, 1, 1], one=np.float32(1), **_NORM,
    )  # fmt: skip

    result = equalize(model, QuarkCle())

    assert "first convolution" not in result.notes[0]
    np.testing.assert_array_equal(outputs(result.model), outputs(model))


def test_a_stem_before_unknown_channels_keeps_its_weights() -> None:
    model = chain(
        node("Conv", "x w1 b", "a"), node("Concat", "x a", "c", axis=1),
        node("BatchNormalization", "c g2 b2 m2 v2", "y"), w1=np.ones((6, 3, 1, 1), "f"), b=(6,), **_NORM,
    )  # fmt: skip
    model.graph.inputs[0].shape = None

    assert "first convolution" not in equalize(model, QuarkCle()).notes[0]
