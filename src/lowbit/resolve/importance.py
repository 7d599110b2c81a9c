"""How much an error in each weight matters to the layer's output.

An error d in a weight that multiplies input channel c adds d^2 var(x_c) to the variance of the output;
the shift of its mean is what bias correction takes off. So a scale that weighs squared errors by
the variances of the input's channels is the one of least output error.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.stats import Stats
from lowbit.config.methods import OutputMse
from lowbit.config.specs import TensorSpec
from lowbit.numerics.formats import Floats
from lowbit.plan.plan import Plan
from lowbit.resolve.values import constant_values


def weight_importance(model: ir.Model, plan: Plan, stats: Stats) -> dict[str, Floats]:
    """Return the importance of each weight that asks for it, in the weight's shape."""
    nodes = {node.name: node for node in model.graph}
    asking = {
        t.name
        for t in plan.weights()
        if isinstance(t.spec, TensorSpec) and isinstance(t.spec.method, OutputMse)
    }
    found: dict[str, Floats] = {}
    for row in plan.biases:
        node = nodes[row.node]
        known = stats.tensors.get(row.input)
        if row.weight not in asking or known is None or known.variances is None:
            continue
        shape = constant_values(model, row.weight).shape
        spread = _spread(node, known.variances.astype(np.float32), shape)
        if spread is not None:
            # A weight that several layers use matters to all of them.
            found[row.weight] = found.get(row.weight, np.float32(0)) + spread
    return {name: array for name, array in found.items() if float(array.max()) > 0}


def _spread(node: ir.Node, variances: Floats, shape: tuple[int, ...]) -> Floats | None:
    """Return the variance of the channel that each weight multiplies."""
    match node.op_type:
        case "Conv":
            group = node.attributes.get_int("group", 1)
            seen = np.repeat(variances.reshape(group, -1), shape[0] // group, axis=0)
            seen = seen.reshape(*shape[:2], *(1,) * (len(shape) - 2))
        case "ConvTranspose":
            seen = variances.reshape(-1, *(1,) * (len(shape) - 1))
        case "Gemm":
            across = node.attributes.get_int("transB", 0)
            seen = variances[None, :] if across else variances[:, None]
        case _:
            return None
    return np.asarray(np.broadcast_to(seen, shape), np.float32)
