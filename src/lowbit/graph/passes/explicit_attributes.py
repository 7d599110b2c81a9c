"""Write out the attributes of convolutions and pools: NPU compilers trip over missing ones."""

from __future__ import annotations

import onnx_ir as ir

_WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")


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
    convolves = node.op_type in ("Conv", "ConvTranspose")
    defaults: dict[str, list[int]] = {"kernel_shape": kernel, "strides": [1] * rank}
    has_dilations = {"AveragePool": opset >= 19, "MaxPool": opset >= 10, "LpPool": opset >= 18}
    if has_dilations.get(node.op_type, True):
        defaults["dilations"] = [1] * rank
    auto_pad = node.attributes.get_string("auto_pad", "NOTSET")
    fixed_output = "output_shape" in node.attributes
    if auto_pad in ("NOTSET", "VALID") and not fixed_output:
        defaults["pads"] = [0] * 2 * rank
    for name, value in defaults.items():
        if name not in node.attributes:
            node.attributes[name] = ir.AttrInt64s(name, value)
    if auto_pad == "VALID" and not fixed_output:
        del node.attributes["auto_pad"]
    if convolves and "group" not in node.attributes:
        node.attributes["group"] = ir.AttrInt64("group", 1)


def _kernel_shape(node: ir.Node) -> list[int] | None:
    if "kernel_shape" in node.attributes:
        return list(node.attributes.get_ints("kernel_shape", ()))
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or weight.shape is None:
        return None
    dims = list(weight.shape)[2:]
    return [int(d) for d in dims] if all(isinstance(d, int) for d in dims) else None
