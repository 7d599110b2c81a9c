"""Ranges and channel means that the graph itself takes.

Of a feature map that a Relu bounds from below, its range and its channel means are all that some
methods need. Two pooling nodes give both while the map is still in the cache; to hand the whole
map out costs more than to compute it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.channels import ChannelSums
from lowbit.calibrate.statistics import TensorStats
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import FloatArray

_HIGHEST, _MEAN = "lowbit/highest", "lowbit/mean"


@dataclasses.dataclass(frozen=True, slots=True)
class Pools:
    """The largest value and the mean of each channel of one sample, over so many positions."""

    highest: FloatArray
    mean: FloatArray
    positions: int

    @property
    def nbytes(self) -> int:
        """The size of what was pooled."""
        return self.highest.nbytes * self.positions

    def stats(self, floor: float) -> TensorStats:
        """Return the range, whose lower end is known.

        Pooling may lose a value that is not finite, averaging does not: a channel with one counts
        as not finite altogether.
        """
        good = np.isfinite(self.mean) & np.isfinite(self.highest)
        count = int(good.sum()) * self.positions
        broken = self.highest.size * self.positions - count
        if count == 0:
            return TensorStats(0.0, 0.0, 0, broken)
        return TensorStats(floor, float(self.highest[good].max()), count, broken)

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


def add_pools(graph: ir.Graph, names: Mapping[str, int]) -> None:
    """Make the pools of the named values outputs of a graph, which is changed."""
    wanted = [v for node in graph for v in node.outputs if v.name in names]
    for value in wanted:
        name = tensor_name(value)
        for op_type, output in zip(
            ("GlobalMaxPool", "GlobalAveragePool"), pools_of(name), strict=True
        ):
            node = ir.node(op_type, [value], name=output)
            node.outputs[0].name = output
            node.outputs[0].dtype = ir.DataType.FLOAT
            graph.append(node)
            graph.outputs.append(node.outputs[0])


def pools_of(name: str) -> tuple[str, str]:
    """Return what the pools of a value are called."""
    return f"{name}/{_HIGHEST}", f"{name}/{_MEAN}"
