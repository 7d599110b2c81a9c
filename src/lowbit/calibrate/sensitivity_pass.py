"""One pass over some samples that measures the sensitivity of every tensor, by gradients."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.gradient_pass import GradientPass
from lowbit.calibrate.masked import Kept, kept_tokens, without_padding
from lowbit.calibrate.sensitivity import ROWS, SPATIAL, Sensitivity
from lowbit.calibrate.subsampling import row_step
from lowbit.graph.session import Array, Feed, session
from lowbit.graph.sharing import sharing_of
from lowbit.ops.backward_graph import BackwardGraph, known_sizes
from lowbit.ops.gradients import OutputPart
from lowbit.parallel import ordered_map

_TO_THE_END = np.iinfo(np.int64).max
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
    made = GradientPass.of(model, outputs, tensors, first)
    probe = None if made is None else _Probe.of(made)
    if made is None or probe is None or not probe.rows:
        return {}
    total: dict[str, Sensitivity] = {}
    alike = (feed for feed in itertools.chain([first], samples) if made.fits(feed))
    sharing = sharing_of(first, model)
    with session(
        made.found.model, threads=sharing.threads, optimize="all", name="the model with gradients"
    ) as running:

        def measured(item: tuple[int, Feed]) -> dict[str, Sensitivity]:
            number, feed = item
            arrays = running.run(probe.outputs, made.seeded(feed, number))
            return probe.sensitivities(arrays, kept_tokens(feed, mask))

        for of_sample in ordered_map(measured, enumerate(alike), min(sharing.samples, _AT_ONCE)):
            total = {name: total[name] | s for name, s in of_sample.items()} if total else of_sample
    return {name: s for name, s in total.items() if s.is_usable}


@dataclasses.dataclass(frozen=True, slots=True)
class _Probe:
    """The outputs of a model with gradients: for each tensor some rows of it and of its gradient.

    ``rows`` is how many rows each tensor has, ``outputs`` holds two names for each tensor.
    """

    rows: Mapping[str, int]
    outputs: Sequence[str]

    @classmethod
    def of(cls, made: GradientPass) -> _Probe:
        """Make these tensors outputs of the model. Changes the model."""
        found = made.found
        graph = found.model.graph
        values = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
        rows: dict[str, int] = {}
        shown: list[ir.Value] = []
        for name, gradient in found.gradients.items():
            sizes = known_sizes(values[name]) or []
            step, rows[name] = 1, 1
            if len(sizes) == SPATIAL and None not in sizes[1:]:
                whole = [size or 1 for size in sizes]
                step, rows[name] = row_step([1, *whole[1:]]), whole[ROWS]
            shown += [
                _subsampled(found.backward, value, step) for value in (values[name], gradient)
            ]
        return cls(rows, made.read(shown))

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
