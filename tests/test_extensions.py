"""What can be added from outside the package, as values: a toy of each kind, without monkeypatching."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.small_models import small_cnn, small_feeds
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.calibrate.observers import ObserverSpec
from lowbit.calibrate.statistics import TensorStats
from lowbit.config.extensible import decode_json
from lowbit.config.methods import Method, MinMax
from lowbit.config.presets import find_preset
from lowbit.config.refinement import Refinement
from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.config.transforms import FloatTransform
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.traits import OPERATORS, OpTraits
from lowbit.refine.algorithm import Algorithm, LoopSettings, Solve
from lowbit.refine.layers import LayerResult, RefinedLayer, float_bias, float_weights
from lowbit.refine.samples import LayerSample
from lowbit.state import Quantized
from lowbit.targets.target import Target
from lowbit.transforms import Context, TransformedModel

_INT8 = IntegerSpec(format=IntegerFormat.INT8)
TOY_PRESET = lowbit.QuantConfig(name="TOY", activation=_INT8, weight=_INT8, bias=AccumulatorBias())
TOY_TARGET = Target(
    name="toy",
    operators=("Conv", "Sqrt"),
    activation_formats=(IntegerFormat.INT8,),
    weight_formats=(IntegerFormat.INT8,),
)


def _model_with_sqrt() -> onnx.ModelProto:
    """Return Sqrt(Abs(Conv(x))): no row is built in for either of the two after the Conv."""
    weight = np.random.default_rng(0).normal(0, 0.5, (4, 3, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            helper.make_node("Abs", ["c"], ["a"], name="abs"),
            helper.make_node("Sqrt", ["a"], ["y"], name="sqrt"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 4, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _images(count: int = 8) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{"x": random.random((1, 3, 4, 4), np.float32)} for _ in range(count)]


def test_a_row_for_an_operator_has_it_quantized() -> None:
    own = OPERATORS | {"Sqrt": OpTraits(data=(0,))}
    model = _model_with_sqrt()

    before = lowbit.plan(model, config=TOY_PRESET, target=TOY_TARGET)
    after = lowbit.plan(model, config=TOY_PRESET, target=TOY_TARGET, operators=own)
    result = lowbit.quantize(
        model, data=_images(), config=TOY_PRESET, target=TOY_TARGET, operators=own
    )

    assert {row.node for row in before.float_nodes} == {"abs", "sqrt"}
    assert {row.node for row in after.float_nodes} == {"abs"}
    assert {t.name for t in after.activations()} == {"x", "c", "a", "y"}
    kinds = [node.op_type for node in result.model.graph.node]
    assert kinds.count("QuantizeLinear") == 4
    assert result.report.sqnr_db > 25


def test_a_target_is_a_value() -> None:
    strict = msgspec.structs.replace(TOY_TARGET, operators=("Gemm",), fallback="the DSP")

    plan = lowbit.plan(small_cnn(), config=TOY_PRESET, target=strict)

    assert plan.target == "toy"
    assert {row.op_type for row in plan.float_nodes} >= {"Conv"}
    assert any("toy does not run Conv quantized" in row.why for row in plan.float_nodes)
    wide = msgspec.structs.replace(_INT8, format=IntegerFormat.INT16)
    config = msgspec.structs.replace(TOY_PRESET, weight=wide)
    with pytest.raises(lowbit.ConfigError, match="target toy takes weights as int8, not int16"):
        lowbit.plan(small_cnn(), config=config, target=strict)


def test_a_preset_is_a_value() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(8), config=TOY_PRESET)

    assert result.report.preset == "TOY"
    stored = {t.data_type for t in result.model.graph.initializer if t.name.endswith("_quantized")}
    assert stored == {TensorProto.INT8, TensorProto.INT32}


class RoundUp(
    Refinement, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="toy-up"
):
    """Round every weight up: no good, but easy to tell."""

    data_size: int | None = None
    infer_device: str = "cpu"

    def algorithm(self) -> Algorithm:
        """Return what does the work."""
        return Algorithm(settings=lambda _: LoopSettings(positions=4), solver=_round_up)


def _round_up(state: Quantized, config: RoundUp, stop: threading.Event) -> Solve:
    del config, stop

    def solve(layer: RefinedLayer, samples: Sequence[LayerSample]) -> LayerResult:
        assert all(sample.patches.shape[0] == layer.geometry.groups for sample in samples)
        params = layer.weight_params
        scale, zero = params.broadcast(float_weights(state, layer).ndim)
        stored = np.ceil(float_weights(state, layer) / scale) + zero
        stored = np.clip(stored, *layer.limits).astype(params.format.dtype)
        return LayerResult(layer.node, stored, float_bias(state, layer), 1.0, 0.5, kept=True)

    return solve


def test_a_refinement_is_a_value() -> None:
    config = msgspec.structs.replace(TOY_PRESET, refinement=RoundUp())

    result = lowbit.quantize(small_cnn(), data=small_feeds(8), config=config)

    arrays = {t.name: numpy_helper.to_array(t) for t in result.model.graph.initializer}
    floats = result.state.adapted.graph.initializers
    refined = [row for row in result.plan.weights() if f"{row.name}_quantized" in arrays]
    assert refined
    for row in refined:
        scale = result.params.tensors[row.name].scale
        want = np.clip(np.ceil(floats[row.name].const_value.numpy() / scale), -127, 127)
        np.testing.assert_array_equal(arrays[f"{row.name}_quantized"], want)
    assert any("refined" in note for note in result.report.notes)
    assert decode_json(msgspec.json.encode(config), lowbit.QuantConfig) == config


class Twice(
    Method, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="toy-twice"
):
    """Twice the observed range."""

    def observer(self) -> ObserverSpec:
        """Ask for the range alone."""
        return ObserverSpec()

    def range_of(
        self, statistics: TensorStats, spec: IntegerSpec, name: str
    ) -> tuple[float, float]:
        """Return the range."""
        del spec, name
        return 2 * statistics.low, 2 * statistics.high


def test_a_calibration_method_is_a_value() -> None:
    plain = TOY_PRESET.with_method(MinMax())
    double = TOY_PRESET.with_method(Twice())

    results = [lowbit.quantize(small_cnn(), data=small_feeds(8), config=c) for c in (plain, double)]

    ones, twos = (result.params.tensors for result in results)
    own = [t.name for t in results[0].plan.activations() if t.is_calibrated]
    assert own
    for name in own:
        np.testing.assert_allclose(twos[name].scale, 2 * ones[name].scale, rtol=1e-6)


class Negate(
    FloatTransform,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="toy-negate",
):
    """Negate the first weights: the function changes, which shows that it ran."""

    def implementation(self) -> NegateFirst:
        """Return what does the work."""
        return NegateFirst()


class NegateFirst:
    """Negates the first weights of a graph."""

    def applies(self, model: ir.Model, config: Negate) -> bool:
        """Say yes."""
        del model, config
        return True

    def apply(self, model: ir.Model, config: Negate, context: Context) -> TransformedModel:
        """Return a changed copy."""
        del config
        assert context.data is not None
        model = model.clone()
        node = next(node for node in model.graph if node.op_type == "Conv")
        value = node.inputs[1]
        value.const_value = ir.tensor(-value.const_value.numpy(), name=value.name)
        return TransformedModel(model, ("negated",))


def test_a_transform_is_a_value() -> None:
    config = msgspec.structs.replace(TOY_PRESET, equalization=Negate())

    plain, negated = (
        lowbit.quantize(small_cnn(), data=small_feeds(8), config=c) for c in (TOY_PRESET, config)
    )

    first = plain.plan.weights()[0].name
    before, after = (r.state.weights.tensors[first]() for r in (plain, negated))
    np.testing.assert_array_equal(after, -before)
    assert "negated" in negated.report.notes


def test_names_that_nobody_installed_are_errors() -> None:
    with pytest.raises(lowbit.ConfigError, match="unknown preset 'TOY'"):
        find_preset("TOY")
    text = msgspec.json.encode(TOY_PRESET).replace(b'"minmax"', b'"toy-unknown"')
    with pytest.raises(msgspec.ValidationError, match="Invalid type 'toy-unknown'"):
        decode_json(text, lowbit.QuantConfig)
