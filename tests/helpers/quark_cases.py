"""Reading AMD Quark's quantized models, and running models as their stored outputs were made.

The models in ``data`` were made by AMD Quark 0.13 from ``float.onnx`` (a small CNN), from
``float_opset21.onnx`` (the same at operator set 21) and from ``ops_float.onnx`` (about 45 kinds of
operators), without cross-layer equalization.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import numpy_helper

DATA = Path(__file__).parents[1] / "golden" / "data"

# Quark calibrated in sessions of two threads. How many threads share an operator changes the
# order of its float sums, so ranges in their last bit, and with them scales.
QUARK_THREADS = 2

# LayerNormalization of older versions of onnxruntime adds in another order than that of the version Quark ran with: it,
# and what reads it, differ in the last bit.
_OLDER = tuple(map(int, ort.__version__.split(".")[:2])) < (1, 31)
AFTER_A_NORM = frozenset(
    ("lnorm_o", "matmul_dyn_o", "relu_alone_o", "transpose2_o") if _OLDER else ()
)

_RENAMED = "_QuantizeLinear_Input"

Array = NDArray[np.generic]


@dataclasses.dataclass(frozen=True, slots=True)
class Quantized:
    """What a quantized model says: numbers that can be compared with those of another.

    ``activations`` holds scale and zero point by tensor; ``constants`` the stored integers, scale
    and zero point by consumer (the node and the number of the input).
    """

    activations: Mapping[str, tuple[Array, Array]]
    constants: Mapping[tuple[str, int], tuple[Array, Array, Array]]


def read_quantized(model: onnx.ModelProto) -> Quantized:
    """Read every Q/DQ parameter and every stored integer of a model.

    Quark renames a convolution it fuses a BatchNormalization into after its old output, here
    always the node's own name and ``_out``.
    """
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    activations: dict[str, tuple[Array, Array]] = {}
    dequantized: dict[str, tuple[Array, Array, Array]] = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            name = node.input[0].removesuffix(_RENAMED)
            activations[name] = (stored[node.input[1]], stored[node.input[2]])
        elif node.op_type == "DequantizeLinear" and node.input[0] in stored:
            codes, scale, zero_point = (stored[name] for name in node.input)
            dequantized[node.output[0]] = (codes, scale, zero_point)
    constants = {
        (node.name.removesuffix("_out"), index): dequantized[name]
        for node in model.graph.node
        for index, name in enumerate(node.input)
        if name in dequantized
    }
    return Quantized(activations, constants)


def same_arrays(ours: tuple[Array, ...], theirs: tuple[Array, ...]) -> bool:
    """Whether all values and all types are equal; the shape of a scalar does not matter."""
    return all(
        a.dtype == b.dtype and np.array_equal(np.squeeze(a), np.squeeze(b))
        for a, b in zip(ours, theirs, strict=True)
    )


def differences(ours: Mapping, theirs: Mapping, *, last_bit: Collection = ()) -> set:
    """Return the keys that only one side has, or whose arrays differ; by more than rounding of ``last_bit``."""
    return {
        key
        for key in {*ours, *theirs}
        if key not in ours
        or key not in theirs
        or not (
            same_arrays(ours[key], theirs[key]) or (key in last_bit and _near(ours, theirs, key))
        )
    }


def _near(ours: Mapping, theirs: Mapping, key: Hashable) -> bool:
    pairs = zip(ours[key], theirs[key], strict=True)
    return all(a.dtype == b.dtype and np.allclose(a, b, rtol=1e-6, atol=0) for a, b in pairs)


@functools.cache
def samples(file: str) -> list[dict[str, Array]]:
    """Return the feeds of a data file: each row is one, batch dimension included."""
    with np.load(DATA / file) as arrays:
        (name,) = arrays.files
        return [{name: row} for row in arrays[name]]


def outputs_of(model: onnx.ModelProto, data: str) -> dict[str, Array]:
    """Run a model without graph optimizations, as the stored outputs were made."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    running = ort.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in model.graph.output]
    rows = [running.run(names, feed) for feed in samples(data)]
    return dict(zip(names, map(np.stack, zip(*rows, strict=True)), strict=True))
