"""Whether onnxruntime has fast kernels for what a plan quantizes."""

from __future__ import annotations

from lowbit.config.specs import IntegerSpec
from lowbit.planning.plan import Plan
from lowbit.targets.builtin import ONNXRUNTIME

_FAST = "U8S8_PERCHANNEL"


def slow_kernels(plan: Plan) -> str:
    """Return what is slow about most activations in onnxruntime on x86 CPUs; nothing if they are fast."""
    formats = [t.spec.format for t in plan.activations() if isinstance(t.spec, IntegerSpec)]
    slow = sum(each not in ONNXRUNTIME.fast_formats for each in formats)
    if 2 * slow <= len(formats):
        return ""
    return f"slow on x86 CPUs: there take {_FAST}"
