"""Ranges and channel means that the graph itself takes.

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
from lowbit.calibrate.subsampling import row_step
from lowbit.graph.editing import insert_after_source
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import FloatArray

_HIGHEST, _MEAN, _ROWS = "lowbit/highest", "lowbit/mean", "lowbit/rows"
_LOWEST = "lowbit/lowest"
_SPATIAL, _AXES_AS_INPUT = (2, 3), 18
# Numbers of one sample's map from which on it is not handed out as a whole.
_LARGE = 1 << 17
_TO_THE_END = np.iinfo(np.int64).max
# Channels of a block in onnxruntime are 8 or 16, by processor.
_BLOCK = 16


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


def poolable(graph: ir.Graph) -> dict[str, int]:
    """Return the positions of each channel of the feature maps whose size is known."""
    found: dict[str, int] = {}
    for node in graph:
        for value in node.outputs:
            # Sizes that differ from sample to sample would weigh the means.
            if value.dtype != ir.DataType.FLOAT or value.shape is None or len(value.shape) != 4:
                continue
            height, width = value.shape[2], value.shape[3]
            if isinstance(height, int) and isinstance(width, int) and height * width:
                found[tensor_name(value)] = height * width
    return found


def large_maps(graph: ir.Graph) -> frozenset[str]:
    """Return the feature maps of known size that take megabytes."""
    names = poolable(graph)
    values = (value for node in graph for value in node.outputs if value.name in names)
    return frozenset(tensor_name(v) for v in values if math.prod(_of_one(v) or [0]) >= _LARGE)


def heavy_maps(graph: ir.Graph) -> frozenset[str]:
    """Return the feature maps that take megabytes or, their size not being known, may do so."""
    maps = {
        tensor_name(value)
        for node in graph
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT and value.shape is not None and len(value.shape) == 4
    }
    return frozenset(maps - poolable(graph).keys()) | large_maps(graph)


def add_pools(
    graph: ir.Graph, names: Mapping[str, int], unbounded: Collection[str] = frozenset()
) -> None:
    """Make the pools of the named values outputs of a graph, which is changed.

    Of those ``unbounded`` the smallest values are pooled as well.
    """
    wanted = [v for node in graph for v in node.outputs if v.name in names]
    for value in wanted:
        name = tensor_name(value)
        highest, mean = pools_of(name)
        _add_output(graph, value, ir.node("GlobalMaxPool", [value], name=highest))
        _add_output(graph, value, ir.node("GlobalAveragePool", [value], name=mean))
        if name in unbounded:
            _add_output(graph, value, _smallest(graph, value, lowest_of(name)))


def _smallest(graph: ir.Graph, value: ir.Value, name: str) -> ir.Node:
    """Return a node that gives the smallest number of each channel."""
    if graph.opset_imports.get("", 0) < _AXES_AS_INPUT:
        return ir.node("ReduceMin", [value], {"axes": _SPATIAL}, name=name)
    return ir.node("ReduceMin", [value, _constant(graph, f"{name}/axes", *_SPATIAL)], name=name)


def _add_output(graph: ir.Graph, value: ir.Value, node: ir.Node) -> None:
    """Put a node after what computes a value, and its output beside those of the graph."""
    found = node.outputs[0]
    found.name, found.dtype = node.name, ir.DataType.FLOAT
    insert_after_source(graph, value, node)
    graph.outputs.append(found)


def look_early(graph: ir.Graph, given: int) -> None:
    """Put what computes all outputs after the ``given`` ones where onnxruntime runs it early.

    With channels in blocks it makes new nodes, and runs them as they were made: depth first from the nodes
    that nothing reads, the last of the file first. So what looks at the first map goes last. Right after
    its map, it would be made, and run, after all the rest, and all maps would wait in memory. Changes ``graph``.
    """
    sizes = poolable(graph)
    ends = [v for v in graph.outputs[:given] if not v.uses() and v.name in sizes]
    # An activation that nothing reads becomes one with its layer, and that comes last in the file.
    add_pools(graph, {tensor_name(value): sizes[tensor_name(value)] for value in ends})
    looking = {value.producer() for value in graph.outputs[given:]}
    nodes = [node for node in graph if node in looking]
    graph.remove(nodes)
    graph.extend(reversed(nodes))


def thinnable(graph: ir.Graph) -> dict[str, int]:
    """Return how far apart the rows are that stand for a map, of those for which some will do."""
    names = poolable(graph)
    values = (value for node in graph for value in node.outputs if value.name in names)
    steps = {tensor_name(value): row_step(_of_one(value)) for value in values}
    return {name: step for name, step in steps.items() if step > 1}


def _of_one(value: ir.Value) -> list[int]:
    """Return the shape of a map for a batch of one; no size at all if channels are not known."""
    sizes = [] if value.shape is None else [size for size in value.shape if isinstance(size, int)]
    return [1, *sizes[-3:]] if len(sizes) >= 3 else []


def add_rows(graph: ir.Graph, steps: Mapping[str, int], *, in_blocks: bool = False) -> None:
    """Make some rows of the named maps outputs of a graph, which is changed.

    ``in_blocks``: whether onnxruntime will have maps with their channels in blocks. To slice one it would
    bring the whole map into the usual order; a convolution of every channel by itself picks the rows first.
    """
    wanted = [v for node in graph for v in node.outputs if v.name in steps]
    for value in wanted:
        output, step = rows_of(tensor_name(value)), steps[tensor_name(value)]
        channels = None if value.shape is None else value.shape[1]
        if in_blocks and isinstance(channels, int) and channels % _BLOCK == 0:
            node = _picked(graph, value, output, step, channels)
        else:
            node = _sliced(graph, value, output, step)
        _add_output(graph, value, node)


def _sliced(graph: ir.Graph, value: ir.Value, output: str, step: int) -> ir.Node:
    numbers = {"start": step // 2, "end": _TO_THE_END, "axis": 2, "step": step}
    constants = [_constant(graph, f"{output}/{k}", v) for k, v in numbers.items()]
    return ir.node("Slice", [value, *constants], name=output)


def _picked(graph: ir.Graph, value: ir.Value, output: str, step: int, channels: int) -> ir.Node:
    """Return a convolution that gives the same rows: one of every ``step`` counts once, the others not."""
    kernel = np.zeros((channels, 1, step, 1), np.float32)
    kernel[:, :, step // 2] = 1
    name = f"{output}/kernel"
    weight = ir.Value(name=name, const_value=ir.tensor(kernel, name=name))
    graph.initializers[name] = weight
    attributes = {
        "group": channels,
        "kernel_shape": (step, 1),
        "strides": (step, 1),
        # The last rows may be fewer than a step.
        "pads": (0, 0, step - 1 - step // 2, 0),
    }
    return ir.node("Conv", [value, weight], attributes, name=output)


def _constant(graph: ir.Graph, name: str, *numbers: int) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.tensor(np.array(numbers, np.int64), name=name))
    graph.initializers[name] = value
    return value


def rows_of(name: str) -> str:
    """Return what the rows of a value are called."""
    return f"{name}/{_ROWS}"


def lowest_of(name: str) -> str:
    """Return what the smallest numbers of a value are called."""
    return f"{name}/{_LOWEST}"


def pools_of(name: str) -> tuple[str, str]:
    """Return what the pools of a value are called."""
    return f"{name}/{_HIGHEST}", f"{name}/{_MEAN}"
