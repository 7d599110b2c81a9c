"""Run one sample and observe its tensors."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping

from lowbit.calibrate.channels import ChannelSums, channel_sums
from lowbit.calibrate.masked import Kept, kept_tokens, without_padding
from lowbit.calibrate.observers import Observer, ObserverSpec
from lowbit.calibrate.pooled import Pools, rows_of
from lowbit.calibrate.subsampling import subsampled
from lowbit.graph.pooling import highest_of, lowest_of, mean_of
from lowbit.graph.session import Array, Feed, Session
from lowbit.numerics.formats import FloatArray


@dataclasses.dataclass(frozen=True, slots=True)
class _Sample:
    """The values of one run, in arrays that the next run of the same ``source`` overwrites."""

    arrays: Mapping[str, FloatArray]
    kept: Kept | None
    source: Callable[[Feed], list[Array]]

    @property
    def nbytes(self) -> int:
        """How much memory its values take."""
        return sum(array.nbytes for array in self.arrays.values())


class SampleRunner:
    """Runs samples and observes their tensors."""

    def __init__(
        self,
        running: Session,
        specs: Mapping[str, ObserverSpec],
        pooled: Mapping[str, int],
        observer: Observer,
        mask: str = "",
    ) -> None:
        """Take a session; ``mask`` is the input that says at which tokens tensors are observed."""
        self._mask = mask
        self._running, self._specs, self._pooled = running, specs, pooled
        self.observer = observer
        self._whole = [name for name in specs if name not in pooled]
        self._rows = {name: rows_of(name) for name in pooled if specs[name].histogram}
        pools = (out for name in pooled for out in (highest_of(name), mean_of(name)))
        self._lowest = {name: lowest_of(name) for name in pooled if specs[name].floor is None}
        self._outputs = [*self._whole, *pools, *self._lowest.values(), *self._rows.values()]
        # Each holds the tensors of a sample, so there are only as many as run at once.
        self._idle = collections.deque[Callable[[Feed], list[Array]]]()

    def run(self, feed: Feed) -> _Sample:
        """Run one sample; any number of threads may."""
        try:
            run = self._idle.pop()
        except IndexError:
            run = self._running.repeated(self._outputs)
        arrays = dict(zip(self._outputs, run(feed), strict=True))
        return _Sample(arrays, kept_tokens(feed, self._mask), run)

    def observe(self, sample: _Sample) -> int:
        """Observe one sample and let go of it; return its size."""
        whole = {name: sample.arrays[name] for name in self._whole}
        sums: dict[str, ChannelSums] = {}
        size = observe_arrays(whole, self._specs, self.observer, sample.kept)
        for name, positions in self._pooled.items():
            highest, mean = sample.arrays[highest_of(name)], sample.arrays[mean_of(name)]
            lowest = sample.arrays[self._lowest[name]] if name in self._lowest else None
            pools = Pools(highest, mean, positions, lowest)
            self.observer.add_pools(name, pools)
            size += pools.nbytes
            if name in self._rows:
                self.observer.add_rows(name, sample.arrays[self._rows[name]])
            if self._specs[name].channel_axis is not None:
                sums[name] = pools.sums()
        self.observer.add_channels(sums)
        self._idle.append(sample.source)
        return size


def observe_arrays(
    arrays: Mapping[str, FloatArray],
    specs: Mapping[str, ObserverSpec],
    observer: Observer,
    kept: Kept | None = None,
) -> int:
    """Observe tensors of one sample, at the tokens that are ``kept``; return their size."""
    size, sums = 0, dict[str, ChannelSums]()
    for name, whole in arrays.items():
        spec, array = specs[name], without_padding(whole, kept)
        observer.add(name, array)
        size += whole.nbytes
        if spec.channel_axis is not None and array.ndim > 1:
            axis = spec.channel_axis
            sums[name] = channel_sums(subsampled(array, axis), axis, squares=spec.variances)
    observer.add_channels(sums)
    return size
