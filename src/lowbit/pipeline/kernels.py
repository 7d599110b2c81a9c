"""What a quantized model meets in the kernels of x86 CPUs: slow ones, and sums that saturate."""

from __future__ import annotations

from lowbit.config.specs import IntegerSpec
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


def slow_kernels(plan: Plan) -> str:
    """Return what is slow about most activations in onnxruntime on x86 CPUs; nothing if they are fast."""
    formats = [t.spec.format for t in plan.activations() if isinstance(t.spec, IntegerSpec)]
    slow = sum(each not in ONNXRUNTIME.fast_formats for each in formats)
    if 2 * slow <= len(formats):
        return ""
    return f"slow on x86 CPUs: {_FAST} is fast"
