"""Mixed precision: layers are ranked as measured, and thresholds hold."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.three_layers import (
    INT8,
    INT16,
    TO_INT8,
    config_with,
    quantize_mixed,
    three_layers,
    three_layers_feeds,
)

import lowbit
from lowbit import IntegerFormat, IntegerSpec, QuantConfig
from lowbit.config.mixed_precision import LayerOption, MixedPrecision, Subgraph
from lowbit.config.specs import BLOCKS, FloatSpec
from lowbit.errors import ConfigError, PlanError
from lowbit.numerics.formats import FloatFormat
from lowbit.search.sensitivity_file import MixedPrecisionResult


def _search(**settings) -> MixedPrecisionResult:
    return quantize_mixed(**settings).mixed_precision


def _run(model: onnx.ModelProto) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options)
    return [session.run(None, feed)[0] for feed in three_layers_feeds()]


def _l2(result) -> float:
    """Return the distance, with nothing of the search's."""
    pairs = zip(_run(three_layers()), _run(result.model), strict=True)
    return np.mean([np.linalg.norm(want - got) for want, got in pairs])


def _formats(result) -> dict[str, IntegerFormat]:
    return {row.name: row.spec.format for row in result.plan.tensors}


def test_all_layers_change_without_a_threshold() -> None:
    result = quantize_mixed()

    assert set(result.mixed_precision.changed) == {"first", "second", "third"}
    formats = _formats(result)
    assert all(formats[f"w{i}"] is IntegerFormat.INT8 for i in range(3))
    assert formats["x"] is formats["r0"] is formats["t1"] is IntegerFormat.INT8
    assert formats["y"] is formats["m2"] is IntegerFormat.INT16
    assert result.mixed_precision.score == pytest.approx(_l2(result), rel=1e-5)
    assert any("3 of 3 layers in another format" in note for note in result.report.notes)


def test_layers_are_ranked_by_their_own_sensitivity() -> None:
    result = quantize_mixed(threshold=None)

    found = result.mixed_precision
    assert found.changed == ()
    assert found.note == "measured only"
    assert {row.name for row in found.layers} == {"first", "second", "third"}
    scores = [row.score for row in found.layers]
    assert scores == sorted(scores)
    weights = _search(threshold=None, options=(LayerOption(weight=INT8),))
    assert weights.layers[-1].name == "second"
    for row in found.layers:
        only = quantize_mixed(include=(row.name,))
        assert only.mixed_precision.changed == (row.name,)
        assert _l2(only) == pytest.approx(row.score, rel=1e-5)
    assert set(_formats(result).values()) == {IntegerFormat.INT16}


def test_speed_goes_as_far_as_the_threshold() -> None:
    every, measured = _search(), _search(threshold=None)
    limit = (measured.layers[-1].score + measured.layers[0].score) / 2

    result = quantize_mixed(threshold=limit)

    found = result.mixed_precision
    assert 0 < len(found.changed) < 3
    assert "second" not in found.changed
    assert found.score == pytest.approx(_l2(result), rel=1e-5)
    assert found.score <= limit < every.score
    assert [row.after for row in found.layers if row.changed][-1] == found.score


def test_quality_goes_until_the_threshold_is_reached() -> None:
    start = MixedPrecision(
        options=(LayerOption(inputs=INT16, weight=INT16),), objective="quality", threshold=None
    )

    def search(**changes) -> MixedPrecisionResult:
        config = QuantConfig(
            activation=INT8,
            weight=INT8,
            mixed_precision=msgspec.structs.replace(start, **changes),
        )
        return lowbit.quantize(
            three_layers(), data=three_layers_feeds(), config=config
        ).mixed_precision

    measured = search()
    first = measured.layers[0]
    assert first.score == min(row.score for row in measured.layers)
    near = first.score * 1.01
    found = search(threshold=near)
    assert found.changed == (first.name,)
    assert found.score <= near < found.baseline
    settled = search(threshold=found.baseline * 2)
    assert settled.changed == ()
    assert "as near as" in settled.note


def test_a_baseline_beyond_the_threshold_changes_nothing() -> None:
    found = _search(threshold=1e-9)

    assert found.changed == ()
    assert found.layers == ()
    assert "further than 1e-09 already" in found.note


def test_the_best_of_several_options_is_taken() -> None:
    four_bits = IntegerSpec(format=IntegerFormat.INT4)

    found = _search(options=(LayerOption(weight=four_bits), LayerOption(weight=INT8)))

    for row in found.layers:
        assert row.option == 1
        assert row.scores[1] < row.scores[0]


def test_an_option_may_be_for_some_layers_alone() -> None:
    only_third = LayerOption(weight=IntegerSpec(format=IntegerFormat.INT4), layers=("third",))

    formats = _formats(quantize_mixed(options=(LayerOption(weight=INT8), only_third)))

    assert (formats["w0"], formats["w1"], formats["w2"]) == (
        IntegerFormat.INT8,
        IntegerFormat.INT8,
        IntegerFormat.INT4,
    )


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({"include": ("first", "third")}, {"first", "third"}),
        ({"include": ("m0",)}, {"first"}),
        ({"exclude": ("first",)}, {"second", "third"}),
        ({"op_types": ("Add",)}, {"add"}),
        ({"unshared_inputs": True}, {"first", "second"}),
    ],
)
def test_which_layers_may_change(settings, changed) -> None:
    assert set(_search(**settings).changed) == changed


def test_a_layer_that_stays_in_float_does_not_change() -> None:
    config = msgspec.structs.replace(config_with(), exclude=("second",))

    result = lowbit.quantize(three_layers(), data=three_layers_feeds(), config=config)

    assert set(result.mixed_precision.changed) == {"first", "third"}


def test_ranks_and_numbers_limit_what_changes() -> None:
    ranked = [row.name for row in _search(threshold=None).layers]

    assert _search(most=2).changed == tuple(ranked[:2])
    assert _search(ranks=(1, 2)).changed == tuple(ranked[1:])
    assert _search(not_ranks=(0,)).changed == tuple(ranked[1:])


def test_subgraphs_change_together() -> None:
    front = Subgraph(name="front", start=("first",), end=("second",))

    rows = {row.name: row for row in _search(threshold=None, subgraphs=(front,)).layers}

    assert rows["front"].nodes == ("first", "second")
    assert rows["__ungrouped__"].nodes == ("third",)


@pytest.mark.parametrize("metric", ["l2", "kl", "cosine", "sqnr", "psnr"])
def test_metrics_are_read_by_name(metric) -> None:
    found = _search(metric=metric, threshold=None)

    assert found.metric == metric
    assert found.layers[0].score != found.layers[-1].score


def test_a_metric_of_ones_own() -> None:
    calls = []

    def metric(want, got):
        calls.append(len(want))
        return float(np.abs(want[0][0] - got[0][0]).max())

    found = _search(own_metric=metric, data_size=2, threshold=None)

    assert set(calls) == {2}
    assert found.baseline < found.layers[-1].score


def test_tensors_of_the_same_scale_change_along_or_not() -> None:
    along = _formats(quantize_mixed(include=("third",)))
    unshared = _formats(quantize_mixed(include=("third",), sharing="unshare"))

    assert (along["m1"], along["t1"]) == (IntegerFormat.INT8, IntegerFormat.INT8)
    assert (unshared["m1"], unshared["t1"]) == (IntegerFormat.INT16, IntegerFormat.INT8)


def test_a_requantization_pair_at_a_format_boundary() -> None:
    bf16, bfp16 = FloatSpec(format=FloatFormat.BFLOAT16), BLOCKS["BFP16"]
    config = QuantConfig(
        activation=bf16,
        weight=bf16,
        mixed_precision=MixedPrecision(
            options=(LayerOption(inputs=bfp16, weight=bfp16),), include=("third",), requantize=True
        ),
    )
    model = lowbit.quantize(three_layers(), data=three_layers_feeds(2), config=config).model
    onnx.checker.check_model(model)
    producers = {out: node for node in model.graph.node for out in node.output}
    by_name = {node.name: node for node in model.graph.node}

    def before(name):
        """The formats a tensor goes through upstream of a node, last first."""
        found = []
        while (node := producers.get(name)) is not None and node.domain == "com.amd.quark":
            if node.op_type != "ExtendedDequantizeLinear":
                found.append(node.op_type)
            name = node.input[0]
        return found

    pair, block = "ExtendedQuantizeLinear", "BFPQuantizeDequantize"
    assert before(by_name["third"].input[0]) == [block, pair]
    assert before(by_name["add"].input[1]) == [pair]
    assert before(by_name["add"].input[0]) == [pair, block]
    assert "Identity" not in {node.op_type for node in model.graph.node}


def test_requantization_pairs_of_integers_have_their_own_scales() -> None:
    result = quantize_mixed(include=("third",), requantize=True)

    formats = _formats(result)
    assert formats["t1"] is IntegerFormat.INT16
    (again,) = [name for name in formats if name.startswith("t1_again")]
    assert formats[again] is IntegerFormat.INT8
    scale = {name: float(p.scale) for name, p in result.params.tensors.items() if p.scale.size == 1}
    assert scale[again] == pytest.approx(scale["t1"] * 32767 / 127, rel=1e-3)
    assert np.isfinite(_l2(result))


def test_several_workers_find_the_same() -> None:
    assert _search(workers=3) == _search()


def test_formats_without_scales_may_change_to_integers() -> None:
    """Statistics that the common format does not need are collected for the others."""
    bf16 = FloatSpec(format=FloatFormat.BFLOAT16)
    config = QuantConfig(
        activation=bf16, weight=bf16, mixed_precision=MixedPrecision(options=(TO_INT8,))
    )

    result = lowbit.quantize(three_layers(), data=three_layers_feeds(), config=config)

    assert len(result.mixed_precision.changed) == 3
    assert _l2(result) == pytest.approx(result.mixed_precision.score, rel=1e-5)


def test_what_was_decided_is_a_configuration_that_gives_the_same_again() -> None:
    mixed = quantize_mixed()

    again = lowbit.quantize(three_layers(), data=three_layers_feeds(), config=mixed.config)

    assert mixed.config.mixed_precision is None
    assert again.plan == mixed.plan
    assert again.model.graph == mixed.model.graph


def test_progress_tells_how_many_layers_are_measured() -> None:
    told = []

    lowbit.quantize(
        three_layers(),
        data=three_layers_feeds(),
        config=config_with(threshold=None),
        progress=lambda *row: told.append(row),
    )

    assert [row for row in told if row[0] == "search" and row[2]] == [
        ("search", done, 3) for done in (1, 2, 3)
    ]


def test_what_makes_no_sense_is_named() -> None:
    with pytest.raises(ConfigError, match="changes nothing"):
        LayerOption()
    with pytest.raises(ConfigError, match="nothing to choose from"):
        MixedPrecision(options=())
    with pytest.raises(ConfigError, match=r"mixed_precision\.workers is 0"):
        MixedPrecision(options=(TO_INT8,), workers=0)
    with pytest.raises(
        ConfigError, match=r"mixed_precision\.output is 3, but the model has 1 outputs: y"
    ):
        quantize_mixed(output=3)
    with pytest.raises(PlanError, match=r"no node is called 'secnd'; did you mean 'second'"):
        quantize_mixed(exclude=("secnd",))
    plan = quantize_mixed(threshold=None).plan
    with pytest.raises(ConfigError, match="the plan already decides"):
        lowbit.quantize(three_layers(), data=three_layers_feeds(), config=config_with(), plan=plan)
