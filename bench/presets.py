"""Which preset's file each runtime runs, and how near its result is to exact integer arithmetic.

    python -m bench.presets --models example,mobilenet_v2

Writes ``bench/PRESETS.md``. Needs ``lowbit[openvino]``; models are those of ``bench/subjects.py``. Formats alone are asked for:
no equalization, no refinement.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import onnx_ir as ir

import lowbit
from bench.markdown import table
from bench.subjects import Subject, available, subject
from lowbit.config.presets import PRESETS
from lowbit.graph.openvino import RUNTIMES, openvino_session
from lowbit.graph.profiling import saturates_int8
from lowbit.graph.session import Array, Feed, session
from lowbit.version import __version__

_PAGE = pathlib.Path(__file__).with_name("PRESETS.md")
_SAMPLES, _COMPARED = 16, 4
# Better than that is the same but for the order of sums.
_SAME_DB = 60.0


def main() -> None:
    """Run every preset's file in every runtime, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="example")
    # Those of higher accuracy write the same nodes.
    plain = [name for name in PRESETS if not name.endswith("_ACCURATE")]
    parser.add_argument("--presets", default=",".join(plain))
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("bench-work"))
    args = parser.parse_args()
    names = available(args.models.split(","))
    subjects = [subject(name, _SAMPLES, _SAMPLES, args.work) for name in names]
    rows = []
    for preset in args.presets.split(","):
        rows.append((preset, *(cell for known in subjects for cell in _cells(known, preset))))
        print(*rows[-1], sep=" | ", flush=True)
    head = ("preset", *(f"{name}, {runtime}" for name in names for runtime in RUNTIMES))
    kind = "saturate in 16 bits" if saturates_int8() else "do not saturate"
    _PAGE.write_text(
        f"# Presets in runtimes\n\nWritten by `python -m bench.presets` with lowbit {__version__}; do not edit. How near a "
        "default session comes to the same file computed exactly, in dB; *same* is 60 dB and more. The int8 kernels of this "
        f"processor {kind}.\n\n" + table(head, rows),
        encoding="utf-8",
    )


def _cells(known: Subject, preset: str) -> Iterator[str]:
    feeds = [{known.input: np.load(p)} for p in sorted(pathlib.Path(known.samples).glob("*.npy"))]
    config = msgspec.structs.replace(
        PRESETS[preset].config,
        refinement=None,
        keep_only_if_better=False,
        equalization=None,
        smooth_quant=None,
    )
    result = lowbit.quantize(
        known.model, data=feeds, config=config, allow_ruined=True, promote=False, verify=1
    )
    model, some = result.quantized, feeds[:_COMPARED]
    exact = _outputs(model, some, "exact")
    for runtime in RUNTIMES:
        yield _cell(model, some, exact, runtime)


def _cell(model: ir.Model, feeds: Sequence[Feed], exact: Sequence[Array], runtime: str) -> str:
    try:
        return _agreement(exact, _outputs(model, feeds, runtime))
    except lowbit.errors.ModelError as error:
        print(runtime, str(error)[:300])
        return "not run"


def _outputs(model: ir.Model, feeds: Sequence[Feed], runtime: str) -> list[Array]:
    names = [str(value.name) for value in model.graph.outputs]
    if runtime == "openvino":
        with openvino_session(model, threads=1) as there:
            return [np.array(a) for feed in feeds for a in there.run(names, feed)]
    with session(model, threads=1, optimize="none" if runtime == "exact" else "all") as here:
        return [np.array(a) for feed in feeds for a in here.run(names, feed)]


def _agreement(wanted: Sequence[Array], found: Sequence[Array]) -> str:
    pairs = list(zip(wanted, found, strict=True))
    noise = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in pairs)
    signal = sum(float(np.square(a.astype(np.float64)).sum()) for a in wanted)
    decibels = 10 * np.log10(signal / noise) if noise else np.inf
    return "same" if decibels >= _SAME_DB else f"{decibels:.0f} dB"


if __name__ == "__main__":
    main()
