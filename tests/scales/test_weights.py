"""Scales of weights against dense searches, and importance against the outputs themselves."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.staged import calibrated
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.methods import (
    Distribution,
    Entropy,
    LayerwisePercentile,
    Method,
    MinMax,
    MinMse,
    NonOverflow,
    OutputMse,
    Percentile,
)
from lowbit.config.presets import find_preset
from lowbit.config.specs import IntegerSpec
from lowbit.errors import ConfigError
from lowbit.numerics.affine import QParams, dequantize, quantize, range_qparams
from lowbit.numerics.formats import IntegerFormat
from lowbit.scales.weights import Importance, integers, weight_importance, weight_params

_RNG = np.random.default_rng(5)
_WEIGHT = (_RNG.laplace(size=(8, 4, 3, 3)) * np.geomspace(0.01, 3, 8)[:, None, None, None]).astype(
    np.float32
)


def _spec(method: Method, fmt: IntegerFormat = IntegerFormat.INT8, **options: bool) -> IntegerSpec:
    return IntegerSpec(format=fmt, method=method, **options)


def _error(x: np.ndarray, params: QParams, spec: IntegerSpec) -> float:
    limits = spec.format.limits(symmetric=spec.symmetric, reduce_range=spec.reduce_range)
    return float(np.square(x - dequantize(quantize(x, params, limits), params)).sum())


def _dense(x: np.ndarray, spec: IntegerSpec) -> float:
    """Return the least error of many symmetric ranges, by trying them."""
    top = float(np.abs(x).max())
    return min(
        _error(x, range_qparams(-top * r, top * r, spec.format, symmetric=True), spec)
        for r in np.linspace(0.3, 1.0, 400)
    )


def test_minmax_takes_the_largest_magnitude() -> None:
    params = weight_params(_WEIGHT, _spec(MinMax()), None)

    assert float(params.scale) == np.float32(np.abs(_WEIGHT).max().astype(np.float64) * 2 / 254)


@pytest.mark.parametrize("fmt", [IntegerFormat.INT4, IntegerFormat.INT8])
def test_mse_is_as_good_as_a_dense_search(fmt: IntegerFormat) -> None:
    spec = _spec(MinMse(), fmt)

    assert _error(_WEIGHT, weight_params(_WEIGHT, spec, None), spec) <= 1.02 * _dense(_WEIGHT, spec)


@pytest.mark.parametrize("fmt", [IntegerFormat.INT4, IntegerFormat.INT8])
def test_mse_of_large_weights_is_searched_on_their_histogram(fmt: IntegerFormat) -> None:
    large = _RNG.laplace(size=60_000).astype(np.float32)
    spec = _spec(MinMse(), fmt)

    assert _error(large, weight_params(large, spec, None), spec) <= 1.05 * _dense(large, spec)


@pytest.mark.parametrize("axis", [0, 1])
def test_each_channel_has_the_parameters_it_would_have_alone(axis: int) -> None:
    for method in (MinMax(), MinMse(), Percentile(percentile=99.0)):
        params = weight_params(_WEIGHT, _spec(method), axis)

        assert params.axis == axis
        rows = np.moveaxis(_WEIGHT, axis, 0)
        alone = [float(weight_params(row, _spec(method), None).scale) for row in rows]
        np.testing.assert_allclose(params.scale, alone, rtol=1e-6)


def test_channels_of_nothing_but_zeros_take_the_smallest_scale_of_the_others() -> None:
    weight = _WEIGHT.copy()
    weight[3] = 0

    params = weight_params(weight, _spec(MinMax()), 0)

    assert params.scale[3] == np.delete(params.scale, 3).min()


def test_a_weight_of_zeros_has_scale_one() -> None:
    zeros = np.zeros((2, 3), np.float32)

    assert float(weight_params(zeros, _spec(MinMax()), None).scale) == 1.0
    assert weight_params(zeros, _spec(MinMax()), 0).scale.tolist() == [1.0, 1.0]
    assert float(weight_params(zeros, _spec(MinMse(), power_of_two=True), None).scale) == 1.0


def test_power_of_two_mse_is_the_best_power() -> None:
    spec = _spec(MinMse(), power_of_two=True)

    bits = weight_params(_WEIGHT, spec, None).fraction_bits

    errors = {
        f: _error(_WEIGHT, QParams(np.float32(2.0**-f), np.int8(0), IntegerFormat.INT8), spec)
        for f in range(-5, 15)
    }
    assert bits == min(errors, key=lambda f: errors[f])


@pytest.mark.parametrize("method", [MinMax(), MinMse(), NonOverflow()])
def test_power_of_two_holds_for_every_channel(method: Method) -> None:
    params = weight_params(_WEIGHT, _spec(method, power_of_two=True), 0)

    assert (np.frexp(params.scale)[0] == 0.5).all()
    assert len(set(params.scale.tolist())) > 1


def test_nonoverflow_takes_the_nearest_power_if_asked_to() -> None:
    data = np.array([1.4 * 127 / 128, -0.1], np.float32)

    params = weight_params(data, _spec(NonOverflow(nearest=True), power_of_two=True), None)

    assert float(params.scale) == 2.0**-7


@pytest.mark.parametrize(
    "fmt", [IntegerFormat.INT4, IntegerFormat.UINT4, IntegerFormat.INT8, IntegerFormat.UINT8]
)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("reduced", [True, False])
def test_integers_stay_within_the_limits_and_half_a_step(
    fmt: IntegerFormat, symmetric: bool, reduced: bool
) -> None:
    spec = _spec(MinMax(), fmt, symmetric=symmetric, reduce_range=reduced)
    params = weight_params(_WEIGHT, spec, None)

    codes = integers(_WEIGHT, params, spec)

    low, high = fmt.limits(symmetric=symmetric, reduce_range=reduced)
    assert low <= codes.min()
    assert codes.max() <= high
    assert np.abs(dequantize(codes, params) - _WEIGHT).max() <= float(params.scale) * 0.501


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("method", [Entropy(), LayerwisePercentile(), Distribution()])
def test_methods_that_need_samples_are_refused(method: Method, axis: int | None) -> None:
    name = type(method).__name__

    with pytest.raises(ConfigError, match=f"{name} is not a method for weights; take minmax, mse"):
        weight_params(_WEIGHT, _spec(method), axis)


class _Own(Method, msgspec.Struct, frozen=True, tag="test-own-weights"):
    """A method of one's own: the scale of the mean magnitude."""

    def weight_parameters_of(self, data: np.ndarray, spec: IntegerSpec) -> QParams:
        scale = np.asarray(np.abs(data).mean() / 64, np.float32)
        return QParams(scale, np.asarray(0, np.int8), spec.format)


def test_a_method_of_ones_own_chooses_the_parameters() -> None:
    params = weight_params(_WEIGHT, _spec(_Own()), None)
    per_channel = weight_params(_WEIGHT, _spec(_Own()), 0)

    assert float(params.scale) == pytest.approx(np.abs(_WEIGHT).mean() / 64)
    expected = np.abs(_WEIGHT).reshape(8, -1).mean(axis=1) / 64
    np.testing.assert_allclose(per_channel.scale, expected, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("method", [MinMax(), MinMse()])
def test_each_group_has_the_parameters_it_would_have_alone(method: Method, axis: int) -> None:
    """The last group of an axis may be shorter."""
    weight = _RNG.laplace(size=(10, 14)).astype(np.float32)
    spec = IntegerSpec(format=IntegerFormat.INT4, method=method, group_size=4)

    params = weight_params(weight, spec, axis)

    assert (params.axis, params.group_size, params.length) == (axis, 4, weight.shape[axis])
    by_group = np.moveaxis(weight, axis, -1)
    scale = np.moveaxis(params.scale, axis, -1)
    assert scale.shape == (by_group.shape[0], -(-weight.shape[axis] // 4))
    single = IntegerSpec(format=IntegerFormat.INT4, method=method)
    for row, group in np.ndindex(scale.shape):
        part = by_group[row, 4 * group : 4 * group + 4]
        alone = weight_params(part, single, None)
        assert scale[row, group] == pytest.approx(float(alone.scale), rel=1e-6)


def test_groups_of_nothing_but_zeros_take_the_smallest_scale_of_the_others() -> None:
    weight = _RNG.normal(size=(2, 8)).astype(np.float32)
    weight[0, 4:] = 0

    params = weight_params(weight, IntegerSpec(format=IntegerFormat.INT8, group_size=4), 1)

    assert params.scale[0, 1] == params.scale.reshape(-1)[[0, 2, 3]].min()


def test_empty_constants_have_parameters() -> None:
    assert float(weight_params(np.zeros(0, np.float32), _spec(MinMse()), None).scale) == 1.0


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("size", [40, 4000])
def test_errors_count_by_importance(*, power_of_two: bool, axis: int | None, size: int) -> None:
    """Large weights that multiply nothing must not set the scale of the others."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(2, size)).astype(np.float32)
    weight[:, ::10] *= 2.2
    importance = np.ones_like(weight)
    importance[:, ::10] = 0
    spec = _spec(OutputMse(), power_of_two=power_of_two)

    def mattering(params):
        difference = dequantize(integers(weight, params, spec), params) - weight
        return float((importance * np.square(difference)).sum())

    plain = weight_params(weight, spec, axis)
    known = Importance(importance, np.zeros_like(weight), 0)
    weighed = weight_params(weight, spec, axis, known)
    dense = min(
        mattering(
            QParams(
                np.full(plain.scale.shape, s, np.float32),
                plain.zero_point,
                IntegerFormat.INT8,
                axis,
            )
        )
        for s in (2.0 ** np.arange(-9, 0) if power_of_two else np.geomspace(0.002, 0.2, 400))
    )

    # Few weights may have the same power of two in any case.
    assert mattering(weighed) <= mattering(plain) * (1.0 if power_of_two and size < 100 else 0.8)
    assert mattering(weighed) <= 1.05 * dense


@pytest.mark.parametrize("axis", [None, 0])
def test_errors_that_shift_the_output_together_are_avoided(*, axis: int | None) -> None:
    rng = np.random.default_rng(0)
    weight = rng.laplace(size=(8, 64)).astype(np.float32)
    known = Importance(np.full_like(weight, 0.01), np.ones_like(weight), 0)
    spec = _spec(OutputMse())

    def output_error(params):
        # Inputs of mean 1 and variance 0.01: a hundred thousand of them, independent.
        difference = dequantize(integers(weight, params, spec), params) - weight
        inputs = np.random.default_rng(1).normal(1.0, 0.1, (64, 100_000))
        return float(np.square(difference @ inputs).mean())

    plain, better = (weight_params(weight, spec, axis, k) for k in (None, known))

    assert output_error(better) < 0.8 * output_error(plain)


@pytest.mark.parametrize("size", [1 << 12, 1 << 19])
def test_of_many_outputs_some_decide(size: int) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(size // 16, 16)).astype(np.float32)
    known = Importance(np.ones_like(weight), np.zeros_like(weight), 0)

    found = weight_params(weight, _spec(OutputMse()), None, known)

    # With all errors alike it is the least squared error, that of all weights.
    want = weight_params(weight, _spec(MinMse()), None)
    assert float(found.scale) == pytest.approx(float(want.scale), rel=0.1)


_CASES = {
    "conv": (("Conv", {"group": 1, "kernel_shape": [1, 1]}), (6, 4, 1, 1)),
    "grouped": (("Conv", {"group": 2, "kernel_shape": [1, 1]}), (6, 2, 1, 1)),
    "depthwise": (("Conv", {"group": 4, "kernel_shape": [1, 1]}), (4, 1, 1, 1)),
    "transposed": (("ConvTranspose", {"group": 2, "kernel_shape": [1, 1]}), (4, 3, 1, 1)),
    "gemm": (("Gemm", {}), (4, 3)),
    "gemm transposed": (("Gemm", {"transB": 1}), (3, 4)),
}


def _config(**changes: object) -> QuantConfig:
    config = find_preset("A8W8")
    weight = msgspec.structs.replace(config.weight, method=OutputMse())
    changes = {
        "weight": weight,
        "refinement": None,
        "equalization": None,
        "keep_only_if_better": False,
        **changes,
    }
    return msgspec.structs.replace(config, **changes)


def _model(case: str) -> onnx.ModelProto:
    (op_type, attributes), shape = _CASES[case]
    rng = np.random.default_rng(1)
    outputs = shape[0] if op_type == "Conv" else shape[1] * attributes.get("group", 1)
    rows = op_type == "Gemm"
    if rows:
        outputs = shape[0] if "transB" in attributes else shape[1]
    weight = rng.normal(size=shape).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w", "b"], ["y"], "layer", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 4] if rows else [1, 4, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.zeros(outputs, np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _independent_channels() -> np.ndarray:
    """Channels with means and spreads of their own, and no covariance at all."""
    two = np.array([[1, 1], [1, -1]])
    signs = np.kron(np.kron(two, two), np.kron(two, two))[1:5].reshape(1, 4, 4, 4)
    spread = np.float32([1, 3, 0.1, 2]).reshape(1, 4, 1, 1)
    middle = np.float32([2, 0.5, 1, -1]).reshape(1, 4, 1, 1)
    return (middle + spread * signs).astype(np.float32)


@pytest.mark.parametrize("case", _CASES)
def test_importance_is_what_errors_in_weights_do_to_the_output(case: str) -> None:
    """Move weights, alone and together, and take the mean square of the output's change."""
    x = _independent_channels()
    feeds = [{"x": x.reshape(4, 16).T.copy() if case.startswith("gemm") else x}]
    model = _model(case)
    state = calibrated(model, _config(), feeds)

    found = weight_importance(state.adapted, state.plan, state.stats)["w"]()

    def outputs(weight: np.ndarray) -> np.ndarray:
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
        session = ort.InferenceSession(changed.SerializeToString())
        return np.concatenate([session.run(None, feed)[0] for feed in feeds])

    weight = numpy_helper.to_array(model.graph.initializer[0])
    before = outputs(weight)
    moves = [0.5 * (np.arange(weight.size) == k).reshape(weight.shape) for k in range(weight.size)]
    if case != "transposed":  # there each error counts by itself
        moves.append(np.random.default_rng(2).normal(size=weight.shape))
    for move in moves:
        change = (outputs((weight + move).astype(np.float32)) - before).astype(np.float64)
        total = np.square(change).mean(axis=(0, 2, 3) if change.ndim == 4 else 0).sum()
        assert found.error(move.astype(np.float32)).sum() == pytest.approx(total, rel=1e-3)


@pytest.mark.usefixtures("shared_weights")
def test_a_weight_of_two_layers_counts_every_error_by_itself() -> None:
    """One layer reads x, the other 2 x: errors count by the second moments of both, added."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], "first"),
        helper.make_node("Mul", ["x", "two"], ["x2"], "double"),
        helper.make_node("Gemm", ["x2", "w", "b"], ["z"], "second"),
    ]
    constants = {
        "w": rng.normal(size=(4, 3)),
        "b": np.zeros(3),
        "two": np.float32(2),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 4])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")],
        [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = _independent_channels().reshape(4, 16).T.copy()

    state = calibrated(model, _config(), [{"x": x}])

    found = weight_importance(state.adapted, state.plan, state.stats)["w"]()
    expected = 5 * np.square(x, dtype=np.float64).mean(axis=0)[:, None]
    np.testing.assert_allclose(found.variances, np.broadcast_to(expected, (4, 3)), rtol=1e-3)
    assert not found.means.any()


def test_the_scale_of_a_normalization_has_no_importance() -> None:
    """It multiplies what is normalized, whose moments nobody observes."""
    rng = np.random.default_rng(1)
    graph = helper.make_graph(
        [helper.make_node("InstanceNormalization", ["x", "w", "b"], ["y"], "norm")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(rng.normal(size=4).astype(np.float32), n) for n in ("w", "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    state = calibrated(model, _config(), [{"x": _independent_channels()}])

    assert [row.weight for row in state.plan.biases] == ["w"]
    found = weight_importance(state.adapted, state.plan, state.stats)
    assert all(make() is None for make in found.values())


def test_it_is_no_method_for_activations() -> None:
    config = _config().with_method(OutputMse())

    with pytest.raises(ConfigError, match="method output is for weights"):
        lowbit.quantize(_model("conv"), data="random", config=config)


@pytest.mark.parametrize("method", [MinMax(), MinMse()])
def test_rows_of_a_large_weight_have_the_scales_they_have_by_themselves(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _RNG.laplace(size=(64, 20)).astype(np.float32)
    spec = IntegerSpec(format=IntegerFormat.UINT4, symmetric=False, group_size=16, method=method)
    matter = Importance(np.abs(data), data, 1)
    whole = [weight_params(data, spec, 0, known) for known in (None, matter)]

    monkeypatch.setattr("lowbit.scales.weights._ROWS_AT_ONCE", 3 * 16)

    for known, want in zip((None, matter), whole, strict=True):
        got = weight_params(data, spec, 0, known)
        np.testing.assert_array_equal(got.scale, want.scale)
        np.testing.assert_array_equal(got.zero_point, want.zero_point)
