"""Algorithms as calls on their own, by Quark's names. Those on a float model return a new one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import onnx

from lowbit.graph import io
from lowbit.graph.session import Feed
from lowbit.normalize.normalize import normalize
from lowbit.quark.errors import NotSupportedError, QuarkConfigError, say
from lowbit.quark.extension.cle import QuarkCle, equalize_like_quark, equalize_stem
from lowbit.quark.extension.smooth_quant import QuarkSmoothQuant
from lowbit.quark.onnx.quantization.config.algorithm import AdaQuantConfig, AdaRoundConfig
from lowbit.transforms import Context, implementation_of

__all__ = [
    "AdaQuantConfig",
    "AdaRoundConfig",
    "cle_transforms",
    "fast_finetune",
    "optimize",
    "smooth_transforms",
    "stem_equalize_transforms",
]


def cle_transforms(
    model: onnx.ModelProto,
    op_types_to_quantize: Sequence[str] = (),
    nodes_to_quantize: Sequence[str] = (),
    nodes_to_exclude: Sequence[str] = (),
    cle_steps: int = -1,
    cle_balance_method: str = "max",
    cle_weight_threshold: float = 0.5,
    cle_scale_append_bias: bool = True,  # noqa: FBT001, FBT002
    cle_scale_use_threshold: bool = True,  # noqa: FBT001, FBT002
    cle_total_layer_diff_threshold: float = 1.9e-7,
) -> onnx.ModelProto:
    """Return the model equalized across layers; it computes the same."""
    _say_unused(op_types_to_quantize, nodes_to_quantize)
    if cle_balance_method != "max":
        raise QuarkConfigError(f"cle_balance_method is {cle_balance_method!r}; 'max' is known")
    how = QuarkCle(
        steps=cle_steps,
        weight_threshold=cle_weight_threshold,
        append_bias=cle_scale_append_bias,
        use_threshold=cle_scale_use_threshold,
        total_layer_diff_threshold=cle_total_layer_diff_threshold,
    )
    even = equalize_like_quark(normalize(io.load(model)), how, set(nodes_to_exclude))
    return io.to_proto(even.model)


def stem_equalize_transforms(
    model: onnx.ModelProto,
    op_types_to_quantize: Sequence[str] = (),
    nodes_to_quantize: Sequence[str] = (),
    nodes_to_exclude: Sequence[str] = (),
) -> onnx.ModelProto:
    """Return the model with the channels of its first convolution evened out."""
    _say_unused(op_types_to_quantize, [*nodes_to_quantize, *nodes_to_exclude])
    loaded = io.load(model)
    equalize_stem(loaded.graph)
    return io.to_proto(loaded)


def smooth_transforms(
    input_model: onnx.ModelProto,
    dataloader: Iterable[Feed],
    alpha: float = 0.5,
    use_external_data_format: bool = False,  # noqa: FBT001, FBT002
) -> onnx.ModelProto:
    """Return the model with a Mul before each MatMul with constant weights; it computes the same."""
    del use_external_data_format  # Nothing is written here.
    model = normalize(io.load(input_model))
    config = QuarkSmoothQuant(alpha=alpha)
    found = implementation_of(config).apply(model, config, Context(data=dataloader))
    return io.to_proto(found.model)


def optimize(model: onnx.ModelProto, *args: Any, **options: Any) -> onnx.ModelProto:
    """Return the model in lowbit's normal form: it computes the same with fewer nodes."""
    if args or options:
        say("optimize: the normal form is one and the same; further arguments have no effect")
    return io.to_proto(normalize(io.load(model)))


def fast_finetune(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise: weights are refined before the model is written, not afterwards."""
    del args, kwargs
    raise NotSupportedError(
        "fast_finetune on a quantized model is not supported: give AdaRoundConfig or "
        "AdaQuantConfig to the configuration that quantizes it"
    )


def _say_unused(op_types: Sequence[str], nodes: Sequence[str]) -> None:
    if nodes:
        say(f"equalization does not look at these nodes apart: {', '.join(nodes)}")
    del op_types  # Only convolutions and Gemm are equalized, whatever else is quantized.
