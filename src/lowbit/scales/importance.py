"""What errors in the weights of a layer do to its output.

Errors d in the weights of one output, whose inputs have means m and variances v, shift its mean by
sum(d m) and add sum(d^2 v) to its variance. The shift is what hurts most behind a Relu, where all
means are positive and errors do not cancel; bias correction takes it off, if there is one.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.methods import OutputMse
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.formats import FloatArray
from lowbit.ops.traits import traits_of
from lowbit.planning.plan import Plan
from lowbit.scales.parameters import constant_values


@dataclasses.dataclass(frozen=True, slots=True)
class Importance:
    """Variance and mean of the input that each weight multiplies, in the weight's shape.

    ``axis`` is where outputs lie. Means of zero count every error by itself.
    """

    variances: FloatArray
    means: FloatArray
    axis: int

    def rows(self, array: FloatArray) -> FloatArray:
        """Return an array like the weight as one row for each output."""
        return np.moveaxis(array, self.axis, 0).reshape(array.shape[self.axis], -1)

    def of_rows(self, step: int = 1) -> Importance:
        """Return that of the weight's rows, or of every so-manyth."""
        variances, means = (self.rows(a)[::step] for a in (self.variances, self.means))
        return Importance(variances, means, 0)

    def row(self, index: int) -> Importance:
        """Return that of one row."""
        part = slice(index, index + 1)
        return Importance(self.variances[part], self.means[part], 0)

    def error(self, difference: FloatArray) -> FloatArray:
        """Return the expected squared error of each output."""
        rows = self.rows(difference)
        spread = np.einsum("ij,ij,ij->i", rows, rows, self.rows(self.variances))
        shift = np.einsum("ij,ij->i", rows, self.rows(self.means))
        return np.asarray(spread + shift * shift, np.float32)

    @property
    def alone(self) -> FloatArray:
        """What the square of an error counts by, with no others beside it."""
        return self.variances + np.square(self.means)

    def beside(self, other: Importance) -> Importance:
        """Return that of a weight which two layers use: errors count by themselves."""
        both = self.alone + other.alone
        return Importance(both, np.zeros_like(both), self.axis)


def weight_importance(model: ir.Model, plan: Plan, stats: Stats) -> dict[str, Importance]:
    """Return the importance of each weight that asks for it."""
    nodes = {node.name: node for node in model.graph}
    asking = {
        t.name
        for t in plan.weights()
        if isinstance(t.spec, IntegerSpec) and isinstance(t.spec.method, OutputMse)
    }
    found: dict[str, Importance] = {}
    for row in plan.biases:
        known = stats.tensors.get(row.input)
        if row.weight not in asking or known is None:
            continue
        if known.variances is None or known.channels is None:
            continue
        shape = constant_values(model, row.weight).shape
        variances, means = (a.astype(np.float32) for a in (known.variances, known.channels))
        new = _importance(nodes[row.node], variances, means, shape)
        if new is not None:
            old = found.get(row.weight)
            found[row.weight] = new if old is None else old.beside(new)
    return {name: known for name, known in found.items() if float(known.alone.max()) > 0}


def _importance(
    node: ir.Node, variances: FloatArray, means: FloatArray, shape: tuple[int, ...]
) -> Importance | None:
    spread, middle = (_spread(node, a, shape) for a in (variances, means))
    traits = traits_of(node)
    if spread is None or middle is None or traits is None:
        return None
    known = Importance(spread, middle, traits.channel_axis(node) % len(shape))
    if node.op_type == "ConvTranspose":
        # Which taps meet in one output depends on strides and pads.
        return Importance(known.alone, np.zeros_like(middle), known.axis)
    return known


def _spread(node: ir.Node, values: FloatArray, shape: tuple[int, ...]) -> FloatArray | None:
    """Return what belongs to the channel that each weight multiplies."""
    match node.op_type:
        case "Conv":
            group = node.attributes.get_int("group", 1)
            seen = np.repeat(values.reshape(group, -1), shape[0] // group, axis=0)
            seen = seen.reshape(*shape[:2], *(1,) * (len(shape) - 2))
        case "ConvTranspose":
            seen = values.reshape(-1, *(1,) * (len(shape) - 1))
        case "Gemm":
            across = node.attributes.get_int("transB", 0)
            seen = values[None, :] if across else values[:, None]
        case _:
            return None
    return np.asarray(np.broadcast_to(seen, shape), np.float32)
