"""How processors are shared among samples: one each, or several for a sample that takes much memory.

A sample a thread scales better than threads inside an operator. But every sample that runs at once
holds feature maps of its own, and those of a large image take hundreds of megabytes.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from lowbit.graph.session import Feed, Optimize
from lowbit.parallel import cpu_count

# Inputs of a sample above which it runs by itself, in bytes: an image of 300 x 300 in floats.
_LARGE = 1 << 20
# Size of its largest tensor above which it does as well, in bytes: some classifiers of images of 224 x 224
# have 12 MB, networks that enlarge images a hundred. Two or three of that size are there at once.
_LARGE_TENSOR = 1 << 24
# The same where a model is run a few nodes at a time.
_LARGE_TENSOR_OF_STEP = 1 << 26
_BYTES = 4
# Threads of a large sample: as many on every machine and in every worker, because onnxruntime's sums
# differ in the last bit with their number. Each more waits for the others a tenth of its time.
_THREADS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Sharing:
    """Whether samples run one by one, each on several threads, or as many at once as processors."""

    one_by_one: bool

    @property
    def samples(self) -> int:
        """How many samples run at once."""
        return max(1, cpu_count() // self.threads)

    @property
    def threads(self) -> int:
        """How many threads each has."""
        return _THREADS if self.one_by_one else 1

    def lean(self, optimize: Optimize) -> Optimize:
        """Return how a graph is optimized of which many values are looked at."""
        return "plain" if self.one_by_one and optimize == "all" else optimize


SIDE_BY_SIDE, ONE_BY_ONE = Sharing(one_by_one=False), Sharing(one_by_one=True)


def sharing_of(feed: Feed | None, *models: ir.Model) -> Sharing:
    """Return how samples like this one share the processors, while any of these models runs."""
    size = sum(np.asarray(value).nbytes for value in (feed or {}).values())
    large = size > _LARGE or any(_largest_tensor(model) > _LARGE_TENSOR for model in models)
    return Sharing(one_by_one=large)


def sharing_of_steps(whole: Sharing, model: ir.Model) -> Sharing:
    """Return how samples share the processors while a few nodes run at a time: of most, few maps are there at once.

    ``whole`` says how they do while all of the model runs.
    """
    return whole if _largest_tensor(model) > _LARGE_TENSOR_OF_STEP else SIDE_BY_SIDE


def _largest_tensor(model: ir.Model) -> int:
    """Return the bytes of one sample's largest tensor, of those whose sizes the graph says."""
    shapes = (value.shape for node in model.graph for value in node.outputs)
    return _BYTES * max((_numbers(shape) for shape in shapes if shape is not None), default=0)


def _numbers(shape: ir.Shape) -> int:
    """Return how many numbers a tensor of one sample has: none if more than the batch is not known."""
    sizes = shape.dims if shape.rank() and isinstance(shape[0], int) else shape.dims[1:]
    return math.prod(size if isinstance(size, int) else 0 for size in sizes)
