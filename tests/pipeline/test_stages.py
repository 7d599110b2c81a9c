"""Each stage by itself: what it adds to the state, against independent sources."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds
from onnx import helper, numpy_helper

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import decode_json
from lowbit.config.presets import find_preset
from lowbit.config.refinement import LayerReconstruction
from lowbit.config.specs import IntegerSpec, Requantization
from lowbit.config.transforms import FloatTransform
from lowbit.data import open_data
from lowbit.data.split import split
from lowbit.errors import ModelError, PlanError
from lowbit.graph import io
from lowbit.graph.session import model_inputs
from lowbit.numerics.formats import IntegerFormat
from lowbit.pipeline import stages
from lowbit.pipeline.preparing import prepare
from lowbit.state import Calibrated, Normalized, Planned, Quantized, extended
from lowbit.transforms import TransformedModel


def run(model, feed: dict[str, np.ndarray]) -> np.ndarray:
    proto = model if isinstance(model, onnx.ModelProto) else io.to_proto(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, feed)[0]


def planned(state) -> Planned:
    return stages.plan(prepare(stages.transform(stages.normalize(state))))


def calibrated(state, **settings) -> Calibrated:
    asked = {"everything": False, "means": True, "progress": lambda _: None, **settings}
    return stages.calibrate(planned(state), state.samples.calibration, **asked)


def quantized(state) -> Quantized:
    return stages.emit(stages.solve(calibrated(state)))


# Normalize


def test_normalizing_keeps_the_function_and_folds_what_can_be(load) -> None:
    state = load()

    normalized = stages.normalize(state)

    feed = small_feeds(1)[0]
    operators = [node.op_type for node in normalized.normalized.graph]
    np.testing.assert_allclose(run(normalized.normalized, feed), run(small_cnn(), feed), atol=1e-4)
    assert "BatchNormalization" not in operators
    assert "BatchNormalization" in [node.op_type for node in normalized.loaded.graph]
    assert normalized.rotation_notes == ()


@pytest.mark.parametrize(
    ("weight", "opset"),
    [
        (IntegerSpec(format=IntegerFormat.INT8), 17),
        (IntegerSpec(format=IntegerFormat.INT4), 21),
    ],
)
def test_the_operator_set_is_one_that_holds_the_weights(load, weight, opset) -> None:
    state = stages.normalize(load(weight=weight))

    assert state.normalized.opset_imports[""] == opset


# Transforms


class Scaled(
    FloatTransform, msgspec.Struct, frozen=True, kw_only=True, tag="scaled-weights-of-a-test"
):
    """Multiplies the weights of the last layer, and tells what it was given."""

    factor: float = 2.0
    contexts: ClassVar[list[Any]] = []

    def implementation(self):
        return self

    def applies(self, _model, _config) -> bool:
        return True

    def apply(self, model, config, context) -> TransformedModel:
        assert config is self
        self.contexts.append(context)
        copy = model.clone()
        (gemm,) = (node for node in copy.graph if node.op_type == "Gemm")
        weight = copy.graph.initializers[gemm.inputs[1].name]
        weight.const_value = ir.tensor(
            weight.const_value.numpy() * np.float32(self.factor), name=weight.name
        )
        return TransformedModel(copy, (f"multiplied by {self.factor:g}",))


def weight_of(model) -> np.ndarray:
    (gemm,) = (node for node in model.graph if node.op_type == "Gemm")
    return model.graph.initializers[gemm.inputs[1].name].const_value.numpy()


def test_without_transforms_the_model_stays_the_same_one(load) -> None:
    state = stages.normalize(load())

    transformed = stages.transform(state)

    assert transformed.float_model is state.normalized
    assert transformed.transform_notes == ()


def test_equalization_comes_before_smooth_quant_and_each_sees_what_the_other_left(load) -> None:
    state = stages.normalize(load(equalization=Scaled(factor=2.0), smooth_quant=Scaled(factor=5.0)))

    transformed = stages.transform(state)

    assert transformed.transform_notes == ("multiplied by 2", "multiplied by 5")
    np.testing.assert_allclose(
        weight_of(transformed.float_model), 10 * weight_of(state.normalized), rtol=1e-6
    )


def test_a_model_that_does_not_run_on_the_first_sample_is_refused_before_any_work(load) -> None:
    header = '<ir_version: 8, opset_import: ["": 17]>'
    graph = "g (float[N,4] x) => (float[2,2] y) <int64[2] s = {2, 2}> { y = Reshape(x, s) }"
    model = onnx.parser.parse_model(f"{header} {graph}")

    with pytest.raises(ModelError, match=r"onnxruntime cannot run the float model: .*Reshape"):
        stages.normalize(load(model, [{"x": np.ones((3, 4), np.float32)}]))


def test_rotation_comes_first_and_is_part_of_the_normalized_model(load) -> None:
    plain = stages.normalize(load())

    state = stages.normalize(load(rotation=Scaled(factor=3.0)))

    assert state.rotation_notes == ("multiplied by 3",)
    np.testing.assert_allclose(
        weight_of(state.normalized), 3 * weight_of(plain.normalized), rtol=1e-6
    )
    assert stages.transform(state).transform_notes == ()


def test_a_transform_sees_samples_levels_and_what_stays_in_float(load) -> None:
    Scaled.contexts.clear()
    state = stages.normalize(
        load(
            preset="A16W8",
            equalization=Scaled(),
            exclude=("conv2",),
            weight=IntegerSpec(format=IntegerFormat.INT8, per_channel=True),
        )
    )

    stages.transform(state)

    (context,) = Scaled.contexts
    for _ in range(2):  # the samples can be gone through again
        assert [feed["input"].sum() for feed in context.data] == pytest.approx(
            [feed["input"].sum() for feed in small_feeds(6)]
        )
    assert (context.levels.activation, context.levels.weight) == (32767, 127)
    assert context.levels.per_channel
    assert "conv2" in context.float_nodes(state.normalized)


def test_without_samples_or_formats_a_transform_has_none(load) -> None:
    Scaled.contexts.clear()
    state = load(feeds=False, equalization=Scaled(), activation=None, weight=None)

    stages.transform(stages.normalize(state))

    (context,) = Scaled.contexts
    assert context.data is None
    assert (context.levels.activation, context.levels.weight) == (0, 0)


# Prepare


# The Ryzen AI CNN datapath averages 14 x 14 values as a sum times 21 / 4096, not 1 / 196.
FACTOR = 14 * 14 * 21 / 4096


def averaged(model, feed: dict[str, np.ndarray]) -> np.ndarray:
    """Return the last layer's output without its bias: proportional to what it averages."""
    bias = next(numpy_helper.to_array(t) for t in small_cnn().graph.initializer if t.name == "b3")
    return run(model, feed) - bias


def test_a_target_with_arithmetic_of_its_own_is_calibrated_beside_float(load) -> None:
    feeds = small_feeds(2, size=14)
    loaded = load(small_cnn(14), feeds, "XINT8")

    state = prepare(stages.transform(stages.normalize(loaded)))

    want = averaged(state.float_model, feeds[0])
    np.testing.assert_allclose(averaged(state.adapted, feeds[0]), FACTOR * want, rtol=1e-4)
    names = {v.name for node in state.calibrated_model.graph for v in node.outputs}
    assert state.float_names
    assert {*state.float_names, *state.float_names.values()} <= names
    assert set(state.float_names) <= {v.name for n in state.adapted.graph for v in n.outputs}


def test_a_target_without_its_own_arithmetic_is_calibrated_as_it_is(load) -> None:
    state = prepare(stages.transform(stages.normalize(load(preset="U8S8"))))

    assert state.calibrated_model is state.adapted
    assert state.float_names == {}


@pytest.mark.parametrize(
    "changes", [{"exclude": ("pool",)}, {"skip_rewrites": ("average_pool_factor",)}]
)
def test_what_stays_in_float_and_what_is_skipped_keeps_its_own_arithmetic(load, changes) -> None:
    feeds = small_feeds(2, size=14)
    loaded = load(small_cnn(14), feeds, "XINT8", **changes)

    prepared = prepare(stages.transform(stages.normalize(loaded)))

    want = averaged(prepared.float_model, feeds[0])
    np.testing.assert_allclose(averaged(prepared.adapted, feeds[0]), want, rtol=1e-4)


def test_requantization_pairs_get_names_of_their_own(load) -> None:
    pair = Requantization(tensor="r1", consumers=("add1",), name="r1_again")

    state = prepare(stages.transform(stages.normalize(load(requantize=(pair,)))))

    (add,) = (node for node in state.adapted.graph if node.name == "add1")
    assert "r1_again" in {value.name for value in add.inputs}


# Plan


def test_a_plan_that_is_given_is_taken_as_it_is(load) -> None:
    prepared = prepare(stages.transform(stages.normalize(load())))
    made = stages.plan(prepared).plan
    fewer = msgspec.structs.replace(
        made, tensors=tuple(t for t in made.tensors if t.name != "logits")
    )

    assert stages.plan(prepared, fewer).plan is fewer


def test_a_plan_for_another_model_is_refused(load) -> None:
    prepared = prepare(stages.transform(stages.normalize(load())))
    made = stages.plan(prepared).plan
    wrong = msgspec.structs.replace(made.tensors[0], name="imput", leader="imput")

    with pytest.raises(PlanError, match=r"'imput'.*did you mean 'input'"):
        stages.plan(prepared, msgspec.structs.replace(made, tensors=(wrong, *made.tensors[1:])))


def test_a_plan_that_quantizes_nothing_is_refused_unless_it_is_only_to_be_seen(load) -> None:
    prepared = prepare(stages.transform(stages.normalize(load(exclude=("*",)))))

    with pytest.raises(PlanError, match="nothing would be quantized"):
        stages.plan(prepared)
    seen = stages.plan(prepared, check=False).plan
    assert seen.tensors == ()
    assert len(seen.float_nodes) == prepared.adapted.graph.num_nodes()


# Calibrate and solve


def test_statistics_are_those_of_the_samples_and_progress_counts_them(load) -> None:
    told = []

    state = calibrated(load(preset="A16W8"), progress=told.append)

    x = np.stack([feed["input"] for feed in small_feeds(6)])
    found = state.stats.tensors["input"]
    assert (found.low, found.high) == (x.min(), x.max())
    assert state.stats.samples == 6
    assert told == [1, 2, 3, 4, 5, 6]
    assert set(state.plan.observed()) <= set(state.stats.tensors)


@pytest.mark.parametrize("equalized", [False, True])
def test_statistics_say_which_transforms_they_were_made_with(load, equalized) -> None:
    transform = Scaled() if equalized else None

    stats = calibrated(load(equalization=transform, smooth_quant=transform)).stats

    assert (stats.equalized, stats.smoothed) == (equalized, equalized)


def test_scales_of_min_max_are_the_range_over_the_integers(load) -> None:
    solved = stages.solve(calibrated(load(preset="A16W8")))

    x = np.stack([feed["input"] for feed in small_feeds(6)])
    assert float(solved.params.tensors["input"].scale) == pytest.approx(
        np.abs(x).max() / 32767, rel=1e-6
    )
    weight = solved.adapted.graph.initializers["w3"].const_value.numpy()
    scale = solved.params.tensors["w3"].scale
    stored = solved.weights.tensors["w3"]()
    assert np.array_equal(stored, np.clip(np.rint(weight / scale), -127, 127))


def test_corrected_biases_bring_channel_means_back(load) -> None:
    feeds = [{"input": np.abs(feed["input"])} for feed in small_feeds(16)]
    state = calibrated(load(feeds=feeds, preset="XINT8"))
    want = np.mean([run(state.adapted, feed) for feed in feeds], axis=0)

    def shift(solved) -> float:
        model = stages.emit(solved).emitted.model
        got = np.mean([run(model, feed) for feed in feeds], axis=0)
        return float(np.abs(got - want).mean())

    plain = stages.solve(state)
    assert shift(stages.correct_biases(plain)) < shift(plain)


def test_a_tail_is_not_looked_at_unless_it_is_to_be_decided(load) -> None:
    state = calibrated(load(head="int8"))
    missing = type(state.stats)({}, 6)

    assert not stages.destroys_head(state)
    assert not stages.destroys_head(stages.with_stats(state, missing))
    undecided = extended(stages.with_stats(state, missing), Calibrated, config=load().config)
    # Statistics kept from a run that left the tail in float lack its tensors.
    assert stages.destroys_head(undecided)


# Emit and sign


def test_what_is_emitted_holds_a_pair_for_each_planned_activation(load) -> None:
    state = quantized(load())

    proto = io.to_proto(state.emitted.model)
    onnx.checker.check_model(proto, full_check=True)
    pairs = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    assert len(pairs) == len(state.plan.activations())
    assert {row.name for row in state.plan.activations()} <= set(state.emitted.tensors)


@pytest.mark.parametrize(
    ("changes", "domains"),
    [
        ({"domain": "com.microsoft"}, {"", "com.microsoft"}),
        ({"domain": "ai.onnx"}, {""}),
    ],
)
def test_the_domain_is_that_of_the_configuration(load, changes, domains) -> None:
    state = quantized(load(**changes))

    assert {node.domain for node in state.emitted.model.graph} == domains


def test_a_signature_says_how_the_model_was_made(load) -> None:
    state = quantized(load(preset="XINT8"))

    stages.record_origin(state)

    model = state.emitted.model
    assert (model.producer_name, model.producer_version) == ("lowbit", lowbit.__version__)
    stored = model.metadata_props
    assert (stored["lowbit.preset"], stored["lowbit.target"]) == ("XINT8", "ryzen-ai-cnn")
    assert decode_json(stored["lowbit.config"], QuantConfig) == state.config
    assert stored["lowbit.data"] == (
        f"6 samples from a list (sha256 {state.samples.data.fingerprint()})"
    )


def test_without_data_none_is_named(load) -> None:
    state = quantized(load())

    stages.record_origin(extended(state, Quantized, samples=None))

    assert "lowbit.data" not in state.emitted.model.metadata_props


# Refine


def test_without_a_refinement_nothing_changes(load) -> None:
    state = quantized(load())

    assert stages.refine(state, None, lambda *_: None, resume=False) == (state, stages.Refinement())


def test_random_data_refines_nothing(load) -> None:
    state = load(refinement=LayerReconstruction())
    data = open_data("random", model_inputs(state.loaded), limit=4)
    state = quantized(extended(state, type(state), samples=split(data, None, 2)))

    refined, went = stages.refine(state, None, lambda *_: None, resume=False)

    assert refined is state
    assert went.notes == ("not refined: random data does not represent real inputs",)


def test_refined_weights_lower_the_error_and_stay_in_the_checkpoint(load, tmp_path) -> None:
    state = quantized(load(feeds=small_feeds(12), refinement=LayerReconstruction()))
    told = []
    folder = tmp_path / "out.refining"

    refined, went = stages.refine(
        state, folder, lambda done, total: told.append((done, total)), resume=False
    )

    feeds = small_feeds(12)
    want = np.stack([run(small_cnn(), feed) for feed in feeds])

    def error(model) -> float:
        return float(np.square(np.stack([run(model, feed) for feed in feeds]) - want).sum())

    assert error(stages.emit(refined).emitted.model) < error(state.emitted.model)
    assert told[-1] == (3, 3)
    assert went.notes[0].startswith("refined ")
    assert went.complete
    assert len(list(folder.glob("*.layer"))) == 3
    # Scales stay: weights are refined for them.
    for name, params in state.params.tensors.items():
        np.testing.assert_array_equal(refined.params.tensors[name].scale, params.scale)


# Another configuration


def test_another_configuration_begins_after_normalizing(load) -> None:
    state = quantized(load())

    changed = stages.with_config(state, head="float", exclude=("conv1",))

    assert type(changed) is Normalized
    assert (changed.config.head, changed.config.exclude) == ("float", ("conv1",))
    assert changed.normalized is state.normalized
    assert state.config.exclude == ()


def test_a_model_without_a_quantizable_node_is_refused_when_planned(load) -> None:
    node = helper.make_node("Cos", ["x"], ["y"], "cos")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [value("x", onnx.TensorProto.FLOAT, [1, 4])],
        [value("y", onnx.TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.zeros(1, np.float32), "unused")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = [{"x": np.ones((1, 4), np.float32)}]

    with pytest.raises(PlanError, match="nothing would be quantized"):
        stages.solve(calibrated(load(model, feeds, "U8S8")))


def test_samples_that_decide_whether_a_transform_is_kept_do_not_shape_it() -> None:
    rows = [{"x": np.zeros((1, 3), np.float32)} for _ in range(64)]
    model = io.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }'
        )
    )
    samples = split(open_data(rows, model_inputs(model)), None, 8)
    config = find_preset("A8W8")

    seen = stages._seen(samples, config)
    as_asked = stages._seen(samples, msgspec.structs.replace(config, keep_only_if_better=False))

    assert samples.validating
    assert not samples.validating & set(seen.indices)
    assert len(as_asked) == 64
