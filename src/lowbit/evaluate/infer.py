"""Run a model over data and keep what it gives, a file for each sample."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from lowbit.data import Preprocessing, open_data
from lowbit.errors import OutputError
from lowbit.graph import io
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed, session
from lowbit.parallel import ordered_map
from lowbit.pipeline.preparing import model_inputs


def infer(
    model: Any,
    output: str | os.PathLike[str],
    *,
    data: Any,
    limit: int | None = None,
    preprocessing: Preprocessing | str | None = None,
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
    names = [tensor_name(value) for value in loaded.graph.outputs]
    samples = open_data(data, model_inputs(loaded), preprocessing=preprocessing, limit=limit)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".lowbit-") as temporary:
        results = pathlib.Path(temporary, "results")
        results.mkdir()
        count = 0
        with session(loaded, threads=1, optimize="all" if fused else "none") as running:

            def work(feed: Feed) -> list[Array]:
                return running.run(names, feed)

            for arrays in ordered_map(work, iter(samples), os.cpu_count() or 1):
                _save(results / str(count), dict(zip(names, arrays, strict=True)))
                progress(count := count + 1)
        _publish(results, folder)
    return count


def _check_folder(folder: pathlib.Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(
            f"the output {folder} exists and is not an empty folder; results of two runs are not "
            "mixed: give a new name, or remove it"
        )
    io.check_writable(folder.parent / f"{folder.name}.new")


def _save(path: pathlib.Path, arrays: dict[str, Array]) -> None:
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
