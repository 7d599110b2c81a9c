"""Reconstruction: the choice for one layer by hand, and whole models nearer to float."""

import msgspec
import numpy as np
import onnx
import pytest
from helpers.chain_models import chain, smooth
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized
from onnx import numpy_helper

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.refinement import LayerReconstruction
from lowbit.graph.session import session
from lowbit.numerics.affine import dequantize
from lowbit.refine.layers import find_layers, float_bias, float_weights
from lowbit.refine.reconstruct import (
    Grid,
    LayerData,
    better_rounding,
    error_of,
    exact_bias,
    stored_integers,
)
from lowbit.refine.samples import SampleInMemory


def _config(preset, refinement):
    return msgspec.structs.replace(
        find_preset(preset), refinement=refinement, equalization=None, keep_only_if_better=False
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


def test_the_report_says_what_was_gained():
    result = lowbit.quantize(chain(), data=smooth(8), config=_config("A8W8", LayerReconstruction()))
    (note,) = [n for n in result.report.notes if n.startswith("refined")]
    assert "of 4 layers: their error on held-out samples fell to" in note


def test_random_data_is_not_refined_on():
    result = lowbit.quantize(
        small_cnn(), data="random", config=_config("A8W8", LayerReconstruction())
    )
    assert any("not refined: random data" in note for note in result.report.notes)


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


def _problem(state, node="conv1", samples=40, seed=0):
    """Return a layer, and samples whose targets are those of the float weights and bias."""
    (layer,) = [found for found in find_layers(state, ())[0] if found.node == node]
    random = np.random.default_rng(seed)
    weight = layer.geometry.matrix(float_weights(state, layer))
    bias = float_bias(state, layer).reshape(1, -1, 1)
    found = []
    for _ in range(samples):
        mixed = random.normal(size=(1, layer.geometry.depth, 6)) @ random.normal(size=(6, 20))
        patches = mixed.astype(np.float32) + np.float32(0.5)
        targets = weight @ patches + bias
        sums = patches.sum(axis=2), targets.sum(axis=2)
        found.append(SampleInMemory(patches, targets, *sums, count=20))
    return layer, found


@pytest.fixture(scope="module")
def state():
    return quantized(chain(2), _config("A8W8", None), smooth(4))


def test_a_grid_holds_both_neighbours_of_every_weight(state) -> None:
    layer, _ = _problem(state)
    weight = float_weights(state, layer)
    grid = Grid.of(layer, weight)
    exact = layer.geometry.matrix(weight) / float(layer.params.scale)
    inside = np.abs(exact) < 127
    assert (grid.low <= grid.nearest).all()
    assert (grid.nearest <= grid.high).all()
    assert (np.abs(grid.nearest - exact)[inside] <= 0.5 + 1e-5).all()
    assert ((grid.high - grid.low)[inside] <= 1).all()
    assert (grid.lowest.min(), grid.highest.max()) == (-127, 127)
    # Stored again, codes stand for the same weights.
    stored = stored_integers(layer, grid.nearest)
    np.testing.assert_array_equal(stored, state.weights.tensors["w1"]())
    back = layer.geometry.matrix(dequantize(stored, layer.params))
    np.testing.assert_allclose(back, grid.nearest * grid.scale, rtol=1e-6)


def test_the_exact_bias_gives_the_mean_of_the_targets(state) -> None:
    layer, samples = _problem(state)
    data = LayerData.of(samples)
    grid = Grid.of(layer, float_weights(state, layer))
    bias = exact_bias(
        grid.nearest * grid.scale, (data.patch_mean, data.target_mean), float_bias(state, layer)
    )
    found = grid.nearest * grid.scale @ data.patches + bias.reshape(1, -1, 1)
    np.testing.assert_allclose(found.mean(axis=2), data.targets.mean(axis=2), atol=1e-4)
    assert exact_bias(grid.nearest, (data.patch_mean, data.target_mean), None) is None


def test_the_error_is_that_of_the_layers_output() -> None:
    weight = np.float32([[[2.0, -1.0]]])
    patches, targets = np.float32([[[1.0, 0.0], [1.0, 3.0]]]), np.float32([[[0.0, 0.0]]])
    mean = np.zeros((1, 1), np.float32)
    data = LayerData(patches, targets, mean, mean)
    # Outputs 1 and -3, without and with a bias of 1.
    assert error_of(weight, None, data) == pytest.approx(5.0)
    assert error_of(weight, np.float32([1.0]), data) == pytest.approx(4.0)


def test_a_bias_that_stays_is_taken_off_the_targets(state) -> None:
    _, samples = _problem(state)
    bias = np.arange(12, dtype=np.float32)
    plain, less = LayerData.of(samples), LayerData.of(samples, bias)
    np.testing.assert_allclose(
        plain.targets - less.targets, bias.reshape(1, -1, 1) + 0 * plain.targets, atol=1e-4
    )
    np.testing.assert_allclose(plain.target_mean - less.target_mean, bias[None], atol=1e-4)
    part = plain.part(slice(20, 60))
    np.testing.assert_array_equal(part.patches, plain.patches[:, :, 20:60])
    np.testing.assert_array_equal(part.patch_mean, plain.patch_mean)


def test_the_best_of_rounding_bias_and_nothing_is_taken(state) -> None:
    layer, samples = _problem(state)
    grid = Grid.of(layer, float_weights(state, layer))

    def bad(data, grid, *, centred):
        assert centred, "its bias takes off any mean error"
        assert data.patches.shape[2] == 35 * 20
        return grid.lowest

    def good(_, grid, **__):
        return grid.weight / grid.scale  # no integers, but the best there can be

    worse = better_rounding(state, 0.125, bad, layer, samples)
    better = better_rounding(state, 0.125, good, layer, samples)
    # Nearest weights with the exact bias are better than lowest ones, and than what was there.
    np.testing.assert_array_equal(worse.stored, stored_integers(layer, grid.nearest))
    assert worse.kept
    assert worse.after < worse.before
    assert better.after < 1e-3 * better.before


def test_held_out_samples_decide(state) -> None:
    """A rounding that suits only the samples it was solved on is not kept."""
    layer, samples = _problem(state)
    grid = Grid.of(layer, float_weights(state, layer))
    seen = []

    def rounded(data, grid, **_):
        seen.append(data.patches.shape[2])
        return grid.nearest

    better_rounding(state, 0.125, rounded, layer, samples)
    better_rounding(state, 0.0, rounded, layer, samples)
    better_rounding(state, 0.125, rounded, layer, samples[:20])
    # An eighth of 40 samples of 20 columns is held out; of 20 samples none is.
    assert seen == [35 * 20, 40 * 20, 20 * 20]
    out = [i for i in range(40) if i in {int(v) for v in np.linspace(0, 39, 7)[1:-1].round()}]
    spoiled = list(samples)
    for index in range(40):
        if index not in out:
            # What is solved on would be matched by the lowest integers of all.
            patches = samples[index].patches
            targets = grid.lowest * grid.scale @ patches
            spoiled[index] = SampleInMemory(
                patches, targets, patches.sum(axis=2), targets.sum(axis=2), count=20
            )
    result = better_rounding(state, 0.125, lambda _, grid, **__: grid.lowest, layer, spoiled)
    assert not np.array_equal(result.stored, stored_integers(layer, grid.lowest))


def test_relative_errors_count_a_position_by_its_own_size() -> None:
    random = np.random.default_rng(4)
    weight = random.normal(size=(1, 3, 6)).astype(np.float32)
    patches = random.normal(size=(1, 6, 40)).astype(np.float32)
    patches[:, :, 0] *= 1000
    targets = weight @ patches
    sample = SampleInMemory(patches, targets, patches.sum(axis=2), targets.sum(axis=2), 40)

    data = LayerData.of([sample], relative=True)

    sizes = np.sqrt(np.square(targets[0] * data.importance).mean(axis=0))
    np.testing.assert_allclose(sizes[1:], sizes[1], rtol=1e-4)
    off = weight * np.float32(1.01)
    absolute, relative = error_of(off, None, LayerData.of([sample])), error_of(off, None, data)
    assert relative == pytest.approx(1e-4 * float(sizes[1]) ** 2, rel=0.05)
    assert absolute > 1000 * relative


def test_relative_moments_are_about_the_means_of_all_positions() -> None:
    random = np.random.default_rng(5)
    patches = random.normal(2, 1, size=(1, 4, 30)).astype(np.float32)
    targets = random.normal(1, 1, size=(1, 2, 30)).astype(np.float32)
    sample = SampleInMemory(patches, targets, patches.sum(axis=2), targets.sum(axis=2), 30)
    data = LayerData.of([sample], relative=True)

    found, _ = data.weighted(centred=True)

    centred = patches - patches.mean(axis=2, keepdims=True)
    np.testing.assert_allclose(found, centred * data.importance, rtol=1e-5)
