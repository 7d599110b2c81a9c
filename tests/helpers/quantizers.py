"""Quantizers, and a small model with Q/DQ pairs written by hand."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir

from lowbit.analyze.quantizers import Quantizer, Scale
from lowbit.graph import io


def scale(step=0.1, zero: int = 0, low: int = -128, high: int = 127, axis: int | None = None):
    """Return parameters of a quantizer."""
    steps = np.asarray(step, np.float64)
    return Scale(steps, np.full(steps.shape, float(zero)), low, high, axis)


def activation(tensor: str = "t", step: float | None = 0.1, **more) -> Quantizer:
    """Return the quantizer of an activation; without a step it is no integer's."""
    plain = {
        "kind": "activation",
        "format": "int8",
        "source": tensor,
        "results": (f"{tensor}_dq",),
        "nodes": (f"{tensor}_q", f"{tensor}_dq"),
        "scale": None if step is None else scale(step),
        "consumer": "next",
        "op_type": "Conv",
    }
    return Quantizer(tensor=tensor, **{**plain, **more})


def weight(tensor: str = "w", step=0.1, **more) -> Quantizer:
    """Return the quantizer of a weight."""
    plain = {"kind": "weight", "source": f"{tensor}_quantized", "nodes": (f"{tensor}_dq",)}
    return activation(tensor, step, **{**plain, **more})


_PAIRS = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,2,2,2] x) => (float[1,2,2,2] y)
<
  float sx = {0.5}, uint8 zx = {3},
  float[2] sw = {0.25, 0.5}, int8[2] zw = {0, 0}, int8[2,2,1,1] wq = {4, -8, 12, 127},
  float[2] sb = {0.125, 0.25}, int32[2] zb = {0, 0}, int32[2] bq = {8, -4},
  float sr = {0.125}, int8 zr = {-128},
  float sy = {0.0625}
> {
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  w_DequantizeLinear_Output = DequantizeLinear<axis=0>(wq, sw, zw)
  bd = DequantizeLinear<axis=0>(bq, sb, zb)
  c = Conv(xd, w_DequantizeLinear_Output, bd)
  r = Relu(c)
  rq = QuantizeLinear(r, sr, zr)
  rd1 = DequantizeLinear(rq, sr, zr)
  rd2 = DequantizeLinear(rq, sr, zr)
  a = Add(rd1, rd2)
  yq = QuantizeLinear(a, sy)
  y = DequantizeLinear(yq, sy)
}"""


def pairs_model() -> ir.Model:
    """Return a convolution with per-channel weights whose result two DequantizeLinear read."""
    model = io.load(onnx.parser.parse_model(_PAIRS))
    for node in model.graph:
        node.name = f"{node.outputs[0].name}_node"
    return model
