"""Whether U8S8_PERCHANNEL files are safe on x86 processors without VNNI, on one that is emulated.

    apt-get install qemu-user                               # 7.2 or later, which knows AVX2
    python -m bench.emulated                                # the bundled example
    python -m bench.emulated --model mobilenet_v2           # from LOWBIT_ASSETS; a second or two an image

Prints the SQNR of two files in default sessions: one as the preset writes it, and one whose weights have all 8
bits, which must be bad there, or the processor does not saturate and nothing is shown. OpenVINO, if it is
installed, is told to leave VNNI alone (``ONEDNN_MAX_CPU_ISA``), which needs no emulation.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import msgspec
import numpy as np

import lowbit
from bench.markdown import number, table
from bench.subjects import EXAMPLE, Subject, subject
from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset

_EMULATOR, _PROCESSOR, _PRESET = "qemu-x86_64", "Haswell", "U8S8_PERCHANNEL"
_HERE = ("here, onnxruntime", "onnxruntime", False)
_EMULATED = (
    ("emulated, onnxruntime", "onnxruntime", True),
    ("emulated, onnxruntime, exact", "exact", True),
)
_OPENVINO = ("AVX2, OpenVINO", "openvino", False)

_CODE = """
import sys
import numpy as np
runtime, model, images, output = sys.argv[1:]
if runtime == "openvino":
    import openvino
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(model, "CPU", options)
    run = lambda x: compiled([x])[0]
else:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1" if runtime == "exact" else "0")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    run = lambda x: session.run(None, {session.get_inputs()[0].name: x})[0]
np.save(output, np.stack([np.array(run(x)) for x in np.load(images)[:, None]]))
"""


def main() -> int:
    """Print a table; 1 if a file is not what it is to be, 2 if there is no emulator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EXAMPLE)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--images", type=int, default=16)
    asked = parser.parse_args()
    if missing := missing_emulator():
        print(missing, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        known = subject(asked.model, asked.samples, asked.images, folder)
        found = measured(known, folder)
    print(table(["weights", *found["safe"]], [_row(name, found[name]) for name in found]))
    saturates = found["8 bits"][_EMULATED[0][0]] < found["8 bits"][_EMULATED[1][0]] - 3
    if not saturates:
        print("the emulated processor does not saturate: nothing is shown", file=sys.stderr)
    lost = found["safe"][_HERE[0]] - min(found["safe"].values())
    return int(not saturates or lost > 1)


def missing_emulator() -> str:
    """Return what is missing to emulate a processor, and how to get it; nothing if it is there."""
    if shutil.which(_EMULATOR):
        return ""
    return f"{_EMULATOR} is not installed, so no other processor can be emulated: apt-get install qemu-user"


def measured(known: Subject, folder: pathlib.Path) -> dict[str, dict[str, float]]:
    """Return the SQNR of each file in each kind of session, in decibels."""
    places = [_HERE, *_EMULATED]
    places += [_OPENVINO] if importlib.util.find_spec("openvino") else []
    want = outputs(known.model, known.images, "onnxruntime", folder)
    found = {}
    for name, config in configurations().items():
        file = str(folder / "quantized.onnx")
        lowbit.quantize(known.model, file, data=known.samples, config=config)
        found[name] = {
            title: sqnr(want, outputs(file, known.images, runtime, folder, emulated=emulated))
            for title, runtime, emulated in places
        }
    return found


def configurations() -> dict[str, QuantConfig]:
    """Return the preset, and the same with weights of all 8 bits."""
    safe, replace = find_preset(_PRESET), msgspec.structs.replace
    full = replace(safe, weight=replace(safe.weight, saturation_free=False))
    return {"safe": safe, "8 bits": full}


def outputs(
    model: str, images: str, runtime: str, folder: pathlib.Path, *, emulated: bool = False
) -> np.ndarray:
    """Return what a model gives for each image, in a process of its own."""
    output = folder / "outputs.npy"
    command = [*emulator(emulated=emulated), sys.executable, "-c", _CODE]
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [*command, runtime, model, images, str(output)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{runtime} failed: {done.stderr[-2000:]}")
    return np.load(output)


def emulator(*, emulated: bool) -> Sequence[str]:
    """Return what a command begins with to run on the emulated processor, or here."""
    return (_EMULATOR, "-cpu", _PROCESSOR) if emulated else ()


def sqnr(want: np.ndarray, got: np.ndarray) -> float:
    """Return the SQNR over all outputs of all images, in decibels."""
    want = want.astype(np.float64)
    return float(10 * np.log10(np.square(want).sum() / np.square(want - got).sum()))


def _row(name: str, found: dict[str, float]) -> list[str]:
    return [name, *(f"{number(value, 1)} dB" for value in found.values())]


if __name__ == "__main__":
    sys.exit(main())
