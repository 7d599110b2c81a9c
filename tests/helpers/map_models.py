"""A model of feature maps whose height can be chosen."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.normalize.normalize import normalize

_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[N,3,SIZE,8] x) => (float[N,2,SIZE,8] y)
<float[2,3,1,1] w = {1.0, -2.0, 3.0, 0.5, 0.25, -1.0}, float[2] b = {0.5, -0.5},
 float[2,2,1,1] v = {1.0, -1.0, 0.5, 2.0}, float[2] a = {0.1, -0.1}>
{
    c = Conv <kernel_shape = [1, 1]> (x, w, b)
    r = Relu (c)
    y = Conv <kernel_shape = [1, 1]> (r, v, a)
}
"""


def map_model(size: str = "8") -> ir.Model:
    """Return Conv, Relu, Conv on maps of ``size`` x 8; a name leaves the height open."""
    return normalize(ir.from_onnx_text(_MODEL.replace("SIZE", size)))
