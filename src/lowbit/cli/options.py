"""The commands and their options. Imports nothing heavy.

The words of choices are repeated here, because the modules that define them import NumPy; a test
holds them together.
"""

from __future__ import annotations

from collections.abc import Callable

from lowbit.cli import parser as types
from lowbit.cli.model_options import add_bench, add_inspect, add_sweep
from lowbit.cli.option_groups import (
    add_data,
    add_engine,
    add_goal,
    add_images,
    add_runtime,
    add_scheme,
)
from lowbit.cli.parser import Parser, one_of
from lowbit.version import __version__

DOMAINS = ("auto", "ai.onnx", "com.microsoft")
SHELLS = ("bash", "zsh", "fish")
EFFORTS = ("none", "quick", "full")
FLOAT_FORMATS = tuple(
    "fp32 bf16 fp16 bfp16 mx4 mx6 mx9 mxint8 mxfp8e5m2 mxfp8e4m3 mxfp6e3m2 mxfp6e2m3 "
    "mxfp4e2m1 functions integer-io".split()
)

_EPILOG = """\
examples:
  lowbit quantize model.onnx int8.onnx --preset XINT8 --data images/ --preprocess imagenet
  lowbit inspect model.onnx                      what it is, and what each target would do
  lowbit plan model.onnx --preset XINT8          what would be quantized, and what not and why
  lowbit compare model.onnx int8.onnx --data images/ --preprocess imagenet
  lowbit bench model.onnx int8.onnx              how long both take

`lowbit COMMAND --help` lists the options of a command. Exit codes: 0 done and verified,
2 something was wrong (one line on stderr says what), 3 a gate failed,
4 the model is ruined and not written, 5 the best model found is written but misses its goal,
130 interrupted (Ctrl-C), 143 terminated.
"""


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="lowbit",
        description="Quantize ONNX models after training, for AMD Ryzen AI NPUs and every target "
        "that reads Q/DQ.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"lowbit {__version__}")
    parser.add_argument(
        "--completion",
        type=one_of(SHELLS),
        metavar="SHELL",
        help=f"print a completion script for {', '.join(SHELLS)}",
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=Parser
    )
    for name, summary, add_options in _COMMANDS:
        command = commands.add_parser(
            name,
            prog=f"lowbit {name}",
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
        )
        add_options(command)
    parser.commands = commands.choices
    return parser


def _quantize(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the float model, an .onnx file")
    parser.add_argument("output", metavar="OUTPUT", help="where the quantized model is written")
    add_data(parser, "calibrate on", required=False)
    add_scheme(parser)
    add_images(parser)
    _add_stages(parser)
    add_goal(parser)
    add_engine(parser)
    files = parser.add_argument_group("saved plans and statistics")
    files.add_argument("--plan", metavar="FILE", help="use this plan, which may be edited")
    files.add_argument("--save-plan", metavar="FILE", help="write the plan as JSON, for editing")
    files.add_argument("--stats", metavar="FILE", help="use saved statistics: no calibration run")
    files.add_argument(
        "--save-stats",
        metavar="FILE",
        help="write statistics (.npz) that work with every calibration method",
    )
    _add_result(parser)


def _add_stages(parser: Parser) -> None:
    more = parser.add_argument_group("stages")
    more.add_argument(
        "--no-bias-correction",
        action="store_true",
        help="skip bias correction; float weight scales are then chosen by the output's error",
    )
    more.add_argument(
        "--no-equalization", action="store_true", help="skip cross-layer equalization"
    )
    more.add_argument("--no-smooth-quant", action="store_true", help="skip SmoothQuant")
    more.add_argument(
        "--no-sensitivity",
        action="store_true",
        help="choose scales of activations by the error of each tensor, not by that of the outputs",
    )
    more.add_argument(
        "--no-power-of-two-fit",
        action="store_true",
        help="do not rescale tensors so that power-of-two scales fit them",
    )
    more.add_argument(
        "--no-centering",
        action="store_true",
        help="do not center what a Relu leaves around zero, for symmetric formats of 8 bits",
    )
    more.add_argument(
        "--keep-all-steps",
        action="store_true",
        help="keep equalization, SmoothQuant, bias correction, scales by sensitivity, the fit to powers of "
        "two and centering whether they help on held-out samples or not",
    )
    more.add_argument(
        "--no-reconstruction",
        action="store_true",
        help="round weights to the nearest integer instead of reconstructing each layer's output",
    )
    more.add_argument(
        "--resume",
        action="store_true",
        help="continue with the layers that an earlier run refined",
    )
    more.add_argument(
        "--keep-partial",
        action="store_true",
        help="on Ctrl-C during refinement, write the model with the layers done so far",
    )
    more.add_argument(
        "--domain",
        type=one_of(DOMAINS),
        metavar="NAME",
        help="operator domain of the Q/DQ nodes: auto, ai.onnx or com.microsoft",
    )


def _add_result(parser: Parser) -> None:
    """Add the options that say what becomes of the result."""
    out = parser.add_argument_group("result")
    out.add_argument(
        "--verify",
        type=types.count,
        metavar="N",
        help="how many samples to verify on, held out of calibration where the data has enough (default 32, or "
        "fewer where these leave no doubt)",
    )
    out.add_argument(
        "--no-promote",
        action="store_true",
        help="keep the first plan even if the model is not usable with it",
    )
    out.add_argument(
        "--allow-ruined", action="store_true", help="write the model even if it is ruined"
    )
    out.add_argument(
        "--min-sqnr",
        type=types.decibels,
        metavar="DB",
        help="fail, and write nothing, if the worst output has a lower SQNR",
    )
    out.add_argument(
        "--report", metavar="FILE", help="write the report: a page if it ends in .html, else JSON"
    )
    out.add_argument("--json", action="store_true", help="print the report as JSON, nothing else")
    out.add_argument(
        "--verbose", action="store_true", help="print every table, not only a summary of one screen"
    )
    out.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _plan(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the float model, an .onnx file")
    add_scheme(parser)
    out = parser.add_argument_group("result")
    out.add_argument("--output", metavar="FILE", help="write the plan as JSON, for quantize --plan")
    out.add_argument("--json", action="store_true", help="print the plan as JSON, nothing else")
    out.add_argument("--all", action="store_true", help="list every tensor and node")


def _compare(parser: Parser) -> None:
    parser.add_argument("reference", metavar="REFERENCE", help="the float model")
    parser.add_argument(
        "quantized", metavar="QUANTIZED", nargs="+", help="the quantized model, or several of them"
    )
    add_data(parser, "compare on")
    add_images(parser)
    parser.add_argument(
        "--budget",
        type=one_of(EFFORTS),
        default="quick",
        metavar="EFFORT",
        help="how many tensors to measure for the error budget: quick (a few passes), full (all), none",
    )
    parser.add_argument(
        "--retry",
        metavar="PATH",
        help="calibration data: quantize again with the suggestion that gains most, and measure",
    )
    accuracy = parser.add_argument_group("accuracy")
    accuracy.add_argument(
        "--labels",
        metavar="FILE",
        help="a .csv (file,label), a .txt or .npy in order, FILE.npz:NAME, or the word folders",
    )
    accuracy.add_argument(
        "--metric",
        metavar="MODULE:FUNCTION",
        help="a Python function of outputs and label, instead of top-1 and top-5",
    )
    accuracy.add_argument(
        "--tolerance",
        type=types.positive,
        default=1.0,
        metavar="X",
        help="how precisely the accuracy gap should be known, in points; decides the number of samples needed (default 1)",
    )
    parser.add_argument("--time", action="store_true", help="measure how long both models take")
    add_runtime(parser, "the runtime whose kernels are measured in addition to exact arithmetic")
    gates = parser.add_argument_group("gates", "A gate that fails gives exit code 3.")
    gates.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="GATE",
        help='such as "top1_drop>1" or "sqnr<20" (repeatable)',
    )
    gates.add_argument("--junit", metavar="FILE", help="write the gates as JUnit XML")
    parser.add_argument(
        "--report", metavar="FILE", help="write the report: a page if it ends in .html, else JSON"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _infer(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a float or quantized model")
    add_data(parser, "run")
    add_images(parser)
    parser.add_argument(
        "--output", required=True, metavar="FOLDER", help="a new folder: 0.npy, 1.npy and so on"
    )
    parser.add_argument(
        "--fused",
        action="store_true",
        help="run through onnxruntime's fused int8 kernels, which saturate on some processors",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _evaluate(parser: Parser) -> None:
    parser.add_argument(
        "baseline", metavar="BASELINE_FOLDER", help="results of the float model (lowbit infer)"
    )
    parser.add_argument(
        "quantized", metavar="QUANTIZED_FOLDER", help="results of the quantized model"
    )
    parser.add_argument("--all", action="store_true", help="list every file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--csv", action="store_true", help="print a row for each file as CSV")


def _convert(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the model, in float32 or 16-bit floats")
    parser.add_argument("output", metavar="OUTPUT", help="where the converted model is written")
    parser.add_argument(
        "--to",
        required=True,
        type=one_of(FLOAT_FORMATS),
        metavar="FORMAT",
        help=f"{', '.join(FLOAT_FORMATS)}; fp32 is the way back from the others, functions gives "
        "AMD's named operators bodies that any onnxruntime runs, integer-io makes quantized inputs and outputs "
        "(caches) integers",
    )
    parser.add_argument(
        "--operators",
        action="store_true",
        help="write bf16 and fp16 as AMD's named operators, not as pairs of Cast",
    )
    parser.add_argument(
        "--full-weights",
        action="store_true",
        help="keep bf16 and fp16 weights in 32 bits, to be rounded when the model runs",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _presets(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print whole configurations as JSON")


def _targets(parser: Parser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="print this target as JSON, to be edited into your own (quantize --target FILE)",
    )
    parser.add_argument("--json", action="store_true", help="print all of them as JSON")


_COMMANDS: tuple[tuple[str, str, Callable[[Parser], None]], ...] = (
    ("quantize", "quantize a model, verify it and write it", _quantize),
    ("plan", "show what would be quantized, in which formats, without any data", _plan),
    ("compare", "measure how far a quantized model is from its float model", _compare),
    ("inspect", "describe a model, and what each target would do with it", add_inspect),
    ("bench", "measure the latency of models on this machine", add_bench),
    ("sweep", "quantize models with several presets, and compare them in one table", add_sweep),
    ("infer", "run a model and write its outputs, one file per sample", _infer),
    ("evaluate", "compare two folders of results", _evaluate),
    ("convert", "convert between float formats, without data", _convert),
    ("presets", "list the presets", _presets),
    ("targets", "list the targets, or print one as JSON", _targets),
)
