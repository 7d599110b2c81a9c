"""Peak memory of AdaRound at each level of ``mem_opt_level``, by the number of samples.

    python -m bench.tuning_memory                          # the bundled example
    python -m bench.tuning_memory --model mobilenet_v2     # from LOWBIT_ASSETS

Few steps are taken: memory does not depend on how many.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

from bench.process import measure
from bench.subjects import EXAMPLE, Subject, subject

LEVELS = (0, 1, 2)
_CODE = """
import sys, msgspec, lowbit
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaRound
model, samples, level = sys.argv[1:]
refine = None if level == "none" else AdaRound(num_iterations=2, batch_size=2, mem_opt_level=int(level))
config = msgspec.structs.replace(
    find_preset("XINT8"), refinement=refine, keep_only_if_better=False
)
lowbit.quantize(model, "out.onnx", data=samples, config=config)
"""


def main() -> int:
    """Print a table; 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EXAMPLE)
    parser.add_argument("--samples", default="64,256", help="how many, with commas between")
    asked = parser.parse_args()
    counts = [int(word) for word in asked.samples.split(",")]
    print("| samples | calibration alone | " + " | ".join(f"level {n}" for n in LEVELS) + " |")
    print("|---|" + "---|" * (len(LEVELS) + 1))
    failed = False
    with tempfile.TemporaryDirectory() as work:
        for count in counts:
            model = subject(asked.model, count, 1, pathlib.Path(work))
            row = [_peak(model, str(level), pathlib.Path(work)) for level in ("none", *LEVELS)]
            failed |= any(not cell.endswith("MB") for cell in row)
            print(f"| {count} | " + " | ".join(row) + " |", flush=True)
    return int(failed)


def _peak(model: Subject, level: str, folder: pathlib.Path) -> str:
    run = measure([sys.executable, "-c", _CODE, model.model, model.samples, level], folder)
    return run.error or f"{run.peak_mb:.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
