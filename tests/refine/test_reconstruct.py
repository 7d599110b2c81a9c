"""Reconstruction on whole models: nearer to float, the same every time, scales untouched."""

import msgspec
import numpy as np
import onnx
import pytest
from chain_models import chain, smooth
from onnx import numpy_helper
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.refinement import LayerReconstruction
from lowbit.graph.session import session


def _config(preset, refine):
    return msgspec.structs.replace(
        find_preset(preset), refinement=refine, equalization=None, keep_only_if_better=False
    )


def _error(model, result, feeds):
    name = model.graph.output[0].name
    total = 0.0
    with (
        session(lowbit.graph.io.load(model)) as floats,
        session(result.quantized) as quantized,
    ):
        for feed in feeds:
            a, b = floats.run([name], feed)[0], quantized.run([name], feed)[0]
            total += float(np.square(a - b).mean())
    return total / len(feeds)


@pytest.mark.parametrize(
    ("preset", "part"), [("XINT8", 1), ("A8W8", 1), ("U8S8_PERCHANNEL", 1), ("A16W8", 0.7)]
)
def test_it_is_nearer_to_float_on_data_it_has_not_seen(preset, part):
    """With 16-bit activations all error is the weights'; with 8 bits most is not."""
    model, feeds, unseen = chain(), smooth(16), smooth(8, seed=9)
    plain = lowbit.quantize(model, data=feeds, config=_config(preset, None))
    better = lowbit.quantize(model, data=feeds, config=_config(preset, LayerReconstruction()))
    assert _error(model, better, unseen) < part * _error(model, plain, unseen)


def test_scales_and_structure_stay():
    model, feeds = small_cnn(), small_feeds(8)
    plain = lowbit.quantize(model, data=feeds, config=_config("A8W8", None)).model
    better = lowbit.quantize(model, data=feeds, config=_config("A8W8", LayerReconstruction())).model
    assert [n.SerializeToString() for n in plain.graph.node] == [
        n.SerializeToString() for n in better.graph.node
    ]
    before = {c.name: numpy_helper.to_array(c) for c in plain.graph.initializer}
    for constant in better.graph.initializer:
        new, old = numpy_helper.to_array(constant), before[constant.name]
        if constant.name.endswith(("_scale", "_zero_point")):
            np.testing.assert_array_equal(new, old)
        elif not constant.name.startswith("b") and new.dtype == np.int8:
            # Never further than the other neighbour.
            assert np.abs(new.astype(int) - old).max() <= 1
    onnx.checker.check_model(better)


def test_the_same_bytes_twice():
    runs = [
        lowbit.quantize(chain(), data=smooth(6), config=_config("XINT8", LayerReconstruction()))
        for _ in range(2)
    ]
    assert runs[0].model.SerializeToString() == runs[1].model.SerializeToString()


def test_the_report_says_what_was_won():
    result = lowbit.quantize(chain(), data=smooth(8), config=_config("A8W8", LayerReconstruction()))
    (note,) = [n for n in result.report.notes if n.startswith("refined")]
    assert "of 4 layers: their error on held-out samples fell to" in note


def test_random_data_is_not_reconstructed_on():
    result = lowbit.quantize(
        small_cnn(), data="random", config=_config("A8W8", LayerReconstruction())
    )
    assert any("not reconstructed" in note for note in result.report.notes)


def test_a_layer_without_bias_is_reconstructed_as_well():
    model = small_cnn()
    (gemm,) = [n for n in model.graph.node if n.op_type == "Gemm"]
    gemm.op_type = "MatMul"
    del gemm.input[2], gemm.attribute[:]
    (w3,) = [c for c in model.graph.initializer if c.name == "w3"]
    w3.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(w3).T.copy(), "w3"))
    feeds = small_feeds(8)
    result = lowbit.quantize(model, data=feeds, config=_config("A8W8", LayerReconstruction()))
    plain = lowbit.quantize(model, data=feeds, config=_config("A8W8", None))
    assert _error(model, result, feeds) < _error(model, plain, feeds)


def test_it_sees_as_many_samples_as_it_is_asked_to():
    config = _config("A8W8", LayerReconstruction(data_size=3, positions=5))
    few = lowbit.quantize(chain(), data=smooth(8), config=config)
    first = lowbit.quantize(chain(), data=smooth(8), config=_config("A8W8", None))
    alone = lowbit.quantize(
        chain(),
        data=smooth(8)[:3],
        config=_config("A8W8", LayerReconstruction(positions=5)),
        stats=first.stats,
    )
    assert _weights(few) == _weights(alone)


def _weights(result):
    return {c.name: c.raw_data for c in result.model.graph.initializer}


def test_without_sweeps_it_corrects_biases_only() -> None:
    """Empirical bias correction: nearest weights, and the float model's mean in every channel."""
    model, feeds = chain(), smooth(24)
    corrected = lowbit.quantize(
        model, data=feeds, config=_config("A16W8", LayerReconstruction(sweeps=0, held_out=0.0))
    )
    wide = lowbit.quantize(model, data=feeds, config=_config("A16W8", None))

    mine, theirs = _weights(corrected), _weights(wide)
    changed = {name for name in mine if mine[name] != theirs[name]}
    assert changed
    assert all(name.startswith("b") for name in changed)
    name = model.graph.output[0].name
    with (
        session(lowbit.graph.io.load(model)) as floats,
        session(corrected.quantized) as quantized,
    ):
        means = [
            np.mean([run.run([name], feed)[0] for feed in feeds], axis=(0, 1, 3, 4))
            for run in (floats, quantized)
        ]
    np.testing.assert_allclose(means[1], means[0], rtol=0.02, atol=2e-3)
