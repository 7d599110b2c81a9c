"""Whether onnxruntime has fast kernels for what a plan quantizes."""

from __future__ import annotations

from lowbit.config.specs import IntegerSpec
from lowbit.planning.plan import Plan
from lowbit.targets.builtin import ONNXRUNTIME

_FAST = "U8S8_PERCHANNEL"


def slow_kernels(plan: Plan) -> str:
    """Return what is slow about most activations in onnxruntime on x86 CPUs; nothing if they are fast."""
    formats = [t.spec.format for t in plan.activations() if isinstance(t.spec, IntegerSpec)]
    slow = [each for each in formats if each not in ONNXRUNTIME.fast_formats]
    if 2 * len(slow) <= len(formats):
        return ""
    fast = " and ".join(each.value for each in ONNXRUNTIME.fast_formats)
    return (
        f"mostly slower than float in onnxruntime on x86 CPUs, whose fast kernels read {fast}, not "
        f"{slow[0].value}; the preset that is fast there is {_FAST}"
    )
