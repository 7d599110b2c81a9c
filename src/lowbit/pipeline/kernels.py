"""Find kernels of x86 CPUs that are slow for a quantized model, or whose sums saturate."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.ops.linear import linear_operator
from lowbit.planning.plan import Plan
from lowbit.planning.saturation import summed_in_pairs
from lowbit.report.values import Saturation
from lowbit.scales.saturation import SummedPairs
from lowbit.state import Quantized
from lowbit.targets.builtin import ONNXRUNTIME, X86_PAIRS

_FAST = "U8S8_PERCHANNEL"


def find_saturating(state: Quantized) -> Saturation | None:
    """Return which layers can saturate on x86 without VNNI, from the integers that are stored.

    Whatever the target: models are tried out on such processors too. ``None``: no layer
    multiplies 8-bit integers.
    """
    specs = {tensor.name: tensor.spec for tensor in state.plan.tensors}
    layers = summed_in_pairs(state.adapted.graph, specs, X86_PAIRS)
    if not layers:
        return None
    found = []
    for name, readers in layers.items():
        known = [layer for _, layer in readers if not isinstance(layer, str)]
        pairs = SummedPairs(tuple(known), X86_PAIRS.pairs)
        codes = state.weights.tensors[name]()
        # Of any order, where it is not known which weights meet.
        saturates = pairs.can_saturate(codes) if known else pairs.can_saturate_somehow(codes)
        found += [str(node.name) for node, _ in readers] if saturates else []
    return Saturation(layers=sum(map(len, layers.values())), saturating=tuple(found))


def slow_kernels(plan: Plan, graph: ir.Graph) -> str:
    """Return what is slow about most activations in onnxruntime on x86 CPUs; nothing if they are fast."""
    formats = {t.name: t.integer.format for t in plan.activations() if t.spec.is_integer}
    others = _read_by_others(graph)
    fast, fast_in_products = ONNXRUNTIME.fast_formats, ONNXRUNTIME.fast_product_formats
    slow = sum(
        each not in (fast if name in others else (*fast, *fast_in_products))
        for name, each in formats.items()
    )
    if 2 * slow <= len(formats):
        return ""
    return f"slow on x86 CPUs: {_FAST} is fast"


def _read_by_others(graph: ir.Graph) -> frozenset[str]:
    """Return the tensors that are read by anything else than a product with a matrix."""
    rows = ((node, linear_operator(node)) for node in graph)
    others = (node for node, row in rows if row is None or not row.is_matrix)
    return frozenset(str(value.name) for node in others for value in node.inputs if value)
