"""Weights that do not saturate, against kernels that do and a second way to find what meets."""

import itertools

import numpy as np
import pytest
from helpers.saturating_models import saturating_network
from helpers.staged import quantized, random_feeds

from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.geometry import ConvLayer, LinearLayer, MatrixLayer, TransposedConvLayer
from lowbit.pipeline.kernels import find_saturating
from lowbit.scales.saturation import SummedPairs, saturation_free
from lowbit.scales.weights import integers, weight_params

_BOTH = ("through_taps", "within_taps")
_SPEC = IntegerSpec(format=IntegerFormat.INT8, per_channel=True)


def _conv(
    kind: type[ConvLayer], groups: int, outputs: int, inputs: int, taps: int
) -> tuple[LinearLayer, tuple[int, ...]]:
    layer = kind(
        groups=groups,
        outputs=outputs,
        inputs=inputs,
        taps=taps,
        window=(taps,),
        strides=(1,),
        dilations=(1,),
        pads=(0, 0),
    )
    first = (groups * outputs, inputs) if kind is ConvLayer else (groups * inputs, outputs)
    return layer, (*first, taps)


def _matrix(transposed: bool) -> tuple[LinearLayer, tuple[int, ...]]:
    shape = (6, 9) if transposed else (9, 6)
    return MatrixLayer(groups=1, outputs=6, inputs=9, transposed=transposed), shape


LAYERS = {
    "conv": _conv(ConvLayer, 1, 5, 8, 3),
    "three channels": _conv(ConvLayer, 1, 5, 3, 3),
    "groups": _conv(ConvLayer, 2, 3, 5, 2),
    "transposed": _conv(TransposedConvLayer, 2, 3, 5, 2),
    "matrix": _matrix(transposed=False),
    "matrix of Gemm": _matrix(transposed=True),
}


def _worst(codes: np.ndarray, layer: LinearLayer) -> int:
    """Return the largest sum of two products with 255, pair after pair as kernels go."""
    kernel = layer.kernel(codes).astype(int)
    worst = 0
    for g, o in itertools.product(range(layer.groups), range(layer.outputs)):
        for through in (True, False):
            rows = [[kernel[g, o, i, t] for i in range(layer.inputs)] for t in range(layer.taps)]
            rows = [[w for row in rows for w in row]] if through else rows
            for row in rows:
                for at in range(0, len(row), 2):
                    two = row[at : at + 2]
                    worst = max(worst, *(255 * sum(max(s * w, 0) for w in two) for s in (1, -1)))
    return worst


@pytest.mark.parametrize("name", LAYERS)
def test_whatever_lies_between_the_limits_does_not_saturate(name: str) -> None:
    layer, shape = LAYERS[name]
    random = np.random.default_rng(0)
    codes = random.integers(-127, 128, shape).astype(np.float32)
    pairs = SummedPairs((layer,), _BOTH)

    low, high = pairs.limits(codes, 127)

    assert pairs.can_saturate(codes)
    assert _worst(codes, layer) > 2**15 - 1
    assert (low <= 0).all()
    assert (high >= 0).all()
    corners = (
        low,
        high,
        np.where(random.random(shape) < 0.5, low, high),
        np.clip(codes, low, high),
    )
    for chosen in corners:
        assert _worst(chosen, layer) <= 2**15 - 1
        assert not pairs.can_saturate(chosen)


@pytest.mark.parametrize("orders", [_BOTH, _BOTH[:1], _BOTH[1:]])
@pytest.mark.parametrize("name", LAYERS)
def test_the_nearest_are_the_nearest_within_the_limits(name: str, orders: tuple[str, ...]) -> None:
    layer, shape = LAYERS[name]
    codes = np.random.default_rng(3).integers(-127, 128, shape).astype(np.float32)
    pairs = SummedPairs((layer,), orders)
    before = codes.copy()

    found = pairs.nearest(codes, 127)

    assert found.tolist() == np.clip(codes, *pairs.limits(codes, 127)).tolist()
    assert codes.tolist() == before.tolist()


def test_what_does_not_saturate_stays() -> None:
    layer, _ = LAYERS["matrix of Gemm"]
    row = np.array([127, 1, -100, 100, -64, -64, 127, 0, 127], np.float32)
    codes = np.stack([row] * 6)

    low, high = SummedPairs((layer,), _BOTH).limits(codes, 127)

    assert np.clip(codes, low, high).tolist() == codes.tolist()


def test_two_that_exceed_the_sum_are_reduced_alike() -> None:
    layer = MatrixLayer(groups=1, outputs=1, inputs=2, transposed=True)

    low, high = SummedPairs((layer,), _BOTH).limits(np.array([[100, 100]], np.float32), 127)

    assert high.tolist() == [[64, 64]]
    assert low.tolist() == [[-64, -64]]


@pytest.mark.parametrize("axis", [None, 0])
def test_the_scale_has_less_error_than_half_the_range(axis: int | None) -> None:
    layer = MatrixLayer(groups=1, outputs=40, inputs=128, transposed=True)
    weight = np.random.default_rng(1).normal(size=(40, 128)).astype(np.float32)
    pairs = SummedPairs((layer,), _BOTH)
    half = IntegerSpec(format=IntegerFormat.INT8, reduce_range=True)

    def error(spec: IntegerSpec, known: SummedPairs | None) -> float:
        params = weight_params(weight, spec, axis, pairs=known)
        codes = integers(weight, params, spec, known)
        assert not pairs.can_saturate(codes)
        scale = params.scale if axis is None else params.scale[:, None]
        return float(np.square(weight - codes * scale).sum())

    assert error(_SPEC, pairs) < 0.6 * error(half, None)


def test_powers_of_two_stay_powers_of_two() -> None:
    layer, shape = LAYERS["conv"]
    weight = np.random.default_rng(2).uniform(-1, 1, shape).astype(np.float32)
    spec = IntegerSpec(format=IntegerFormat.INT8, power_of_two=True)

    params = saturation_free(
        weight, weight_params(weight, spec, None), spec, SummedPairs((layer,), _BOTH)
    )

    assert float(np.log2(params.scale)).is_integer()


def _stored(config: QuantConfig) -> tuple[int, tuple[str, ...]]:
    model = saturating_network()
    found = find_saturating(quantized(model, config, random_feeds(model)))
    assert found is not None
    return found.layers, found.saturating


@pytest.mark.parametrize("preset", ["U8S8", "U8S8_PERCHANNEL", "S8S8", "S8S8_PERCHANNEL"])
def test_static_presets_for_runtimes_cannot_saturate(preset: str) -> None:
    assert _stored(find_preset(preset)) == (4, ())


def test_a_preset_for_a_device_without_such_kernels_keeps_all_8_bits() -> None:
    layers, saturating = _stored(find_preset("A8W8"))

    assert layers == 4
    assert saturating
