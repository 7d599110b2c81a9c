"""Options that several commands share. Imports nothing heavy.

The words of choices are repeated here, because the modules that define them import NumPy; a test
holds them together.
"""

from __future__ import annotations

import argparse

from lowbit.cli import parser as types
from lowbit.cli.parser import Parser, one_of
from lowbit.config import DEFAULT_PRESET

METHODS = ("minmax", "percentile", "entropy", "mse", "nonoverflow", "distribution", "layerwise")
WEIGHT_METHODS = ("minmax", "mse", "output", "hqq")
HEADS = ("auto", "float", "int8")
CACHES = ("int8",)
PREPROCESSINGS = ("imagenet", "tensorflow", "caffe", "yolo")
LAYOUTS = ("auto", "NCHW", "NHWC")
CHANNEL_ORDERS = ("RGB", "BGR")
STRATEGIES = ("calibration", "reconstruction", "accurate", "promotion", "mixed-precision")
RUNTIMES = ("onnxruntime", "openvino")


def add_runtime(parser: Parser, what: str) -> None:
    """Add the choice of the runtime."""
    parser.add_argument(
        "--runtime",
        type=one_of(RUNTIMES),
        default="onnxruntime",
        metavar="NAME",
        help=f"{what}: {' or '.join(RUNTIMES)} (default onnxruntime)",
    )


def add_data(parser: Parser, verb: str, *, required: bool = True) -> None:
    """Add where samples come from, and how many."""
    parser.add_argument(
        "--data",
        required=required,
        metavar="PATH",
        help="a folder of images, .npy or .npz files, an .npz, an .npy, a .txt or .jsonl of texts, .tar "
        "(WebDataset) or .parquet shards, a URL of these (s3://...), or the word random",
    )
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="a tokenizer.json, which turns texts into inputs"
    )
    parser.add_argument(
        "--max-length",
        type=types.count,
        metavar="N",
        help="how many tokens of a text to take at most (default the model's or the tokenizer's length)",
    )
    parser.add_argument(
        "--limit", type=types.count, metavar="N", help=f"how many samples to {verb} (default all)"
    )


def add_scheme(parser: Parser) -> None:
    """Add the options that decide the plan."""
    group = parser.add_argument_group(
        "what is quantized to what",
        "PATTERN is a glob on names of nodes or of their outputs, or re: and a regular expression.",
    )
    group.add_argument(
        "--preset", metavar="NAME", help=f"see `lowbit presets` (default {DEFAULT_PRESET})"
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        help="a .json or .toml file: a whole configuration, or the differences from a preset",
    )
    group.add_argument(
        "--target", metavar="NAME|FILE", help="see `lowbit targets` (default the preset's)"
    )
    group.add_argument(
        "--calibration",
        type=one_of(METHODS),
        metavar="METHOD",
        help=f"how activation ranges are found: {', '.join(METHODS)}",
    )
    group.add_argument(
        "--percentile",
        type=types.percent,
        metavar="P",
        help="percent of the values kept in range, for --calibration percentile",
    )
    group.add_argument(
        "--weights",
        type=one_of(WEIGHT_METHODS),
        metavar="METHOD",
        help=f"how weight ranges are found: {', '.join(WEIGHT_METHODS)}",
    )
    group.add_argument(
        "--group-size",
        type=types.count,
        metavar="N",
        help="how many weights of an output share a scale (W4: 32); fewer are more accurate and take more space",
    )
    for option, kind, what in (
        ("--fix-input", types.fixed_input, "sr=16000: make an input a constant (repeatable)"),
        ("--input-shape", types.input_shape, "x=1,3,320,320: an input's shape (repeatable)"),
    ):
        group.add_argument(
            option, action="append", default=[], type=kind, metavar="NAME=VALUE", help=what
        )
    _add_exceptions(group)


def _add_exceptions(group: argparse._ArgumentGroup) -> None:
    """Add the options that except nodes from the scheme."""
    for option, what in (
        ("--include", "quantize only nodes that match (repeatable)"),
        ("--exclude", "keep nodes that match in float (repeatable)"),
    ):
        group.add_argument(
            option,
            action="append",
            default=[],
            type=types.pattern,
            metavar="PATTERN",
            help=what,
        )
    group.add_argument(
        "--exclude-op",
        action="append",
        default=[],
        metavar="TYPE",
        help="keep operators of this type in float (repeatable)",
    )
    group.add_argument(
        "--cache",
        type=one_of(CACHES),
        metavar="FORMAT",
        help="store key/value caches (past_key_values, present) in int8",
    )
    group.add_argument(
        "--head",
        type=one_of(HEADS),
        metavar="KIND",
        help="after the last linear layers (boxes decoded, a last average): auto (float where needed), "
        "float or int8",
    )
    group.add_argument(
        "--skip-rewrite",
        action="append",
        default=[],
        metavar="REWRITE",
        help="skip one of the target's graph rewrites (repeatable)",
    )


def add_goal(parser: Parser) -> None:
    """Add the options of a search for a model that is good enough."""
    group = parser.add_argument_group(
        "goal",
        "Try strategies until the goal holds with 95 % confidence on samples not used for the search. "
        "If it never does, the best model is written, and the exit code is 5.",
    )
    group.add_argument(
        "--goal",
        metavar="GOAL",
        help='"drop<=0.5" (points of top-1, or of --metric), "top1>=70", "sqnr>=25", "kl<=0.05", '
        '"cosine>=0.99" or "agreement>=98%%"',
    )
    group.add_argument(
        "--budget",
        metavar="TIME",
        help="how long to search at most: 45s, 20m, 1.5h (default no limit)",
    )
    group.add_argument(
        "--labels",
        metavar="FILE",
        help="a .csv (file,label), a .txt or .npy in order, FILE.npz:NAME, or the word folders",
    )
    group.add_argument(
        "--metric",
        metavar="MODULE:FUNCTION",
        help="a Python function of outputs and label, instead of top-1",
    )
    group.add_argument(
        "--strategies",
        type=types.words,
        metavar="A,B",
        help=f"what to try, of {', '.join(STRATEGIES)} (default all, in this order)",
    )


def add_engine(parser: Parser) -> None:
    """Add the options that share the work out."""
    group = parser.add_argument_group(
        "workers", "Without these, threads of one process. The result has the same bytes."
    )
    group.add_argument(
        "--workers", type=types.count, metavar="N", help="number of processes on this machine"
    )
    group.add_argument(
        "--cluster",
        metavar="ENGINE=ADDRESS",
        help="dask=tcp://host:8786, ray=auto, or the name of a joblib backend",
    )
    group.add_argument(
        "--state",
        metavar="DIR",
        help="keep finished shards, layers and trials in this folder or fsspec URL, and reuse those of earlier runs",
    )


def add_images(parser: Parser) -> None:
    """Add the options that say how images become inputs."""
    group = parser.add_argument_group(
        "images", "Input values are (pixel * scale - mean) / std, after resize and crop."
    )
    group.add_argument(
        "--preprocess",
        type=one_of(PREPROCESSINGS),
        metavar="NAME",
        help=f"{', '.join(PREPROCESSINGS)}; the options below override parts of it",
    )
    group.add_argument("--mean", type=types.channels, metavar="R,G,B", help="one number or three")
    group.add_argument("--std", type=types.channels, metavar="R,G,B", help="one number or three")
    group.add_argument("--scale", type=types.factor, metavar="X", help="default 1/255")
    group.add_argument(
        "--resize", type=types.size, metavar="S|H,W", help="shorter side, or height,width"
    )
    group.add_argument("--crop", type=types.size, metavar="S|H,W", help="from the centre")
    group.add_argument("--layout", type=one_of(LAYOUTS), metavar="NAME", help=", ".join(LAYOUTS))
    group.add_argument(
        "--channel-order",
        type=one_of(CHANNEL_ORDERS),
        metavar="NAME",
        help="what the model wants: RGB or BGR",
    )
