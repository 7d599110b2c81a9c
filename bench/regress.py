"""Has lowbit become slower? In under a minute, on the bundled example alone.

    python -m bench.regress            # fails if a ratio is more than 1.3 times the stored one
    python -m bench.regress --update   # store the ratios of now

Figures are ratios to a plain float pass measured in the same process at the same time: CPU seconds of a
run to CPU seconds of a single-threaded onnxruntime pass over the same samples, least of several
turns. So they hardly depend on how fast or how busy the machine is.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort

import lowbit
from bench.subjects import example, example_model
from lowbit.config.presets import find_preset
from lowbit.graph import io
from lowbit.quark.onnx import CalibrationMethod
from lowbit.quark.onnx.quantization.config import get_default_config
from lowbit.quark.translate.job import make_job
from lowbit.targets.target import Target

STORED = pathlib.Path(__file__).resolve().parent / "regress.json"
ALLOWED = 1.3
_SAMPLES, _PASSES, _TURNS = 64, 5, 3

Run = tuple[lowbit.QuantConfig, Target | None]


def _of_quark(name: str, **fields: Any) -> Run:
    """Return what one of Quark's presets without equalization means here."""
    config = dataclasses.replace(get_default_config(name), include_cle=False, **fields)
    job = make_job(config, io.load(example_model()), lenient=False)
    return job.config, job.target


CONFIGS: Mapping[str, Run] = {
    "A8W8 of Quark, MinMax": _of_quark("A8W8"),
    "A8W8 of Quark, Percentile": _of_quark("A8W8", calibrate_method=CalibrationMethod.Percentile),
    "XINT8 of Quark": _of_quark("XINT8"),
    "XINT8, calibration alone": (
        msgspec.structs.replace(find_preset("XINT8"), refinement=None, keep_only_if_better=False),
        None,
    ),
    "XINT8": (find_preset("XINT8"), None),
    "BF16": (find_preset("BF16"), None),
}


def main() -> int:
    """Measure, print, compare or store; 1 if anything got slower."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.regress", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--update", action="store_true", help="store the ratios measured now")
    update = parser.parse_args().update
    ratios = measure(CONFIGS, _TURNS)
    if update:
        STORED.write_text(json.dumps({k: round(v, 1) for k, v in ratios.items()}, indent=2) + "\n")
    stored = json.loads(STORED.read_text())
    for name, ratio in ratios.items():
        known = stored.get(name)
        against = f"stored {known:7.1f}, {ratio / known:.2f} of it" if known else "not stored"
        print(f"{name:28} {ratio:7.1f} float passes of CPU; {against}")
    slower = steps_back(ratios, stored)
    for name in slower:
        print(f"slower than {ALLOWED} times what is stored: {name}")
    return int(bool(slower))


def steps_back(ratios: Mapping[str, float], stored: Mapping[str, float]) -> list[str]:
    """Return what got slower by more than is allowed; what is not stored cannot have."""
    return [name for name, ratio in ratios.items() if ratio > ALLOWED * stored.get(name, ratio)]


def measure(configs: Mapping[str, Run], turns: int) -> dict[str, float]:
    """Return the CPU seconds of each configuration, in float passes: the least over turns of each."""
    images, _ = example("calib.npz")
    feeds = [{"input": image[None]} for image in images[:_SAMPLES]]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(example_model(), options)
    floors: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in configs}
    for _ in range(turns):
        floors.append(_cpu(lambda: _passes(session, feeds)) / _PASSES)
        for name, run in configs.items():
            taken[name].append(_cpu(functools.partial(_quantize, feeds, *run)))
    return {name: min(seconds) / min(floors) for name, seconds in taken.items()}


def _quantize(
    feeds: list[dict[str, np.ndarray]], config: lowbit.QuantConfig, target: Target | None
) -> None:
    lowbit.quantize(example_model(), data=feeds, config=config, target=target)


def _passes(session: ort.InferenceSession, feeds: list[dict[str, np.ndarray]]) -> None:
    for _ in range(_PASSES):
        for feed in feeds:
            session.run(None, feed)


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    raise SystemExit(main())
