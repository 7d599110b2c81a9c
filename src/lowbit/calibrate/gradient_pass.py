"""A model with gradients, made ready to be run on samples like a given one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.graph.onnx_passes import infer_anew
from lowbit.graph.session import Feed
from lowbit.ops.backward_graph import known_sizes
from lowbit.ops.gradients import SEEDS, OutputPart, WithGradients, with_gradients

# Activations of a sample are held with their gradients: of more numbers than this they take too much memory.
_LARGE = 1 << 27
_IMAGE = 4
"""The axes of an image."""


@dataclasses.dataclass(frozen=True, slots=True)
class GradientPass:
    """A model with gradients, and the shapes that samples have to have; those of other inputs may be any."""

    found: WithGradients
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(
        cls,
        model: ir.Model,
        outputs: Sequence[OutputPart],
        tensors: Collection[str],
        feed: Feed,
    ) -> GradientPass | None:
        """Return it for samples like ``feed``; ``None`` if gradients of one take too much memory."""
        model, shapes = _of_shape(model, feed)
        if _activations(model) > _LARGE:
            return None
        return cls(with_gradients(model, outputs, tensors), shapes)

    def fits(self, feed: Feed) -> bool:
        """Whether a sample has the shapes that it has to have."""
        return all(np.shape(feed[name]) == shape for name, shape in self.shapes.items())

    def seeded(self, feed: Feed, number: int) -> Feed:
        """Return a sample with signs at random, for every output of every sample others and always the same."""
        signs = {
            str(seed.name): np.random.default_rng((number, index)).choice(
                np.array([-1, 1], np.float32), SEEDS
            )
            for index, seed in enumerate(self.found.seeds.values())
        }
        return {**feed, **signs}

    def read(self, values: Sequence[ir.Value]) -> list[str]:
        """Make float values the outputs of the model, which is changed, and return their names."""
        outputs = self.found.model.graph.outputs
        outputs.clear()
        for value in values:
            value.dtype = ir.DataType.FLOAT
            outputs.append(value)
        return [str(value.name) for value in values]


def _activations(model: ir.Model) -> int:
    """Return how many numbers the activations of one sample have, as far as sizes are known."""
    return sum(
        math.prod(size for size in value.shape if isinstance(size, int))
        for node in model.graph
        for value in node.outputs
        if value.shape is not None
    )


def _of_shape(model: ir.Model, feed: Feed) -> tuple[ir.Model, dict[str, tuple[int, ...]]]:
    """Return a model of images of any size for those of one size, which convolutions' gradients need.

    Returns the shapes that feeds have to have then; those of other inputs may be any.
    """
    shapes = {
        str(value.name): np.shape(feed[str(value.name)])
        for value in model.graph.inputs
        if value.name in feed and None in (known_sizes(value) or [])[1:]
    }
    if not any(len(shape) == _IMAGE for shape in shapes.values()):
        return model, {}
    model = model.clone()
    for value in model.graph.inputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[value.name])
    infer_anew(model)
    return model, shapes
