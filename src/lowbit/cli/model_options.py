"""Options of the commands that look at models: inspect, bench and sweep. Imports nothing heavy."""

from __future__ import annotations

from lowbit.cli import parser as types
from lowbit.cli.option_groups import add_data, add_engine, add_images, add_runtime
from lowbit.cli.parser import Parser


def add_inspect(parser: Parser) -> None:
    """Add the options of ``lowbit inspect``."""
    parser.add_argument("model", metavar="MODEL", help="a float or quantized model")
    parser.add_argument("--all", action="store_true", help="list every operator")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_bench(parser: Parser) -> None:
    """Add the options of ``lowbit bench``."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help="models with the same inputs")
    parser.add_argument(
        "--data",
        default="random",
        metavar="PATH",
        help="where the sample comes from, for models whose inputs have no fixed shapes "
        "(default random)",
    )
    parser.add_argument(
        "--runs", type=types.count, default=50, metavar="N", help="runs of each (default 50)"
    )
    parser.add_argument(
        "--threads",
        type=types.count,
        default=0,
        metavar="N",
        help="number of threads (default: chosen by onnxruntime)",
    )
    parser.add_argument(
        "--provider",
        metavar="NAME",
        help="an execution provider of onnxruntime (default CPUExecutionProvider)",
    )
    add_runtime(parser, "what runs the models")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_sweep(parser: Parser) -> None:
    """Add the options of ``lowbit sweep``."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help="float models, .onnx files")
    parser.add_argument(
        "--presets", required=True, type=types.words, metavar="A,B", help="see `lowbit presets`"
    )
    add_data(parser, "calibrate on")
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="labels of all samples, as for compare; accuracy is then measured as well",
    )
    add_images(parser)
    add_engine(parser)
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="write the models, sweep.csv and sweep.html into this folder",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, nothing else")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
