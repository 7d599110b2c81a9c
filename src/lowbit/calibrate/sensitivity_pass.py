"""One pass over some samples that measures the sensitivity of every tensor, by gradients."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.masked import Kept, kept_tokens, without_padding
from lowbit.calibrate.sensitivity import ROWS, SPATIAL, Sensitivity
from lowbit.calibrate.subsampling import row_step
from lowbit.graph.onnx_passes import infer_anew
from lowbit.graph.session import Array, Feed, session
from lowbit.graph.sharing import sharing_of
from lowbit.ops.backward_graph import BackwardGraph, known_sizes
from lowbit.ops.gradients import SEEDS, OutputPart, WithGradients, with_gradients
from lowbit.parallel import ordered_map

_TO_THE_END = np.iinfo(np.int64).max
# Activations of a sample are held with their gradients: of more numbers than this they take too much memory.
_LARGE = 1 << 25
# So they are of two samples at most.
_AT_ONCE = 2


def collect_sensitivity(
    model: ir.Model,
    tensors: Collection[str],
    outputs: Sequence[OutputPart],
    feeds: Iterable[Feed],
    mask: str = "",
) -> dict[str, Sensitivity]:
    """Return the sensitivity of those ``tensors`` whose gradients are known, over all samples.

    Networks with very large feature maps have none: gradients would need too much memory.

    ``outputs`` are the tensors whose error counts. ``mask``: the input that says which tokens count.
    """
    samples = iter(feeds)
    first = next(samples, None)
    if first is None:
        return {}
    model, shapes = _of_shape(model, first)
    if _activations(model) > _LARGE:
        return {}
    found = with_gradients(model, outputs, tensors)
    probe = _Probe.of(found)
    if not probe.rows:
        return {}
    total: dict[str, Sensitivity] = {}
    alike = (feed for feed in itertools.chain([first], samples) if _fits(feed, shapes))
    sharing = sharing_of(first)
    with session(
        found.model, threads=sharing.threads, optimize="all", name="the model with gradients"
    ) as running:

        def measured(item: tuple[int, Feed]) -> dict[str, Sensitivity]:
            number, feed = item
            arrays = running.run(probe.outputs, {**feed, **_signs(found, number)})
            return probe.sensitivities(arrays, kept_tokens(feed, mask))

        for of_sample in ordered_map(measured, enumerate(alike), min(sharing.samples, _AT_ONCE)):
            total = {name: total[name] | s for name, s in of_sample.items()} if total else of_sample
    return {name: s for name, s in total.items() if s.is_usable}


def _activations(model: ir.Model) -> int:
    """Return how many numbers the activations of one sample have, as far as sizes are known."""
    return sum(
        math.prod(size for size in value.shape if isinstance(size, int))
        for node in model.graph
        for value in node.outputs
        if value.shape is not None
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Probe:
    """The outputs of a model with gradients: for each tensor some rows of it and of its gradient.

    ``rows`` is how many rows each tensor has, ``outputs`` holds two names for each tensor.
    """

    rows: Mapping[str, int]
    outputs: Sequence[str]

    @classmethod
    def of(cls, found: WithGradients) -> _Probe:
        """Make these tensors outputs of the model. Changes the model."""
        graph = found.model.graph
        values = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
        rows: dict[str, int] = {}
        outputs: list[str] = []
        graph.outputs.clear()
        for name, gradient in found.gradients.items():
            sizes = known_sizes(values[name]) or []
            step, rows[name] = 1, 1
            if len(sizes) == SPATIAL and None not in sizes[1:]:
                whole = [size or 1 for size in sizes]
                step, rows[name] = row_step([1, *whole[1:]]), whole[ROWS]
            for value in (values[name], gradient):
                shown = _subsampled(found.backward, value, step)
                shown.dtype = ir.DataType.FLOAT
                graph.outputs.append(shown)
                outputs.append(str(shown.name))
        return cls(rows, outputs)

    def sensitivities(self, arrays: Sequence[Array], kept: Kept | None) -> dict[str, Sensitivity]:
        """Return the sensitivity of each tensor on one sample."""
        shown = iter([without_padding(array, kept) for array in arrays])
        return {
            name: Sensitivity.of(next(shown), next(shown), rows) for name, rows in self.rows.items()
        }


def _subsampled(to: BackwardGraph, value: ir.Value, step: int) -> ir.Value:
    """Return every ``step``-th row of a feature map."""
    if step == 1:
        return to.node("Identity", value)
    first, last, axis, steps = (
        to.integers(number) for number in (step // 2, _TO_THE_END, ROWS, step)
    )
    return to.node("Slice", value, first, last, axis, steps)


def _signs(found: WithGradients, number: int) -> dict[str, Array]:
    """Return random signs: different for each output and sample, the same in every run."""
    return {
        str(seed.name): np.random.default_rng((number, index)).choice(
            np.array([-1, 1], np.float32), SEEDS
        )
        for index, seed in enumerate(found.seeds.values())
    }


def _of_shape(model: ir.Model, feed: Feed) -> tuple[ir.Model, dict[str, tuple[int, ...]]]:
    """Return the model with image inputs fixed to the sizes of ``feed``: gradients of convolutions need them.

    The second value is the shapes that other feeds must have; inputs not in it may have any shape.
    """
    shapes = {
        str(value.name): np.shape(feed[str(value.name)])
        for value in model.graph.inputs
        if value.name in feed and None in (known_sizes(value) or [])[1:]
    }
    if not any(len(shape) == SPATIAL for shape in shapes.values()):
        return model, {}
    model = model.clone()
    for value in model.graph.inputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[value.name])
    infer_anew(model)
    return model, shapes


def _fits(feed: Feed, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return all(np.shape(feed[name]) == shape for name, shape in shapes.items())
