"""Measure onnxruntime as deployed: latency, the optimized graph, kernels that saturate."""

from __future__ import annotations

import functools
import json
import pathlib
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowbit.errors import ConfigError, ModelError, did_you_mean
from lowbit.graph.session import Feed

QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})


class DeployedSession:
    """A session with all optimizations that also reports the optimized graph."""

    def __init__(
        self, path: pathlib.Path, folder: str, threads: int, provider: str | None = None
    ) -> None:
        """Open the model; ``folder`` takes what onnxruntime writes about it."""
        import onnxruntime as ort

        self._path = path
        self._optimized = pathlib.Path(folder, f"{path.parent.name}.onnx")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        providers = _providers(provider)
        try:
            self._session = ort.InferenceSession(path, options, providers=providers)
        except Exception as error:  # onnxruntime's exceptions share no public base
            reason = " ".join(str(error).split())[:600]
            raise ModelError(f"onnxruntime cannot load the model: {reason}") from error

    def run(self, feed: Feed) -> float:
        """Return how many seconds one run takes."""
        start = time.perf_counter()
        self._session.run(None, dict(feed))
        return time.perf_counter() - start

    def share_of(self, op_types: Sequence[str], feed: Feed) -> float:
        """Return the share of the time that these operators take, as far as they are left."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(self._optimized.with_suffix(""))
        options.optimized_model_filepath = str(self._optimized)
        session = ort.InferenceSession(self._path, options, providers=["CPUExecutionProvider"])
        for _ in range(3):
            session.run(None, dict(feed))
        profile = pathlib.Path(session.end_profiling())
        spent: dict[str, float] = defaultdict(float)
        for event in json.loads(profile.read_text("utf-8")):
            if event.get("cat") == "Node" and str(event["name"]).endswith("_kernel_time"):
                spent[event["args"]["op_name"]] += event["dur"]
        total = sum(spent.values())
        return sum(spent[op_type] for op_type in op_types) / total if total else 0.0

    def unfused(self) -> dict[str, list[str]]:
        """Return the nodes that still read a DequantizeLinear, by operator; after ``share_of``."""
        import onnx

        graph: Any = onnx.load(self._optimized, load_external_data=False).graph
        made = {output: node for node in graph.node for output in node.output}
        found: dict[str, list[str]] = defaultdict(list)
        for node in graph.node:
            sources = [made[name].op_type for name in node.input if name in made]
            if node.op_type not in QDQ and "DequantizeLinear" in sources:
                found[node.op_type].append(node.name)
        return dict(found)


def _providers(name: str | None) -> list[str]:
    import onnxruntime as ort

    available = ort.get_available_providers()
    if name is not None and name not in available:
        raise ConfigError(
            f"onnxruntime has no provider {name!r} here{did_you_mean(name, available)} "
            f"(it has {', '.join(available)})"
        )
    return list(dict.fromkeys((name or "CPUExecutionProvider", "CPUExecutionProvider")))


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
