"""The noise around a group, from the weights of its layers and from what samples show."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.chains import chain, node

from lowbit.transforms import group_noise
from lowbit.transforms.channel_groups import Group, find_groups
from lowbit.transforms.channel_statistics import ChannelSizes
from lowbit.transforms.group_noise import NoiseOfGroups, averages_positions, read_axes
from lowbit.transforms.implementation import Levels


def _group() -> Group:
    """Return the channels between two convolutions."""
    model = chain(
        node("Conv", "x w", "a"),
        node("Relu", "a", "r"),
        node("Conv", "r v", "y"),
        w=(4, 3, 1, 1),
        v=(2, 4, 1, 1),
    )
    (group,) = [g for g in find_groups(model.graph) if not g.obstacles]
    return group


def _sizes(group: Group) -> dict[str, ChannelSizes]:
    random = np.random.default_rng(1)
    found = {}
    for name in read_axes([group]):
        channels = 3 if name == "x" else 4
        largest = random.uniform(1, 5, channels)
        found[name] = ChannelSizes(largest, largest, largest / 2, np.square(largest) / 3)
    return found


def test_what_layers_read_is_known_with_its_channel_axis() -> None:
    assert read_axes([_group()]) == {"x": 1, "r": 1}


def test_noise_of_a_channel_counts_as_much_as_the_weights_that_read_it() -> None:
    group = _group()
    kernel = group.consumers[0].layer.kernel[0, :, :, 0]
    found = NoiseOfGroups([group], _sizes(group), Levels()).of(group, np.ones(4))

    (activations,) = found.activations
    energy = np.square(kernel).sum(axis=0)

    np.testing.assert_allclose(
        activations.noise / activations.noise.sum(), energy / energy.sum(), rtol=1e-5
    )
    np.testing.assert_allclose(activations.largest, _sizes(group)["r"].reach)


def test_factors_so_far_enlarge_what_consumers_read() -> None:
    group, factors = _group(), np.array([1.0, 2.0, 0.5, 4.0])
    noise = NoiseOfGroups([group], _sizes(group), Levels())

    (activations,) = noise.of(group, factors).activations

    np.testing.assert_allclose(activations.largest, _sizes(group)["r"].reach * factors)


def test_noise_of_each_kind_is_what_random_errors_do_to_the_consumers(monkeypatch) -> None:
    # Errors are drawn at random, one kind at a time, and run through the layers without the model of their noise.
    monkeypatch.setattr(group_noise, "_REFINED", 1.0)
    group, sizes = _group(), _sizes(_group())
    (producer,), consumer = group.producers, group.consumers[0].layer
    w, v = producer.kernel[0, :, :, 0], consumer.kernel[0, :, :, 0]
    random = np.random.default_rng(3)
    many = (20_000,)
    x = random.normal(size=(*many, 3)) * np.sqrt(sizes["x"].power)
    r = random.normal(size=(*many, 4)) * np.sqrt(sizes["r"].power)
    step = np.abs(w).max(), sizes["r"].reach.max(), np.abs(v).max()
    errors = (
        np.einsum("nj,nij,oi->no", x, random.normal(size=(*many, *w.shape)) * step[0], v),
        random.normal(size=r.shape) * step[1] @ v.T,
        np.einsum("ni,noi->no", r, random.normal(size=(*many, *v.shape)) * step[2]),
    )
    simulated = np.array([np.square(error).mean() for error in errors])

    found = NoiseOfGroups([group], sizes, Levels()).of(group, np.ones(4))

    parts = (found.producers, found.activations, found.consumers)
    expected = np.array([p.noise.sum() * np.square(p.largest.max()) for (p,) in parts])
    np.testing.assert_allclose(expected / expected.sum(), simulated / simulated.sum(), rtol=0.05)


def _mean_of_outputs(error: np.ndarray, positions: int) -> float:
    """Return the squared error of means over so many positions each."""
    return float(np.square(error.reshape(-1, positions, error.shape[-1]).mean(axis=1)).mean())


def test_errors_of_weights_count_more_where_positions_are_averaged() -> None:
    # At every position the same weights have the same error, and each activation one of its own.
    random, positions = np.random.default_rng(4), 49
    inputs = np.maximum(random.normal(size=(200 * positions, 4)), 0)
    of_weights = inputs @ random.normal(size=(4, 100))
    of_activations = random.normal(size=of_weights.shape)
    coherent = _mean_of_outputs(of_weights, positions) / np.square(of_weights).mean()
    independent = _mean_of_outputs(of_activations, positions) / np.square(of_activations).mean()
    assert coherent / independent > 10

    group = _group()
    one, averaged = (
        NoiseOfGroups([group], _sizes(group), Levels(), averages=a).of(group, np.ones(4))
        for a in (False, True)
    )

    def share(part, found):
        return part(found)[0].noise.sum() / found.activations[0].noise.sum()

    for part in (lambda f: f.producers, lambda f: f.consumers):
        assert share(part, averaged) > 10 * share(part, one)


@pytest.mark.parametrize(
    ("nodes", "averages"),
    [
        ([node("Conv", "x w", "y")], False),
        ([node("Conv", "x w", "a"), node("GlobalAveragePool", "a", "y")], True),
        ([node("Conv", "x w", "a"), node("ReduceMean", "a", "y", axes=[2, 3], keepdims=0)], True),
    ],
)
def test_outputs_without_positions_are_averages(nodes, averages: bool) -> None:
    assert averages_positions(chain(*nodes, w=(4, 3, 1, 1)).graph) is averages


@pytest.mark.parametrize(("per_channel", "count"), [(False, 1), (True, 0)])
def test_producers_with_a_scale_for_each_channel_take_a_factor_for_nothing(
    per_channel: bool, count: int
) -> None:
    group = _group()
    found = NoiseOfGroups([group], _sizes(group), Levels(per_channel=per_channel))

    assert len(found.of(group, np.ones(4)).producers) == count


def test_squares_of_some_outputs_at_a_time_are_those_of_all(monkeypatch) -> None:
    rng = np.random.default_rng(5)
    kernel = rng.standard_normal((2, 7, 5, 3)).astype(np.float32)
    inputs, outputs = rng.random((2, 5, 1)), rng.random((2, 1, 7))
    squares = np.square(kernel.astype(np.float64)).sum(axis=3)
    for at_once in (1, 70, 1000):
        monkeypatch.setattr(group_noise, "_AT_ONCE", at_once)
        energy = group_noise._Energy(kernel)
        np.testing.assert_allclose(energy.of_outputs(inputs), squares @ inputs, rtol=1e-12)
        np.testing.assert_allclose(energy.of_inputs(outputs), outputs @ squares, rtol=1e-12)
