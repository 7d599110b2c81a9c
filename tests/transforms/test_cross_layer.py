"""Cross-layer equalization: the function stays, ranges become equal, bounds hold."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chains import chain, node, outputs
from hypothesis import given
from hypothesis import strategies as st

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import decode_json
from lowbit.config.files import config_json
from lowbit.config.presets import PRESETS, find_preset
from lowbit.config.transforms import CrossLayerEqualization, SmoothQuant
from lowbit.data import open_data
from lowbit.data.shards import Selection
from lowbit.graph import io
from lowbit.graph.session import model_inputs, session
from lowbit.transforms import cross_layer
from lowbit.transforms.cross_layer import CrossLayer, EqualizedGroups, equalize_groups
from lowbit.transforms.implementation import Context
from lowbit.transforms.layers import find_layer, input_ranges, output_ranges


def _kernel(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_relative_ranges_do_not_depend_on_a_factor_of_the_layer() -> None:
    np.testing.assert_array_equal(cross_layer.relative(np.float32([2, 0, 8])), [0.25, 0, 1])
    np.testing.assert_array_equal(cross_layer.relative(np.float32([0, 0])), [0, 0])


def test_free_channels_end_with_equal_ranges() -> None:
    first, second = _kernel(1, 5, 3, 9), _kernel(1, 7, 5, 1, seed=1)
    bounds = cross_layer.make_bounds(5, [], largest=1e6)

    total = cross_layer.next_factors(output_ranges(first), input_ranges(second), np.ones(5), bounds)
    first *= total.astype(np.float32).reshape(1, 5, 1, 1)
    second *= (1 / total).astype(np.float32).reshape(1, 1, 5, 1)

    np.testing.assert_allclose(output_ranges(first), input_ranges(second), rtol=1e-6)


def test_a_clip_freezes_what_reaches_it_and_bounds_the_rest() -> None:
    seen = np.array([-1.0, 0.0, 1.0, 5.9, 6.0, 7.0, np.nan, np.inf])

    bounds = cross_layer.make_bounds(8, [(6.0, seen)], largest=16.0)

    np.testing.assert_array_equal(bounds.frozen, [0, 0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_allclose(bounds.highest[:4], [16, 16, 6, 6 / 5.9])
    np.testing.assert_array_equal(bounds.lowest, np.full(8, 1 / 16))


def test_headroom_freezes_more_and_bounds_tighter() -> None:
    bounds = cross_layer.make_bounds(2, [(6.0, np.array([2.0, 5.0]))], largest=16.0, headroom=1.5)

    np.testing.assert_array_equal(bounds.frozen, [False, True])
    assert bounds.highest[0] == 2.0


def test_of_two_clips_the_stricter_counts() -> None:
    limits = [(6.0, np.array([1.0, 7.0])), (3.0, np.array([1.0, 1.0]))]

    bounds = cross_layer.make_bounds(2, limits, largest=16.0)

    assert bounds.highest[0] == 3.0
    np.testing.assert_array_equal(bounds.frozen, [False, True])


def test_dead_and_frozen_channels_keep_their_factor() -> None:
    bounds = cross_layer.make_bounds(3, [(6.0, np.array([1.0, 1.0, 9.0]))], largest=16.0)
    total = np.array([1.0, 2.0, 1.0])

    after = cross_layer.next_factors(np.float32([0, 1, 1]), np.float32([1, 0, 4]), total, bounds)

    np.testing.assert_array_equal(after, total)


def test_bounds_hold_over_rounds() -> None:
    bounds = cross_layer.make_bounds(2, [], largest=16.0)

    once = cross_layer.next_factors(np.float32([1, 1e4]), np.float32([1e4, 1]), np.ones(2), bounds)
    again = cross_layer.next_factors(np.float32([1, 1e4]), np.float32([1e4, 1]), once, bounds)

    np.testing.assert_array_equal(once, [16, 1 / 16])
    np.testing.assert_array_equal(again, once)
    assert cross_layer.is_settled(once, again)
    assert not cross_layer.is_settled(np.ones(2), once)


def test_capped_are_those_that_would_go_on() -> None:
    bounds = cross_layer.make_bounds(5, [(6.0, np.array([6.0, 3.0, 0.0, 0.0, 0.0]))], largest=16.0)
    total = np.array([1.0, 2.0, 1 / 16, 16.0, 3.0])
    produced, consumed = np.float32([1, 1, 8, 1, 0]), np.float32([9, 9, 1, 1, 9])

    np.testing.assert_array_equal(
        cross_layer.is_capped(produced, consumed, total, bounds), [False, True, True, False, False]
    )


@given(
    st.lists(st.floats(0, 1e6, width=32), min_size=3, max_size=3),
    st.lists(st.floats(0, 1e6, width=32), min_size=3, max_size=3),
    st.lists(st.floats(-10, 100), min_size=3, max_size=3),
)
def test_factors_never_let_a_channel_reach_a_clip_it_did_not_reach(
    produced: list[float], consumed: list[float], seen: list[float]
) -> None:
    maxima = np.array(seen)
    bounds = cross_layer.make_bounds(3, [(6.0, maxima)], largest=16.0)

    total = cross_layer.next_factors(np.float32(produced), np.float32(consumed), np.ones(3), bounds)

    assert np.all((total >= 1 / 16) & (total <= 16))
    assert np.all(np.where(maxima < 6, total * maxima <= 6 * (1 + 1e-12), total == 1))


_BOUNDS = {"zero": np.float32(0), "six": np.float32(6), "minus": np.float32(-1)}


def samples(count: int = 4, size: float = 1.0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    shape = (1, 3, 8, 8)
    return [{"x": (rng.normal(size=shape) * size).astype(np.float32)} for _ in range(count)]


def equalize(model: ir.Model, data: list | None = None, **options: object) -> EqualizedGroups:
    return equalize_groups(model, CrossLayerEqualization(**options), Context(data=data))


def notes(model: ir.Model, data: list | None = None, **options: object) -> tuple[str, ...]:
    config = CrossLayerEqualization(**options)
    return CrossLayer().apply(model, config, Context(data=data)).notes


def check_same(model: ir.Model, result: EqualizedGroups) -> None:
    with session(model) as before, session(result.model) as after:
        for feed in samples():
            want, got = before.run(["y"], feed)[0], after.run(["y"], feed)[0]
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * abs(want).max())


def ranges(result: EqualizedGroups, name: str) -> np.ndarray:
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

    result = equalize(model, rounds=2)

    (group,) = result.groups
    assert (group.channels, group.free, group.frozen, group.capped) == (6, 6, 0, 0)
    assert (group.producers, group.consumers) == (("a_node",), ("y_node",))
    check_same(model, result)
    inputs = np.abs(find_layer(list(result.model.graph)[-1]).kernel).max(axis=(1, 3)).reshape(-1)
    produced = ranges(result, "a")
    np.testing.assert_allclose(produced / produced.max(), inputs / inputs.max(), rtol=1e-5)


@pytest.mark.parametrize(
    ("between", "why"),
    [
        (node("Sigmoid", "a", "b"), "consumed by Sigmoid"),
        (node("Clip", "a minus six", "b"), "consumed by Clip"),
        (node("Pad", "a pads one", "b"), "consumed by Pad"),
        (node("ReduceMean", "a", "b", axes=[0, 2]), None),
        (node("Add", "a one", "b"), None),
        (node("Mul", "a a", "b"), "consumed by Mul"),
        (node("Softmax", "a", "b", axis=1), "consumed by Softmax"),
        (node("PRelu", "a a", "b"), "consumed by PRelu"),
    ],
    ids=lambda n: getattr(n, "op_type", ""),
)
def test_what_channels_do_not_pass_through(between: onnx.NodeProto, why: str | None) -> None:
    model = chain(
        node("Conv", "x w1 b1", "a"), between, node("Conv", "b w2", "y"), **_WEIGHTS, **_BOUNDS,
        pads=[0, 0, 1, 1, 0, 0, 1, 1], one=np.float32(1),
    )  # fmt: skip

    result = equalize(model)

    check_same(model, result)
    if why is not None:
        assert result.groups == ()
        assert result.skipped[0].tensor == "a"
        assert why in result.skipped[0].why
        assert why in notes(model)[0]


def test_residual_sums_tie_their_layers() -> None:
    model = chain(
        node("Conv", "x w1 b1", "a"), node("Relu", "a", "ar"), node("Conv", "ar w2", "b"),
        node("Add", "b ar", "s"), node("Relu", "s", "sr"), node("Conv", "sr w3", "y"),
        w1=(6, 3, 1, 1), b1=(6,), w2=(6, 6, 1, 1), w3=(5, 6, 3, 3),
    )  # fmt: skip

    result = equalize(model)

    (group,) = result.groups
    assert set(group.producers) == {"a_node", "b_node"}
    assert set(group.consumers) == {"b_node", "y_node"}
    assert [skipped.why for skipped in result.skipped] == ["an output of the model"]
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

    result = equalize(model, rounds=10)

    assert [group.channels for group in result.groups] == [6, 12, 9, 6]
    check_same(model, result)


def test_flattened_channels_are_scaled_together() -> None:
    model = chain(
        node("Conv", "x w1 b1", "a"), node("Relu", "a", "ar"), node("Flatten", "ar", "f"),
        node("Gemm", "f w2 b2", "g", transB=1), node("Relu", "g", "gr"),
        node("Gemm", "gr w3 b3", "y", alpha=0.5, beta=2.0),
        w1=(4, 3, 1, 1), b1=(4,), w2=(7, 256), b2=(7,), w3=(7, 5), b3=(1,),
    )  # fmt: skip

    result = equalize(model)

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

    result = equalize(model)

    assert [group.tensor for group in result.groups] == ["a", "c"]
    check_same(model, result)


def test_matrices_with_an_added_bias_along_the_last_axis() -> None:
    model = chain(
        node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("MatMul", "t w1", "a"),
        node("Add", "a b1", "ab"), node("Relu", "ab", "ar"), node("MatMul", "ar w2", "c"),
        node("Transpose", "c", "ct", perm=[0, 3, 1, 2]), node("Conv", "ct w3", "y"),
        w1=(3, 5), b1=(5,), w2=(5, 6), w3=(2, 6, 1, 1),
    )  # fmt: skip

    result = equalize(model)

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

    result = equalize(model, samples())

    (group,) = result.groups
    assert 0 < group.frozen < 6
    assert group.capped > 0
    assert f"{group.frozen} channels reach the bound of a Clip" in notes(model, samples())[0]
    check_same(model, result)
    with session(model, ["a"]) as before, session(result.model, ["a"]) as after:
        for feed in samples():
            reached, now = before.run(["a"], feed)[0], after.run(["a"], feed)[0]
            moved = (now != reached).any((0, 2, 3))
            assert now.max(axis=(0, 2, 3))[moved].max() < 6.0001


@pytest.mark.parametrize("objective", ["noise", "ranges"])
def test_one_of_many_samples_is_enough_to_reach_a_clip(objective: str) -> None:
    model, feeds = relu6(), samples(50)
    every = Selection(open_data(feeds, model_inputs(model)), range(50))
    left = every.without(every.spread(24)).indices[7]
    feeds[left]["x"] *= (
        1000  # now every channel reaches its bound, on a sample that weighs no noise
    )

    result = equalize(model, every, objective=objective)

    (group,) = result.groups
    assert group.frozen == 6
    check_same(model, result)


def test_headroom_leaves_room_above_what_was_seen() -> None:
    model = relu6()

    result = equalize(model, samples(), headroom=2.0)

    with session(model, ["a"]) as before, session(result.model, ["a"]) as after:
        for feed in samples():
            reached, now = before.run(["a"], feed)[0], after.run(["a"], feed)[0]
            moved = (now != reached).any((0, 2, 3))
            assert now.max(axis=(0, 2, 3))[moved].max() < 3.0001


def test_without_data_channels_before_a_clip_stay() -> None:
    model = relu6()

    result = equalize(model)

    assert result.groups[0].free == 0
    np.testing.assert_array_equal(outputs(result.model), outputs(model))


def test_groups_with_shared_weights_are_skipped() -> None:
    model = chain(
        node("Conv", "x w0", "s"), node("Relu", "s", "sr"), node("Conv", "sr w1", "a"),
        node("Relu", "a", "ar"), node("Conv", "ar w1", "y"), w0=(5, 3, 1, 1), w1=(5, 5, 1, 1),
    )  # fmt: skip

    result = equalize(model)

    assert result.groups == ()
    assert all("shares its weights" in skipped.why for skipped in result.skipped)
    check_same(model, result)


def test_a_shared_bias_is_scaled_for_one_layer_only() -> None:
    model = chain(
        node("Conv", "x w1 b", "a"), node("Relu", "a", "ar"), node("Conv", "ar w2 b", "y"),
        w1=(6, 3, 1, 1), w2=(6, 6, 1, 1), b=(6,),
    )  # fmt: skip

    result = equalize(model)

    assert len(result.groups) == 1
    check_same(model, result)


def test_sums_with_inputs_are_skipped() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Add", "a x", "s"), node("Conv", "s w2", "y"),
        w1=(3, 3, 1, 1), w2=(2, 3, 1, 1),
    )  # fmt: skip

    result = equalize(model)

    assert "Add of something that cannot be scaled" in result.skipped[0].why
    check_same(model, result)


def test_broadcast_sums_of_other_channel_counts_are_skipped() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Conv", "x w2", "b"), node("Add", "a b", "s"),
        node("Conv", "s w3", "y"), w1=(4, 3, 1, 1), w2=(1, 3, 1, 1), w3=(2, 4, 1, 1),
    )  # fmt: skip

    result = equalize(model)

    assert "added to 1 channels" in result.skipped[0].why
    check_same(model, result)


def test_the_model_given_is_not_changed() -> None:
    model = relu6()
    before = io.to_proto(model).SerializeToString(deterministic=True)

    equalize(model, samples())

    assert io.to_proto(model).SerializeToString(deterministic=True) == before


def test_rounds_end_when_factors_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Relu", "a", "b"), node("Conv", "b w2", "y"),
        w1=(6, 3, 1, 1), w2=(4, 6, 1, 1),
    )  # fmt: skip
    settled = []
    original = cross_layer.is_settled
    monkeypatch.setattr(
        cross_layer, "is_settled", lambda *both: settled.append(original(*both)) or settled[-1]
    )

    equalize(model, rounds=100)

    # A factor for all channels of a layer changes what others are relative to, by less each round.
    assert settled[-1]
    assert not any(settled[:-1])
    assert len(settled) < 20


@pytest.mark.parametrize(
    ("nodes", "absorb", "expected"),
    [
        ([node("Conv", "x w1", "a"), node("Relu", "a", "b"), node("Conv", "b w2", "y")], False, True),
        ([node("Conv", "x w1", "a"), node("Exp", "a", "b"), node("Conv", "b w2", "y")], False, False),
        ([node("Conv", "x w1", "a"), node("Exp", "a", "b"), node("Conv", "b w2", "y")], True, True),
    ],
)  # fmt: skip
def test_it_applies_where_there_is_a_group_or_a_bias_to_absorb(
    nodes: list[onnx.NodeProto], absorb: bool, expected: bool
) -> None:
    model = chain(*nodes, w1=(6, 3, 1, 1), w2=(4, 6, 1, 1))

    assert CrossLayer().applies(model, CrossLayerEqualization(absorb=absorb)) is expected


def test_the_factor_is_bounded() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Relu", "a", "b"), node("Conv", "b w2", "y"),
        w1=np.float32([[1, 1, 1], [1e-6, 0, 0]]).reshape(2, 3, 1, 1), w2=np.ones((2, 2, 1, 1), "f"),
    )  # fmt: skip

    result = equalize(model, largest=4.0)

    np.testing.assert_allclose(ranges(result, "a")[1], 4e-6, rtol=1e-6)
    assert result.groups[0].capped == 1


def _clipped() -> onnx.ModelProto:
    return io.to_proto(
        chain(
            node("Conv", "x w1 b1", "a"), node("Clip", "a zero six", "b"),
            node("Conv", "b w2", "c"), node("Relu", "c", "d"), node("Conv", "d w3", "y"),
            w1=(6, 3, 3, 3), b1=(6,), w2=(6, 6, 1, 1), w3=(4, 6, 1, 1),
            zero=np.float32(0), six=np.float32(60),
        )
    )  # fmt: skip


def test_the_report_says_what_was_equalized() -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), keep_only_if_better=False)

    result = lowbit.quantize(_clipped(), data=samples(8), config=config)

    assert any(note.startswith("equalized") for note in result.report.notes)
    assert result.report.sqnr_db > 20


@pytest.mark.parametrize("value", [None, CrossLayerEqualization(rounds=2)])
def test_a_configuration_keeps_it_in_a_file(value: CrossLayerEqualization | None) -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), equalization=value)

    assert decode_json(config_json(config), QuantConfig) == config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_equalize_only_where_they_try_whether_it_helps(name: str) -> None:
    config = find_preset(name)

    assert config.equalization in (None, CrossLayerEqualization())
    assert config.smooth_quant in (None, SmoothQuant())
    assert config.keep_only_if_better or (
        config.equalization is None and config.smooth_quant is None
    )


def _uneven() -> ir.Model:
    """A depthwise layer between two others, whose channels differ a hundredfold in reach."""
    rng = np.random.default_rng(3)
    reach = np.geomspace(0.02, 2, 16).astype(np.float32)
    first = rng.normal(size=(16, 3, 1, 1)).astype(np.float32) * reach.reshape(-1, 1, 1, 1)
    last = rng.normal(size=(4, 16, 1, 1)).astype(np.float32) / reach.reshape(1, -1, 1, 1)
    return chain(
        node("Conv", "x w1 b1", "a"), node("Relu", "a", "ar"),
        node("Conv", "ar w2 b2", "d", group=16, pads=[1, 1, 1, 1]), node("Relu", "d", "dr"),
        node("Conv", "dr w3", "y"),
        w1=first, b1=0.1 * reach, w2=(16, 1, 3, 3), b2=0.1 * reach, w3=last,
    )  # fmt: skip


def _error(model: ir.Model, equalization: CrossLayerEqualization | None) -> float:
    """Return the error relative to the outputs of a model with 8-bit activations."""
    spec = lowbit.IntegerSpec(format=lowbit.IntegerFormat.INT8)
    weight = lowbit.IntegerSpec(format=lowbit.IntegerFormat.INT8, per_channel=True)
    config = QuantConfig(activation=spec, weight=weight, equalization=equalization)
    result = lowbit.quantize(io.to_proto(model), data=samples(64), config=config, verify=0)
    wrong = size = 0.0
    with session(model) as before, session(result.quantized) as after:
        for feed in samples(80)[64:]:
            want, got = before.run(["y"], feed)[0], after.run(["y"], feed)[0]
            wrong, size = wrong + np.square(got - want).sum(), size + np.square(want).sum()
    return float(wrong / size)


def test_channels_are_scaled_for_the_noise_of_activations() -> None:
    """With a scale for each output of weights, activations are all that equalization can help."""
    model = _uneven()

    noise, none = _error(model, CrossLayerEqualization()), _error(model, None)

    assert noise < 0.2 * none
    assert noise < _error(model, CrossLayerEqualization(objective="ranges"))


def test_equalization_for_noise_keeps_the_function() -> None:
    model = _uneven()

    result = equalize(model, samples())

    assert [group.channels for group in result.groups] == [16, 16]
    check_same(model, result)
