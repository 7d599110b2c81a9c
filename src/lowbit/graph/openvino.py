"""Running models in OpenVINO, which is an extra: accuracy and latency of the same files there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from lowbit.errors import ConfigError, ModelError
from lowbit.graph import io
from lowbit.graph.session import Array, Feed, with_outputs

Runtime: TypeAlias = Literal["onnxruntime", "openvino"]
RUNTIMES: tuple[Runtime, ...] = ("onnxruntime", "openvino")


class OpenVinoSession:
    """A model compiled for the CPU; ``run`` may be called from several threads at once."""

    def __init__(self, path: Any, *, threads: int, name: str) -> None:
        """Compile the file. ``threads`` = 0 leaves the number to OpenVINO.

        What the file computes in float is computed in float32: on processors with bfloat16 OpenVINO would
        use that instead, and its error would be taken for the file's.
        """
        core = _core()
        options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads:
            options["INFERENCE_NUM_THREADS"] = threads
        self._name, self._local = name, threading.local()
        try:
            model = core.read_model(str(path))
            self._compiled = core.compile_model(model, "CPU", options)
        except Exception as error:  # OpenVINO raises RuntimeError and its own kinds
            raise ModelError(f"OpenVINO cannot load {name}: {_reason(error)}") from error

    def run(self, outputs: Sequence[str], feed: Feed) -> list[Array]:
        """Return the named outputs for one feed."""
        request = getattr(self._local, "request", None)
        if request is None:
            request = self._local.request = self._compiled.create_infer_request()
        try:
            found = request.infer({name: np.asarray(value) for name, value in feed.items()})
            return [np.array(found[self._compiled.output(name)]) for name in outputs]
        except Exception as error:
            raise ModelError(f"OpenVINO cannot run {self._name}: {_reason(error)}") from error

    def timed(self, feed: Feed) -> float:
        """Return how many seconds one run takes."""
        start = time.perf_counter()
        self.run((), feed)
        return time.perf_counter() - start


@contextlib.contextmanager
def openvino_session(
    model: ir.Model, extra_outputs: Sequence[str] = (), *, threads: int = 0, name: str = "the model"
) -> Iterator[OpenVinoSession]:
    """Yield a session on ``model`` that can also return the values named in ``extra_outputs``."""
    with io.as_file(with_outputs(model, extra_outputs)) as path:
        yield OpenVinoSession(path, threads=threads, name=name)


def check_runtime(runtime: Runtime) -> None:
    """Raise now, before any work, if a runtime is not installed."""
    if runtime == "openvino":
        _core()


def _core() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise ConfigError(
            "runtime 'openvino' needs the package openvino: pip install 'lowbit[openvino]'"
        ) from error
    return openvino.Core()


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The first lines say where in OpenVINO's own sources it was raised.
    told = [line for line in lines if not line.startswith(("Exception from", "Check "))]
    return " ".join(told or lines)[:600]
