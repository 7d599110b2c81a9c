"""The longer tools, which are no row of the table, and the functions they offer.

Imports of what quantizes or runs a model are inside the functions: most tools need none of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
import numpy as np
import onnx
import onnx_ir as ir

from lowbit.cli.parser import Parser, one_of
from lowbit.files import check_writable
from lowbit.graph import io
from lowbit.ops.quantizing import DEQUANTIZE
from lowbit.quark import rewriting
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.models.custom import without_casts
from lowbit.quark.models.pairs import (
    parameters,
    remove_pairs,
    remove_rounding,
    to_floats,
)
from lowbit.quark.models.stored import (
    finite_constants,
    own_constants,
    read_text,
    tensor_histograms,
    weight_histograms,
    write_text,
)

if TYPE_CHECKING:
    from lowbit.quark.onnx.quantization.config.config import Subgraph

_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_BF16_FORMATS = ("with_cast", "customqdq", "simulate_bf16", "bf16")
_FIGURES = (
    ("cosine", "cos similarity", "Min"),
    ("l2", "l2 distance", "Max"),
    ("psnr", "psnr", "Min"),
    ("ssim", "ssim", "Min"),
)
_LIST = re.compile(r"\[(.*?)\]")


# What scripts import. Names and arguments are Quark's.


def fix_shapes(model: onnx.ModelProto, fix_shapes_config: str) -> onnx.ModelProto:
    """Return the model with fixed shapes."""
    shapes = rewriting.parse_shapes(fix_shapes_config)
    return io.to_proto(rewriting.fix_shapes(io.load(model), shapes))


def custom_ops_infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the shapes of its tensors, through operators with bodies as well."""
    return onnx.shape_inference.infer_shapes(model)


def convert_opset_version(model: onnx.ModelProto, target_opset: int) -> onnx.ModelProto:
    """Return the model at an operator set."""
    return io.to_proto(rewriting.to_opset(io.load(model), target_opset))


def convert(model: onnx.ModelProto, op_types: Sequence[str] = ()) -> onnx.ModelProto:
    """Return the model with constants of one consumer each."""
    return io.to_proto(own_constants(io.load(model), op_types))


def remove_qdq_between_ops(
    model: onnx.ModelProto, between_ops: Sequence[tuple[str, str]]
) -> onnx.ModelProto:
    """Return the model without pairs between a first and a second operator."""
    return io.to_proto(without_pairs(io.load(model), between_ops))


def replace_inf_in_onnx_weights(
    input_model: str | onnx.ModelProto,
    output_model: str | None = None,
    replace_inf_value: float = 10000.0,
) -> onnx.ModelProto | None:
    """Return the model with finite weights, or write it."""
    changed = finite_constants(io.load(input_model), replace_inf_value)
    if output_model is None:
        return io.to_proto(changed)
    io.save(changed, output_model)
    return None


def a16w8_a8w8_nodes(input_model_path: str) -> tuple[list[str], list[str]]:
    """Return the names of nodes with 8-bit activations, and of those with 16-bit ones."""
    model = io.load(input_model_path)
    names: dict[int, list[str]] = {1: [], 2: []}
    for node in model.graph:
        size = _activation_bytes(node) if node.op_type in _LAYERS else None
        if size in names:
            names[size].append(node.name or "")
    return names[1], names[2]


def _activation_bytes(node: ir.Node) -> int | None:
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    if source is None or source.op_type not in DEQUANTIZE:
        return None
    _, zero = parameters(source)
    return int(np.dtype(np.uint8 if zero is None else zero.dtype).itemsize)


# What changes a model.


def without_pairs(model: ir.Model, between: Sequence[tuple[str, str]]) -> ir.Model:
    """Take out the pairs between given operators; return ``model`` itself."""
    known = set(between)

    def wanted(quantizer: ir.Node, dequantizer: ir.Node) -> bool:
        source = quantizer.inputs[0]
        producer = source.producer() if source is not None else None
        uses = tuple(dequantizer.outputs[0].uses())
        if producer is None or len(uses) != 1:
            return False
        return (producer.op_type, uses[0].node.op_type) in known

    remove_pairs(model.graph, wanted)
    return model


def without_given_pairs(model: ir.Model, args: argparse.Namespace) -> ir.Model:
    """Return the model without pairs between the operators of ``--between_ops``."""
    pairs = []
    for part in filter(str.strip, args.between_ops.split(";")):
        words = [word.strip() for word in part.split(",")]
        if len(words) != 2:
            raise QuarkConfigError(f"--between_ops: {part!r} is not two operators, such as Mul,Add")
        pairs.append((words[0], words[1]))
    return without_pairs(model, pairs)


def without_quantization(model: ir.Model) -> ir.Model:
    """Return ``model`` itself in float."""
    remove_pairs(model.graph, lambda quantizer, dequantizer: True)
    remove_rounding(model.graph)
    to_floats(model.graph)
    return model


def with_fixed_shapes(model: ir.Model, args: argparse.Namespace) -> ir.Model:
    """Return the model with the shapes of ``--fix_shapes``."""
    return rewriting.fix_shapes(model, rewriting.parse_shapes(args.fix_shapes))


def to_bf16(model: ir.Model, args: argparse.Namespace) -> ir.Model:
    """Return the model in bfloat16, in the form that ``--format`` names."""
    from lowbit.api.quantize import quantize
    from lowbit.quark.onnx.quantization.config.custom_config import get_default_config
    from lowbit.quark.translate.job import make_job

    casts = args.format != "customqdq"
    preset = get_default_config("BF16")
    # Only the format changes: Quark's presets would equalize layers as well.
    preset = dataclasses.replace(
        preset, include_cle=False, extra_options={**preset.extra_options, "BF16QDQToCast": casts}
    )
    job = make_job(preset, model, lenient=False)
    config = msgspec.structs.replace(
        job.config,
        name="BF16_CAST" if casts else "BF16",
        half_weights=args.format == "bf16",
    )
    changed = quantize(model, data="random", config=config, target=job.target).quantized
    return without_casts(changed) if args.format == "simulate_bf16" else changed


def to_bfp16(model: ir.Model) -> ir.Model:
    """Return the model in BFP16."""
    from lowbit.api.quantize import quantize
    from lowbit.quark.onnx.quantization.config.custom_config import get_default_config
    from lowbit.quark.translate.job import make_job

    job = make_job(get_default_config("BFP16"), model, lenient=False)
    return quantize(model, data="random", config=job.config, target=job.target).quantized


# The work of tools that do more or less than read a model, change it and write it.


def change_opset(args: argparse.Namespace) -> None:
    """Write the model at an operator set."""
    if not args.target_opset.isdecimal():
        raise QuarkConfigError(f"TARGET_OPSET is {args.target_opset!r}; expected a number")
    check_writable(args.output)
    io.save(rewriting.to_opset(io.load(args.input), int(args.target_opset)), args.output)


def onnx_to_text(args: argparse.Namespace) -> None:
    """Write the model as protobuf text."""
    check_writable(args.output)
    write_text(io.load(args.input), args.output)


def text_to_onnx(args: argparse.Namespace) -> None:
    """Write the model that protobuf text describes."""
    io.save(read_text(args.input), args.output, external_data=args.external_data)


def print_nodes(args: argparse.Namespace) -> None:
    """Print the nodes with 8-bit activations, then those with 16-bit ones."""
    for kind, names in zip(("int8", "int16"), a16w8_a8w8_nodes(args.input), strict=True):
        lines = [f"{kind} activation node names:", *names]
        print("\n".join([*lines, f"{kind} activation node count: {len(names)}"]))  # noqa: T201


def print_similarity(args: argparse.Namespace) -> None:
    """Print mean and worst of each figure, in Quark's eight lines."""
    from lowbit.evaluate.folders import evaluate

    found = evaluate(args.baseline_results_folder, args.quantized_results_folder)
    by_figure = {row.figure: row for row in found.summary}
    for figure, words, worst in _FIGURES:
        if figure in by_figure:
            row = by_figure[figure]
            print(f"Mean {words}: {row.mean}\n{worst} {words}: {row.worst}")  # noqa: T201


def write_tensor_histograms(args: argparse.Namespace) -> None:
    """Write a histogram of each tensor."""
    count = tensor_histograms(io.load(args.input), args.data, Path(args.output))
    print(f"save_tensor_hist: wrote {count} histograms to {args.output}")  # noqa: T201


def write_weight_histograms(args: argparse.Namespace) -> None:
    """Write a histogram of each weight."""
    folder = Path(args.output)
    count = weight_histograms(io.load(args.input), folder, per_channel=args.perchannel)
    print(f"save_weights_hist: wrote {count} histograms to {folder}")  # noqa: T201


def quantize_randomly(args: argparse.Namespace) -> None:
    """Quantize a file with a preset and random data."""
    from lowbit.quark.onnx.quantization.api import ModelQuantizer
    from lowbit.quark.onnx.quantization.config.config import Config
    from lowbit.quark.onnx.quantization.config.custom_config import get_default_config
    from lowbit.quark.onnx.quantization.quant_utils import PowerOfTwoMethod

    config = get_default_config(args.config)
    method = config.calibrate_method
    config = dataclasses.replace(
        config,
        calibrate_method=PowerOfTwoMethod.NonOverflow if args.config == "XINT8" else method,
        use_external_data_format=args.external_data,
        nodes_to_exclude=_names(args.exclude_nodes, ";"),
        subgraphs_to_exclude=_subgraphs(args.exclude_subgraphs),
        extra_options={**config.extra_options, "UseRandomData": True},
    )
    ModelQuantizer(Config(config)).quantize_model(args.input, args.output)


def _names(text: str, mark: str) -> list[str]:
    return [word.strip() for word in text.split(mark) if word.strip()]


def _subgraphs(text: str) -> list[Subgraph]:
    found: list[Subgraph] = []
    for part in _names(text, ";"):
        lists = _LIST.findall(part)
        if len(lists) != 2:
            raise QuarkConfigError(f"--exclude_subgraphs: {part!r} is not [first],[last]")
        found.append((_names(lists[0], ","), _names(lists[1], ",")))
    return found


# The options of tools that add more than one, or one with a rule.


def add_bf16_options(parser: Parser) -> None:
    """Add the form of bfloat16."""
    parser.add_argument(
        "--format", type=one_of(_BF16_FORMATS), default="with_cast", metavar="FORMAT"
    )


def add_fp32_options(parser: Parser) -> None:
    """Add what Quark takes and this tool refuses."""

    def refuse(text: str) -> NoReturn:
        raise NotSupportedError(f"--subgraphs_to_include {text!r}: only whole models are converted")

    parser.add_argument("--subgraphs_to_include", type=refuse, help="(not supported)")


def add_fp16_options(parser: Parser) -> None:
    """Add what onnxruntime's converter takes."""
    parser.add_argument("--keep_io_types", action="store_true", help="float32 at both ends")
    parser.add_argument("--disable_shape_infer", action="store_true")
    for option in ("--all_tensors_to_one_file", "--not_simplify"):
        parser.add_argument(option, action="store_true", help="(what is done anyway)")


def add_random_options(parser: Parser) -> None:
    """Add the preset, and what is not quantized."""
    parser.add_argument("--config", default="XINT8", help="a preset of Quark's")
    parser.add_argument("--exclude_nodes", default="", help="names of nodes, apart by ;")
    parser.add_argument("--exclude_subgraphs", default="", help="[first],[last];[first],[last]")
