"""The stages in their order, timed; and a tail that one scale would ruin stays in float."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import planned, quantized
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.config.methods import Entropy, MinMax
from lowbit.config.presets import find_preset
from lowbit.config.specs import TensorOverride
from lowbit.graph import io
from lowbit.ops.traits import OPERATORS
from lowbit.pipeline import pipeline as module
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Clock, Pipeline, ignore_progress, plan_only
from lowbit.pipeline.preparing import prepare
from lowbit.scales import solve
from lowbit.state import Loaded, Quantized
from lowbit.targets.builtin import find_target


def _classifier() -> onnx.ModelProto:
    """Return convolution, Relu, average: responses are few and high, their averages low."""
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 4, (10, 8, 1, 1)).astype(np.float32)
    bias = np.full(10, -24, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", kernel_shape=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["y"], "flatten"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _noise(model: onnx.ModelProto, quantized: onnx.ModelProto, feeds: list) -> float:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    one, other = (ort.InferenceSession(m.SerializeToString(), options) for m in (model, quantized))
    gaps = [one.run(None, feed)[0] - other.run(None, feed)[0] for feed in feeds]
    return float(np.square(gaps).mean())


def _spikes(count: int = 16) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(0, 1.5, (1, 8, 16, 16)).astype(np.float32)} for _ in range(count)]


def test_an_average_at_the_end_is_kept_from_the_scale_of_its_peaks() -> None:
    model, feeds = _classifier(), _spikes()
    plain = msgspec.structs.replace(
        find_preset("XINT8"), refinement=None, keep_only_if_better=False, equalization=None
    )

    auto = lowbit.quantize(model, data=feeds, config=plain)
    forced = lowbit.quantize(model, data=feeds, config=msgspec.structs.replace(plain, head="int8"))

    assert {node.op_type for node in auto.plan.float_nodes} == {"GlobalAveragePool", "Flatten"}
    assert forced.plan.float_nodes == ()
    assert _noise(model, auto.model, feeds) < 0.5 * _noise(model, forced.model, feeds)


def test_the_tail_in_float_is_decided_without_a_second_calibration(load) -> None:
    told = []
    pipeline = Pipeline(Clock(lambda stage, *_: told.append(stage)))
    state = stages.normalize(load(_classifier(), _spikes(), "XINT8"))

    built = pipeline.build(state, state.samples.calibration)

    assert built.config.head == "float"
    assert told.count("plan") == 2
    # Once as a stage, and once for each sample.
    assert told.count("calibrate") == 1 + 16


def test_a_plan_that_is_given_is_not_changed_by_what_the_samples_show(load) -> None:
    state = stages.normalize(load(_classifier(), _spikes(), "XINT8"))
    pipeline = Pipeline(Clock(lambda *_: None))
    given = pipeline.planned(stages.transform(state)).plan

    built = pipeline.build(state, state.samples.calibration, plan=given)

    assert built.plan is given
    assert built.config.head == "auto"


def test_statistics_of_a_tail_in_float_serve_the_same_decision_again(load) -> None:
    state = stages.normalize(load(_classifier(), _spikes(), "XINT8"))
    pipeline = Pipeline(Clock(lambda *_: None))
    first = pipeline.build(state, state.samples.calibration)
    kept = {name: first.stats.tensors[name] for name in first.plan.observed()}

    def untouchable():
        raise AssertionError("calibration ran the model")

    stats = type(first.stats)(kept, first.stats.samples)
    again = pipeline.build(state, untouchable, stats=stats)

    assert again.plan == first.plan
    assert again.params.tensors.keys() == first.params.tensors.keys()


def test_the_stages_come_in_their_order(load) -> None:
    told = []
    clock = Clock(lambda stage, done, total: told.append((stage, done, total)))
    state = stages.normalize(load(bias_correction=True))

    built = Pipeline(clock).build(state, state.samples.calibration)

    assert isinstance(built, Quantized)
    assert [stage for stage, done, _ in told if done == 0] == [
        "transform",
        "prepare",
        "plan",
        "calibrate",
        "solve",
        "emit",
    ]
    assert [row for row in told if row[1]] == [("calibrate", i, 6) for i in range(1, 7)]
    assert list(clock.seconds) == ["transform", "prepare", "plan", "calibrate", "solve", "emit"]


def test_what_is_built_is_what_the_stages_give_one_by_one(load) -> None:
    state = stages.normalize(load())
    pipeline = Pipeline(Clock(lambda *_: None))

    built = pipeline.build(state, state.samples.calibration)

    planned = stages.plan(prepare(stages.transform(state)))
    calibrated = stages.calibrate(
        planned,
        state.samples.calibration,
        everything=False,
        means=False,
        progress=lambda _: None,
    )
    by_hand = stages.emit(stages.solve(calibrated))
    assert io.to_proto(built.emitted.model) == io.to_proto(by_hand.emitted.model)


def test_constants_are_solved_once_whatever_the_statistics(load, monkeypatch) -> None:
    solved = []
    real = solve._weight
    monkeypatch.setattr(solve, "_weight", lambda *args: solved.append(args[1].name) or real(*args))
    state = stages.normalize(load())
    pipeline = Pipeline(Clock(lambda *_: None))
    built = pipeline.build(state, state.samples.calibration)
    more = dataclasses.replace(built.stats, samples=7)

    again = pipeline.finish(stages.with_stats(built, more))

    assert len(solved) == len(set(solved)) == len(built.plan.weights())
    assert io.to_proto(again.emitted.model) == io.to_proto(built.emitted.model)


def test_biases_are_corrected_only_if_asked_to(load, monkeypatch) -> None:
    called = []
    real = stages.correct_biases
    monkeypatch.setattr(stages, "correct_biases", lambda *args: called.append(1) or real(*args))

    for correct in (False, True):
        state = stages.normalize(load(bias_correction=correct))
        pipeline = Pipeline(Clock(lambda *_: None), means=correct)
        pipeline.build(state, state.samples.calibration)

    assert called == [1]


def test_histograms_are_kept_if_asked_to(load) -> None:
    state = stages.normalize(load(preset="A16W8"))

    def statistics(**settings) -> list:
        pipeline = Pipeline(Clock(lambda *_: None), **settings)
        built = pipeline.build(state, state.samples.calibration)
        return [tensor.counts for tensor in built.stats.tensors.values()]

    assert not any(found is not None for found in statistics())
    assert all(found is not None for found in statistics(keep_histograms=True))


# The clock


@pytest.fixture
def ticks(monkeypatch) -> list[float]:
    """Return the times that a clock reads, one after another."""
    times: list[float] = []
    monkeypatch.setattr(module.time, "perf_counter", lambda: times.pop(0))
    return times


def test_a_stage_gone_through_twice_adds_up(ticks) -> None:
    told = []
    clock = Clock(lambda *row: told.append(row))
    ticks += [10.0, 12.5, 100.0, 101.0, 200.0, 204.0]

    for name in ("plan", "solve", "plan"):
        with clock.stage(name):
            clock.tell(name, 3, 7)

    assert clock.seconds == {"plan": 6.5, "solve": 1.0}
    assert told[:2] == [("plan", 0, None), ("plan", 3, 7)]


def test_stages_inside_a_charged_one_count_towards_it(ticks) -> None:
    told = []
    clock = Clock(lambda *row: told.append(row))
    ticks += [0.0, 8.0, 20.0, 21.0]

    with clock.charge("search"), clock.stage("solve"):
        clock.tell("calibrate", 1, 2)
    with clock.stage("solve"):
        pass

    assert clock.seconds == {"search": 8.0, "solve": 1.0}
    assert told == [("search", 0, None), ("search", 1, 2), ("solve", 0, None)]


def test_an_error_ends_the_charge(ticks) -> None:
    clock = Clock(lambda *_: None)
    ticks += [0.0, 1.0, 2.0]

    with pytest.raises(ValueError, match="wrong"), clock.charge("search"):
        raise ValueError("wrong")
    with clock.stage("solve"):
        pass

    assert clock.seconds == {"solve": 1.0}


def _plain(preset: str):
    return msgspec.structs.replace(
        find_preset(preset), equalization=None, smooth_quant=None, bias_correction=False
    )


def test_another_method_needs_no_other_pass() -> None:
    feeds, config = small_feeds(4, 8), _plain("A8W8")
    other = config.with_method(MinMax())
    pipeline = Pipeline(Clock(ignore_progress))

    found = pipeline.rebuilt(quantized(small_cnn(8), config, feeds), other)

    want = quantized(small_cnn(8), other, feeds)
    assert io.to_proto(found.emitted.model) == io.to_proto(want.emitted.model)
    assert "calibrate" not in pipeline.clock.seconds


def test_formats_follow_the_configuration() -> None:
    state = quantized(small_cnn(8), _plain("A8W8"), small_feeds(4, 8))

    found = Pipeline(Clock(ignore_progress)).rebuilt(state, state.config.with_method(Entropy()))

    assert {row.spec.calibration for row in found.plan.activations()} == {Entropy()}


def test_what_shares_a_scale_with_a_tensor_that_reads_histograms_needs_one() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1,3,8,8] input) => (float[1,2,8,8] y)
        <float[3,3,1,1] w = {1, 2, -1, 3, 1, 0, -2, 1, 1},
         float[2,6,1,1] v = {1, 2, -1, 3, 1, 0, -2, 1, 1, 2, 1, 1}> {
          m = Conv<kernel_shape=[1,1]>(input, w)
          a = Relu(m)
          b = MaxPool<kernel_shape=[1,1]>(a)
          n = Conv<kernel_shape=[1,1]>(b, w)
          c = Concat<axis=1>(a, n)
          y = Conv<kernel_shape=[1,1]>(c, v)
        }""")
    config = _plain("A8W8")
    state = quantized(model, config, small_feeds(2, 8))
    # Ends alone would be enough for it; its scale is that of others, which are found by histograms.
    plain = msgspec.structs.replace(config.activation, method=MinMax())
    override = TensorOverride(tensor="n", spec=plain)
    other = planned(model, msgspec.structs.replace(config, tensors=(override,)))
    assert any({"n", "c"} <= {*group.inputs, *group.outputs} for group in other.plan.groups)

    stripped = dict(state.stats.tensors)
    stripped["n"] = dataclasses.replace(stripped["n"], counts=None)

    assert not stages.lacks_statistics(other.plan, state.stats)
    assert stages.lacks_statistics(other.plan, dataclasses.replace(state.stats, tensors=stripped))


def _two_layers(*, shared: bool) -> bytes:
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(4, 4, 1, 1)).astype(np.float32), name)
        for name in ("w0", "w1")
    ]
    biases = [
        numpy_helper.from_array(rng.normal(size=4).astype(np.float32), name)
        for name in ("b0", "b1")[: 1 if shared else 2]
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c"], "first"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w1", "b0" if shared else "b1"], ["y"], "second"),
    ]
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 2, 2]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [*weights, *biases])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("preset", ["A8W8", "XINT8"])
def test_the_plan_is_that_of_all_stages(preset: str, shared: bool) -> None:
    config = find_preset(preset)
    state = Loaded(
        loaded=io.load(_two_layers(shared=shared)),
        samples=None,
        config=config,
        target=find_target(config.target),
        operators=OPERATORS,
    )

    transformed = stages.transform(stages.normalize(state))

    assert plan_only(state).plan == stages.plan(prepare(transformed), check=False).plan
