"""Writing down what every node of a model computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.quark.errors import QuarkDataError
from lowbit.quark.onnx.calibration.data_readers import RandomDataReader


def dump_model(
    model_input: str | Path | onnx.ModelProto,
    dump_data_reader: Any = None,
    random_data_reader_input_shape: Mapping[str, Sequence[int]] | None = None,
    dump_float: bool = False,  # noqa: FBT001, FBT002
    output_dir: str = "./dump_results",
) -> None:
    """Write the tensors that nodes compute for one feed, each as ``.bin`` and ``.txt``.

    Integers (the outputs of QuantizeLinear) are written as they are; everything else only if
    ``dump_float``, under a name that ends in ``_float``.
    """
    reader = dump_data_reader or RandomDataReader(model_input, random_data_reader_input_shape)
    feed = reader.get_next()
    if not feed:
        raise QuarkDataError("dump_data_reader gave no feed; one is needed")
    model = io.load(model_input)
    names = [str(v.name) for node in model.graph for v in node.outputs if v.name]
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with session(model, names, name="the model to dump") as running:
        arrays = running.run(names, feed)
    for name, array in zip(names, arrays, strict=True):
        flat = np.asarray(array).reshape(-1)
        stem = name.replace("/", "_")
        if flat.dtype.kind in "iu":
            _write(folder / stem, flat, "%d")
        elif dump_float:
            _write(folder / f"{stem}_float", flat, "%s")


def _write(path: Path, values: Any, layout: str) -> None:
    values.tofile(path.with_name(f"{path.name}.bin"))
    np.savetxt(path.with_name(f"{path.name}.txt"), values, fmt=layout, delimiter=",")
