"""Ranges and channel means that are computed inside the graph.

Of a feature map that a Relu bounds from below, its range and its channel means are all that some
methods need. Two pooling nodes give both while the map is still in the cache; to hand the whole
map out costs more than to compute it. Large maps that nothing bounds are pooled too, their smallest
values with one more node: all of them together would not fit into memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.channels import ChannelSums
from lowbit.calibrate.statistics import TensorStats
from lowbit.calibrate.subsampling import map_steps, row_step
from lowbit.graph.editing import typed_lists
from lowbit.graph.naming import tensor_name
from lowbit.graph.pooling import BLOCK, add_numbers, add_output, poolable, size_of_one
from lowbit.numerics.formats import FloatArray

_ROWS = "lowbit/rows"
_TO_THE_END = np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True, slots=True)
class Pools:
    """The largest value and the mean of each channel of one sample, over so many positions.

    ``lowest`` is the smallest one, where none is known.
    """

    highest: FloatArray
    mean: FloatArray
    positions: int
    lowest: FloatArray | None = None

    @property
    def nbytes(self) -> int:
        """The size of what was pooled."""
        return self.highest.nbytes * self.positions

    def stats(self, floor: float) -> TensorStats:
        """Return the range, whose lower end is ``floor`` if it was not pooled.

        Pooling may lose a value that is not finite, averaging does not: a channel with one counts
        as not finite altogether.
        """
        highest, total = float(self.highest.max(initial=-math.inf)), float(self.mean.sum())
        lowest = floor if self.lowest is None else float(self.lowest.min(initial=math.inf))
        if math.isfinite(highest) and math.isfinite(lowest) and math.isfinite(total):
            return TensorStats(lowest, highest, self.highest.size * self.positions)
        return self._stats_of_finite(floor)

    def _stats_of_finite(self, floor: float) -> TensorStats:
        good = np.isfinite(self.mean) & np.isfinite(self.highest)
        if self.lowest is not None:
            good &= np.isfinite(self.lowest)
        count = int(good.sum()) * self.positions
        broken = self.highest.size * self.positions - count
        if count == 0:
            return TensorStats(0.0, 0.0, 0, broken)
        lowest = floor if self.lowest is None else float(self.lowest[good].min())
        return TensorStats(lowest, float(self.highest[good].max()), count, broken)

    def sums(self) -> ChannelSums:
        """Return the sum of each channel."""
        batch, channels = self.mean.shape[:2]
        means = self.mean.reshape(batch, channels).sum(axis=0)
        return means * self.positions, None, batch * self.positions


def map_row_steps(graph: ir.Graph) -> dict[str, int]:
    """Return how far apart the rows are that stand for a map, of those for which some will do."""
    names = poolable(graph)
    values = (value for node in graph for value in node.outputs if value.name in names)
    steps = {tensor_name(value): row_step(size_of_one(value)) for value in values}
    return {name: step for name, step in steps.items() if step > 1}


def add_rows(graph: ir.Graph, steps: Mapping[str, int]) -> None:
    """Make some rows of the named maps outputs of a graph, which is changed."""
    for value in _values(graph, steps):
        node = _sliced(graph, value, rows_of(tensor_name(value)), (steps[tensor_name(value)], 1))
        add_output(graph, value, node)


def add_positions(
    graph: ir.Graph, names: Collection[str], thin: Collection[str], *, in_blocks: bool = False
) -> None:
    """Make some positions of the named maps outputs of a graph, which is changed.

    Of those in ``thin`` as ``thinned`` takes them, of the others whole rows.

    ``in_blocks``: whether onnxruntime will have maps with their channels in blocks. To slice one it would
    bring the whole map into the usual order; a convolution of every channel by itself picks positions first.
    """
    for value in _values(graph, names):
        name, size = tensor_name(value), size_of_one(value)
        output, steps = rows_of(name), map_steps(size) if name in thin else (row_step(size), 1)
        channels = None if value.shape is None else value.shape[1]
        if in_blocks and isinstance(channels, int) and channels % BLOCK == 0:
            node = _picked(graph, value, output, steps, channels)
        else:
            node = _sliced(graph, value, output, steps)
        add_output(graph, value, node)


def _values(graph: ir.Graph, names: Collection[str]) -> list[ir.Value]:
    return [v for node in graph for v in node.outputs if v.name in names]


def _sliced(graph: ir.Graph, value: ir.Value, output: str, steps: tuple[int, int]) -> ir.Node:
    numbers = {
        "start": [step // 2 for step in steps],
        "end": [_TO_THE_END] * 2,
        "axis": [2, 3],
        "step": steps,
    }
    constants = [add_numbers(graph, f"{output}/{k}", *v) for k, v in numbers.items()]
    return ir.node("Slice", [value, *constants], name=output)


def _picked(
    graph: ir.Graph, value: ir.Value, output: str, steps: tuple[int, int], channels: int
) -> ir.Node:
    """Return a convolution that gives the same: of the positions it meets only the last one counts."""
    window = tuple(step // 2 + 1 for step in steps)
    kernel = np.zeros((channels, 1, *window), np.float32)
    kernel[:, :, -1, -1] = 1
    name = f"{output}/kernel"
    weight = ir.Value(name=name, const_value=ir.Tensor(kernel, name=name))
    graph.initializers[name] = weight
    attributes = {"group": channels, "kernel_shape": window, "strides": steps}
    return ir.node("Conv", [value, weight], typed_lists(attributes), name=output)


def rows_of(name: str) -> str:
    """Return what the rows, or positions, that stand for a value are called."""
    return f"{name}/{_ROWS}"
