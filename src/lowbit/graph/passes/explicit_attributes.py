"""Write out the attributes of convolutions and pools: NPU compilers trip over missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from lowbit.graph.constants import constant_shape

_WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")

# The operator sets that gave pools dilations; convolutions always had them.
_DILATIONS_FROM: Mapping[str, int] = MappingProxyType(
    {"MaxPool": 10, "LpPool": 18, "AveragePool": 19}
)


def explicit_attributes(model: ir.Model) -> None:
    """Set kernel_shape, strides, pads, dilations and group where left out. Changes ``model``."""
    for node in model.graph:
        if node.op_type in _WINDOWED and node.domain == "":
            _complete(node, model.graph.opset_imports.get("", 1))


def _complete(node: ir.Node, opset: int) -> None:
    kernel = _kernel_shape(node)
    if kernel is None:
        return
    rank = len(kernel)
    defaults: dict[str, list[int]] = {"kernel_shape": kernel, "strides": [1] * rank}
    if opset >= _DILATIONS_FROM.get(node.op_type, 1):
        defaults["dilations"] = [1] * rank
    auto_pad = node.attributes.get_string("auto_pad", "NOTSET")
    if "output_shape" not in node.attributes and auto_pad in ("NOTSET", "VALID"):
        defaults["pads"] = [0] * 2 * rank
        if auto_pad == "VALID":
            # VALID overrules pads, so both go before the zeros are written.
            for name in ("auto_pad", "pads"):
                node.attributes.pop(name, None)
    for name, value in defaults.items():
        if name not in node.attributes:
            node.attributes[name] = ir.AttrInt64s(name, value)
    if node.op_type in ("Conv", "ConvTranspose") and "group" not in node.attributes:
        node.attributes["group"] = ir.AttrInt64("group", 1)


def _kernel_shape(node: ir.Node) -> list[int] | None:
    if "kernel_shape" in node.attributes:
        return list(node.attributes.get_ints("kernel_shape", ()))
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None:
        return None
    shape = constant_shape(weight) or weight.shape
    dims = [] if shape is None else [d for d in tuple(shape)[2:] if isinstance(d, int)]
    return dims if shape is not None and len(dims) == len(shape) - 2 else None
