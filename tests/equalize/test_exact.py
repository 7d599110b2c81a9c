"""Exact equalization of whole graphs: the function stays, peaks become equal, bounds hold."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from chains import chain, node, outputs

from lowbit.config.transforms import CrossLayerEqualization
from lowbit.errors import ConfigError
from lowbit.graph.session import session
from lowbit.transforms import Equalized, equalize
from lowbit.transforms.layers import find_layer

_BOUNDS = {"zero": np.float32(0), "six": np.float32(6), "minus": np.float32(-1)}


def samples(count: int = 4, size: float = 1.0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    shape = (1, 3, 8, 8)
    return [{"x": (rng.normal(size=shape) * size).astype(np.float32)} for _ in range(count)]


def check_same(model: ir.Model, result: Equalized) -> None:
    with session(model) as before, session(result.model) as after:
        for feed in samples():
            want, got = before.run(["y"], feed)[0], after.run(["y"], feed)[0]
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * abs(want).max())


def peaks(result: Equalized, name: str) -> np.ndarray:
    nodes = {str(n.outputs[0].name): n for n in result.model.graph}
    return np.abs(find_layer(nodes[name]).kernel).max(axis=(2, 3)).reshape(-1)


_WEIGHTS = {"w1": (6, 3, 3, 3), "b1": (6,), "w2": (4, 6, 1, 1)}


@pytest.mark.parametrize(
    "between",
    [
        node("Relu", "a", "b"),
        node("LeakyRelu", "a", "b", alpha=0.3),
        node("PRelu", "a slope", "b"),
        node("PRelu", "a slopes", "b"),
        node("Clip", "a zero", "b"),
        node("Clip", "a", "b"),
        node("MaxPool", "a", "b", kernel_shape=[2, 2]),
        node("AveragePool", "a", "b", kernel_shape=[3, 3], strides=[2, 2]),
        node("GlobalAveragePool", "a", "b"),
        node("GlobalMaxPool", "a", "b"),
        node("Pad", "a pads", "b"),
        node("Pad", "a pads", "b", mode="reflect"),
        node("ReduceMean", "a", "b", axes=[2, 3]),
        node("ReduceMax", "a", "b", axes=[-1]),
        node("Resize", "a none scales", "b", mode="linear"),
    ],
    ids=lambda n: n.op_type,
)
def test_what_channels_pass_through(between: onnx.NodeProto) -> None:
    model = chain(
        node("Conv", "x w1 b1", "a"), between, node("Conv", "b w2", "y"), **_WEIGHTS, **_BOUNDS,
        slope=[np.float32(0.2)], slopes=np.linspace(-1, 1, 6, dtype=np.float32).reshape(6, 1, 1),
        pads=[0, 0, 1, 1, 0, 0, 1, 1], none=np.float32([]), scales=np.float32([1, 1, 2, 2]),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization(rounds=2))

    (group,) = result.groups
    assert (group.channels, group.free, group.frozen, group.capped) == (6, 6, 0, 0)
    assert (group.writers, group.readers) == (("a_node",), ("y_node",))
    check_same(model, result)
    inputs = np.abs(find_layer(list(result.model.graph)[-1]).kernel).max(axis=(1, 3)).reshape(-1)
    written = peaks(result, "a")
    np.testing.assert_allclose(written / written.max(), inputs / inputs.max(), rtol=1e-5)


@pytest.mark.parametrize(
    ("between", "why"),
    [
        (node("Sigmoid", "a", "b"), "read by Sigmoid"),
        (node("Clip", "a minus six", "b"), "read by Clip"),
        (node("Pad", "a pads one", "b"), "read by Pad"),
        (node("ReduceMean", "a", "b", axes=[0, 2]), None),
        (node("Add", "a one", "b"), None),
        (node("Mul", "a a", "b"), "read by Mul"),
        (node("Softmax", "a", "b", axis=1), "read by Softmax"),
        (node("PRelu", "a a", "b"), "read by PRelu"),
    ],
    ids=lambda n: getattr(n, "op_type", ""),
)
def test_what_channels_do_not_pass_through(between: onnx.NodeProto, why: str | None) -> None:
    model = chain(
        node("Conv", "x w1 b1", "a"), between, node("Conv", "b w2", "y"), **_WEIGHTS, **_BOUNDS,
        pads=[0, 0, 1, 1, 0, 0, 1, 1], one=np.float32(1),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization())

    check_same(model, result)
    if why is not None:
        assert result.groups == ()
        assert result.left_out[0].tensor == "a"
        assert why in result.left_out[0].why
        assert why in result.notes[0]


def test_residual_sums_tie_their_layers() -> None:
    model = chain(
        node("Conv", "x w1 b1", "a"), node("Relu", "a", "ar"), node("Conv", "ar w2", "b"),
        node("Add", "b ar", "s"), node("Relu", "s", "sr"), node("Conv", "sr w3", "y"),
        w1=(6, 3, 1, 1), b1=(6,), w2=(6, 6, 1, 1), w3=(5, 6, 3, 3),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization())

    (group,) = result.groups
    assert set(group.writers) == {"a_node", "b_node"}
    assert set(group.readers) == {"b_node", "y_node"}
    assert [left.why for left in result.left_out] == ["an output of the model"]
    check_same(model, result)


def test_grouped_depthwise_and_transposed_convolutions() -> None:
    model = chain(
        node("Conv", "x w1 b1", "a"), node("Relu", "a", "ar"),
        node("Conv", "ar w2 b2", "d", group=6), node("Relu", "d", "dr"),
        node("Conv", "dr w3 b3", "g", group=3), node("Relu", "g", "gr"),
        node("ConvTranspose", "gr w4 b4", "t", group=3, strides=[2, 2]),
        node("LeakyRelu", "t", "tr"), node("Conv", "tr w5", "y"),
        w1=(6, 3, 3, 3), b1=(6,), w2=(12, 1, 3, 3), b2=(12,), w3=(9, 4, 1, 1), b3=(9,),
        w4=(9, 2, 2, 2), b4=(6,), w5=(2, 6, 1, 1),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization(rounds=10))

    assert [group.channels for group in result.groups] == [6, 12, 9, 6]
    check_same(model, result)


def test_flattened_channels_are_scaled_together() -> None:
    model = chain(
        node("Conv", "x w1 b1", "a"), node("Relu", "a", "ar"), node("Flatten", "ar", "f"),
        node("Gemm", "f w2 b2", "g", transB=1), node("Relu", "g", "gr"),
        node("Gemm", "gr w3 b3", "y", alpha=0.5, beta=2.0),
        w1=(4, 3, 1, 1), b1=(4,), w2=(7, 256), b2=(7,), w3=(7, 5), b3=(1,),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization())

    assert [group.channels for group in result.groups] == [4, 7]
    check_same(model, result)


def test_a_reshape_that_flattens_and_a_squeeze_pass() -> None:
    model = chain(
        node("Conv", "x w1 b1", "a"), node("GlobalAveragePool", "a", "p"),
        node("Reshape", "p shape", "f"), node("Gemm", "f w2", "g"),
        node("Unsqueeze", "g axes", "u"), node("Conv", "u w3", "c"),
        node("Squeeze", "c axes", "q"), node("Gemm", "q w4", "y"), **_WEIGHTS
        | {"w2": (6, 4), "w3": (3, 4, 1, 1), "w4": (3, 2)},
        shape=[1, -1], axes=[2, 3],
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization())

    assert [group.tensor for group in result.groups] == ["a", "c"]
    check_same(model, result)


def test_matrices_with_an_added_bias_along_the_last_axis() -> None:
    model = chain(
        node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("MatMul", "t w1", "a"),
        node("Add", "a b1", "ab"), node("Relu", "ab", "ar"), node("MatMul", "ar w2", "c"),
        node("Transpose", "c", "ct", perm=[0, 3, 1, 2]), node("Conv", "ct w3", "y"),
        w1=(3, 5), b1=(5,), w2=(5, 6), w3=(2, 6, 1, 1),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization())

    assert [group.tensor for group in result.groups] == ["a", "c"]
    check_same(model, result)


def relu6(size: float = 1.0) -> ir.Model:
    weights = np.random.default_rng(1).normal(size=(6, 3, 1, 1)).astype(np.float32)
    # Channels of very different reach: some stay far below six, others far exceed it.
    weights *= (size * np.float32([0.1, 0.3, 1, 2, 8, 20])).reshape(6, 1, 1, 1)
    return chain(
        node("Conv", "x w1", "a"), node("Clip", "a zero six", "b"), node("Conv", "b w2", "y"),
        w2=(4, 6, 1, 1), w1=weights, **_BOUNDS,
    )  # fmt: skip


def test_channels_below_a_clip_are_free_up_to_it() -> None:
    model = relu6()

    result = equalize(model, CrossLayerEqualization(), samples())

    (group,) = result.groups
    assert 0 < group.frozen < 6
    assert group.capped > 0
    assert f"{group.frozen} channels reach the bound of a Clip" in result.notes[0]
    check_same(model, result)
    with session(model, ["a"]) as before, session(result.model, ["a"]) as after:
        for feed in samples():
            reached, now = before.run(["a"], feed)[0], after.run(["a"], feed)[0]
            moved = (now != reached).any((0, 2, 3))
            assert now.max(axis=(0, 2, 3))[moved].max() < 6.0001


def test_headroom_leaves_room_above_what_was_seen() -> None:
    model = relu6()

    result = equalize(model, CrossLayerEqualization(headroom=2.0), samples())

    with session(model, ["a"]) as before, session(result.model, ["a"]) as after:
        for feed in samples():
            reached, now = before.run(["a"], feed)[0], after.run(["a"], feed)[0]
            moved = (now != reached).any((0, 2, 3))
            assert now.max(axis=(0, 2, 3))[moved].max() < 3.0001


def test_without_data_channels_before_a_clip_stay() -> None:
    model = relu6()

    result = equalize(model, CrossLayerEqualization())

    assert result.groups[0].free == 0
    np.testing.assert_array_equal(outputs(result.model), outputs(model))


def test_shared_weights_are_left_out() -> None:
    model = chain(
        node("Conv", "x w0", "s"), node("Relu", "s", "sr"), node("Conv", "sr w1", "a"),
        node("Relu", "a", "ar"), node("Conv", "ar w1", "y"), w0=(5, 3, 1, 1), w1=(5, 5, 1, 1),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization())

    assert result.groups == ()
    assert all("shares its weights" in left.why for left in result.left_out)
    check_same(model, result)


def test_a_shared_bias_is_scaled_for_one_reader_only() -> None:
    model = chain(
        node("Conv", "x w1 b", "a"), node("Relu", "a", "ar"), node("Conv", "ar w2 b", "y"),
        w1=(6, 3, 1, 1), w2=(6, 6, 1, 1), b=(6,),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization())

    assert len(result.groups) == 1
    check_same(model, result)


def test_sums_of_different_layouts_and_of_inputs_are_left_out() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Add", "a x", "s"), node("Conv", "s w2", "y"),
        w1=(3, 3, 1, 1), w2=(2, 3, 1, 1),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization())

    assert "Add of something that cannot be scaled" in result.left_out[0].why
    check_same(model, result)


def test_broadcast_sums_of_other_channel_counts_are_left_out() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Conv", "x w2", "b"), node("Add", "a b", "s"),
        node("Conv", "s w3", "y"), w1=(4, 3, 1, 1), w2=(1, 3, 1, 1), w3=(2, 4, 1, 1),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization())

    assert "added to 1 channels" in result.left_out[0].why
    check_same(model, result)


def test_no_equalization_gives_the_model_itself() -> None:
    model = relu6()

    result = equalize(model, None)

    assert result.model is model
    assert result.notes == ()


def test_the_factor_is_bounded() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Relu", "a", "b"), node("Conv", "b w2", "y"),
        w1=np.float32([[1, 1, 1], [1e-6, 0, 0]]).reshape(2, 3, 1, 1), w2=np.ones((2, 2, 1, 1), "f"),
    )  # fmt: skip

    result = equalize(model, CrossLayerEqualization(largest=4.0))

    np.testing.assert_allclose(peaks(result, "a")[1], 4e-6, rtol=1e-6)
    assert result.groups[0].capped == 1


@pytest.mark.parametrize(("field", "value"), [("rounds", 0), ("largest", 0.5), ("headroom", 0.9)])
def test_impossible_settings_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"equalize.{field} is {value}"):
        CrossLayerEqualization(**{field: value})
