"""Kinds of quantization in onnxruntime's own operators: dynamic, and weights of MatMul in blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.api.quantize import quantize
from lowbit.config.config import QuantConfig
from lowbit.config.methods import Hqq, MinMax
from lowbit.config.refinement import Gptq
from lowbit.config.specs import IntegerSpec
from lowbit.errors import did_you_mean
from lowbit.files import temporary_folder
from lowbit.graph import io
from lowbit.graph.editing import add_constant, constant, drop_unused, take_over
from lowbit.graph.naming import MICROSOFT
from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.onnx.quantization.config.config import QuantizationConfig
from lowbit.quark.translate.selection import Nodes
from lowbit.targets.builtin import find_target

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
    with temporary_folder() as folder:
        written = folder / "model.onnx"
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
            "DEFAULT, GPTQ and HQQ are"
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


_FORMATS = {
    (4, True): IntegerFormat.INT4,
    (4, False): IntegerFormat.UINT4,
    (8, True): IntegerFormat.INT8,
    (8, False): IntegerFormat.UINT8,
}
_LEAST_GROUP = 16


def nbits_by_lowbit(
    model: ir.Model, parameters: Mapping[str, Any], refine: Gptq | None, data: Any
) -> ir.Model:
    """Return the model with the constant operand of each MatMul in groups of few bits.

    They are rounded by GPTQ, or to the nearest with scales and zero points by HQQ.
    """
    bits, size = parameters.get("Bits", 4), parameters.get("GroupSize", 128)
    symmetric = refine is not None and bool(parameters.get("Symmetric", True))
    if (bits, symmetric) not in _FORMATS:
        raise QuarkConfigError(f"MatMulNBitsParams: Bits is {bits}; expected 4 or 8")
    if size < _LEAST_GROUP or size & (size - 1):
        raise QuarkConfigError(
            f"MatMulNBitsParams: GroupSize is {size}; onnxruntime takes powers of two from "
            f"{_LEAST_GROUP} on"
        )
    spec = IntegerSpec(
        format=_FORMATS[bits, symmetric],
        symmetric=symmetric,
        group_size=size,
        method=MinMax() if refine is not None else Hqq(),
    )
    config = QuantConfig(name="quark MatMulNBits", activation=None, weight=spec, refinement=refine)
    target = msgspec.structs.replace(find_target(config.target), operators=("MatMul",))
    result = quantize(
        model, data=data, config=config, target=target, promote=False, allow_ruined=True
    )
    level = parameters.get("AccuracyLevel", 0)
    return _packed(result.quantized, bits, size, level)


def _packed(model: ir.Model, bits: int, size: int, level: int) -> ir.Model:
    """Put each pair of DequantizeLinear and MatMul into one operator. Changes ``model``."""
    graph = model.graph
    for node in tuple(graph):
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        source = weight.producer() if weight is not None else None
        if source is None or source.op_type != "DequantizeLinear":
            continue
        codes, scale, zero = (np.asarray(constant(v)) for v in source.inputs)
        # Signed integers are stored from the middle of the unsigned ones.
        middle = 1 << (bits - 1)
        offset = middle if codes.dtype.kind == "i" or str(codes.dtype) == "int4" else 0
        steps = codes.astype(np.int32) + offset
        depth, outputs = steps.shape
        blocks = -(-depth // size)
        scales = np.broadcast_to(scale.reshape(-1, outputs), (blocks, outputs))
        zeros = np.broadcast_to(zero.astype(np.int32).reshape(-1, outputs), (blocks, outputs))
        stored = np.pad(steps, ((0, blocks * size - depth), (0, 0)))
        stored = stored.T.reshape(outputs, blocks, size)
        name = (source.inputs[0].name or "w") if source.inputs[0] is not None else "w"
        name = name.removesuffix("_quantized")
        inputs = [
            node.inputs[0],
            add_constant(graph, f"{name}_Q{bits}", _bytes(stored, bits)),
            add_constant(graph, f"{name}_scales", np.ascontiguousarray(scales.T).reshape(-1)),
        ]
        if not offset:
            zero_points = _bytes(np.ascontiguousarray(zeros.T), bits).reshape(-1)
            inputs.append(add_constant(graph, f"{name}_zero_points", zero_points))
        attributes = {"K": depth, "N": outputs, "bits": bits, "block_size": size}
        if level:
            attributes["accuracy_level"] = level
        made = ir.node(
            "MatMulNBits", inputs, attributes, domain=MICROSOFT, name=f"{node.name}_Q{bits}"
        )
        graph.insert_before(node, made)
        take_over(node.outputs[0], made.outputs[0])
        graph.remove(node, safe=True)
    drop_unused(graph)
    model.opset_imports.setdefault(MICROSOFT, 1)
    return model


def _bytes(codes: NDArray[np.int32], bits: int) -> NDArray[np.uint8]:
    """Return codes along the last axis as bytes, the first of two in the lower half."""
    each = np.asarray(codes, np.uint8)
    if bits == 8:
        return each
    if each.shape[-1] % 2:
        each = np.concatenate([each, np.zeros((*each.shape[:-1], 1), np.uint8)], axis=-1)
    return np.asarray(each[..., ::2] | (each[..., 1::2] << 4), np.uint8)
