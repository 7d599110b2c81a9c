"""Kinds of quantization that onnxruntime itself has: dynamic, and weights of MatMul in blocks."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from lowbit.errors import did_you_mean
from lowbit.graph import io
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.onnx.quantization.config.legacy import QuantizationConfig
from lowbit.quark.translate.selection import Nodes

_NBITS = ("Algorithm", "GroupSize", "Symmetric", "Bits", "AccuracyLevel")


def dynamic(model: ir.Model, config: QuantizationConfig) -> ir.Model:
    """Return the model with 8-bit weights; activations are quantized as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    name = getattr(config.weight_type, "name", str(config.weight_type))
    if name not in ("QInt8", "QUInt8"):
        raise NotSupportedError(f"dynamic quantization has weights of 8 bits, not {name}")
    nodes = Nodes(model, lenient=config.ignore_warnings)
    options = {"MatMulConstBOnly": True, **config.extra_options}
    message = io.to_proto(model)
    # onnxruntime transposes weights and trips over shapes written down before.
    message.graph.ClearField("value_info")
    with tempfile.TemporaryDirectory(prefix="lowbit-") as folder:
        written = Path(folder, "model.onnx")
        quantize_dynamic(
            message,
            written,
            op_types_to_quantize=config.op_types_to_quantize or None,
            per_channel=config.per_channel,
            reduce_range=config.reduce_range,
            weight_type=QuantType[name],
            nodes_to_quantize=config.nodes_to_quantize or None,
            nodes_to_exclude=_excluded(config, nodes) or None,
            use_external_data_format=False,
            extra_options=options,
        )
        return io.load(onnx.load(written))


def nbits_parameters(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of MatMulNBits; a key that is not one is an error."""
    parameters: Mapping[str, Any] = options.get("MatMulNBitsParams") or {}
    for key in parameters:
        if key not in _NBITS:
            raise QuarkConfigError(f"MatMulNBitsParams has no {key!r}{did_you_mean(key, _NBITS)}")
    return parameters


def nbits(model: ir.Model, parameters: Mapping[str, Any]) -> ir.Model:
    """Return the model with the constant operand of each MatMul in blocks of few bits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    if parameters.get("Algorithm", "DEFAULT") != "DEFAULT":
        raise NotSupportedError(
            f"MatMulNBitsParams: Algorithm {parameters['Algorithm']!r} is not supported; "
            "DEFAULT and GPTQ are"
        )
    how = DefaultWeightOnlyQuantConfig(
        block_size=parameters.get("GroupSize", 128),
        is_symmetric=parameters.get("Symmetric", True),
        accuracy_level=parameters.get("AccuracyLevel", 0),
        bits=parameters.get("Bits", 4),
    )
    quantizer = MatMulNBitsQuantizer(io.to_proto(model), algo_config=how)
    quantizer.process()
    return io.load(quantizer.model.model)


def _excluded(config: QuantizationConfig, nodes: Nodes) -> list[str]:
    if config.subgraphs_to_exclude:
        raise NotSupportedError("subgraphs_to_exclude is not supported with dynamic quantization")
    patterns = nodes.patterns(config.nodes_to_exclude, "nodes_to_exclude")
    expressions = [re.compile(pattern.removeprefix("re:")) for pattern in patterns]
    names = [node.name or "" for node in nodes.nodes]
    return [name for name in names if any(e.search(name) for e in expressions)]
