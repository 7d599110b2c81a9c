"""How time and memory grow: with samples, with depth, with the size of tensors."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.jobs import JOBS, LOWBIT, Job
from bench.rounds import Bench
from bench.subjects import EXAMPLE, Subject, made, subject
from bench.synthetic import inputs, residual_chain

SAMPLES = (16, 32, 64, 128, 256, 512)
BLOCKS = (8, 16, 32, 64, 128)
SIZES = (32, 64, 128, 256, 512)
_COUNT, _CHANNELS = 16, 8

AXES = {
    "samples": "samples to calibrate on (bundled example)",
    "depth": f"blocks of Conv, Relu, Add ({_CHANNELS} channels, 32 x 32, {_COUNT} samples)",
    "size": f"height and width of every tensor (8 blocks, {_CHANNELS} channels, {_COUNT} samples)",
}
CURVES = (
    ("xint8", LOWBIT, "lowbit, Quark's XINT8"),
    ("native-xint8", LOWBIT, "lowbit's own XINT8, reconstructed"),
    ("xint8", "quark", "AMD Quark, XINT8"),
)


def points(axis: str, work: pathlib.Path) -> Iterable[tuple[int, Subject]]:
    """Yield the models of one picture, smallest first."""
    if axis == "samples":
        for count in SAMPLES:
            yield count, subject(EXAMPLE, count, 100, work)
    values = {"depth": [(n, 32) for n in BLOCKS], "size": [(8, n) for n in SIZES]}
    for blocks, size in values.get(axis, ()):
        name = f"chain-{blocks}-{size}"
        rows = inputs(_COUNT, _CHANNELS, size)
        chain = made(name, residual_chain(blocks, _CHANNELS, size), rows, work)
        yield (blocks if axis == "depth" else size), chain


def grow(bench: Bench, axis: str) -> list[dict[str, Any]]:
    """Measure every point of every curve of one picture once."""
    records = []
    for value, model in points(axis, bench.work):
        for job, tool, _ in CURVES:
            if tool in bench.pythons:
                records.append(_point(bench, axis, value, model, JOBS[job], tool))
        print(f"growth by {axis}: {value} done", flush=True)
    return records


def _point(
    bench: Bench, axis: str, value: int, model: Subject, job: Job, tool: str
) -> dict[str, Any]:
    record = bench.quantize(model, job, tool, 0)
    kept = {key: record[key] for key in ("job", "tool", "wall", "cpu", "peak_mb", "load", "error")}
    return {"axis": axis, "value": value, **kept}


def images(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the file name of the picture of each axis that there are figures of."""
    return {
        axis: f"growth-{axis}.svg"
        for axis in AXES
        if any(r["axis"] == axis and not r["error"] for r in records)
    }


def draw(records: Sequence[Mapping[str, Any]], folder: pathlib.Path) -> None:
    """Draw one picture for each axis there are figures of."""
    for axis, name in images(records).items():
        own = [r for r in records if r["axis"] == axis and not r["error"]]
        _picture(own, axis, folder / name)


def _picture(records: Sequence[Mapping[str, Any]], axis: str, path: pathlib.Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    # The same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = axis
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for plot, key, label in (
        (left, "cpu", "seconds of CPU"),
        (right, "peak_mb", "peak memory, MB"),
    ):
        _curves(plot, records, lambda r, key=key: r[key])
        plot.set(xscale="log", xlabel=AXES[axis], ylabel=label)
        plot.set_ylim(bottom=0)
        ticks = sorted({r["value"] for r in records})
        plot.set_xticks(ticks, [str(tick) for tick in ticks])
        plot.minorticks_off()
        plot.xaxis.label.set_size(8)
        plot.grid(alpha=0.3)
    left.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _curves(
    plot: Any, records: Sequence[Mapping[str, Any]], figure: Callable[[Mapping[str, Any]], float]
) -> None:
    for job, tool, label in CURVES:
        own = sorted(
            (r for r in records if (r["job"], r["tool"]) == (job, tool)), key=lambda r: r["value"]
        )
        if own:
            plot.plot([r["value"] for r in own], [figure(r) for r in own], marker="o", label=label)
