"""Mixed precision: the order is the one measured, and thresholds hold."""

import json

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit import IntegerFormat, IntegerSpec, QuantConfig
from lowbit.config.mixed_precision import LayerOption, MixedPrecision, Subgraph
from lowbit.config.specs import BLOCKS, FloatSpec
from lowbit.errors import ConfigError, PlanError
from lowbit.graph.session import session
from lowbit.numerics.float16 import FloatFormat

_WIDE = IntegerSpec(format=IntegerFormat.INT16)
_NARROW = IntegerSpec(format=IntegerFormat.INT8)
_TO_8 = LayerOption(inputs=_NARROW, weight=_NARROW)


def _model() -> onnx.ModelProto:
    """Three MatMul, of which the second has weights that 8 bits do not suit, and a Transpose."""
    random = np.random.default_rng(5)
    weights = [random.normal(0, 0.3, (12, 12)).astype(np.float32) for _ in range(3)]
    weights[1][0, 0] = 20.0
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["m0"], "first"),
        helper.make_node("Relu", ["m0"], ["r0"], "relu"),
        helper.make_node("MatMul", ["r0", "w1"], ["m1"], "second"),
        helper.make_node("Transpose", ["m1"], ["t1"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["t1", "w2"], ["m2"], "third"),
        helper.make_node("Add", ["m2", "t1"], ["y"], "add"),
    ]
    graph = helper.make_graph(
        nodes,
        "three",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [12, 12])],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _feeds(count: int = 6) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(6)
    return [{"x": random.normal(size=(12, 12)).astype(np.float32)} for _ in range(count)]


def _config(**mix) -> QuantConfig:
    mix = {"options": (_TO_8,), **mix}
    return QuantConfig(activation=_WIDE, weight=_WIDE, mixed_precision=MixedPrecision(**mix))


def _run(feeds=None, metric=None, **mix):
    data = _feeds() if feeds is None else feeds
    return lowbit.quantize(_model(), data=data, config=_config(**mix), metric=metric)


def _l2(result, feeds):
    """The distance, with nothing of the search's."""
    with (
        session(lowbit.graph.io.load(_model())) as floats,
        session(result.quantized) as quantized,
    ):
        return np.mean(
            [np.linalg.norm(floats.run(["y"], f)[0] - quantized.run(["y"], f)[0]) for f in feeds]
        )


def _formats(result):
    return {row.name: row.integer.format for row in result.plan.tensors}


def test_all_layers_change_without_a_threshold():
    result = _run()
    assert set(result.mix.taken) == {"first", "second", "third"}
    formats = _formats(result)
    assert all(formats[f"w{i}"] is IntegerFormat.INT8 for i in range(3))
    assert formats["x"] is formats["r0"] is formats["t1"] is IntegerFormat.INT8
    assert formats["y"] is formats["m2"] is IntegerFormat.INT16
    assert result.mix.score == pytest.approx(_l2(result, _feeds()), rel=1e-5)
    assert any("3 of 3 layers in another format" in note for note in result.report.notes)


def test_layers_are_ranked_by_what_they_do_alone():
    result = _run(threshold=None)
    assert result.mix.taken == ()
    assert {row.name for row in result.mix.layers} == {"first", "second", "third"}
    scores = [row.score for row in result.mix.layers]
    assert scores == sorted(scores)
    weights = _run(threshold=None, options=(LayerOption(weight=_NARROW),)).mix
    assert weights.layers[-1].name == "second"
    for row in result.mix.layers:
        alone = _run(include=(row.name,))
        assert alone.mix.taken == (row.name,)
        assert _l2(alone, _feeds()) == pytest.approx(row.score, rel=1e-5)
    assert set(_formats(result).values()) == {IntegerFormat.INT16}


def test_speed_goes_as_far_as_the_threshold():
    every = _run()
    measured = _run(threshold=None).mix
    limit = (measured.layers[-1].score + measured.layers[0].score) / 2
    result = _run(threshold=limit)
    assert 0 < len(result.mix.taken) < 3
    assert "second" not in result.mix.taken
    assert result.mix.score == pytest.approx(_l2(result, _feeds()), rel=1e-5)
    assert result.mix.score <= limit < every.mix.score
    assert [row.after for row in result.mix.layers if row.taken][-1] == result.mix.score


def test_quality_goes_until_the_threshold_is_reached():
    config = QuantConfig(
        activation=_NARROW,
        weight=_NARROW,
        mixed_precision=MixedPrecision(
            options=(LayerOption(inputs=_WIDE, weight=_WIDE),), goal="quality", threshold=None
        ),
    )

    def run(**changes):
        mix = msgspec.structs.replace(config.mixed_precision, **changes)
        return lowbit.quantize(
            _model(), data=_feeds(), config=msgspec.structs.replace(config, mixed_precision=mix)
        )

    measured = run().mix
    assert measured.layers[0].name == "second"
    goal = measured.layers[0].score * 1.01
    result = run(threshold=goal)
    assert result.mix.taken == ("second",)
    assert result.mix.score <= goal < result.mix.baseline
    content = run(threshold=result.mix.baseline * 2)
    assert content.mix.taken == ()
    assert "as near as" in content.mix.note


def test_a_baseline_beyond_the_threshold_changes_nothing():
    result = _run(threshold=1e-9)
    assert result.mix.taken == ()
    assert "further than 1e-09 already" in result.mix.note


def test_the_best_of_several_options_is_taken():
    four = LayerOption(weight=IntegerSpec(format=IntegerFormat.INT4))
    result = _run(options=(four, LayerOption(weight=_NARROW)))
    for row in result.mix.layers:
        assert row.option == 1
        assert row.scores[1] < row.scores[0]
    fixed = LayerOption(weight=IntegerSpec(format=IntegerFormat.INT4), layers=("third",))
    result = _run(options=(LayerOption(weight=_NARROW), fixed))
    formats = _formats(result)
    assert (formats["w0"], formats["w1"], formats["w2"]) == (
        IntegerFormat.INT8,
        IntegerFormat.INT8,
        IntegerFormat.INT4,
    )


@pytest.mark.parametrize(
    ("mix", "taken"),
    [
        ({"include": ("first", "third")}, {"first", "third"}),
        ({"exclude": ("first",)}, {"second", "third"}),
        ({"op_types": ("Add",)}, {"add"}),
        ({"unshared_inputs": True}, {"first", "second"}),
    ],
)
def test_which_layers_may_change(mix, taken):
    assert set(_run(**mix).mix.taken) == taken


def test_ranks_and_numbers_limit_what_changes():
    order = [row.name for row in _run(threshold=None).mix.layers]
    assert _run(most=2).mix.taken == tuple(order[:2])
    assert _run(ranks=(1, 2)).mix.taken == tuple(order[1:])
    assert _run(not_ranks=(0,)).mix.taken == tuple(order[1:])


def test_subgraphs_change_together():
    part = Subgraph(name="front", start=("first",), end=("second",))
    rows = {row.name: row for row in _run(threshold=None, subgraphs=(part,)).mix.layers}
    assert rows["front"].nodes == ("first", "second")
    assert rows["__ungrouped__"].nodes == ("third",)


@pytest.mark.parametrize("metric", ["l2", "kl", "cosine", "sqnr", "psnr"])
def test_metrics_are_read_by_name(metric):
    mix = lowbit.quantize(
        _model(), data=_feeds(), config=_config(metric=metric, threshold=None)
    ).mix
    assert mix.metric == metric
    assert mix.layers[0].score != mix.layers[-1].score


def test_a_metric_of_ones_own():
    calls = []

    def metric(want, got):
        calls.append(len(want))
        return float(np.abs(want[0][0] - got[0][0]).max())

    result = _run(metric=metric, data_size=2, threshold=None)
    assert set(calls) == {2}
    assert result.mix.baseline < result.mix.layers[-1].score


def test_tensors_of_the_same_scale_change_along_or_not():
    along = _formats(_run(include=("third",)))
    alone = _formats(_run(include=("third",), sharing="unshare"))
    assert (along["m1"], along["t1"]) == (IntegerFormat.INT8, IntegerFormat.INT8)
    assert (alone["m1"], alone["t1"]) == (IntegerFormat.INT16, IntegerFormat.INT8)


def test_a_second_pair_where_formats_meet():
    bf16, bfp16 = FloatSpec(format=FloatFormat.BFLOAT16), BLOCKS["BFP16"]
    config = QuantConfig(
        activation=bf16,
        weight=bf16,
        mixed_precision=MixedPrecision(
            options=(LayerOption(inputs=bfp16, weight=bfp16),), include=("third",), dual=True
        ),
    )
    result = lowbit.quantize(_model(), data=_feeds(2), config=config)
    model = result.model
    onnx.checker.check_model(model)
    written = {out: node for node in model.graph.node for out in node.output}
    by_name = {node.name: node for node in model.graph.node}

    def before(name):
        """The formats a tensor goes through on the way to a node, last first."""
        found = []
        while (node := written.get(name)) is not None and node.domain == "com.amd.quark":
            if node.op_type != "ExtendedDequantizeLinear":
                found.append(node.op_type)
            name = node.input[0]
        return found

    pair, block = "ExtendedQuantizeLinear", "BFPQuantizeDequantize"
    assert before(by_name["third"].input[0]) == [block, pair]
    assert before(by_name["add"].input[1]) == [pair]
    assert before(by_name["add"].input[0]) == [pair, block]
    assert "Identity" not in {node.op_type for node in model.graph.node}


def test_second_pairs_of_integers_have_their_own_scales():
    result = _run(include=("third",), dual=True)
    formats = _formats(result)
    assert formats["t1"] is IntegerFormat.INT16
    (again,) = [name for name in formats if name.startswith("t1_again")]
    assert formats[again] is IntegerFormat.INT8
    scale = {name: float(p.scale) for name, p in result.params.tensors.items() if p.scale.size == 1}
    assert scale[again] == pytest.approx(scale["t1"] * 32767 / 127, rel=1e-3)
    assert np.isfinite(_l2(result, _feeds()))


def test_what_was_measured_is_kept_and_may_be_edited(tmp_path):
    path = tmp_path / "measured.json"
    first = _run(cache=str(path))
    known = json.loads(path.read_text())
    assert [row["name"] for row in known["results"]] == [row.name for row in first.mix.layers]
    for row in known["results"]:
        row["enabled"] = row["name"] != "second"
    path.write_text(json.dumps(known))
    again = _run(cache=str(path))
    assert set(again.mix.taken) == {"first", "third"}
    other = _run(cache=str(path), include=("second",))
    assert other.mix.taken == ("second",)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="holds no measurements"):
        _run(cache=str(path))


def test_several_workers_find_the_same():
    assert _run(workers=3).mix == _run().mix


def test_formats_without_scales_may_change_to_integers():
    """Statistics that the common format does not need are collected for the others."""
    bf16 = FloatSpec(format=FloatFormat.BFLOAT16)
    config = QuantConfig(
        activation=bf16, weight=bf16, mixed_precision=MixedPrecision(options=(_TO_8,))
    )
    result = lowbit.quantize(_model(), data=_feeds(), config=config)
    assert len(result.mix.taken) == 3
    assert _l2(result, _feeds()) == pytest.approx(result.mix.score, rel=1e-5)


def test_the_result_says_what_was_decided_and_can_be_had_again():
    result = _run(threshold=None)
    assert msgspec.json.decode(msgspec.json.encode(result.mix), type=type(result.mix)) == result.mix
    mixed = _run()
    assert mixed.config.mixed_precision is None
    again = lowbit.quantize(_model(), data=_feeds(), config=mixed.config)
    assert again.plan == mixed.plan


def test_what_makes_no_sense_is_named():
    with pytest.raises(ConfigError, match="changes nothing"):
        LayerOption()
    with pytest.raises(ConfigError, match="nothing to choose from"):
        MixedPrecision(options=())
    with pytest.raises(ConfigError, match=r"mix\.workers is 0"):
        MixedPrecision(options=(_TO_8,), workers=0)
    with pytest.raises(ConfigError, match=r"mix\.output is 3, but the model has 1 outputs: y"):
        _run(output=3)
    with pytest.raises(PlanError, match=r"no node is called 'secnd'; did you mean 'second'"):
        _run(exclude=("secnd",))
    plan = _run(threshold=None).plan
    with pytest.raises(ConfigError, match="a plan says already"):
        lowbit.quantize(_model(), data=_feeds(), config=_config(), plan=plan)
