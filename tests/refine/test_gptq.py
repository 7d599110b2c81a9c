"""GPTQ: against a slow one written from the paper, and on whole models."""

import msgspec
import numpy as np
import onnx
import pytest
from helpers.chain_models import chain, smooth
from helpers.column_moments import moments_of
from helpers.matrix_models import matrices, rows
from onnx import numpy_helper

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.methods import MinMse
from lowbit.config.refinement import Gptq
from lowbit.config.specs import FloatSpec, IntegerSpec
from lowbit.errors import ConfigError
from lowbit.graph.session import session
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.refine.gptq import factor_moments, round_sequentially
from lowbit.refine.reconstruct import Grid


def _second_moments(inputs):
    return moments_of(inputs.astype(np.float64), inputs, centred=False).inputs


def _problem(seed=0, depth=24, outputs=9, samples=200, groups=1):
    random = np.random.default_rng(seed)
    weight = random.normal(size=(groups, outputs, depth)).astype(np.float32)
    mix = random.normal(size=(groups, depth, depth))
    power = np.geomspace(0.1, 3, depth)[random.permutation(depth)]
    inputs = mix @ (power[:, None] * random.normal(size=(groups, depth, samples)))
    scale = np.abs(weight).max(axis=2, keepdims=True) / 7
    nearest = np.clip(np.rint(weight / scale), -7, 7)
    seven = np.full_like(weight, 7)
    grid = Grid(
        weight, np.broadcast_to(scale, weight.shape), nearest, nearest, nearest, -seven, seven
    )
    return grid, inputs.astype(np.float32)


def _rounded(moments, grid, config):
    return round_sequentially(factor_moments(moments, config), grid, config)


def _by_the_book(weight, inputs, scale, damp, order):
    """One output after another; the inverse is updated by elimination, nothing is factored."""
    moments = (inputs @ inputs.T / inputs.shape[1]).astype(np.float64)
    moments += damp * np.mean(np.diag(moments)) * np.eye(len(moments))
    codes = np.zeros(weight.shape)
    for row in range(len(weight)):
        inverse, left = np.linalg.inv(moments), weight[row].astype(np.float64)
        for j in order:
            codes[row, j] = np.clip(np.rint(left[j] / scale[row, 0]), -7, 7)
            error = (left[j] - codes[row, j] * scale[row, 0]) / inverse[j, j]
            left = left - error * inverse[:, j]
            inverse = inverse - np.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    return codes


def _error(grid, inputs, codes):
    difference = (codes * grid.scale - grid.weight) @ inputs
    return float(np.square(difference).mean())


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("damp", [0.01, 0.3])
def test_it_rounds_as_the_paper_says(act_order, damp):
    grid, inputs = _problem()
    moments = _second_moments(inputs)
    config = Gptq(perc_damp=damp, act_order=act_order)
    power = np.diag(moments[0])
    order = np.argsort(-power) if act_order else np.arange(len(power))

    codes = _rounded(moments, grid, config)

    expected = _by_the_book(grid.weight[0], inputs[0], grid.scale[0], damp, order)
    np.testing.assert_array_equal(codes[0], expected)
    assert _error(grid, inputs, codes) < 0.5 * _error(grid, inputs, grid.nearest)


@pytest.mark.parametrize("block", [1, 5, 1000])
def test_the_size_of_blocks_changes_no_result(block):
    grid, inputs = _problem(1, groups=3)
    moments = _second_moments(inputs)
    usual = _rounded(moments, grid, Gptq(block_size=8))
    np.testing.assert_array_equal(_rounded(moments, grid, Gptq(block_size=block)), usual)


def test_groups_of_a_layer_are_problems_of_their_own():
    grid, inputs = _problem(2, groups=3)
    config = Gptq(act_order=True)
    together = _rounded(_second_moments(inputs), grid, config)
    for g in range(3):
        part = Grid(**{n: getattr(grid, n)[g : g + 1] for n in Grid.__dataclass_fields__})
        alone = _rounded(_second_moments(inputs[g : g + 1]), part, config)
        np.testing.assert_array_equal(alone[0], together[g])


def test_inputs_that_are_never_seen_are_rounded_to_the_nearest():
    grid, inputs = _problem(3)
    inputs[0, [2, 7]] = 0
    codes = _rounded(_second_moments(inputs), grid, Gptq())
    np.testing.assert_array_equal(codes[0][:, [2, 7]], grid.nearest[0][:, [2, 7]])


def test_inputs_that_depend_on_each_other_are_damped():
    grid, inputs = _problem(4, samples=5)
    codes = _rounded(_second_moments(inputs), grid, Gptq(perc_damp=1e-12))
    assert np.isfinite(codes).all()
    assert np.abs(codes).max() <= 7


def _weights_only(refinement, **weight):
    spec = IntegerSpec(**{"format": IntegerFormat.INT4, "per_channel": True, **weight})
    return QuantConfig(activation=None, weight=spec, refinement=refinement)


def _distance(model, result, feeds):
    name = model.graph.output[0].name
    with (
        session(lowbit.graph.io.load(model)) as floats,
        session(result.quantized) as quantized,
    ):
        errors = [
            np.square(floats.run([name], feed)[0] - quantized.run([name], feed)[0]).mean()
            for feed in feeds
        ]
    return float(np.mean(errors))


@pytest.mark.parametrize(
    "weight",
    [
        {},
        {"group_size": 16},
        {"symmetric": False},
        {"format": IntegerFormat.INT8, "per_channel": False},
    ],
)
def test_a_model_comes_nearer_to_float_on_data_it_has_not_seen(weight):
    model, feeds, unseen = matrices(), rows(16), rows(8, seed=9)
    plain = lowbit.quantize(model, data=feeds, config=_weights_only(None, **weight), promote=False)
    better = lowbit.quantize(model, data=feeds, config=_weights_only(Gptq(), **weight))
    assert _distance(model, better, unseen) < 0.7 * _distance(model, plain, unseen)
    onnx.checker.check_model(better.model, full_check=True)


def test_convolutions_and_quantized_activations_take_it_as_well():
    model, feeds, unseen = chain(), smooth(16), smooth(8, seed=9)
    spec = IntegerSpec(format=IntegerFormat.INT4, per_channel=True)
    start = msgspec.structs.replace(
        lowbit.presets.find_preset("A16W8"),
        weight=spec,
        equalization=None,
        keep_only_if_better=False,
        target="onnxruntime",
    )
    distances = [
        _distance(
            model,
            lowbit.quantize(
                model,
                data=feeds,
                config=msgspec.structs.replace(start, refinement=r),
                promote=False,
            ),
            unseen,
        )
        for r in (None, Gptq())
    ]
    assert distances[1] < 0.7 * distances[0]


def test_scales_stay():
    model, feeds = matrices(), rows(8)
    found = [
        lowbit.quantize(model, data=feeds, config=_weights_only(r, group_size=16, method=MinMse()))
        for r in (None, Gptq(act_order=True))
    ]
    before, after = (
        {c.name: numpy_helper.to_array(c) for c in f.model.graph.initializer} for f in found
    )
    assert before.keys() == after.keys()
    for name in before:
        if name.endswith(("_scale", "_zero_point")):
            np.testing.assert_array_equal(before[name], after[name])
    assert (before["w0_quantized"] != after["w0_quantized"]).any()


def test_it_sees_as_many_samples_and_positions_as_it_is_asked_to():
    def weights(feeds, config):
        run = lowbit.quantize(matrices(), data=feeds, config=_weights_only(config), promote=False)
        return {c.name: c.SerializeToString() for c in run.model.graph.initializer}

    few = weights(rows(8), Gptq(data_size=3))
    assert few == weights(rows(8)[:3], Gptq())
    assert few != weights(rows(8), Gptq())
    assert weights(rows(8), Gptq(positions=2)) != weights(rows(8), Gptq())


def test_floats_have_no_integers_to_choose_from():
    config = QuantConfig(
        activation=None, weight=FloatSpec(format=FloatFormat.BFLOAT16), refinement=Gptq()
    )
    with pytest.raises(ConfigError, match="Gptq chooses which integer"):
        lowbit.quantize(matrices(), data=rows(2), config=config, promote=False)
