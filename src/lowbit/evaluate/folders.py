"""Results as files: the outputs of a model for each sample, and the similarity of two folders of results."""

from __future__ import annotations

import csv
import math
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lowbit.data import Preprocessing, Tokenization, open_data
from lowbit.errors import DataError, OutputError
from lowbit.evaluate.runner import Outputs, Run, output_names, run_model
from lowbit.files import DAMAGED, check_writable, temporary_folder
from lowbit.graph import io
from lowbit.graph.session import model_inputs
from lowbit.numerics.metrics import similarity


def infer(
    model: Any,
    output: str | os.PathLike[str],
    *,
    data: Any,
    limit: int | None = None,
    preprocessing: Preprocessing | Tokenization | str | None = None,
    fused: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> int:
    """Write the outputs of a model for each sample into a new folder; return how many there are.

    A model of one output gives ``0.npy``, ``1.npy`` and so on; one of several gives ``0.npz`` with
    an array for each, named after it. Quantized models run with exact integer arithmetic;
    ``fused`` runs them through onnxruntime's int8 kernels instead, which saturate on some
    processors.
    """
    folder = pathlib.Path(output)
    _check_folder(folder)
    loaded = io.load(model)
    samples = open_data(data, model_inputs(loaded), preprocessing=preprocessing, limit=limit)
    with temporary_folder(folder.parent) as temporary:
        results = temporary / "results"
        results.mkdir()
        count = 0
        run = Run(
            model=loaded,
            names=output_names(loaded),
            name="the model",
            optimize="all" if fused else "none",
        )
        for outputs in run_model(run, samples):
            _save(results / str(count), outputs)
            progress(count := count + 1)
        _publish(results, folder)
    return count


def _check_folder(folder: pathlib.Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(
            f"the output {folder} exists and is not an empty folder; results of two runs are not "
            "mixed: give a new name, or remove it"
        )
    check_writable(folder.parent / f"{folder.name}.new")


def _save(path: pathlib.Path, arrays: Outputs) -> None:
    if len(arrays) == 1:
        np.save(f"{path}.npy", next(iter(arrays.values())))
    else:
        np.savez(f"{path}.npz", **arrays)  # type: ignore[arg-type]  # names of outputs are free


def _publish(results: pathlib.Path, folder: pathlib.Path) -> None:
    try:
        if folder.exists():
            folder.rmdir()
        shutil.move(results, folder)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error


_IMAGES = frozenset({".jpg", ".jpeg", ".png"})
_ARRAYS = frozenset({".npy", ".npz"})
_SHOWN = 5
_EIGHT_BITS = 255.0
FIGURES = ("cosine", "l2", "psnr", "ssim")
_LARGER_IS_WORSE = frozenset({"l2"})


class FileScore(msgspec.Struct, frozen=True, kw_only=True):
    """The similarity of one result in both folders; ``name`` is ``file.npz:array`` for a part."""

    name: str
    shape: tuple[int, ...]
    cosine: float
    l2: float
    psnr: float
    ssim: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over all files that have it."""

    figure: str
    mean: float
    worst: float
    worst_name: str


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The similarity of the results in two folders."""

    baseline: str
    quantized: str
    files: tuple[FileScore, ...]
    summary: tuple[Summary, ...]

    def to_json(self) -> bytes:
        """Return all figures as JSON; those that are no finite number are null."""
        return msgspec.json.encode(self)

    def to_csv(self) -> str:
        """Return a row for each file."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("name", "shape", *FIGURES))
        for row in self.files:
            shape = "x".join(map(str, row.shape))
            writer.writerow((row.name, shape, *(f"{getattr(row, f):.9g}" for f in FIGURES)))
        return text.getvalue()


def evaluate(baseline: str | os.PathLike[str], quantized: str | os.PathLike[str]) -> Evaluation:
    """Compare the results of the float model with those of the quantized one.

    Files are matched by their names (``.npy``, ``.npz``, ``.jpg``, ``.jpeg``, ``.png``; folders
    inside are gone into). A file that only one folder has, and arrays of unequal shapes, are errors.
    """
    first, second = pathlib.Path(baseline), pathlib.Path(quantized)
    names = _matched(first, second)
    files = tuple(score for name in names for score in _scores(first / name, second / name, name))
    return Evaluation(
        baseline=str(first), quantized=str(second), files=files, summary=_summaries(files)
    )


def _matched(first: pathlib.Path, second: pathlib.Path) -> list[str]:
    names, others = _results(first), _results(second)
    if not names:
        kinds = ", ".join(sorted(_ARRAYS | _IMAGES))
        raise DataError(f"folder {first} holds no results; expected files of kind {kinds}")
    for lacking, has, missing in (
        (second, first, sorted(names - others)),
        (first, second, sorted(others - names)),
    ):
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            raise DataError(
                f"{lacking} lacks {', '.join(missing[:_SHOWN])}{more}, which {has} has; "
                "both folders must hold the results of the same samples"
            )
    return sorted(names, key=_natural)


def _results(folder: pathlib.Path) -> set[str]:
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}; give the folder that holds a model's results")
    kinds = _ARRAYS | _IMAGES
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix.lower() in kinds and path.is_file() and not path.name.startswith(".")
    }


def _natural(name: str) -> tuple[str, int, str]:
    """Return a key that puts 2.npy before 10.npy."""
    path = pathlib.PurePosixPath(name)
    return (str(path.parent), int(path.stem) if path.stem.isdecimal() else -1, path.name)


def _scores(first: pathlib.Path, second: pathlib.Path, name: str) -> Iterator[FileScore]:
    wants, gots = _read(first), _read(second)
    if unequal := sorted(set(wants) ^ set(gots)):
        raise DataError(
            f"{name} holds the arrays {', '.join(wants)} in {first.parent} but "
            f"{', '.join(gots)} in {second.parent}; {unequal[0]!r} is only in one of them"
        )
    is_image = first.suffix.lower() in _IMAGES
    for part, want in wants.items():
        label = f"{name}:{part}" if part else name
        got = gots[part]
        if want.shape != got.shape:
            raise DataError(
                f"{label} has shape {list(want.shape)} in {first.parent} but {list(got.shape)} in "
                f"{second.parent}; were both models given the same samples?"
            )
        if want.dtype.kind not in "fiub" or got.dtype.kind not in "fiub":
            raise DataError(f"{label} is of type {want.dtype} and {got.dtype}; expected numbers")
        found = similarity(want, got, _EIGHT_BITS if is_image else None)
        yield FileScore(
            name=label,
            shape=want.shape,
            cosine=found.cosine,
            l2=found.l2,
            psnr=found.psnr,
            ssim=found.ssim,
        )


def _read(path: pathlib.Path) -> dict[str, NDArray[Any]]:
    try:
        if path.suffix.lower() in _IMAGES:
            return {"": _read_image(path)}
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {key: loaded[key] for key in sorted(loaded.files)}
    except DAMAGED as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _read_image(path: pathlib.Path) -> NDArray[Any]:
    from PIL import Image

    with Image.open(path) as image:
        plain = image if image.mode in {"L", "RGB"} else image.convert("RGB")
        return np.asarray(plain)


def _summaries(files: Sequence[FileScore]) -> tuple[Summary, ...]:
    return tuple(s for s in (_summary(figure, files) for figure in FIGURES) if s is not None)


def _summary(figure: str, files: Sequence[FileScore]) -> Summary | None:
    rows = [row for row in files if not math.isnan(getattr(row, figure))]
    if not rows:
        return None
    sign = -1 if figure in _LARGER_IS_WORSE else 1
    worst = min(rows, key=lambda row: sign * getattr(row, figure))
    return Summary(
        figure=figure,
        mean=float(np.mean([getattr(row, figure) for row in rows])),
        worst=getattr(worst, figure),
        worst_name=worst.name,
    )
