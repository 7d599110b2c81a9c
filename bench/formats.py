"""How fast models in 16-bit floats and blocks run: functions in the file against AMD's library.

    python bench/formats.py make OUT model.onnx --presets BF16,BFP16,MXINT8
    python bench/formats.py time OUT --library quark_custom_ops.so

``make`` needs lowbit. ``time`` needs only onnxruntime, onnx and NumPy, and AMD Quark's compiled
library (with PyTorch, which it is linked to), so that it can run in Quark's own environment. Each
model runs as written, in a plain session, and once more with its functions taken out, so that the
library computes its operators. One thread, CPU seconds, the best of several runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import time

import numpy as np


def main() -> None:
    """Make models, or time them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make")
    make.add_argument("folder", type=pathlib.Path)
    make.add_argument("models", nargs="+", type=pathlib.Path)
    make.add_argument("--presets", default="BF16,BFP16,MX9,MXINT8,MXFP8E4M3")
    timing = commands.add_parser("time")
    timing.add_argument("folder", type=pathlib.Path)
    timing.add_argument("--library", required=True)
    timing.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    if args.command == "make":
        make_all(args)
    else:
        time_all(args)


def make_all(args: argparse.Namespace) -> None:
    """Write every model in every format."""
    import lowbit

    args.folder.mkdir(parents=True, exist_ok=True)
    for model in args.models:
        for preset in args.presets.split(","):
            target = args.folder / f"{model.stem}-{preset}.onnx"
            lowbit.convert(model, target, to=preset.lower(), casts=False, half_weights=False)
            print(target)


def time_all(args: argparse.Namespace) -> None:
    """Print a line of JSON for each model."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401  # the library is linked to it
    for path in sorted(args.folder.glob("*.onnx")):
        row = {"model": path.stem}
        outputs = {}
        for way in ("functions", "library"):
            seconds, loading, outputs[way] = _measure(path, way, args)
            row[f"{way}_s"], row[f"{way}_load_s"] = round(seconds, 4), round(loading, 2)
        row["ratio"] = round(row["functions_s"] / row["library_s"], 2)
        row["max_difference"] = float(np.abs(outputs["functions"] - outputs["library"]).max())
        print(json.dumps(row), flush=True)


def _measure(path: pathlib.Path, way: str, args: argparse.Namespace):
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    model = onnx.load(path)
    if way == "library":
        options.register_custom_ops_library(args.library)
        del model.functions[:]
        for node in model.graph.node:
            node.ClearField("overload")
    start = time.process_time()
    session = ort.InferenceSession(model.SerializeToString(), options)
    loading = time.process_time() - start
    feed = {value.name: _random(value) for value in session.get_inputs()}
    seconds = []
    for _ in range(args.runs):
        start = time.process_time()
        result = session.run(None, feed)
        seconds.append(time.process_time() - start)
    return min(seconds), loading, result[0]


def _random(value) -> np.ndarray:
    shape = [n if isinstance(n, int) else 1 for n in value.shape]
    return np.random.default_rng(0).normal(0, 0.6, shape).astype(np.float32)


if __name__ == "__main__":
    main()
