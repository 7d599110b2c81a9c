"""Observers: what each method asks for, and what is gathered sample by sample."""

from __future__ import annotations

import concurrent.futures
import dataclasses

import numpy as np
import pytest

from lowbit.calibrate.channels import channel_sums
from lowbit.calibrate.observers import (
    Observer,
    ObserverSpec,
    OrderedObserver,
    observer_of,
)
from lowbit.calibrate.pooled import Pools
from lowbit.calibrate.statistics import TensorStats
from lowbit.calibrate.subsampling import subsampled
from lowbit.config.methods import (
    Distribution,
    Entropy,
    LayerwisePercentile,
    Method,
    MinMax,
    MinMse,
    NonOverflow,
    OutputMse,
    Percentile,
)
from lowbit.config.specs import IntegerSpec
from lowbit.errors import CalibrationError, ConfigError
from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.extension.methods import (
    GrowingObserver,
    QuarkEntropy,
    QuarkLayerwisePercentile,
    QuarkMinMse,
    QuarkPercentile,
)
from lowbit.scales.density import Density
from lowbit.scales.ranges import params_of


@dataclasses.dataclass(frozen=True)
class Trail:
    """Statistics of a method's own: the largest values of samples in their order."""

    largest: tuple[float, ...]

    def add(self, x: np.ndarray) -> Trail:
        return Trail((*self.largest, float(x.max())))


@dataclasses.dataclass(frozen=True)
class TrailObserver:
    name: str = "trail"

    def start(self, x: np.ndarray) -> Trail:
        return Trail((float(x.max()),))


@pytest.mark.parametrize(
    ("method", "spec"),
    [
        (MinMax(), ObserverSpec()),
        (MinMax(moving_average=0.1), ObserverSpec(average=0.1)),
        (MinMax(moving_average="mean"), ObserverSpec(average="mean")),
        (NonOverflow(), ObserverSpec()),
        (Percentile(), ObserverSpec(histogram=True)),
        (LayerwisePercentile(), ObserverSpec(histogram=True)),
        (Entropy(), ObserverSpec(histogram=True)),
        (Distribution(), ObserverSpec(histogram=True)),
        (MinMse(), ObserverSpec(histogram=True)),
        (QuarkPercentile(), ObserverSpec(custom=GrowingObserver(2048, "absolute"))),
        (
            QuarkPercentile(symmetric_range=False, bins=64),
            ObserverSpec(custom=GrowingObserver(64, "symmetric")),
        ),
        (QuarkLayerwisePercentile(), ObserverSpec(custom=GrowingObserver(2048, "absolute"))),
        (QuarkEntropy(), ObserverSpec(custom=GrowingObserver(128, "symmetric"))),
        (QuarkMinMse(), ObserverSpec(custom=GrowingObserver(2048, "signed"))),
    ],
    ids=lambda value: str(value) if isinstance(value, Method) else "",
)
def test_every_method_says_what_it_observes(method: Method, spec: ObserverSpec) -> None:
    assert observer_of(method) == spec


def test_a_method_for_weights_observes_nothing() -> None:
    with pytest.raises(ConfigError, match=r"method output is for weights.*take mse"):
        observer_of(OutputMse())


def test_what_methods_observe_of_one_tensor_adds_up() -> None:
    custom = ObserverSpec(custom=TrailObserver())
    average = ObserverSpec(average=0.1, channel_axis=1)

    both = custom | average | ObserverSpec(histogram=True, variances=True)

    assert both == ObserverSpec(
        histogram=True, custom=TrailObserver(), average=0.1, channel_axis=1, variances=True
    )
    assert custom | ObserverSpec(custom=TrailObserver()) == custom
    with pytest.raises(CalibrationError, match=r"two kinds.*'trail'.*'other'.*the same method"):
        _ = custom | ObserverSpec(custom=TrailObserver("other"))


def test_custom_statistics_and_averages_depend_on_the_order() -> None:
    assert ObserverSpec(custom=TrailObserver()).ordered
    assert ObserverSpec(average=0.0).ordered
    assert not ObserverSpec(histogram=True, channel_axis=1, variances=True).ordered


def test_only_what_pools_tell_is_pooled() -> None:
    assert ObserverSpec(floor=0.0).pools
    assert ObserverSpec(floor=0.0, channel_axis=1).pools
    assert ObserverSpec(channel_axis=1).pools
    assert not ObserverSpec(floor=0.0, channel_axis=2).pools
    assert not ObserverSpec(floor=0.0, histogram=True).pools
    assert not ObserverSpec(floor=0.0, variances=True).pools
    assert not ObserverSpec(floor=0.0, average=0.1).pools
    assert not ObserverSpec(floor=0.0, custom=TrailObserver()).pools


def _samples(count: int = 12) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [(rng.normal(size=(2, 3, 7)) * (k + 1)).astype(np.float32) for k in range(count)]


@pytest.mark.parametrize("kind", [Observer, OrderedObserver])
def test_the_statistics_are_those_of_all_samples(kind: type[Observer]) -> None:
    samples = _samples()
    observer = kind({"t": ObserverSpec(histogram=True)})

    for x in samples:
        observer.add("t", x)

    whole = TensorStats.of(np.concatenate(samples), histogram=True)
    found = observer.result()["t"]
    assert (found.low, found.high, found.count) == (whole.low, whole.high, whole.count)
    np.testing.assert_array_equal(found.counts, whole.counts)


def test_threads_in_any_order_give_the_same() -> None:
    samples = _samples(40)
    observer = Observer({"t": ObserverSpec(histogram=True)})

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda x: observer.add("t", x), samples))

    whole = TensorStats.of(np.concatenate(samples), histogram=True)
    found = observer.result()["t"]
    assert (found.low, found.high, found.count) == (whole.low, whole.high, whole.count)
    np.testing.assert_array_equal(found.counts, whole.counts)


def test_means_and_variances_of_channels_are_numpys() -> None:
    samples = _samples()
    observer = Observer({"t": ObserverSpec(channel_axis=1, variances=True)})

    for x in samples:
        observer.add("t", x)
        observer.add_channels({"t": channel_sums(x, 1, squares=True)})

    found, everything = observer.result()["t"], np.concatenate(samples).astype(np.float64)
    np.testing.assert_allclose(found.channels, everything.mean(axis=(0, 2)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.variances, everything.var(axis=(0, 2)), rtol=1e-4)
    assert found.totals.positions == everything.size // 3


def test_pools_are_taken_over_with_the_known_floor() -> None:
    observer = Observer({"t": ObserverSpec(floor=0.0)})
    peak, mean = (np.full((1, 2, 1, 1), v, np.float32) for v in (5.0, 1.0))

    observer.add_pools("t", Pools(peak, mean, positions=16))
    observer.add_pools("t", Pools(peak + 1, mean, positions=16))

    found = observer.result()["t"]
    assert (found.low, found.high, found.count) == (0.0, 6.0, 64)


def test_custom_statistics_see_the_samples_in_order() -> None:
    samples = _samples(4)
    observer = OrderedObserver({"t": ObserverSpec(custom=TrailObserver(), histogram=True)})

    for x in samples:
        observer.add("t", x)

    found = observer.result()["t"]
    assert found.custom == Trail(tuple(float(x.max()) for x in samples))
    assert found.high == max(float(x.max()) for x in samples)
    assert found.counts is not None
    assert found.counts.sum() == found.count == sum(x.size for x in samples)


def test_custom_statistics_see_infinities_as_the_extremes() -> None:
    x = np.array([1.0, np.inf, -np.inf, -3.0, np.nan], np.float32)
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Spy:
        def start(self, values: np.ndarray) -> Trail:
            seen.extend(values.tolist())
            return Trail(())

    observer = OrderedObserver({"t": ObserverSpec(custom=Spy())})

    observer.add("t", x)

    assert seen == [1.0, 1.0, -3.0, -3.0, 0.0]
    assert observer.result()["t"].not_finite == 3


@pytest.mark.parametrize("average", [0.25, "mean"])
def test_averages_of_ranges(average: float | str) -> None:
    samples = _samples(5)
    observer = OrderedObserver({"t": ObserverSpec(average=average)})

    for x in samples:
        observer.add("t", x)

    lows, highs = ([float(f(x)) for x in samples] for f in (np.min, np.max))
    if average == "mean":
        expected = (np.mean(lows), np.mean(highs))
    else:
        # By hand: the first counts (1 - c)^4, each later one c (1 - c)^(4 - k).
        shares = [0.75**4, *(0.25 * 0.75 ** (4 - k) for k in range(1, 5))]
        expected = (np.dot(shares, lows), np.dot(shares, highs))
    assert observer.result()["t"].average == pytest.approx(expected)


def test_empty_samples_of_ordered_methods_change_nothing() -> None:
    observer = OrderedObserver({"t": ObserverSpec(custom=TrailObserver())})

    observer.add("t", np.zeros((0, 3), np.float32))
    observer.add("t", np.array([1.0, 2.0], np.float32))
    observer.add("t", np.zeros((0, 3), np.float32))

    assert observer.result()["t"].count == 2
    assert observer.result()["t"].custom == Trail((2.0,))


def test_large_samples_are_subsampled_alike_in_any_batch() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 512, 512)).astype(np.float32)

    some = subsampled(x)

    assert some.shape[:2] == x.shape[:2]
    assert 4 <= some.shape[2] < x.shape[2] // 2
    np.testing.assert_array_equal(
        some, np.concatenate([subsampled(x[k : k + 1]) for k in range(3)])
    )
    small = x[:, :, :16, :16]
    assert subsampled(small) is small


def test_subsampling_leaves_the_range_and_the_shape_of_the_distribution() -> None:
    x = np.random.default_rng(0).normal(size=(1, 8, 256, 256)).astype(np.float32)
    x[0, 3, 100, 7] = 50.0
    observer = Observer({"t": ObserverSpec(histogram=True)})

    observer.add("t", x)

    stats = observer.result()["t"]
    assert (stats.low, stats.high) == (x.min(), 50.0)
    quantiles = [Density.of(stats).quantile(f) for f in (0.01, 0.5, 0.9)]
    np.testing.assert_allclose(quantiles, np.quantile(x, (0.01, 0.5, 0.9)), atol=0.05)


def test_rows_without_a_finite_value_leave_the_range_to_decide() -> None:
    x = np.full((1, 8, 256, 256), np.nan, np.float32)
    x[0, 0, 0, 0] = 3.0  # the first row is never among those taken
    observer = Observer({"t": ObserverSpec(histogram=True)})

    observer.add("t", x)

    stats = observer.result()["t"]
    spec = IntegerSpec(format=IntegerFormat.INT8, method=MinMse())
    assert (stats.high, stats.count) == (3.0, 1)
    assert float(params_of(stats, spec, "t").scale) == pytest.approx(3 / 127)


def test_samples_that_are_not_finite_do_not_spoil_the_means() -> None:
    observer = Observer({"t": ObserverSpec(channel_axis=1)})
    observer.add("t", np.ones((1, 2, 3), np.float32))

    for fill in (np.inf, 1.0, np.nan):
        observer.add_channels({"t": channel_sums(np.full((1, 2, 3), fill, np.float32), 1)})

    means = observer.result()["t"].channels
    assert means is not None
    assert means.tolist() == [1.0, 1.0]
