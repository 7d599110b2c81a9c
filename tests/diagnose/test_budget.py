"""The budget against what quantizing and leaving out by hand gives."""

import json

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.analyze.constants import read_constants
from lowbit.analyze.quantizers import find_quantizers
from lowbit.analyze.switches import add_switches
from lowbit.api import compare
from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.graph import io
from lowbit.normalize.normalize import normalize


def outputs(model: ir.Model, feeds, changes=None) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(io.to_proto(model).SerializeToString(), options)
    return np.concatenate([session.run(None, {**f, **(changes or {})})[0] for f in feeds])


@pytest.fixture(scope="module")
def quantized() -> ir.Model:
    return lowbit.quantize(small_cnn(), data=small_feeds(8), preset="A8W8").quantized


def switched(model: ir.Model):
    floats = normalize(io.load(small_cnn()), small_feeds(1)[0])
    quantizers = find_quantizers(model)
    constants = read_constants(model, floats, quantizers)
    known = {name: c.plain for name, c in constants.items() if c.plain is not None}
    return quantizers, add_switches(model, quantizers, known)


def test_every_quantizer_is_found_with_what_it_quantizes(quantized) -> None:
    found = {q.tensor: q for q in find_quantizers(quantized)}

    assert {"input", "r1", "logits", "w1", "w2", "w3"} <= set(found)
    assert (found["r1"].kind, found["r1"].format, found["r1"].op_type) == (
        "activation",
        "int8",
        "Clip",
    )
    assert found["w2"].bias is not None
    low, high = found["r1"].scale.limits
    assert low < 0 < high


def test_switches_all_on_give_the_quantized_model_and_all_off_the_float_one(quantized) -> None:
    feeds = small_feeds(3)
    _, model = switched(quantized)
    off = {k.switch: np.array(False) for k in model.knobs.values()}

    np.testing.assert_array_equal(outputs(model.model, feeds), outputs(quantized, feeds))
    want = outputs(io.load(small_cnn()), feeds)
    np.testing.assert_allclose(outputs(model.model, feeds, off), want, rtol=1e-3, atol=1e-4)


def test_alone_and_left_out_are_what_models_made_by_hand_give(quantized) -> None:
    feeds = small_feeds(4)
    report = compare(small_cnn(), quantized, feeds, budget="full")
    rows = {row.tensor: row for row in report.budget.rows}
    want = outputs(io.load(small_cnn()), feeds)
    total = np.sum((outputs(quantized, feeds) - want) ** 2)

    # Left out: the pair of the pooled sum taken out of the emitted graph.
    by_hand = quantized.clone()
    values = ir.convenience.create_value_mapping(by_hand.graph)
    ir.convenience.replace_all_uses_with(values["r1_DequantizeLinear_Output"], values["r1"])
    noise = np.sum((outputs(by_hand, feeds) - want) ** 2)

    assert rows["r1"].kept == pytest.approx(1 - noise / total, abs=1e-3)
    assert rows["r1"].samples == 4

    # Alone: the float model with one pair, of the scale in the file.
    scale = quantized.graph.initializers["r1_scale"].const_value.numpy()
    alone = onnx.ModelProto()
    alone.CopyFrom(small_cnn())
    readers = [n for n in alone.graph.node if "r1" in n.input]
    for node in readers:
        node.input[list(node.input).index("r1")] = "r1/dq"
    alone.graph.initializer.extend(
        [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(np.array(0, np.int8), "z")]
    )
    place = [n.name for n in alone.graph.node].index("relu1") + 1
    alone.graph.node.insert(place, helper.make_node("QuantizeLinear", ["r1", "s", "z"], ["r1/q"]))
    alone.graph.node.insert(
        place + 1, helper.make_node("DequantizeLinear", ["r1/q", "s", "z"], ["r1/dq"])
    )
    noise = np.sum((outputs(io.load(alone), feeds) - want) ** 2)
    assert rows["r1"].alone == pytest.approx(noise / total, rel=1e-2)


def test_mends_are_lines_that_quantize_takes(quantized) -> None:
    feeds = small_feeds(8)
    report = compare(small_cnn(), quantized, feeds, budget="full")
    start = msgspec.to_builtins(find_preset("A8W8"))

    lines = [
        m.config for row in report.budget.rows for m in row.suggested_fixes if m.config[0] == "{"
    ]
    for line in (*lines, report.budget.together.config):
        config = msgspec.convert({**start, **json.loads(line)}, QuantConfig)
        lowbit.quantize(small_cnn(), data=feeds, config=config)

    assert len(lines) >= 5


def test_the_worst_tensors_at_16_bits_win_back_noise(quantized) -> None:
    budget = compare(small_cnn(), quantized, small_feeds(8), budget="full").budget

    assert budget.together.noise_won_back > 0.5
    assert budget.together.sqnr_db == pytest.approx(budget.sqnr_db + budget.together.gain_db)


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
    quantized = lowbit.quantize(outlier_model(), data=feeds).quantized

    budget = compare(outlier_model(), quantized, feeds, budget="full").budget

    row = next(row for row in budget.rows if row.tensor == "w")
    causes = {cause.name: cause.detail for cause in row.causes}
    assert "channel 5" in causes["outlier channel"]
    assert "first 6" in causes["dead channel"]
    assert any(m.what == "a scale for each channel" for m in row.suggested_fixes)


def test_a_clipped_range_is_named_and_mended() -> None:
    feeds = small_feeds(4)
    override = lowbit.TensorOverride(tensor="a1", range=(-1.0, 1.0))
    # Correction and reconstruction would make up for the clipped mean.
    plain = msgspec.structs.replace(find_preset("A8W8"), bias_correction=False, refinement=None)
    config = msgspec.structs.replace(plain, tensors=(override,))
    quantized = lowbit.quantize(small_cnn(), data=feeds, config=config).quantized

    budget = compare(small_cnn(), quantized, feeds, budget="full").budget

    row = budget.rows[0]
    assert (row.tensor, row.causes[0].name) == ("a1", "clipped range")
    mend = row.suggested_fixes[0]
    assert mend.gain_db > 6
    assert row.alone > 0.8


def test_quick_measures_some_and_estimates_the_rest(quantized) -> None:
    budget = compare(small_cnn(), quantized, small_feeds(2), budget="quick").budget

    assert budget.measured + budget.estimated == len(budget.rows)
    assert compare(small_cnn(), quantized, small_feeds(2), budget="none").budget is None


def test_a_float_model_has_nothing_to_account_for() -> None:
    report = compare(small_cnn(), small_cnn(), small_feeds(2))

    assert (report.budget, report.fused) == (None, ())


def test_a_new_run_with_what_is_advised_is_measured(quantized) -> None:
    feeds = small_feeds(8)

    report = compare(small_cnn(), quantized, feeds, calibration=feeds)

    together = report.budget.together
    start = msgspec.to_builtins(find_preset("A8W8"))
    config = msgspec.convert({**start, **json.loads(together.config)}, QuantConfig)
    again = lowbit.quantize(small_cnn(), data=feeds, config=config, limit=64)
    # On the two of eight samples that a quick budget looks at.
    looked_at = [feeds[i] for i in (2, 5)]
    want = compare(small_cnn(), again.quantized, looked_at, budget="none").sqnr_db
    assert together.retried_sqnr_db == pytest.approx(want, abs=0.01)
