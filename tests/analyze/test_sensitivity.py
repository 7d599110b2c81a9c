"""Switches and variants, against onnxruntime on models changed by hand."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.chain_models import chain, smooth
from helpers.quantizers import pairs_model
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.analyze import sensitivity
from lowbit.analyze.quantizers import find_quantizers, read_constants
from lowbit.analyze.sensitivity import Switched, Variant, add_switches, open_variant_runner
from lowbit.evaluate.outputs import OutputSlice
from lowbit.evaluate.runner import ReferenceSample
from lowbit.graph import io
from lowbit.graph.sharing import Sharing
from lowbit.normalize.normalize import normalize

ON, OFF = np.array(True), np.array(False)


def outputs(model: ir.Model, feeds, changes=None) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(io.to_proto(model).SerializeToString(), options)
    return np.concatenate([session.run(None, {**f, **(changes or {})})[0] for f in feeds])


@pytest.fixture(scope="module")
def quantized() -> ir.Model:
    return lowbit.quantize(small_cnn(), data=small_feeds(8), preset="A8W8").quantized


def switched(model: ir.Model, source=None, feed=None) -> Switched:
    floats = normalize(
        io.load(small_cnn() if source is None else source), feed or small_feeds(1)[0]
    )
    quantizers = find_quantizers(model)
    constants = read_constants(model, floats, quantizers)
    known = {n: c.float_value for n, c in constants.items() if c.float_value is not None}
    return add_switches(model, quantizers, known)


def test_switches_all_on_give_the_quantized_model_and_all_off_the_float_one(quantized) -> None:
    feeds = small_feeds(3)
    model = switched(quantized)
    off = {switch.name: OFF for switch in model.switches.values()}

    np.testing.assert_array_equal(outputs(model.model, feeds), outputs(quantized, feeds))
    want = outputs(io.load(small_cnn()), feeds)
    np.testing.assert_allclose(outputs(model.model, feeds, off), want, rtol=1e-3, atol=1e-4)


def test_the_model_itself_is_not_changed(quantized) -> None:
    before = io.to_proto(quantized).SerializeToString()

    switched(quantized)

    assert io.to_proto(quantized).SerializeToString() == before


def test_one_switch_turns_off_one_pair(quantized) -> None:
    feeds = small_feeds(2)
    model = switched(quantized)
    by_hand = quantized.clone()
    values = ir.convenience.create_value_mapping(by_hand.graph)
    ir.convenience.replace_all_uses_with(values["r1_DequantizeLinear_Output"], values["r1"])

    got = outputs(model.model, feeds, {model.switches["r1"].name: OFF})

    np.testing.assert_array_equal(got, outputs(by_hand, feeds))


def test_a_scale_can_be_set(quantized) -> None:
    feeds = small_feeds(2)
    model = switched(quantized)
    by_hand = quantized.clone()
    stored = by_hand.graph.initializers["r1_scale"]
    stored.const_value = ir.tensor(np.float32(stored.const_value.numpy() * 3), name="r1_scale")

    got = outputs(model.model, feeds, {model.switches["r1"].scale: stored.const_value.numpy()})

    np.testing.assert_array_equal(got, outputs(by_hand, feeds))


def test_a_float_weight_can_be_set_and_its_bias_is_float_with_it(quantized) -> None:
    feeds = small_feeds(2)
    model = switched(quantized)
    switch = model.switches["w3"]
    by_hand = quantized.clone()
    values = ir.convenience.create_value_mapping(by_hand.graph)
    floats = {t.name: t for t in io.load(small_cnn()).graph.initializers.values()}
    new = np.zeros((5, 8), np.float32)
    for name, data in (("w3", new), ("b3", floats["b3"].const_value.numpy())):
        value = ir.Value(name=f"{name}/hand", const_value=ir.tensor(data, name=f"{name}/hand"))
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(data.shape)
        by_hand.graph.initializers[value.name] = value
        ir.convenience.replace_all_uses_with(values[f"{name}_DequantizeLinear_Output"], value)

    got = outputs(model.model, feeds, {switch.name: OFF, switch.float_value: new})

    np.testing.assert_array_equal(got, outputs(by_hand, feeds))


def test_a_weight_that_is_not_known_in_float_has_no_switch(quantized) -> None:
    model = add_switches(quantized, find_quantizers(quantized), {})

    assert "w3" not in model.switches
    assert "r1" in model.switches
    feeds = small_feeds(1)
    np.testing.assert_array_equal(outputs(model.model, feeds), outputs(quantized, feeds))


def test_every_consumer_of_a_tensor_dequantized_twice_is_switched() -> None:
    model = pairs_model()
    quantizers = find_quantizers(model)
    made = add_switches(model, quantizers, {})
    feed = [{"x": np.random.default_rng(0).normal(size=(1, 2, 2, 2)).astype(np.float32)}]
    by_hand = model.clone()
    values = ir.convenience.create_value_mapping(by_hand.graph)
    for name in ("rd1", "rd2"):
        ir.convenience.replace_all_uses_with(values[name], values["r"])

    got = outputs(made.model, feed, {made.switches["r"].name: OFF})

    np.testing.assert_array_equal(got, outputs(by_hand, feed))
    assert made.switches["y"].result == "y"  # the graph's output keeps its name


def test_a_switch_knows_the_first_node_that_it_concerns(quantized) -> None:
    model = switched(quantized)
    nodes = list(model.model.graph)

    for switch in model.switches.values():
        node = nodes[switch.first_node]
        assert node.op_type == "If"
        assert node.inputs[0].name == switch.name
        assert node.outputs[0].name == switch.result


# Variants


LAYERS = 16


@pytest.fixture(scope="module")
def long_case():
    """A chain of layers that is long enough to be run in tails."""
    float_model, feeds = chain(LAYERS, 4), smooth(3)
    quantized = lowbit.quantize(float_model, data=feeds, preset="U8S8").quantized
    want = outputs(io.load(float_model), feeds)
    samples = [
        ReferenceSample(feed, {f"r{LAYERS - 1}": want[i : i + 1]}) for i, feed in enumerate(feeds)
    ]
    return switched(quantized, float_model, feeds[0]), samples, feeds, want


def share(want: np.ndarray, got: np.ndarray) -> float:
    return float(
        np.square(want - got, dtype=np.float64).sum() / np.square(want, dtype=np.float64).sum()
    )


def test_the_bases_are_everything_quantized_and_everything_in_float(long_case) -> None:
    model, samples, feeds, want = long_case
    off = {switch.name: OFF for switch in model.switches.values()}
    told = []

    with open_variant_runner(model, [OutputSlice(f"r{LAYERS - 1}")], ["r0"]) as runner:
        runner.load(samples, lambda floats, quantized: told.append((floats, quantized)))

        assert runner.noise_of("quantized", 3) == pytest.approx(
            share(want, outputs(model.model, feeds)), rel=1e-5
        )
        assert runner.noise_of("float", 3) == pytest.approx(
            share(want, outputs(model.model, feeds, off)), rel=1e-3
        )
        assert runner.noise_of("quantized", 1) == pytest.approx(
            share(want[:1], outputs(model.model, feeds[:1])), rel=1e-5
        )
    assert len(told) == 3
    for sample, (floats, quantized) in zip(samples, told, strict=True):
        np.testing.assert_array_equal(floats["x"], sample.feed["x"])
        assert 0 < share(floats["r0"], quantized["r0"]) < 1e-2


def test_values_of_a_large_sample_are_told_in_several_passes_each_once(
    long_case, monkeypatch
) -> None:
    model, samples, *_ = long_case
    seen = [f"r{i}" for i in range(LAYERS)]
    told = {}
    for one_by_one in (False, True):
        monkeypatch.setattr(sensitivity, "sharing_of", lambda *_, own=one_by_one: Sharing(own))
        calls = told[one_by_one] = []
        with open_variant_runner(model, [OutputSlice(f"r{LAYERS - 1}")], seen) as runner:
            runner.load(samples[:1], lambda *both, into=calls: into.append(both))
            noise = runner.noise_of("quantized", 1)
        assert noise > 0

    (whole,), parts = told[False], told[True]
    assert len(parts) > 2
    for base in (0, 1):
        names = [name for part in parts for name in part[base]]
        assert sorted(names) == sorted(whole[base])
        for part in parts:
            for name, array in part[base].items():
                np.testing.assert_array_equal(array, whole[base][name])


@pytest.mark.parametrize("base", ["float", "quantized"])
def test_variants_run_from_the_last_tail_that_holds_their_change(long_case, base) -> None:
    model, samples, feeds, want = long_case
    chosen = list(model.switches.items())[:: max(1, len(model.switches) // 6)]
    variants = [
        Variant(base, {switch.name: ON if base == "float" else OFF}, switch.first_node)
        for _, switch in chosen
    ]
    off = {switch.name: OFF for switch in model.switches.values()}

    with open_variant_runner(model, [OutputSlice(f"r{LAYERS - 1}")], []) as runner:
        runner.load(samples, lambda *_: None)
        found = runner.noise(variants, 2)
        shares = [runner.share(variant.first_node) for variant in variants]

    for variant, noise in zip(variants, found, strict=True):
        settings = {**(off if base == "float" else {}), **variant.changes}
        expected = share(want[:2], outputs(model.model, feeds[:2], settings))
        assert noise == pytest.approx(expected, rel=1e-3)
    # What changes later runs less of the model.
    assert shares[0] > 0.7
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.5


def test_a_small_model_is_run_whole(quantized) -> None:
    model = switched(quantized)
    last = max(switch.first_node for switch in model.switches.values())

    with open_variant_runner(model, [OutputSlice("logits")], []) as runner:
        assert runner.share(last) == 1
    assert len(list(model.model.graph)) < 12 * sensitivity._TAILS
