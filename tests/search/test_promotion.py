"""A model that eight bits ruin is promoted where it needs it, and no further."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import lowbit
from lowbit.config.presets import find_preset
from lowbit.errors import RuinedError
from lowbit.pipeline.pipeline import Clock, Pipeline, ignore_progress
from lowbit.search import promotion, switched_model
from lowbit.search.finishing import Finisher
from lowbit.search.promotion import Promoter
from lowbit.search.promotion_values import USABLE
from lowbit.search.regions import Choice, RegionSearch, Trial
from lowbit.search.switched_parts import SwitchedParts


def _front_end(layers: int = 4) -> onnx.ModelProto:
    """Powers of signals of very different strength, their logarithm, and a small network on it.

    Eight bits, and sixteen, lose the weak signals before the logarithm brings them up.
    """
    rng = np.random.default_rng(0)
    weights = {"front": rng.normal(size=(16, 8)).astype(np.float32) * 0.3}
    nodes = [
        helper.make_node("MatMul", ["x", "front"], ["f"], "front"),
        helper.make_node("Mul", ["f", "f"], ["power"], "square"),
        helper.make_node("Add", ["power", "tiny"], ["p"], "floor"),
        helper.make_node("Log", ["p"], ["l"], "log"),
    ]
    weights["tiny"] = np.float32(1e-10)
    last, width = "l", 8
    for i in range(layers):
        weights[f"w{i}"] = (rng.normal(size=(width, 64)) / np.sqrt(width)).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], f"layer{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i}"], f"relu{i}"))
        last, width = f"r{i}", 64
    graph = helper.make_graph(
        nodes,
        "audio",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 16])],
        [helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _signals(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    strength = 10.0 ** rng.uniform(-4, 1, size=(count, 1, 1))
    return [{"x": (rng.normal(size=(1, 16)) * s).astype(np.float32)} for s in strength]


def _sqnr(model: onnx.ModelProto, result: lowbit.Result, seed: int = 9) -> float:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    runs = [ort.InferenceSession(m.SerializeToString(), options) for m in (model, result.model)]
    signal = noise = 0.0
    for feed in _signals(32, seed):
        want, got = (run.run(None, feed)[0].astype(np.float64) for run in runs)
        signal, noise = signal + np.square(want).sum(), noise + np.square(want - got).sum()
    return float(10 * np.log10(signal / noise))


@pytest.mark.parametrize("preset", ["A8W8", "XINT8", "U8S8_PERCHANNEL"])
def test_a_front_end_that_loses_everything_is_left_in_float(preset: str) -> None:
    model = _front_end()

    first = lowbit.quantize(
        model, data=_signals(48, 1), preset=preset, promote=False, allow_ruined=True
    )
    result = lowbit.quantize(model, data=_signals(48, 1), preset=preset)

    assert not first.report.verdict.is_usable
    assert result.report.verdict.is_usable
    assert _sqnr(model, result) > max(15.0, _sqnr(model, first) + 6)
    in_float = {row.node for row in result.plan.float_nodes}
    assert {"square", "floor", "log"} <= in_float | {"front"}
    # The layers after it, which have nearly all multiply-adds, stay in integers.
    assert not in_float & {"layer1", "layer2", "layer3"}
    assert sum(region.multiply_adds for region in result.report.promoted) < 0.2


def test_what_was_promoted_is_told_and_can_be_done_again() -> None:
    model, data = _front_end(), _signals(48, 1)

    result = lowbit.quantize(model, data=data)
    again = lowbit.quantize(model, data=data, config=result.config, promote=False)

    assert any("promoted" in row.why for row in result.plan.float_nodes)
    assert any(note.startswith("promoted ") for note in result.report.notes)
    assert again.plan.float_nodes == result.plan.float_nodes
    assert again.model.SerializeToString() == result.model.SerializeToString()


def test_where_a_part_without_any_layer_is_left_another_is_tried(monkeypatch) -> None:
    tried: list[Trial | None] = []
    one_part = RegionSearch.one_part

    def quietest(
        search: RegionSearch, least_db: float, refused: Collection[Choice] = ()
    ) -> Trial | None:
        """Leave the last Relu first, of which nothing is quantized by itself."""
        relu = Trial(Choice(in_float=frozenset(range(5))), 1.0, 40.0)
        tried.append(one_part(search, least_db, refused) if refused else relu)
        return tried[-1]

    monkeypatch.setattr(RegionSearch, "one_part", quietest)
    monkeypatch.setattr(promotion, "_chosen", lambda *_: None)  # all else is too noisy

    result = lowbit.quantize(_front_end(1), data=_signals(48, 1))

    assert len(tried) >= 2
    assert result.report.promoted
    assert "layer0" not in {row.node for row in result.plan.float_nodes}


def test_a_usable_model_is_left_as_it_is() -> None:
    rng = np.random.default_rng(3)
    weight = numpy_helper.from_array(rng.normal(size=(16, 8)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "m")],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 8])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = [{"x": rng.normal(size=(1, 16)).astype(np.float32)} for _ in range(32)]

    result = lowbit.quantize(model, data=data)

    assert result.report.promoted == ()
    assert not [row for row in result.plan.float_nodes if "promoted" in row.why]


def test_a_ruined_model_is_refused_unless_it_is_allowed(tmp_path) -> None:
    output = tmp_path / "q.onnx"
    # Nearly all of what the last layer gives is clipped.
    clipped = lowbit.TensorOverride(tensor="r3", range=(0.0, 1e-3))
    config = msgspec.structs.replace(find_preset("A8W8"), refinement=None, tensors=(clipped,))

    with pytest.raises(RuinedError, match=r"ruined .*not written.*--allow-ruined"):
        lowbit.quantize(_front_end(), output, data=_signals(24, 1), config=config, promote=False)
    assert not output.exists()

    result = lowbit.quantize(
        _front_end(), output, data=_signals(24, 1), config=config, promote=False, allow_ruined=True
    )
    assert result.report.verdict.level == "ruined"
    assert output.exists()


def test_random_data_neither_promotes_nor_refuses() -> None:
    result = lowbit.quantize(_front_end(), data="random", preset="XINT8")

    assert result.report.promoted == ()
    assert result.report.verdict is not None


def test_a_sigmoid_is_exact_where_its_approximation_alone_is_too_coarse() -> None:
    """A heatmap of strong outliers: the noise of other layers hides what a hard sigmoid costs."""
    rng = np.random.default_rng(2)
    weights = {
        "k0": rng.normal(size=(8, 3, 3, 3)).astype(np.float32) * 0.2,
        "k1": rng.normal(size=(8, 8, 3, 3)).astype(np.float32) * 0.15,
        "k2": rng.normal(size=(1, 8, 1, 1)).astype(np.float32) * 3,
        "b2": np.float32([-4]),
    }
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "k0"], ["a"], "first", **pads),
        helper.make_node("Relu", ["a"], ["b"], "relu0"),
        helper.make_node("Conv", ["b", "k1"], ["c"], "second", **pads),
        helper.make_node("Relu", ["c"], ["d"], "relu1"),
        helper.make_node("Conv", ["d", "k2", "b2"], ["e"], "head"),
        helper.make_node("Sigmoid", ["e"], ["z"], "heat"),
    ]
    shape = [1, 3, 16, 16]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 1, 16, 16])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = [{"x": rng.standard_t(3, size=shape).astype(np.float32)} for _ in range(24)]
    # Nothing else that changes what is promoted.
    config = msgspec.structs.replace(find_preset("XINT8"), power_of_two_fit=None)
    first = lowbit.quantize(model, data=data, config=config, promote=False, allow_ruined=True)

    result = lowbit.quantize(model, data=data, config=config)

    gained = result.report.verdict.margin_db - first.report.verdict.margin_db
    assert gained > 6
    assert "HardSigmoid" not in {node.op_type for node in result.model.graph.node}


def test_refinement_is_expected_to_bring_most_of_what_verification_showed() -> None:
    result = lowbit.quantize(
        _front_end(), data=_signals(48, 1), preset="A8W8", promote=False, allow_ruined=True
    )
    pipeline = Pipeline(Clock(ignore_progress))
    before = Promoter(pipeline, result.state).before()

    better, worse = (
        Promoter(pipeline, result.state, verified_db=before + change).gain(USABLE)
        for change in (4.0, -4.0)
    )

    assert 2.0 < better < 4.0
    assert worse == 0.0
    assert Promoter(pipeline, result.state).gain(USABLE) == 0.0


@pytest.mark.parametrize("layers", [3, 6])
def test_a_graph_of_many_nodes_is_promoted_in_few_passes(monkeypatch, layers: int) -> None:
    """Their number does not grow with that of the nodes: so promotion costs about what the rest does."""
    monkeypatch.setattr(switched_model, "MANY_NODES", 2)
    monkeypatch.setattr(switched_model, "is_large", lambda _: True)
    passes, finished = [], []
    run_all, finish = SwitchedParts.run_all, Finisher.finished
    monkeypatch.setattr(
        SwitchedParts, "run_all", lambda self, *rest: passes.append(0) or run_all(self, *rest)
    )
    monkeypatch.setattr(
        Finisher, "finished", lambda self, state: finished.append(0) or finish(self, state)
    )

    result = lowbit.quantize(_front_end(layers), data=_signals(48, 1), preset="A8W8")

    assert result.report.verdict.is_usable
    assert result.report.promoted
    assert 3 <= len(passes) <= 25
    assert len(finished) <= 2
