"""Layers, views and notes of a quantized model, and what promoting its worst tensors gains."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.chain_models import chain, smooth
from helpers.odd_models import sequence_across_layers
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.analyze.quantizers import find_quantizers
from lowbit.analyze.tensors import _line, _words, analyze_tensors, noise_of
from lowbit.api.compare import compare
from lowbit.config.presets import find_preset
from lowbit.config.transforms import CrossLayerEqualization
from lowbit.evaluate.outputs import OutputSlice
from lowbit.evaluate.runner import ReferenceSample
from lowbit.graph import io
from lowbit.normalize.normalize import normalize
from lowbit.targets.builtin import find_target

FEEDS = small_feeds(4)


def run(model: onnx.ModelProto, names: list[str], feed) -> list[np.ndarray]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    have = {output.name for output in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(copy.SerializeToString(), options).run(names, feed)


def plain(preset: str = "A8W8", **changes) -> lowbit.QuantConfig:
    skipped = {
        "refinement": None,
        "keep_only_if_better": False,
        "equalization": None,
        "smooth_quant": None,
        "bias_correction": False,
    }
    return msgspec.structs.replace(find_preset(preset), **{**skipped, **changes})


@pytest.fixture(scope="module")
def samples() -> list[ReferenceSample]:
    return [
        ReferenceSample(feed, {"logits": run(small_cnn(), ["logits"], feed)[0]}) for feed in FEEDS
    ]


@pytest.fixture(scope="module")
def result():
    return lowbit.quantize(small_cnn(), data=FEEDS, config=plain())


def analyzed(quantized, samples, *, floats=None, effort: float = 0.0):
    names = {output for node in small_cnn().graph.node for output in node.output}
    return analyze_tensors(
        quantized,
        normalize(io.load(small_cnn()), FEEDS[0]) if floats is None else floats,
        samples,
        [OutputSlice("logits")],
        common=frozenset(names),
        effort=effort,
        target=find_target("ryzen-ai"),
    )


def test_layers_are_quantized_against_float(result, samples) -> None:
    layers = analyzed(result.quantized, samples).layers

    assert list(layers) == ["input", "n1", "r1", "c2", "a1", "g1_part", "g1", "f1", "logits"]
    for name, read in (("r1", "r1_DequantizeLinear_Output"), ("a1", "a1_DequantizeLinear_Output")):
        want = np.stack([run(small_cnn(), [name], feed)[0] for feed in FEEDS])
        got = np.stack([run(result.model, [read], feed)[0] for feed in FEEDS])
        noise, signal = np.square(want - got).sum(), np.square(want).sum()
        assert layers[name].sqnr_db == pytest.approx(10 * math.log10(signal / noise), abs=0.02)


def test_tensors_that_stay_in_float_are_layers_too(result, samples) -> None:
    layers = analyzed(result.quantized, samples).layers

    # Between the convolution and its Clip nothing is quantized.
    assert "n1" not in {q.tensor for q in find_quantizers(result.quantized)}
    want = np.stack([run(small_cnn(), ["n1"], feed)[0] for feed in FEEDS])
    got = np.stack([run(result.model, ["n1"], feed)[0] for feed in FEEDS])
    noise, signal = np.square(want - got).sum(), np.square(want).sum()
    assert layers["n1"].sqnr_db == pytest.approx(10 * math.log10(signal / noise), abs=0.02)


def test_views_show_what_each_quantizer_holds(result, samples) -> None:
    views = {view.tensor: view for view in analyzed(result.quantized, samples).views}

    x = np.stack([feed["input"] for feed in FEEDS])
    view = views["input"]
    assert (view.kind, view.op_type, view.format) == ("activation", "input of Conv", "int8")
    assert view.range == (x.min(), x.max())
    step = float(result.params.tensors["input"].scale)
    assert view.scale == pytest.approx(step)
    assert view.limits == (pytest.approx(-128 * step), pytest.approx(127 * step))
    assert view.clipped == pytest.approx(
        np.mean((x < -128 * step - step / 2) | (x > 127 * step + step / 2)), abs=1e-4
    )
    assert sum(view.histogram.counts) == x.size
    # The same values, rounded: in the same bins they are as many, on fewer places.
    rounded = np.clip(np.rint(x / np.float32(step)), -128, 127) * step
    bins = len(view.histogram.counts)
    low, high = view.range
    counts, _ = np.histogram(np.clip(rounded, low, high), bins, (low, high))
    assert np.abs(np.array(view.quantized_histogram.counts) - counts).sum() <= x.size // 100
    assert view.channel_high == pytest.approx(x.max(axis=(0, 1, 3, 4)), rel=1e-3)


def test_views_of_weights_show_the_float_values_by_output_channel(result, samples) -> None:
    views = {view.tensor: view for view in analyzed(result.quantized, samples).views}

    weight = next(
        onnx.numpy_helper.to_array(t) for t in small_cnn().graph.initializer if t.name == "w3"
    )
    view = views["w3"]
    assert (view.kind, view.op_type) == ("weight", "Gemm")
    counts, _ = np.histogram(weight, len(view.histogram.counts), (weight.min(), weight.max()))
    assert view.histogram.counts == tuple(counts)
    after = view.quantized_histogram
    assert (after.low, after.high) == (view.histogram.low, view.histogram.high)
    assert sum(after.counts) == weight.size
    assert view.range == (weight.min(), weight.max())
    assert view.channel_low == pytest.approx(weight.min(axis=1), rel=1e-3)
    assert view.channel_high == pytest.approx(weight.max(axis=1), rel=1e-3)
    low, high = view.limits
    assert view.clipped == np.mean((weight < low) | (weight > high))


def test_without_effort_there_is_no_budget_but_all_else(result, samples) -> None:
    found = analyzed(result.quantized, samples)

    assert found.budget is None
    assert found.notes == ()
    assert found.views
    assert found.layers


def test_weights_that_equalization_rescaled_are_noted() -> None:
    model, feeds = chain(3, 4), smooth(4)
    for tensor in model.graph.initializer:
        if tensor.name == "w0":  # channels that one scale does not suit
            weight = onnx.numpy_helper.to_array(tensor) * np.float32([1, 4, 1, 9]).reshape(
                4, 1, 1, 1
            )
            tensor.CopyFrom(onnx.numpy_helper.from_array(weight, "w0"))
    config = plain(equalization=CrossLayerEqualization())
    result = lowbit.quantize(model, data=feeds, config=config)

    from_file = compare(model, result.quantized, feeds, budget="full")
    from_run = compare(model, result.quantized, feeds, budget="full", floats=result.state.adapted)

    def weights(report) -> set[str]:
        return {row.tensor for row in report.budget.rows if row.kind == "weight"}

    (note,) = (note for note in from_file.notes if "differ from the float model" in note)
    assert note.startswith("3 weights differ from the float model (equalization rescales")
    assert weights(from_file) == set()
    assert weights(from_run) == {"w0", "w1", "w2"}
    assert not any("differ from the float model" in note for note in from_run.notes)


def test_an_error_that_no_tensor_makes_is_told(result, samples) -> None:
    # The reference gives something else than the model was made of.
    others = [
        ReferenceSample(s.feed, {"logits": s.outputs["logits"] + np.float32(1)}) for s in samples
    ]

    (note,) = analyzed(result.quantized, others, effort=math.inf).notes

    assert note.startswith("with nothing quantized the model would be at ")
    assert "graph rewrites" in note


def test_the_noise_of_a_model_is_a_share_of_the_signal(result, samples) -> None:
    want = np.stack([sample.outputs["logits"] for sample in samples])
    got = np.stack([run(result.model, ["logits"], feed)[0] for feed in FEEDS])

    found = noise_of(result.quantized, samples, [OutputSlice("logits")])

    assert found == pytest.approx(np.square(want - got).sum() / np.square(want).sum(), rel=1e-4)


# Promotion


def test_the_worst_8_bit_tensors_are_promoted_and_measured(result, samples) -> None:
    budget = analyzed(result.quantized, samples, effort=math.inf).budget

    promotion = budget.promotion
    assert promotion.tensors == tuple(row.tensor for row in budget.rows[:5])
    assert promotion.gain_db > 3
    assert promotion.sqnr_db == pytest.approx(budget.sqnr_db + promotion.gain_db)


def test_refined_weights_are_not_promoted(samples) -> None:
    quantized = lowbit.quantize(small_cnn(), data=FEEDS, preset="A8W8").quantized

    budget = analyzed(quantized, samples, effort=math.inf).budget

    kinds = {row.tensor: row.kind for row in budget.rows}
    assert {kinds[name] for name in budget.promotion.tensors} == {"activation"}


def test_a_model_of_16_bits_has_nothing_to_promote(samples) -> None:
    config = plain("A16W8", weight=find_preset("A16W8").activation)
    quantized = lowbit.quantize(
        small_cnn(), data=FEEDS, config=msgspec.structs.replace(config, target="onnxruntime")
    ).quantized

    assert analyzed(quantized, samples, effort=math.inf).budget.promotion is None


@pytest.mark.parametrize(
    ("names", "target", "words"),
    [
        ({"r1", "w2"}, "onnxruntime", "the 2 worst tensors promoted to 16 bits"),
        ({"r1", "w2"}, "ryzen-ai", "the 2 worst tensors promoted to 16 bits or float"),
        ({"r1", "w2"}, "ryzen-ai-cnn", "the 2 worst tensors kept in float"),
        ({"r1"}, "ryzen-ai-cnn", "the worst activation kept in float"),
    ],
)
def test_promotion_is_told_as_the_target_allows(result, names, target, words) -> None:
    worst = [q for q in find_quantizers(result.quantized) if q.tensor in names]

    assert _words(worst, find_target(target)) == words


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (
            "onnxruntime",
            {
                "tensors": [
                    {"tensor": "r1", "spec": {"type": "integer", "format": "int16"}},
                    {"tensor": "w2", "spec": {"type": "integer", "format": "int16"}},
                ]
            },
        ),
        (
            # No 16-bit weights: the layer stays in float, and what it gives may not be quantized.
            "ryzen-ai",
            {
                "tensors": [
                    {
                        "tensor": "r1",
                        "spec": {"type": "integer", "format": "int16"},
                        "optional": True,
                    }
                ],
                "exclude": ["conv2"],
            },
        ),
        (
            # No 16 bits at all.
            "ryzen-ai-cnn",
            {
                "tensors": [{"tensor": "r1", "keep": "float", "optional": True}],
                "exclude": ["conv2"],
            },
        ),
    ],
)
def test_promotion_is_asked_for_as_the_target_allows(result, target, expected) -> None:
    worst = [q for q in find_quantizers(result.quantized) if q.tensor in {"r1", "w2"}]

    line = json.loads(_line(worst, find_target(target)))

    assert {key: sorted(rows, key=str) for key, rows in line.items()} == {
        key: sorted(rows, key=str) for key, rows in expected.items()
    }


def test_tensors_in_16_bit_floats_are_not_said_to_be_clipped(samples) -> None:
    quantized = lowbit.quantize(small_cnn(), data=FEEDS, config=plain("BF16")).quantized

    found = analyzed(quantized, samples, effort=math.inf)

    causes = {cause.name for row in found.budget.rows for cause in row.causes}
    assert "clipped range" not in causes
    assert all(view.clipped == 0 for view in found.views)


def test_a_sequence_between_layers_is_no_tensor_to_analyze() -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 8, 16)).astype(np.float32)} for _ in range(4)]
    model = sequence_across_layers(6)
    made = lowbit.quantize(model, data=feeds, config=plain()).model

    report = compare(model, made, feeds, budget="full")

    layers = {row.tensor for row in report.layers}
    assert "s" not in layers
    assert {"h3", "a"} <= layers
    assert report.budget is not None
