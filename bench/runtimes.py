"""How close quantized models are to float, and how fast, in onnxruntime and in OpenVINO.

    python -m bench.runtimes --models example,mobilenet_v2,minilm,yolov8n --presets U8S8_PERCHANNEL,A8W8

Writes ``bench/RUNTIMES.md``. Needs ``lowbit[openvino]``; models are those of ``bench/subjects.py``. Half of the
calibration samples are compared on where a model has no others. Float and quantized model run in turn.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import lowbit
from bench.markdown import number, table, times
from bench.subjects import Subject, available, subject
from lowbit.evaluate.benchmark import Timing, benchmark
from lowbit.evaluate.compare_models import Comparison, compare_outputs, output_reference
from lowbit.graph import io
from lowbit.graph.openvino import RUNTIMES
from lowbit.graph.profiling import saturates_int8

_PAGE = pathlib.Path(__file__).with_name("RUNTIMES.md")
_HEAD = (
    "model",
    "preset",
    "SQNR, exact",
    *(f"SQNR, {runtime}" for runtime in RUNTIMES),
    *(f"{what}, {runtime}" for runtime in RUNTIMES for what in ("ms, float", "times as fast")),
)


def main() -> None:
    """Measure every model with every preset, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="example")
    parser.add_argument("--presets", default="U8S8_PERCHANNEL,S8S8_PERCHANNEL,A8W8")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("bench-work"))
    args = parser.parse_args()
    rows = []
    for name in available(args.models.split(",")):
        known = subject(name, args.samples, args.images, args.work)
        for preset in args.presets.split(","):
            rows.append(_row(known, preset, args))
            print(*rows[-1], sep=" | ", flush=True)
    kind = "saturate in 16 bits" if saturates_int8() else "do not saturate"
    load = os.getloadavg()[0]
    _PAGE.write_text(
        "# Runtimes\n\nWritten by `python -m bench.runtimes`; do not edit. SQNR in dB, on samples that were not "
        f"calibrated on. Latency: float and quantized model in turn, {args.threads} thread; median of "
        f"{args.runs} runs. The int8 kernels of this processor {kind}. Load average at the end {load:.1f}.\n\n"
        + table(_HEAD, rows),
        encoding="utf-8",
    )


def _row(known: Subject, preset: str, args: argparse.Namespace) -> tuple[str, ...]:
    calibration, others = _samples(known)
    result = lowbit.quantize(known.model, data=calibration, preset=preset, allow_ruined=True)
    found = {runtime: _compared(known, result, others, runtime) for runtime in RUNTIMES}
    timings = {
        runtime: list(_timed(known, result, others[0], runtime, args)) for runtime in RUNTIMES
    }
    return (
        known.name,
        preset,
        number(min(each.sqnr_db for each in found["onnxruntime"].outputs.values()), 1),
        *(number(min(each.sqnr_db for each in found[r].fused.values()), 1) for r in RUNTIMES),
        *(
            cell
            for r in RUNTIMES
            for cell in (number(timings[r][0].median_ms, 1), times(timings[r][1].ratio))
        ),
    )


def _compared(known: Subject, result: lowbit.Result, feeds: list[Any], runtime: Any) -> Comparison:
    """Run all samples exactly, and through the kernels of a runtime."""
    plain = io.load(known.model)
    return compare_outputs(
        plain,
        result.quantized,
        list(output_reference(plain, result.quantized).pairs),
        feeds,
        fused=frozenset(range(len(feeds))),
        keep=frozenset(),
        listener=lambda *_: None,
        runtime=runtime,
    )


def _timed(
    known: Subject, result: lowbit.Result, feed: Any, runtime: Any, args: argparse.Namespace
) -> Iterator[Timing]:
    models = {"float": io.load(known.model), "quantized": result.quantized}
    yield from benchmark(models, feed, runs=args.runs, threads=args.threads, runtime=runtime)


def _samples(known: Subject) -> tuple[list[Any], list[Any]]:
    """Return feeds to calibrate on, and others to compare on."""
    rows = sorted(pathlib.Path(known.samples).glob("*.npy"))
    feeds: list[Any] = [{known.input: np.load(path)} for path in rows]
    if not rows:
        names = sorted(path.name for path in pathlib.Path(known.samples).iterdir())
        each = {name: sorted(pathlib.Path(known.samples, name).glob("*.npy")) for name in names}
        feeds = [
            {name: np.load(paths[index]) for name, paths in each.items()}
            for index in range(len(each[names[0]]))
        ]
    if known.images:
        return feeds, [{known.input: image[None]} for image in np.load(known.images, mmap_mode="r")]
    return feeds[::2], feeds[1::2]


if __name__ == "__main__":
    main()
