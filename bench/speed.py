"""Time and memory of calibration and of whole runs, as ratios to a plain onnxruntime float pass.

    python bench/speed.py                      # the bundled example
    LOWBIT_ASSETS=... python bench/speed.py    # MobileNetV2 on ImageNet pictures as well
    python bench/speed.py --quark PYTHON --onnxsim PYTHON   # rivals, each in its own environment

All parts of a comparison are measured in one run and in turns, because machines are noisy; the
least of several repeats is reported. Memory is the peak resident size of a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The kernel's high-water mark of this very process: ru_maxrss would include its parent's.
PEAK = "int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024"
METHODS = ("minmax", "percentile", "entropy", "mse")


def load_job(name: str, count: int) -> tuple[str, list[dict[str, np.ndarray]]]:
    """Return the path of a model and ``count`` feeds for it."""
    if name == "example":
        folder = ROOT / "examples" / "cifar10"
        images = np.load(folder / "calib.npz")["images"]
        images = images[np.arange(count) % len(images)]
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        rows = ((images / 255 - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
        return str(folder / "model.onnx"), [{"input": row[None]} for row in rows]
    sys.path.insert(0, os.environ["LOWBIT_ASSETS"])
    import assets

    model = assets.MODELS[name]
    feeds = [{model["input"]: x} for x, _ in assets.imagenet("calib", name, 1, count)]
    return model["path"], feeds


def float_pass(path: str, feeds: list[dict[str, np.ndarray]]) -> float:
    """Return the seconds of one plain pass, session already made."""
    import onnxruntime as ort

    session = ort.InferenceSession(path)
    session.run(None, feeds[0])
    start = time.perf_counter()
    for feed in feeds:
        session.run(None, feed)
    return time.perf_counter() - start


def calibration(path: str, feeds: list[dict[str, np.ndarray]], method: str) -> float:
    """Return the seconds that collecting a method's statistics takes, session included."""
    from lowbit.calibrate.collect import collect
    from lowbit.config.methods import BY_NAME
    from lowbit.config.presets import find_preset
    from lowbit.graph import io
    from lowbit.pipeline import prepare
    from lowbit.plan import make_plan

    config = find_preset("A8W8").with_method(BY_NAME[method]())
    ready = prepare(io.load(path), config)
    plan = make_plan(ready.adapted, config, ready.target)
    start = time.perf_counter()
    collect(ready.observed, plan, feeds, optimise="all")
    return time.perf_counter() - start


def in_process(code: str, python: str = sys.executable) -> dict[str, float]:
    """Run code in a fresh process; return its wall and CPU seconds and peak memory in MB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = float(done.stdout.strip().splitlines()[-1])
    return {"wall": wall, "cpu": cpu, "peak_mb": peak}


def whole_run(name: str, preset: str, count: int, output: str) -> str:
    """Return the code of a whole lowbit run on arrays on disk."""
    return f"""
import lowbit
path, data = {feeds_on_disk(name, count)!r}
lowbit.quantize(path, {output!r}, data=data, preset={preset!r})
print({PEAK})
"""


def quark_run(name: str, preset: str, count: int, output: str) -> str:
    """Return the code of a whole AMD Quark run on the same arrays."""
    return f"""
import pathlib, numpy as np
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config
path, data = {feeds_on_disk(name, count)!r}
files = iter(sorted(pathlib.Path(data).glob("*.npy")))
class Reader:
    def get_next(self):
        file = next(files, None)
        return None if file is None else {{{input_name(name)!r}: np.load(file)}}
config = get_default_config({preset!r})
config.include_cle = False
ModelQuantizer(Config(global_quant_config=config)).quantize_model(path, {output!r}, Reader())
print({PEAK})
"""


def onnxsim_run(name: str, preset: str, count: int, output: str) -> str:
    """Return the code of a whole onnxsim run through its Quark-like front on the same arrays."""
    return f"""
import pathlib, numpy as np
from onnxsim.quark_compat import ModelQuantizer, QConfig
path, data = {feeds_on_disk(name, count)!r}
files = iter(sorted(pathlib.Path(data).glob("*.npy")))
class Reader:
    def get_next(self):
        file = next(files, None)
        return None if file is None else {{{input_name(name)!r}: np.load(file)}}
config = QConfig.get_default_config({preset!r})
config.algo_config = [a for a in config.algo_config if a.name != "cle"]
ModelQuantizer(config).quantize_model(path, {output!r}, Reader())
print({PEAK})
"""


def feeds_on_disk(name: str, count: int) -> tuple[str, str]:
    """Write one file for each feed; return the model's path and the folder's."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"lowbit-bench-{name}-{count}"
    if not folder.exists():
        _, feeds = load_job(name, count)
        folder.mkdir()
        for index, feed in enumerate(feeds):
            np.save(folder / f"{index:05}.npy", next(iter(feed.values())))
    return model_path(name), str(folder)


def model_path(name: str) -> str:
    """Return where the model lies."""
    return load_job(name, 1)[0]


def input_name(name: str) -> str:
    """Return the name of the model's input."""
    return next(iter(load_job(name, 1)[1][0]))


def measure(name: str, repeats: int, samples: int, rivals: dict[str, str]) -> dict[str, object]:
    """Measure one model."""
    path, feeds = load_job(name, samples)
    passes, times = [], {method: [] for method in METHODS}
    for _ in range(repeats):
        passes.append(float_pass(path, feeds))
        for method in METHODS:
            times[method].append(calibration(path, feeds, method))
    floor = min(passes)
    result: dict[str, object] = {
        "model": name,
        "samples": samples,
        "float_pass_seconds": floor,
        "calibration_ratio": {m: min(t) / floor for m, t in times.items()},
    }
    with tempfile.TemporaryDirectory() as folder:
        output = str(pathlib.Path(folder, "out.onnx"))
        runs: dict[str, list[dict[str, float]]] = {}
        for _ in range(repeats):
            for preset in ("A8W8", "XINT8"):
                lowbit = in_process(whole_run(name, preset, samples, output))
                runs.setdefault(f"lowbit {preset}", []).append(lowbit)
                for rival, python in rivals.items():
                    make = quark_run if rival == "quark" else onnxsim_run
                    run = in_process(make(name, preset, samples, output), python)
                    runs.setdefault(f"{rival} {preset}", []).append(run)
        result["whole_runs"] = {
            key: {k: min(run[k] for run in found) for k in found[0]} for key, found in runs.items()
        }
        result["peak_mb_by_samples"] = {
            count: in_process(whole_run(name, "A8W8", count, output))["peak_mb"]
            for count in (16, 64, 256)
        }
    return result


def import_seconds() -> dict[str, float]:
    """Return the seconds `import lowbit` takes beyond `import numpy`."""
    code = "import time, numpy; t = time.perf_counter(); import lowbit; print(time.perf_counter() - t)"
    runs = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(5)
    ]
    return {"import_beyond_numpy": min(runs)}


def main() -> None:
    """Measure what was asked for and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quark", help="python with amd-quark 0.13 installed")
    parser.add_argument("--onnxsim", help="python with onnxsim 0.8.1 installed")
    arguments = parser.parse_args()
    rivals = {k: v for k in ("quark", "onnxsim") if (v := getattr(arguments, k)) is not None}
    names = ["example"]
    if "LOWBIT_ASSETS" in os.environ:
        names.append("mobilenet_v2")
    else:
        print("MobileNetV2 left out: LOWBIT_ASSETS is not set", file=sys.stderr)
    report = {"import": import_seconds(), "cores": os.cpu_count(), "models": []}
    for name in names:
        report["models"].append(measure(name, arguments.repeats, arguments.samples, rivals))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
