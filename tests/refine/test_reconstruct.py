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
from lowbit.refine import reconstruct
from lowbit.refine.devices import Device
from lowbit.refine.layers import find_layers, float_bias, float_weights
from lowbit.refine.moments import LayerMoments
from lowbit.refine.reconstruct import (
    Grid,
    better_rounding,
    exact_bias,
    layer_moments,
    stored_integers,
)
from lowbit.refine.samples import LayerColumns, SampleInMemory, held_out_numbers, means_of


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


def _seen(state, layer, samples, share=0.125):
    """Return what some samples show of a layer, to be solved whatever rounding has a share in."""
    out = held_out_numbers(len(samples), share)
    weight = layer.geometry.matrix(float_weights(state, layer))
    seen = LayerMoments(weight, float_bias(state, layer), held_out=out)
    seen.add(list(enumerate(samples)))
    seen.finish()
    return seen


def test_the_exact_bias_gives_the_mean_of_the_targets(state) -> None:
    layer, samples = _problem(state)
    means = means_of(samples)
    grid = Grid.of(layer, float_weights(state, layer))
    bias = exact_bias(grid.nearest * grid.scale, means, float_bias(state, layer))
    outputs = [grid.nearest * grid.scale @ s.patches + bias.reshape(1, -1, 1) for s in samples]
    targets = [s.targets for s in samples]
    np.testing.assert_allclose(
        np.concatenate(outputs, axis=2).mean(axis=2),
        np.concatenate(targets, axis=2).mean(axis=2),
        atol=1e-4,
    )
    assert exact_bias(grid.nearest, means, None) is None


def test_the_best_of_rounding_bias_and_nothing_is_taken(state) -> None:
    layer, samples = _problem(state)
    grid = Grid.of(layer, float_weights(state, layer))

    def good(_, grid):
        return grid.weight / grid.scale  # no integers, but the best there can be

    seen = _seen(state, layer, samples)
    worse = better_rounding(state, lambda _: lambda _, grid: grid.lowest, layer, seen)
    better = better_rounding(state, lambda _: good, layer, seen)
    # Nearest weights with the exact bias are better than lowest ones, and than what was there.
    np.testing.assert_array_equal(worse.stored, stored_integers(layer, grid.nearest))
    assert worse.kept
    assert worse.after < worse.before
    assert better.after < 1e-3 * better.before


def test_moments_of_inputs_are_made_once_however_many_outputs_are_rounded_at_a_time(
    state, monkeypatch
) -> None:
    layer, samples = _problem(state)
    config, device = LayerReconstruction(), Device("cpu")
    whole = reconstruct.reconstruct(state, config, device, layer, _seen(state, layer, samples))
    made, blocks = [], []
    moments, block = LayerMoments.input_moments, LayerMoments.output_moments
    monkeypatch.setattr(
        LayerMoments, "input_moments", lambda seen: made.append(seen) or moments(seen)
    )
    monkeypatch.setattr(
        LayerMoments, "output_moments", lambda seen, rows: blocks.append(rows) or block(seen, rows)
    )
    monkeypatch.setattr(reconstruct, "_AT_ONCE", layer.geometry.depth)

    found = reconstruct.reconstruct(state, config, device, layer, _seen(state, layer, samples))

    assert len(made) == 1
    assert len(blocks) == layer.geometry.outputs
    np.testing.assert_array_equal(found.stored, whole.stored)


def test_rounding_is_left_alone_where_it_adds_next_to_nothing(state) -> None:
    """Targets that differ for other reasons get a bias; no rounding could make up for that."""
    layer, samples = _problem(state)
    random = np.random.default_rng(0)
    tried = []

    def rounded(_, grid):
        tried.append(grid)
        return grid.lowest

    for noise in (0.0, 100.0):
        seen = layer_moments(state, layer)
        targets = [
            s.targets + noise * random.standard_normal(s.targets.shape) + noise for s in samples
        ]
        seen.add(
            [
                (i, LayerColumns(s.patches, np.float32(t)))
                for i, (s, t) in enumerate(zip(samples, targets, strict=True))
            ]
        )
        seen.finish()
        result = better_rounding(state, lambda _: rounded, layer, seen)
        assert len(tried) == 1
    assert result.kept
    assert result.after == pytest.approx(noise**2, rel=0.05)
    nearest = Grid.of(layer, float_weights(state, layer)).nearest
    np.testing.assert_array_equal(result.stored, stored_integers(layer, nearest))


def test_held_out_samples_decide(state) -> None:
    """A rounding that suits only the samples it was solved on is not kept."""
    layer, samples = _problem(state)
    grid = Grid.of(layer, float_weights(state, layer))
    out = held_out_numbers(40, 0.125)
    assert len(out) == 5
    spoiled = list(samples)
    for index in range(40):
        if index not in out:
            # What is solved on would be matched by the lowest integers of all.
            patches = samples[index].patches
            targets = grid.lowest * grid.scale @ patches
            spoiled[index] = SampleInMemory(
                patches, targets, patches.sum(axis=2), targets.sum(axis=2), count=20
            )
    lowest = stored_integers(layer, grid.lowest)
    decided, believed = (
        better_rounding(
            state, lambda _: lambda _, grid: grid.lowest, layer, _seen(state, layer, spoiled, share)
        )
        for share in (0.125, 0.0)
    )
    assert not np.array_equal(decided.stored, lowest)
    np.testing.assert_array_equal(believed.stored, lowest)


@pytest.mark.filterwarnings("error")
def test_a_layer_whose_inputs_have_no_finite_squares_stays(state) -> None:
    layer, samples = _problem(state)
    seen = layer_moments(state, layer)
    large = np.float32(1e21)
    seen.add(
        [(i, LayerColumns(s.patches * large, s.targets * large)) for i, s in enumerate(samples)]
    )
    seen.finish()

    result = reconstruct.reconstruct(state, LayerReconstruction(), Device("cpu"), layer, seen)

    assert not result.kept
    np.testing.assert_array_equal(result.stored, state.weights.tensors["w1"]())


def test_a_layer_of_which_no_sample_shows_anything_stays(state) -> None:
    layer, _ = _problem(state)
    seen = layer_moments(state, layer)
    result = better_rounding(state, lambda _: lambda _, grid: grid.lowest, layer, seen)
    assert not result.kept
    np.testing.assert_array_equal(result.stored, state.weights.tensors["w1"]())


@pytest.mark.parametrize("preset", ["A8W8", "XINT8"])
@pytest.mark.parametrize("held_out", [0.0, 0.25])
def test_some_outputs_at_a_time_give_what_all_give(monkeypatch, preset, held_out) -> None:
    """A layer of any size is solved in the memory of its moments and a block of outputs."""
    config = _config(preset, LayerReconstruction(held_out=held_out))
    model, feeds = chain(2), smooth(8)
    whole = lowbit.quantize(model, data=feeds, config=config)
    monkeypatch.setattr(reconstruct, "_AT_ONCE", 100)
    blocks = lowbit.quantize(model, data=feeds, config=config)
    layers, _ = find_layers(whole.state, ())
    assert max(len(reconstruct._blocks(layer)) for layer in layers) > 1
    before = {c.name: numpy_helper.to_array(c) for c in whole.model.graph.initializer}
    after = {c.name: numpy_helper.to_array(c) for c in blocks.model.graph.initializer}
    assert before.keys() == after.keys()
    for name, array in before.items():
        # Matrix products of other sizes may round a tie the other way.
        np.testing.assert_allclose(after[name], array, atol=1)
        assert np.mean(after[name] != array) < 0.01
