"""The tools, a row each: its name, what it does, the options it adds, the functions it offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lowbit.quark import rewriting
from lowbit.quark.models import custom, pairs, stored
from lowbit.quark.onnx.tools import functions
from lowbit.quark.onnx.tools.front import (
    AddOptions,
    Change,
    Tool,
    Word,
    no_options,
    proto_function,
    rewrite,
    run,
)

_YES = ("true", "yes", "1")
_MUL_ADD = (("Mul", "Add"),)
_QUANT_TO_FLOAT = "Take all quantization out: floats as they were stored."
_FP32_TO_BFP16 = (
    "Convert a float model to BFP16 (blocks with a common exponent), without calibration data."
)
_FP32_TO_BF16 = """\
Convert a float model to bfloat16, without calibration data.

``--format``: ``with_cast`` (pairs of Cast, the default), ``customqdq`` (Quark's operators),
``simulate_bf16`` (float32 rounded to bfloat16, no Cast inside) or ``bf16`` (as ``with_cast``, with
weights stored in 16 bits).
"""


def _converter(
    name: str,
    summary: str,
    change: Change,
    options: AddOptions = no_options,
    offers: tuple[Callable[..., object], ...] = (),
    description: str = "",
) -> Tool:
    """Return a tool that reads a model, changes it and writes it."""
    return Tool(
        name=name,
        summary=summary,
        work=rewrite(name, change),
        options=options,
        functions=offers,
        description=description,
    )


def _plain(
    name: str,
    summary: str,
    change: Callable[[ir.Model], ir.Model],
    returns: str,
    description: str = "",
) -> Tool:
    """Return a converter without options, whose module has a function of the same name."""
    return _converter(
        name,
        summary,
        lambda model, _: change(model),
        offers=(proto_function(name, change, returns),),
        description=description,
    )


def convert_to_bf16(tool: str, arguments: Sequence[str] | None) -> int:
    """Convert one file into another, under the name of a tool."""
    return run(_to_bf16(tool, _FP32_TO_BF16), arguments)


def _to_bf16(name: str, summary: str) -> Tool:
    return _converter(
        name,
        summary,
        functions.to_bf16,
        options=functions.add_bf16_options,
        offers=(convert_to_bf16,),
        description=_FP32_TO_BF16,
    )


def convert_to_bfp16(tool: str, arguments: Sequence[str] | None) -> int:
    """Convert one file into another, under the name of a tool."""
    return run(_to_bfp16(tool, _FP32_TO_BFP16), arguments)


def _to_bfp16(name: str, summary: str) -> Tool:
    return _converter(
        name,
        summary,
        lambda model, _: functions.to_bfp16(model),
        offers=(convert_to_bfp16,),
        description=_FP32_TO_BFP16,
    )


_ROWS = (
    _plain(
        "convert_a8w8_npu_to_a8w8_cpu",
        "Give an XINT8 model 32-bit biases, for integer kernels of CPUs.",
        pairs.int32_biases,
        "Return the model with biases in the scale its layers accumulate in.",
    ),
    _plain(
        "convert_bias_int32_to_int16",
        "Clip 32-bit biases to 16 bits; the operator set becomes 21.",
        pairs.int16_biases,
        "Return the model with 16-bit biases.",
    ),
    _converter(
        "convert_custom_ops",
        "Rename Quark's operators to their older names; ``--reverse_conversion True`` renames back.",
        lambda model, args: custom.rename(model, back=args.reverse_conversion.lower() in _YES),
        lambda parser: parser.add_argument(
            "--reverse_conversion", default="False", nargs="?", const="True"
        ),
    ),
    _converter(
        "convert_customqdq_to_qdq",
        "Replace Quark's Q/DQ of integers by onnxruntime's.",
        lambda model, _: custom.to_standard(model),
        offers=(
            proto_function(
                "convert_customqdq_to_qdq",
                custom.to_standard,
                "Return the model with Q/DQ that onnxruntime knows, where there are any.",
            ),
            functions.custom_ops_infer_shapes,
        ),
    ),
    _converter(
        "convert_dynamic_to_fixed",
        'Fix the shapes of inputs and outputs: ``--fix_shapes "input:[1,3,224,224]"``.',
        functions.with_fixed_shapes,
        lambda parser: parser.add_argument(
            "--fix_shapes", required=True, metavar="NAME:[DIMS];..."
        ),
        (functions.fix_shapes,),
    ),
    _to_bf16(
        "convert_fp16_to_bf16", "Convert a float16 model to bfloat16, without calibration data."
    ),
    _to_bfp16(
        "convert_fp16_to_bfp16", "Convert a float16 model to BFP16, without calibration data."
    ),
    _converter(
        "convert_fp16_to_fp32",
        "Convert a float16 model to float32, inputs and outputs too.",
        lambda model, _: stored.half_to_single(model),
        functions.add_fp32_options,
    ),
    _to_bf16("convert_fp32_to_bf16", _FP32_TO_BF16),
    _to_bfp16("convert_fp32_to_bfp16", _FP32_TO_BFP16),
    _converter(
        "convert_fp32_to_fp16",
        "Convert a float32 model to float16, with onnxruntime's converter.",
        lambda model, args: stored.single_to_half(
            model, keep_io=args.keep_io_types, infer_shapes=not args.disable_shape_infer
        ),
        functions.add_fp16_options,
    ),
    _plain(
        "convert_lstm_to_customlstm",
        "Replace bidirectional LSTM between 16-bit Q/DQ pairs by ExtendedLSTM.",
        custom.to_extended_lstm,
        "Return the model with LSTM as AMD's own operator.",
    ),
    _plain(
        "convert_nchw_to_nhwc",
        "Make four-dimensional inputs and outputs channels-last, with Transpose inside.",
        rewriting.nchw_to_nhwc,
        "Return the model with channels-last inputs and outputs.",
    ),
    Tool(
        name="convert_onnx_to_onnxtxt",
        summary="Write a model as protobuf text.",
        work=functions.onnx_to_text,
    ),
    Tool(
        name="convert_onnxtxt_to_onnx",
        summary="Read a model from protobuf text.",
        work=functions.text_to_onnx,
    ),
    Tool(
        name="convert_opset_version",
        summary="Bring a model to a later operator set: ``INPUT TARGET_OPSET OUTPUT``.",
        work=functions.change_opset,
        words=(
            Word("input", ("--input",), "the model to read"),
            Word("target_opset", ("--target_opset",), "the operator set"),
            Word("output", ("--output",), "the model to write"),
        ),
        functions=(functions.convert_opset_version,),
    ),
    _plain(
        "convert_qdq_to_qop",
        "Turn Q/DQ pairs into integer operators, as onnxruntime fuses them.",
        stored.to_integer_operators,
        "Return the model with QLinear operators.",
    ),
    _plain(
        "convert_quant_to_float",
        _QUANT_TO_FLOAT,
        functions.without_quantization,
        "Return the model in float.",
    ),
    _plain(
        "convert_resize_fs_to_pof2s",
        "Give the tensors around Resize power-of-two scales.",
        pairs.power_of_two_resizes,
        "Return the model with power-of-two scales around Resize.",
    ),
    _plain(
        "convert_s8s8_to_u8s8",
        "Turn int8 activations around zero into uint8 around 128.",
        partial(
            pairs.shift_zero_point,
            source=np.dtype(np.int8),
            zeros=(0,),
            target=np.dtype(np.uint8),
            zero=128,
        ),
        "Return the model with uint8 activations; it computes the same.",
    ),
    _converter(
        "convert_shared_initializer_to_unique",
        "Give each node its own copy of a shared constant: ``--op_types Conv Gemm``, or all.",
        lambda model, args: stored.own_constants(model, args.op_types),
        lambda parser: parser.add_argument("--op_types", nargs="*", default=[], metavar="TYPE"),
        (functions.convert,),
    ),
    _plain(
        "convert_u16s8_to_s16s8",
        "Turn uint16 activations around 32768 into int16 around zero.",
        partial(
            pairs.shift_zero_point,
            source=np.dtype(np.uint16),
            zeros=(32767, 32768),
            target=np.dtype(np.int16),
            zero=0,
        ),
        "Return the model with int16 activations.",
    ),
    _plain(
        "convert_u16u8_to_u8u8",
        "Narrow uint16 activations to uint8 over the same ranges.",
        pairs.halve_width,
        "Return the model with uint8 activations.",
    ),
    Tool(
        name="evaluate",
        summary="How alike the results of two models are: ``evaluate BASELINE_FOLDER QUANTIZED_FOLDER``.",
        work=functions.print_similarity,
        words=tuple(
            Word(name, (f"--{name}",), "a folder of .npy, .npz, .png or .jpg")
            for name in ("baseline_results_folder", "quantized_results_folder")
        ),
    ),
    _converter(
        "fix_shapes",
        "Write down the shape of every tensor, with the shapes of inputs fixed by ``--fix_shapes``.",
        lambda model, args: rewriting.know_shapes(functions.with_fixed_shapes(model, args)),
        lambda parser: parser.add_argument("--fix_shapes", default="", metavar="NAME:[DIMS];..."),
    ),
    _plain(
        "insert_clip_bfloat16_qdq",
        "Clip activations to bfloat16's range before they become bfloat16.",
        custom.clip_before,
        "Return the model with Clip before Q of bfloat16.",
    ),
    Tool(
        name="print_a16w8_a8w8_nodes",
        summary="List the Conv, ConvTranspose and Gemm nodes with 8-bit and with 16-bit activations.",
        work=functions.print_nodes,
        words=(Word("input", ("--input", "--input_model"), "the quantized model"),),
        functions=(functions.a16w8_a8w8_nodes,),
    ),
    Tool(
        name="random_quantize",
        summary="Quantize without calibration data, to see whether a model can be quantized and deployed.",
        work=functions.quantize_randomly,
        options=functions.add_random_options,
    ),
    _plain(
        "remove_bf16_cast",
        "Take out pairs of Cast to bfloat16 and back; constants are rounded to bfloat16.",
        custom.without_casts,
        "Return the model without such pairs.",
    ),
    _plain(
        "remove_initializer_from_input",
        "Take constants off the list of inputs.",
        stored.constants_are_no_inputs,
        "Return the model with inputs that are fed only.",
    ),
    _plain(
        "remove_qdq",
        "Take all Q/DQ pairs out; stored integers become floats.",
        functions.without_quantization,
        "Return the model in float.",
        _QUANT_TO_FLOAT,
    ),
    _converter(
        "remove_qdq_between_ops",
        'Take out the Q/DQ pairs between given operators: ``--between_ops "Conv,Relu;Mul,Add"``.',
        functions.without_given_pairs,
        lambda parser: parser.add_argument("--between_ops", required=True, metavar="A,B;C,D"),
        (functions.remove_qdq_between_ops, functions.without_pairs),
    ),
    _plain(
        "remove_qdq_mul_add",
        "Take out the Q/DQ pairs between Mul and Add.",
        lambda model: functions.without_pairs(model, _MUL_ADD),
        "Return the model without pairs between Mul and Add.",
    ),
    _plain(
        "replace_bfloat16_qdq_cast",
        "Write Q/DQ of bfloat16 as Cast.",
        custom.to_casts,
        "Return the model with Cast, and Mul where there is a scale.",
    ),
    _converter(
        "replace_inf_weights",
        "Replace infinite weights: ``--replace_inf_value 10000``.",
        lambda model, args: stored.finite_constants(model, args.replace_inf_value),
        lambda parser: parser.add_argument("--replace_inf_value", type=float, default=10000.0),
        (functions.replace_inf_in_onnx_weights,),
    ),
    Tool(
        name="save_tensor_hist",
        summary="Run a model on data and write histograms of what it computes, as images and tables.",
        work=functions.write_tensor_histograms,
        words=(
            Word("input", ("--input_model", "--input"), "the model"),
            Word("data", ("--data_path",), "a folder of .npy files or images"),
            Word("output", ("--output_path", "--output"), "a folder for the images"),
        ),
    ),
    Tool(
        name="save_weights_hist",
        summary="Write histograms of weights as images and tables, per channel with ``--perchannel``.",
        work=functions.write_weight_histograms,
        options=lambda parser: parser.add_argument(
            "--perchannel", action="store_true", help="one of each channel"
        ),
    ),
)

TOOLS: Mapping[str, Tool] = MappingProxyType({tool.name: tool for tool in _ROWS})
"""Every tool by its name."""
