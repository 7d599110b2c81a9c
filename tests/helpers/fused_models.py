"""Transformer blocks as onnxruntime fuses them, and in the operators of ONNX's operator set 23."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, HIDDEN = 16, 2, 32
_MICROSOFT = "com.microsoft"


def fused_block(kind: str) -> onnx.ModelProto:
    """Return a block: ``bert`` and ``llama`` fused by onnxruntime, ``standard`` of set 23."""
    nodes, constants, opset = {"bert": _bert, "llama": _llama, "standard": _standard}[kind]()
    random = np.random.default_rng(0)
    initializers = [
        numpy_helper.from_array(
            (random.normal(size=shape) * shape[0] ** -0.5).astype(np.float32), n
        )
        for n, shape in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "t", WIDTH])],
        initializers,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(_MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9 if opset < 23 else 11)


def _node(op: str, inputs: str, outputs: str, *, fused: bool = True, **attributes: object):
    return helper.make_node(
        op,
        inputs.replace("-", "").split(","),
        outputs.split(","),
        outputs.split(",", maxsplit=1)[0],
        domain=_MICROSOFT if fused else "",
        **attributes,
    )


def _plain(op: str, inputs: str, output: str, **attributes: object):
    return _node(op, inputs, output, fused=False, **attributes)


def _bert() -> tuple[list[onnx.NodeProto], dict[str, tuple[int, ...]], int]:
    nodes = [
        _node("Attention", "x,qkv,qkv_bias", "attended", num_heads=HEADS),
        _plain("MatMul", "attended,out", "projected"),
        _node("SkipLayerNormalization", "projected,x,scale,shift,out_bias", "normed"),
        _plain("MatMul", "normed,up", "widened"),
        _node("BiasGelu", "widened,up_bias", "activated"),
        _plain("MatMul", "activated,down", "narrowed"),
        _node("SkipLayerNormalization", "narrowed,normed,scale,shift,out_bias", "y"),
    ]
    shapes: dict[str, tuple[int, ...]] = {"qkv": (WIDTH, 3 * WIDTH), "qkv_bias": (3 * WIDTH,)}
    shapes |= {"out": (WIDTH, WIDTH), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    shapes |= {"scale": (WIDTH,), "shift": (WIDTH,), "out_bias": (WIDTH,), "up_bias": (HIDDEN,)}
    return nodes, shapes, 17


def _projections(source: str) -> list[onnx.NodeProto]:
    return [_plain("MatMul", f"{source},{name}_w", name) for name in ("query", "key", "value")]


def _gated(source: str) -> list[onnx.NodeProto]:
    return [
        _plain("MatMul", f"{source},gate_w", "gate"),
        _plain("MatMul", f"{source},up_w", "up"),
        _plain("Sigmoid", "gate", "opened"),
        _plain("Mul", "gate,opened", "passed"),
        _plain("Mul", "passed,up", "gated"),
        _plain("MatMul", "gated,down_w", "down"),
    ]


_SHAPES: dict[str, tuple[int, ...]] = {
    **{f"{name}_w": (WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
    "gate_w": (WIDTH, HIDDEN),
    "up_w": (WIDTH, HIDDEN),
    "down_w": (HIDDEN, WIDTH),
    "scale": (WIDTH,),
}


def _llama() -> tuple[list[onnx.NodeProto], dict[str, tuple[int, ...]], int]:
    skip = "SkipSimplifiedLayerNormalization"
    nodes = [
        _plain("SimplifiedLayerNormalization", "x,scale", "normed", axis=-1, epsilon=1e-5),
        *_projections("normed"),
        _node("MultiHeadAttention", "query,key,value", "attended", num_heads=HEADS),
        _plain("MatMul", "attended,out_w", "out"),
        _node(skip, "x,out,scale", "again,-,-,stream".replace("-", "")),
        *_gated("again"),
        _plain("Add", "stream,down", "y"),
    ]
    return nodes, _SHAPES, 17


def _standard() -> tuple[list[onnx.NodeProto], dict[str, tuple[int, ...]], int]:
    nodes = [
        _plain("RMSNormalization", "x,scale", "normed"),
        *_projections("normed"),
        _plain("Attention", "query,key,value", "attended", q_num_heads=HEADS, kv_num_heads=HEADS),
        _plain("MatMul", "attended,out_w", "out"),
        _plain("Add", "x,out", "stream"),
        _plain("RMSNormalization", "stream,scale", "again"),
        *_gated("again"),
        _plain("Add", "stream,down", "y"),
    ]
    return nodes, _SHAPES, 23
