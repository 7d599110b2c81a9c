"""The error budget against what quantizing and leaving in float by hand gives."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.chain_models import chain, smooth
from helpers.quantizers import activation, scale
from helpers.small_models import small_cnn, small_feeds
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.analyze.budget import Subject, find_causes
from lowbit.analyze.observations import Observation
from lowbit.analyze.quantizers import Constant
from lowbit.analyze.sensitivity import Switch
from lowbit.api.compare import compare
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import convert
from lowbit.config.presets import find_preset
from lowbit.graph import io
from lowbit.report.values import Budget


def outputs(model: ir.Model, feeds) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(io.to_proto(model).SerializeToString(), options)
    return np.concatenate([session.run(None, feed)[0] for feed in feeds])


def plain(preset: str = "A8W8", **changes) -> QuantConfig:
    """Return a preset whose weights are those of the float model, rounded to the nearest."""
    skipped = {
        "refinement": None,
        "keep_only_if_better": False,
        "equalization": None,
        "smooth_quant": None,
        "bias_correction": False,
    }
    return msgspec.structs.replace(find_preset(preset), **skipped, **changes)


@pytest.fixture(scope="module")
def quantized() -> ir.Model:
    return lowbit.quantize(small_cnn(), data=small_feeds(8), preset="A8W8").quantized


@pytest.fixture(scope="module")
def full(quantized) -> Budget:
    return compare(small_cnn(), quantized, small_feeds(8), budget="full").budget


def test_sensitivity_and_recovered_are_what_models_made_by_hand_give(quantized) -> None:
    feeds = small_feeds(4)
    report = compare(small_cnn(), quantized, feeds, budget="full")
    rows = {row.tensor: row for row in report.budget.rows}
    want = outputs(io.load(small_cnn()), feeds)
    total = np.sum((outputs(quantized, feeds) - want) ** 2)

    # In float: the pair of the relu taken out of the emitted graph.
    by_hand = quantized.clone()
    values = ir.convenience.create_value_mapping(by_hand.graph)
    ir.convenience.replace_all_uses_with(values["r1_DequantizeLinear_Output"], values["r1"])
    noise = np.sum((outputs(by_hand, feeds) - want) ** 2)

    assert rows["r1"].recovered == pytest.approx(1 - noise / total, abs=1e-3)
    assert rows["r1"].samples == 4

    # Sensitivity: the float model with one pair, of the scale in the file.
    stored = quantized.graph.initializers["r1_scale"].const_value.numpy()
    only = onnx.ModelProto()
    only.CopyFrom(small_cnn())
    consumers = [n for n in only.graph.node if "r1" in n.input]
    for node in consumers:
        node.input[list(node.input).index("r1")] = "r1/dq"
    only.graph.initializer.extend(
        [numpy_helper.from_array(stored, "s"), numpy_helper.from_array(np.array(0, np.int8), "z")]
    )
    index = [n.name for n in only.graph.node].index("relu1") + 1
    only.graph.node.insert(index, helper.make_node("QuantizeLinear", ["r1", "s", "z"], ["r1/q"]))
    only.graph.node.insert(
        index + 1, helper.make_node("DequantizeLinear", ["r1/q", "s", "z"], ["r1/dq"])
    )
    noise = np.sum((outputs(io.load(only), feeds) - want) ** 2)
    assert rows["r1"].sensitivity == pytest.approx(noise / total, rel=1e-2)


def test_the_own_sqnr_is_that_of_the_tensor_itself() -> None:
    feeds = small_feeds(4)
    quantized = lowbit.quantize(small_cnn(), data=feeds, config=plain()).quantized

    rows = {
        row.tensor: row for row in compare(small_cnn(), quantized, feeds, budget="full").budget.rows
    }

    x = np.stack([feed["input"] for feed in feeds]).astype(np.float64)
    step = float(quantized.graph.initializers["input_scale"].const_value.numpy())
    error = x - np.clip(np.rint(x / step), -128, 127) * step
    assert rows["input"].own_sqnr_db == pytest.approx(
        10 * math.log10(np.square(x).sum() / np.square(error).sum()), abs=0.01
    )
    weight = next(
        numpy_helper.to_array(t) for t in small_cnn().graph.initializer if t.name == "w3"
    ).astype(np.float64)
    step = float(quantized.graph.initializers["w3_scale"].const_value.numpy())
    stored = quantized.graph.initializers["w3_quantized"].const_value.numpy()
    error = weight - stored * step
    assert rows["w3"].own_sqnr_db == pytest.approx(
        10 * math.log10(np.square(weight).sum() / np.square(error).sum()), abs=0.01
    )


def test_the_total_is_the_sqnr_of_the_samples_analyzed(quantized, full) -> None:
    feeds = small_feeds(8)
    want, got = outputs(io.load(small_cnn()), feeds), outputs(quantized, feeds)

    expected = 10 * math.log10(np.square(want).sum() / np.square(want - got).sum())
    assert full.sqnr_db == pytest.approx(expected, abs=1e-3)
    # Nothing quantized: what is left is float arithmetic.
    assert full.float_sqnr_db > 100


def test_suggested_fixes_are_lines_that_quantize_takes(full) -> None:
    feeds = small_feeds(8)
    start = msgspec.to_builtins(plain())

    lines = [fix.config for row in full.rows for fix in row.suggested_fixes if fix.config[0] == "{"]
    for line in (*lines, full.promotion.config):
        config = convert({**start, **json.loads(line)}, QuantConfig)
        lowbit.quantize(small_cnn(), data=feeds, config=config)

    assert len(lines) >= 5


def test_a_suggested_fix_gains_what_a_model_changed_by_hand_does() -> None:
    feeds = small_feeds(4)
    quantized = lowbit.quantize(small_cnn(), data=feeds, config=plain()).quantized
    budget = compare(small_cnn(), quantized, feeds, budget="full").budget
    row = next(row for row in budget.rows if row.tensor == "w3")
    (fix,) = (fix for fix in row.suggested_fixes if fix.what == "a scale for each channel")

    floats = {t.name: numpy_helper.to_array(t) for t in small_cnn().graph.initializer}
    steps = np.abs(floats["w3"]).max(axis=1, keepdims=True) / 127
    new = {"w3": np.rint(floats["w3"] / steps) * steps, "b3": floats["b3"]}
    by_hand = io.to_proto(quantized)
    (gemm,) = (node for node in by_hand.graph.node if node.op_type == "Gemm")
    for index, name in ((1, "w3"), (2, "b3")):
        data = new[name].astype(np.float32)
        by_hand.graph.initializer.append(numpy_helper.from_array(data, f"{name}/hand"))
        gemm.input[index] = f"{name}/hand"
    want, got = outputs(io.load(small_cnn()), feeds), outputs(io.load(by_hand), feeds)

    after = 10 * math.log10(np.square(want).sum() / np.square(want - got).sum())
    assert fix.sqnr_db == pytest.approx(after, abs=0.01)
    assert fix.gain_db == pytest.approx(after - budget.sqnr_db, abs=0.01)


def test_fixes_are_told_best_first_for_the_worst_tensors(full) -> None:
    for index, row in enumerate(full.rows):
        gains = [fix.gain_db for fix in row.suggested_fixes]
        assert gains == sorted(gains, reverse=True)
        assert bool(gains) == (index < 5)


def test_the_worst_tensors_promoted_to_16_bits_recover_noise(full) -> None:
    promotion = full.promotion

    assert promotion.noise_recovered > 0.5
    assert promotion.sqnr_db == pytest.approx(full.sqnr_db + promotion.gain_db)
    assert 1 - 10 ** (-promotion.gain_db / 10) == pytest.approx(promotion.noise_recovered)


def outlier_model() -> onnx.ModelProto:
    """One channel of the weight is a hundred times the others."""
    rng = np.random.default_rng(1)
    weight = rng.normal(0, 0.1, (8, 3, 3, 3)).astype(np.float32)
    weight[5] *= 100
    weight[6] *= 0.001
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    shape = [1, 3, 8, 8]
    graph = helper.make_graph(
        nodes,
        "outlier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 8, 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_outlier_channel_and_dead_ones_are_named() -> None:
    rng = np.random.default_rng(2)
    feeds = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    quantized = lowbit.quantize(
        outlier_model(), data=feeds, promote=False, allow_ruined=True
    ).quantized

    budget = compare(outlier_model(), quantized, feeds, budget="full").budget

    row = next(row for row in budget.rows if row.tensor == "w")
    causes = {cause.name: cause.detail for cause in row.causes}
    assert "channel 5" in causes["outlier channel"]
    assert "first 6" in causes["dead channel"]
    assert any(fix.what == "a scale for each channel" for fix in row.suggested_fixes)


def test_a_clipped_range_is_named_and_fixed() -> None:
    feeds = small_feeds(4)
    override = lowbit.TensorOverride(tensor="a1", range=(-1.0, 1.0))
    # Correction and reconstruction would make up for the clipped mean.
    config = msgspec.structs.replace(
        find_preset("A8W8"), bias_correction=False, refinement=None, tensors=(override,)
    )
    quantized = lowbit.quantize(small_cnn(), data=feeds, config=config).quantized

    budget = compare(small_cnn(), quantized, feeds, budget="full").budget

    row = budget.rows[0]
    assert (row.tensor, row.causes[0].name) == ("a1", "clipped range")
    fix = row.suggested_fixes[0]
    assert fix.gain_db > 6
    assert row.sensitivity > 0.8


# A budget within a bounded effort


LAYERS = 20


@pytest.fixture(scope="module")
def long_case():
    """A chain of so many layers that not every tensor can be measured."""
    model, feeds = chain(LAYERS, 4), smooth(4)
    quantized = lowbit.quantize(model, data=feeds, config=plain("U8S8")).quantized
    quick = compare(model, quantized, feeds, budget="quick").budget
    # The same two samples that a quick budget analyzes.
    every = compare(model, quantized, [feeds[1], feeds[2]], budget="full").budget
    return quick, every


def test_quick_measures_some_and_estimates_the_rest(long_case) -> None:
    quick, every = long_case

    rows = quick.rows
    assert len(rows) == len(every.rows) == 2 * LAYERS + 1
    assert quick.measured == sum(row.samples > 0 for row in rows)
    assert quick.estimated == sum(row.samples == 0 for row in rows) >= 5
    # At least seven probes of each kind and twelve more are measured, ten of them on all samples.
    assert quick.measured >= 26
    assert sum(row.samples == quick.samples == 2 for row in rows) == 10
    assert sum(row.recovered is not None for row in rows) == 6
    assert sum(bool(row.suggested_fixes) for row in rows) == 5


def test_measured_tensors_come_first_the_worst_before_the_others(long_case) -> None:
    quick, _ = long_case

    measured = [row.sensitivity for row in quick.rows if row.samples]
    estimated = [row.sensitivity for row in quick.rows if not row.samples]
    assert [row.samples > 0 for row in quick.rows] == [True] * len(measured) + [False] * len(
        estimated
    )
    assert measured == sorted(measured, reverse=True)
    assert estimated == sorted(estimated, reverse=True)


def test_the_worst_tensors_are_found_and_measured_as_in_full(long_case) -> None:
    quick, every = long_case
    true = {row.tensor: row for row in every.rows}

    assert [row.tensor for row in quick.rows[:3]] == [row.tensor for row in every.rows[:3]]
    for row in quick.rows:
        if row.samples == quick.samples:
            assert row.sensitivity == pytest.approx(true[row.tensor].sensitivity, rel=1e-3)
        if row.recovered is not None:
            assert row.recovered == pytest.approx(true[row.tensor].recovered, abs=1e-3)


def test_estimates_are_of_the_size_of_what_is_measured(long_case) -> None:
    quick, every = long_case
    true = {row.tensor: row.sensitivity for row in every.rows}

    ratios = [row.sensitivity / true[row.tensor] for row in quick.rows if not row.samples]
    assert 0.25 < np.exp(np.mean(np.log(ratios))) < 4
    assert all(1 / 30 < ratio < 30 for ratio in ratios)


def test_full_measures_everything_on_every_sample(long_case) -> None:
    _, every = long_case

    assert (every.measured, every.estimated) == (len(every.rows), 0)
    assert all(row.samples == every.samples == 2 for row in every.rows)
    assert all(row.recovered is not None for row in every.rows)


def test_the_same_data_gives_the_same_budget(quantized) -> None:
    one, other = (
        compare(small_cnn(), quantized, small_feeds(3), budget="quick").budget for _ in range(2)
    )

    assert one == other


def test_without_effort_there_is_no_budget(quantized) -> None:
    assert compare(small_cnn(), quantized, small_feeds(2), budget="none").budget is None


# What is known before anything is tried


def subject(quantizer, **more) -> Subject:
    known = {"seen": None, "weight": None, "bias": None, "shared": None, **more}
    return Subject(quantizer=quantizer, switch=Switch("s", None, None, "r"), **known)


def test_the_own_noise_of_a_weight_is_that_of_rounding_it() -> None:
    constant = Constant(np.array([3, 5]), np.float32([3, 5]), np.float32([3.1, 4.8]))

    found = subject(activation(kind="weight"), weight=constant).own_noise

    assert found == pytest.approx((0.1**2 + 0.2**2) / (3.1**2 + 4.8**2), rel=1e-5)
    zeros = Constant(np.zeros(2), np.zeros(2, np.float32), np.zeros(2, np.float32))
    assert subject(activation(kind="weight"), weight=zeros).own_noise == 0


def test_the_own_noise_of_an_activation_is_that_of_what_was_seen() -> None:
    quantizer = activation(scale=scale(1.0))
    seen = Observation(quantizer)
    seen.add(np.float32([1.25, 2.0]))

    assert subject(quantizer, seen=seen).own_noise == pytest.approx(0.0625 / (1.25**2 + 4))
    assert subject(quantizer).own_noise == 0


def test_causes_are_those_of_the_kind_of_tensor() -> None:
    quantizer = activation(scale=scale(1.0))
    seen = Observation(quantizer)
    seen.add(np.float32([300.0, 1.0]))
    unknown = Constant(np.ones(1), np.ones(1, np.float32), None)

    assert [c.name for c in find_causes(subject(quantizer, seen=seen))] == ["clipped range"]
    assert find_causes(subject(activation(kind="weight"), weight=unknown)) == ()
    assert find_causes(subject(quantizer)) == ()
