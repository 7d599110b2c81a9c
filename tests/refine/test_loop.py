"""The layer-by-layer loop: what each layer sees, in which order, and what comes after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pytest
from helpers.chain_models import chain, smooth
from helpers.staged import quantized

from lowbit.config.presets import find_preset
from lowbit.graph.layerwise_run import LayerwiseRun
from lowbit.graph.session import Feed, session
from lowbit.graph.sharing import sharing_of
from lowbit.graph.store import Store, open_store
from lowbit.graph.submodels import Extractor
from lowbit.refine.algorithm import LoopSettings
from lowbit.refine.layers import LayerResult, RefinedLayer, find_layers, replaced_constants
from lowbit.refine.loop import LayerLoop
from lowbit.refine.samples import LayerSample, SampleInMemory, SampleOnDisk
from lowbit.refine.targets import LayerTargets
from lowbit.state import Quantized

_CONFIG = msgspec.structs.replace(find_preset("A8W8"), equalization=None, head="int8")


@pytest.fixture(scope="module")
def state() -> Quantized:
    return quantized(chain(3), _CONFIG, smooth(5))


@contextlib.contextmanager
def _loop(
    state: Quantized,
    settings: LoopSettings,
    feeds: Sequence[Feed],
    *,
    done: Sequence[LayerResult] = (),
    disk: Store | None = None,
) -> Iterator[LayerLoop]:
    layers, _ = find_layers(state, ())
    rest = layers[len(done) :]
    with open_store() as floats, open_store() as integers:
        targets = LayerTargets(
            state.calibrated_model,
            rest,
            floats,
            settings,
            samples=len(feeds),
            device="cpu",
            sharing=sharing_of(None),
        )
        run = LayerwiseRun(
            state.emitted.model, [[layer.input.name] for layer in rest], integers, name="q"
        )
        independent = settings.independent
        yield LayerLoop(
            state, layers, lambda: feeds, targets, run, done, disk, independent=independent
        )


class Notes:
    """Keeps what every layer was solved from, and passes results on."""

    def __init__(self) -> None:
        self.samples: dict[str, list[LayerSample]] = {}
        self.solved_in: list[tuple[int, str]] = []

    def solved(self, index: int, layer: RefinedLayer, result: LayerResult) -> LayerResult:
        assert layer.node == result.node
        self.solved_in.append((index, result.node))
        return result


def _doubled(notes: Notes, state: Quantized):
    """Return a solver that stores twice the weights, so that later layers see a difference."""

    def solve(layer: RefinedLayer, samples: Sequence[LayerSample]) -> LayerResult:
        notes.samples[layer.node] = [_copy(sample) for sample in samples]
        stored = state.weights.tensors[layer.weight.name]().astype(np.int16) * 2
        stored = np.clip(stored, -127, 127).astype(np.int8)
        return LayerResult(layer.node, stored, None, 1.0, 0.5, kept=True)

    return solve


def _copy(sample: LayerSample) -> dict[str, np.ndarray]:
    names = ("patches", "targets", "patch_sum", "target_sum")
    found = {name: np.array(getattr(sample, name)) for name in names}
    if sample.float_patches is not None:
        found["float_patches"] = np.array(sample.float_patches)
    return found


def _run(state: Quantized, settings: LoopSettings, feeds=None, **options):
    feeds = smooth(3) if feeds is None else feeds
    notes = Notes()
    with _loop(state, settings, feeds, **options) as loop:
        results = list(loop.run(_doubled(notes, state), notes))
    return notes, results


def _assert_same(found: Notes, expected: Notes) -> None:
    assert found.samples.keys() == expected.samples.keys()
    for node, samples in expected.samples.items():
        for one, other in zip(found.samples[node], samples, strict=True):
            for name, array in other.items():
                np.testing.assert_array_equal(one[name], array)


_ALL = LoopSettings(positions=10**6)


def test_layers_come_in_order_and_are_told(state: Quantized) -> None:
    notes, results = _run(state, _ALL)

    assert notes.solved_in == [(0, "conv0"), (1, "conv1"), (2, "conv2")]
    assert [result.node for result in results] == ["conv0", "conv1", "conv2"]


def test_targets_are_the_float_models_outputs(state: Quantized) -> None:
    feeds = smooth(3)
    notes, _ = _run(state, _ALL, feeds)

    with session(state.calibrated_model, ["c0", "c1", "c2"]) as running:
        for node, name in (("conv0", "c0"), ("conv1", "c1"), ("conv2", "c2")):
            for feed, sample in zip(feeds, notes.samples[node], strict=True):
                (y,) = running.run([name], feed)
                found = sample["targets"][0].sum(axis=1)
                np.testing.assert_allclose(found, y.sum(axis=(0, 2, 3)), rtol=1e-4, atol=1e-3)
                np.testing.assert_allclose(
                    np.sort(sample["targets"][0], axis=1), np.sort(y.reshape(12, -1), axis=1)
                )


def test_inputs_are_those_that_the_layers_solved_before_give(state: Quantized) -> None:
    """The second layer's patches are of the quantized model with the first one's weights doubled."""
    feeds = smooth(2)
    notes, results = _run(state, _ALL, feeds)
    layers, _ = find_layers(state, ())
    changed = {}
    for layer, result in zip(layers[:2], results[:2], strict=True):
        changed |= replaced_constants(state, layer, result)
    inputs = {value.name: None for value in state.emitted.model.graph.inputs}
    name = layers[2].input.name
    running = Extractor(state.emitted.model).session(inputs, [name], changed)

    for feed, sample in zip(feeds, notes.samples["conv2"], strict=True):
        x = layers[2].input.floats(running.run([name], feed)[0])
        expected = layers[2].geometry.patch_sums(x, (1, 12, 16, 16))
        np.testing.assert_allclose(sample["patch_sum"], expected, rtol=1e-5, atol=1e-4)


def test_each_layer_alone_sees_the_quantized_model_as_it_was(state: Quantized) -> None:
    feeds = smooth(2)
    independent, results = _run(state, LoopSettings(positions=10**6, independent=True), feeds)

    layers, _ = find_layers(state, ())
    with session(state.emitted.model, [layers[2].input.name]) as running:
        for feed, sample in zip(feeds, independent.samples["conv2"], strict=True):
            x = layers[2].input.floats(running.run([layers[2].input.name], feed)[0])
            expected = layers[2].geometry.patch_sums(x, (1, 12, 16, 16))
            np.testing.assert_allclose(sample["patch_sum"], expected, rtol=1e-5, atol=1e-4)
    assert [result.node for result in results] == ["conv0", "conv1", "conv2"]
    assert [index for index, _ in independent.solved_in] == [0, 1, 2]


@pytest.mark.parametrize("change", [{"at_once": True}, {"on_disk": True}])
def test_targets_taken_at_once_or_kept_in_files_are_the_same(
    state: Quantized, change: dict, tmp_path
) -> None:
    base = {"positions": 20, "seed": 3, "float_inputs": True}
    plain, _ = _run(state, LoopSettings(**base))

    disk = Store(tmp_path, room=0) if "on_disk" in change else None
    other, _ = _run(state, LoopSettings(**base, **change), disk=disk)

    _assert_same(other, plain)
    # What a layer has been solved from is removed.
    assert disk is None or not len(disk)


def test_samples_in_files_are_mapped_for_the_solver(state: Quantized, tmp_path) -> None:
    kinds = set()

    def solve(layer: RefinedLayer, samples: Sequence[LayerSample]) -> LayerResult:
        kinds.update(type(sample) for sample in samples)
        assert isinstance(samples[0].patches, np.memmap)
        stored = state.weights.tensors[layer.weight.name]()
        return LayerResult(layer.node, stored, None, 1.0, 1.0, kept=False)

    with _loop(state, _ALL, smooth(2), disk=Store(tmp_path, room=0)) as loop:
        list(loop.run(solve, Notes()))

    assert kinds == {SampleOnDisk}


def test_samples_for_which_there_is_no_room_are_in_files(state: Quantized, tmp_path) -> None:
    settings = LoopSettings(positions=20, seed=3, float_inputs=True)
    kinds: dict[str, list[type]] = {}

    def solve(layer: RefinedLayer, samples: Sequence[LayerSample]) -> LayerResult:
        kinds[layer.node] = [type(sample) for sample in samples]
        return doubled(layer, samples)

    plain, _ = _run(state, settings, smooth(5))
    notes, disk = Notes(), Store(tmp_path, room=0)
    size = max(sum(map(_bytes, samples[:2])) for samples in plain.samples.values())
    doubled = _doubled(notes, state)
    with _loop(state, settings, smooth(5), disk=disk) as loop:
        loop.room = size
        list(loop.run(solve, Notes()))

    _assert_same(notes, plain)
    assert not len(disk)
    assert any(each == 2 * [SampleInMemory] + 3 * [SampleOnDisk] for each in kinds.values())


def _bytes(sample: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for name, array in sample.items() if not name.endswith("_sum"))


def test_the_float_models_inputs_are_beside_the_quantized_ones(state: Quantized) -> None:
    feeds = smooth(2)
    notes, _ = _run(state, LoopSettings(positions=10**6, float_inputs=True), feeds)

    layers, _ = find_layers(state, ())
    with session(state.calibrated_model, ["r0"]) as running:
        for feed, sample in zip(feeds, notes.samples["conv1"], strict=True):
            (x,) = running.run(["r0"], feed)
            expected = layers[1].geometry.patch_sums(x, (1, 12, 16, 16))
            found = sample["float_patches"].sum(axis=2)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)


def test_a_run_that_continues_another_sees_the_same(state: Quantized) -> None:
    """Positions are drawn by the name of the layer, not by its number in this run."""
    settings = LoopSettings(positions=15, seed=8)
    whole, results = _run(state, settings)

    rest, others = _run(state, settings, done=results[:1])

    assert [index for index, _ in rest.solved_in] == [1, 2]
    assert [result.node for result in others] == ["conv1", "conv2"]
    for node in ("conv1", "conv2"):
        for one, other in zip(rest.samples[node], whole.samples[node], strict=True):
            for name, array in other.items():
                np.testing.assert_allclose(one[name], array, rtol=1e-6)


def test_another_seed_draws_other_positions(state: Quantized) -> None:
    one, other = (_run(state, LoopSettings(positions=15, seed=seed))[0] for seed in (0, 1))

    assert not np.array_equal(
        one.samples["conv1"][0]["targets"], other.samples["conv1"][0]["targets"]
    )


def test_moments_take_as_many_positions_as_a_layer_needs(state: Quantized) -> None:
    notes, _ = _run(state, LoopSettings(positions=64, moments=True))

    # Twice the depth of the first layer, 27, is below the usual 64; the others are 108 deep.
    assert notes.samples["conv0"][0]["patches"].shape[2] == 54
    assert notes.samples["conv1"][0]["patches"].shape[2] == 64


def test_what_a_listener_makes_of_a_result_is_what_goes_on(state: Quantized) -> None:
    """A result that is turned back leaves later layers as if nothing had been done."""

    class Undo(Notes):
        def solved(self, index: int, layer: RefinedLayer, result: LayerResult) -> LayerResult:
            super().solved(index, layer, result)
            stored = state.weights.tensors[layer.weight.name]()
            return LayerResult(result.node, stored, None, 1.0, 1.0, kept=False)

    undone, plain = Undo(), Notes()
    for notes, settings in (
        (undone, _ALL),
        (plain, LoopSettings(positions=10**6, independent=True)),
    ):
        with _loop(state, settings, smooth(2)) as loop:
            results = list(loop.run(_doubled(notes, state), notes))

    assert all(result.kept for result in results)
    _assert_same(undone, plain)
