"""Measure the latency of both models, and explain why the quantized one may be slower."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import onnx_ir as ir

from lowbit.files import temporary_folder
from lowbit.graph import io
from lowbit.graph.profiling import QDQ, DeployedSession
from lowbit.graph.session import Feed

_RUNS, _LONGEST = 20, 6.0
"""Runs of each model, and the seconds that all of them may take together."""

# What onnxruntime's x86 and Arm kernels do not compute in int8, and what is said about it.
_WHY: Mapping[str, str] = MappingProxyType(
    {
        "ConvTranspose": "onnxruntime has no int8 kernel for it on the CPU",
        "FusedConv": (
            "its Clip or Relu is not implied by the quantizer after it (signed symmetric integers "
            "reach below zero), so it was fused with the float convolution"
        ),
        "Clip": "the Clip is not folded into the quantizer after it",
        "HardSigmoid": "onnxruntime has no int8 kernel for it on the CPU",
        "Resize": "it is computed in float unless it only copies",
    }
)
_WIDE = "its tensors have 16 bits, for which onnxruntime has no integer kernel on the CPU"
_OTHER = "onnxruntime does not fuse the pattern of Q/DQ around it"


class Unfused(msgspec.Struct, frozen=True, kw_only=True):
    """Operators that run in float between Q/DQ that onnxruntime did not fuse."""

    op_type: str
    count: int
    why: str
    nodes: tuple[str, ...]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of both models, run in turn; medians over ``runs``."""

    float_ms: float
    quantized_ms: float
    runs: int
    threads: int
    conversion_share: float
    unfused: tuple[Unfused, ...]
    verdict: str


def measure_latency(
    reference: ir.Model, quantized: ir.Model, feed: Feed, threads: int = 0
) -> Latency:
    """Run both models in turn on one sample, as they would be deployed."""
    times: list[list[float]] = [[], []]
    with (
        io.as_file(reference) as plain,
        io.as_file(quantized) as small,
        temporary_folder() as folder,
    ):
        left, right = (DeployedSession(path, str(folder), threads) for path in (plain, small))
        for model in (left, right):
            model.run(feed)
        start = time.perf_counter()
        while len(times[0]) < _RUNS and time.perf_counter() - start < _LONGEST:
            for own, model in zip(times, (left, right), strict=True):
                own.append(model.run(feed))
        share = right.share_of(sorted(QDQ), feed)
        unfused = _unfused(right.unfused(), quantized)
    float_ms, low_ms = (1000 * statistics.median(own) for own in times)
    return Latency(
        float_ms=float_ms,
        quantized_ms=low_ms,
        runs=len(times[0]),
        threads=threads,
        conversion_share=share,
        unfused=unfused,
        verdict=_verdict(float_ms, low_ms, share, unfused),
    )


def _unfused(found: Mapping[str, list[str]], quantized: ir.Model) -> tuple[Unfused, ...]:
    """Say why operators are left in float, the most frequent first."""
    wide = any("16" in str(v.dtype) for v in quantized.graph.initializers.values() if v.dtype)
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    return tuple(
        Unfused(
            op_type=op,
            count=len(names),
            why=_WIDE if wide else _WHY.get(op, _OTHER),
            nodes=tuple(names),
        )
        for op, names in ranked
    )


def _verdict(float_ms: float, low_ms: float, share: float, unfused: tuple[Unfused, ...]) -> str:
    if low_ms <= float_ms:
        return (
            f"the quantized model takes {low_ms:.2f} ms, the float model {float_ms:.2f} ms: "
            f"{float_ms / low_ms:.2f} times as fast here"
        )
    worst = ", ".join(f"{row.count} {row.op_type}" for row in unfused[:3])
    reason = f"; not fused: {worst}" if worst else ""
    return (
        f"the quantized model is slower here: {low_ms:.2f} ms against {float_ms:.2f} ms. Quantizing "
        f"and dequantizing take {share:.0%} of its time{reason}. On the NPU it is made for, this may be "
        "different"
    )
