"""How long both models take here, why a quantized one may be slower, and whether kernels saturate."""

from __future__ import annotations

import functools
import json
import pathlib
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from lowbit.graph import io
from lowbit.graph.session import Feed
from lowbit.report.values import Latency, Unfused

_RUNS, _LONGEST = 20, 6.0
"""Runs of each model; fewer where they take more than so many seconds altogether."""

_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})
# What onnxruntime's x86 and Arm kernels do not compute in int8, and what is said about it.
_WHY: Mapping[str, str] = MappingProxyType(
    {
        "ConvTranspose": "onnxruntime has no int8 kernel for it on the CPU",
        "FusedConv": (
            "its Clip or Relu does not vanish into the quantizer behind it (signed symmetric integers "
            "reach below zero), so it was folded into the float convolution"
        ),
        "Clip": "the Clip is not folded into the quantizer behind it",
        "HardSigmoid": "onnxruntime has no int8 kernel for it on the CPU",
        "Resize": "it is computed in float unless it only copies",
    }
)
_WIDE = "its tensors have 16 bits, for which onnxruntime has no integer kernel on the CPU"
_OTHER = "the pattern of Q/DQ around it is none that onnxruntime fuses"


def measure_latency(
    reference: ir.Model, quantized: ir.Model, feed: Feed, threads: int = 0
) -> Latency:
    """Run both models in turn on one sample, as they would be deployed."""
    times: list[list[float]] = [[], []]
    with (
        io.as_file(reference) as plain,
        io.as_file(quantized) as small,
        tempfile.TemporaryDirectory(prefix="lowbit-") as folder,
    ):
        left, right = _Timed(plain, folder, threads), _Timed(small, folder, threads)
        for model in (left, right):
            model.run(feed)
        start = time.perf_counter()
        while len(times[0]) < _RUNS and time.perf_counter() - start < _LONGEST:
            for own, model in zip(times, (left, right), strict=True):
                own.append(model.run(feed))
        share = right.conversion_share(feed)
        unfused = _unfused(right.optimized(), quantized)
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


class _Timed:
    """A session as deployed, that also tells what became of the graph and where time goes."""

    def __init__(self, path: pathlib.Path, folder: str, threads: int) -> None:
        import onnxruntime as ort

        self._file = pathlib.Path(folder, f"{path.parent.name}.onnx")
        self._options = ort.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.log_severity_level = 4
        self._path = path
        self._session = ort.InferenceSession(
            path, self._options, providers=["CPUExecutionProvider"]
        )

    def run(self, feed: Feed) -> float:
        start = time.perf_counter()
        self._session.run(None, dict(feed))
        return time.perf_counter() - start

    def conversion_share(self, feed: Feed) -> float:
        """Return the share of the time that Q and DQ nodes take which are left."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(self._file.with_suffix(""))
        options.optimized_model_filepath = str(self._file)
        session = ort.InferenceSession(self._path, options, providers=["CPUExecutionProvider"])
        for _ in range(3):
            session.run(None, dict(feed))
        profile = pathlib.Path(session.end_profiling())
        spent: dict[str, float] = defaultdict(float)
        for event in json.loads(profile.read_text("utf-8")):
            if event.get("cat") == "Node" and str(event["name"]).endswith("_kernel_time"):
                spent[event["args"]["op_name"]] += event["dur"]
        total = sum(spent.values())
        return sum(spent[op] for op in _QDQ) / total if total else 0.0

    def optimized(self) -> Any:
        import onnx

        return onnx.load(self._file, load_external_data=False)


def _unfused(optimized: Any, quantized: ir.Model) -> tuple[Unfused, ...]:
    """Return the operators that still read a DequantizeLinear after optimization."""
    graph = optimized.graph
    made = {output: node for node in graph.node for output in node.output}
    wide = any("16" in str(v.dtype) for v in quantized.graph.initializers.values() if v.dtype)
    found: dict[str, list[str]] = defaultdict(list)
    for node in graph.node:
        sources = [made[name].op_type for name in node.input if name in made]
        if node.op_type not in _QDQ and "DequantizeLinear" in sources:
            found[node.op_type].append(node.name)
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
        f"and dequantizing take {share:.0%} of its time{reason}. That says nothing about the NPU it is "
        "made for"
    )


@functools.cache
def saturates_int8() -> bool:
    """Whether a fused product of uint8 and int8 comes out wrong here.

    x86 without VNNI adds two products in 16 bits: 2 * 255 * 127 does not fit.
    """
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    weight = np.full((64, 16), 127, np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "saturation",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [4, 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x = np.full((4, 64), 255, np.uint8)
    return bool((session.run(None, {"x": x})[0] != 64 * 255 * 127).any())
