"""Tensors that powers of two fit: found where that helps, measured here by an onnxruntime of its own."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.model_outputs import outputs_of, sqnr_of
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.calibrate.statistics import load_stats, save_stats
from lowbit.config.methods import MinMax
from lowbit.config.presets import find_preset
from lowbit.config.scale_search import PowerOfTwoFit
from lowbit.config.specs import IntegerSpec, TensorOverride
from lowbit.numerics.formats import IntegerFormat
from lowbit.search import power_of_two_fit
from lowbit.search.power_of_two_fit import find_rescaling
from lowbit.search.scale_search import tuned_groups

NAME = "power-of-two fit"


def _network(activation: str = "Clip", reach: float = 5.0) -> onnx.ModelProto:
    """Return four layers between which tensors reach a little above a power of two."""
    rng = np.random.default_rng(5)
    nodes, constants, source = [], [("zero", np.float32(0)), ("bound", np.float32(reach))], "x"
    for index in range(4):
        weight = rng.uniform(-1, 1, (8, 8 if index else 3, 1, 1)).astype(np.float32)
        constants += [(f"w{index}", weight), (f"b{index}", np.full(8, 1.0, np.float32))]
        nodes.append(
            helper.make_node(
                "Conv", [source, f"w{index}", f"b{index}"], [f"c{index}"], f"conv{index}"
            )
        )
        source = f"c{index}"
        if index < 3:
            bounds = ["zero", "bound"] if activation == "Clip" else []
            nodes.append(
                helper.make_node(activation, [source, *bounds], [f"r{index}"], f"act{index}")
            )
            source = f"r{index}"
    graph = helper.make_graph(
        nodes,
        "fit",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, [1, 8, 12, 12])],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _feeds(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.uniform(-3, 3, (1, 3, 12, 12)).astype(np.float32)} for _ in range(count)]


def _config(preset: str = "XINT8", **changes: object) -> lowbit.QuantConfig:
    given = {"equalization": None, "refinement": None}
    return msgspec.structs.replace(find_preset(preset), **{**given, **changes})


def _quantized(model: onnx.ModelProto, config: lowbit.QuantConfig, **more: object) -> lowbit.Result:
    data = more.pop("data", _feeds(24))
    return lowbit.quantize(
        model, data=data, config=config, promote=False, allow_ruined=True, **more
    )


# Without Clips ranges are less uneven, and weights fitted before.
@pytest.mark.parametrize(("activation", "gain_db"), [("Clip", 1.0), ("Relu", 0.2)])
def test_rounding_is_finer_on_samples_that_were_not_seen(activation: str, gain_db: float) -> None:
    model = _network(activation)
    plain = _quantized(model, _config(power_of_two_fit=None))
    found = _quantized(model, _config())

    (step,) = (s for s in found.report.steps if s.name == NAME)
    assert step.kept
    others = _feeds(12, seed=1)
    assert sqnr_of(model, found, others) > sqnr_of(model, plain, others) + gain_db
    for name, params in found.params.tensors.items():
        assert math.log2(float(params.scale)).is_integer(), name


def test_a_clip_becomes_a_relu_that_saturates_where_it_did() -> None:
    found = _quantized(_network(), _config())
    operators = [node.op_type for node in found.model.graph.node]
    assert "Clip" not in operators
    assert operators.count("Relu") == 3

    # The same file with the bounds that the Clips have once they are rescaled.
    clipped = onnx.ModelProto()
    clipped.CopyFrom(found.model)
    factors = found.config.rescaling.factors
    for node in clipped.graph.node:
        if node.op_type == "Relu":
            factor = next(f for name, f in factors.items() if name[1:] == node.name[-1])
            bound = numpy_helper.from_array(np.float32(5.0 * factor), f"{node.name}_bound")
            low = numpy_helper.from_array(np.float32(0), f"{node.name}_low")
            clipped.graph.initializer.extend([bound, low])
            node.op_type = "Clip"
            node.input.extend([low.name, bound.name])
    feeds = _feeds(4, seed=2)
    for one, other in zip(outputs_of(found.model, feeds), outputs_of(clipped, feeds), strict=True):
        np.testing.assert_array_equal(one, other)


def test_factors_are_those_of_least_noise_tried_one_by_one() -> None:
    """The best of many factors for one tensor, by rounding its values, against what is found."""
    model = _network("Relu")
    state = _quantized(model, _config(power_of_two_fit=None, sensitivity=None)).state
    rescaling = find_rescaling(state)
    assert rescaling is not None

    feeds = _feeds(24)
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.append(helper.make_tensor_value_info("r1", TensorProto.FLOAT, None))
    session = ort.InferenceSession(probe.SerializeToString())
    values = np.concatenate([session.run(["r1"], feed)[0].reshape(-1) for feed in feeds])

    def noise(factor: float) -> float:
        scales = [2.0**-bits for bits in range(8)]
        codes = [np.clip(np.rint(values * factor / s), -128, 127) * s / factor for s in scales]
        return min(float(np.square(values - each).mean()) for each in codes)

    best = min(noise(2.0 ** (k / 64)) for k in range(64))
    assert noise(rescaling.factors["c1"]) < 1.05 * best
    assert noise(1.0) > 1.3 * best


def test_nothing_is_rescaled_where_scales_are_floats_or_ranges_asked_for() -> None:
    floats = _quantized(
        _network(), _config("A8W8", power_of_two_fit=PowerOfTwoFit(), centering=None)
    )
    ranges = _quantized(_network(), _config().with_method(MinMax()))

    for result in (floats, ranges):
        assert result.config.rescaling is None
        assert NAME not in [step.name for step in result.report.steps]


def test_a_model_that_it_does_not_help_stays_as_it_is() -> None:
    # Ranges end at a power of two already, and nothing of them is clipped.
    model = _network(reach=4 * 127 / 128)
    found = _quantized(model, _config())

    steps = [step for step in found.report.steps if step.name == NAME]
    others = _feeds(12, seed=3)
    plain = _quantized(model, _config(power_of_two_fit=None))
    assert not steps or steps[0].kept == (found.config.rescaling is not None)
    assert sqnr_of(model, found, others) > sqnr_of(model, plain, others) - 0.3


def test_statistics_of_a_rescaled_model_make_it_again(tmp_path) -> None:
    model, config = _network(), _config(bias_correction=False)
    first = _quantized(model, config)
    assert first.config.rescaling is not None
    save_stats(first.state.stats, tmp_path / "stats.npz")

    again = _quantized(model, config, stats=load_stats(tmp_path / "stats.npz"))

    assert again.config.rescaling == first.config.rescaling
    assert again.model.graph == first.model.graph


def test_it_is_done_unasked_where_nothing_is_kept_only_if_better() -> None:
    found = _quantized(_network(), _config(keep_only_if_better=False))

    assert found.report.steps == ()
    assert found.config.rescaling is not None


def test_scales_by_outputs_may_change_the_fitted_ones() -> None:
    state = _quantized(_network(), _config()).state
    asked = TensorOverride(tensor="r1", range=(-4.0, 3.96875))
    fixed = _quantized(_network(), _config(tensors=(asked,), power_of_two_fit=None)).state

    tried, left = ({n for group in tuned_groups(s) for n in group} for s in (state, fixed))

    assert state.config.rescaling is not None
    assert {"r0", "r1", "r2"} <= tried
    assert "r1" not in left  # somebody asked for its range


def test_weights_that_a_factor_would_push_between_powers_of_two_hold_it_back() -> None:
    """Noise of weights is that of rounding them, for every factor on them."""
    weights = np.random.default_rng(0).normal(0, 1, 2000).astype(np.float32)
    spec = IntegerSpec(format=IntegerFormat.INT8, power_of_two=True)
    errors = power_of_two_fit._weight_errors(weights, spec)

    for index in (0, 7, 16, 31):
        factor = 2.0 ** (index / 32 - 0.5)
        scaled = weights.astype(np.float64) * factor
        each = [
            np.square(scaled - np.clip(np.rint(scaled / s), -128, 127) * s).mean() / factor**2
            for s in (2.0**-bits for bits in range(1, 10))
        ]
        assert errors[index] == pytest.approx(min(each), rel=1e-6)
