"""The quantized model with some tensors put to 16 bits: the real one, not an estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from lowbit.analyze.constants import Constant
from lowbit.analyze.quantizers import Quantizer
from lowbit.graph.editing import add_constant

_FINER = 256
_DOMAIN = "com.microsoft"  # has 16 bits whatever the model's opset


def at_sixteen_bits(
    model: ir.Model, quantizers: Iterable[Quantizer], constants: Mapping[str, Constant]
) -> ir.Model:
    """Return a copy whose named tensors have 256 times as many steps over the same range."""
    copy = model.clone()
    nodes = {node.name: node for node in copy.graph}
    copy.opset_imports.setdefault(_DOMAIN, 1)
    for quantizer in quantizers:
        for part in (quantizer.results[0], *(quantizer.bias or ())[:1]):
            constant = constants.get(part)
            if quantizer.kind == "weight" and constant is not None and constant.plain is not None:
                _replace_constant(copy.graph, part, constant, quantizer)
        if quantizer.kind == "activation" and quantizer.scale is not None:
            for name in quantizer.nodes:
                _widen(copy.graph, nodes[name])
    return copy


def _widen(graph: ir.Graph, node: ir.Node) -> None:
    """Let a Q or DQ node work on 16 bits. Changes ``node``."""
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None or scale.const_value is None:
        return
    unsigned = zero is None or zero.dtype == ir.DataType.UINT8
    kind = np.uint16 if unsigned else np.int16
    old = 0 if zero is None or zero.const_value is None else zero.const_value.numpy()
    fine = np.asarray(scale.const_value.numpy() / _FINER, np.float32)
    zeros = np.asarray(np.asarray(old, np.int32) * _FINER, kind)
    prefix = f"lowbit/wide/{node.name}"
    node.replace_input_with(1, add_constant(graph, f"{prefix}/scale", fine))
    wide = add_constant(graph, f"{prefix}/zero", zeros)
    if len(node.inputs) > 2:
        node.replace_input_with(2, wide)
    node.domain = _DOMAIN
    node.version = None


def _replace_constant(graph: ir.Graph, part: str, constant: Constant, quantizer: Quantizer) -> None:
    """Put the float constant, rounded to 16 bits, in place of a dequantized one."""
    plain = constant.plain
    values = ir.convenience.create_value_mapping(graph)
    if plain is None:
        return
    if part == quantizer.results[0]:
        step = max(float(np.abs(plain).max()) / 32767, 1e-30)
        plain = np.asarray(np.rint(plain / step) * step, np.float32)
    new = add_constant(graph, f"lowbit/wide/{part}", plain)
    ir.convenience.replace_all_uses_with(values[part], new)
