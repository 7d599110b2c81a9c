"""Weights alone are quantized one at a time: memory does not grow with the number of layers."""

from __future__ import annotations

import os
import pathlib
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lowbit

_SIZE = 384
_WEIGHT = 4 * _SIZE * _SIZE


def _chain(path: pathlib.Path, count: int) -> pathlib.Path:
    """Return a model of so many layers whose weights are in a file beside it."""
    weights = path.with_suffix(".bin")
    random = np.random.default_rng(0)
    constants, nodes = [], []
    with weights.open("wb") as file:
        for index in range(count):
            kept = TensorProto(name=f"w{index}", data_type=1, dims=[_SIZE, _SIZE], data_location=1)
            where = {"location": weights.name, "offset": file.tell(), "length": _WEIGHT}
            for key, value in where.items():
                kept.external_data.add(key=key, value=str(value))
            file.write((random.normal(size=_SIZE**2) / 20).astype(np.float32).tobytes())
            constants.append(kept)
            names = ([f"x{index}", f"w{index}"], [f"m{index}"])
            nodes.append(helper.make_node("MatMul", *names, name=f"layer{index}"))
            nodes.append(helper.make_node("Tanh", [f"m{index}"], [f"x{index + 1}"]))
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", _SIZE])]
        for name in ("x0", f"x{count}")
    ]
    graph = helper.make_graph(nodes, "chain", *ends, constants)
    imports = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def _peak(model: pathlib.Path, preset: str) -> int:
    tracemalloc.start()
    try:
        lowbit.quantize(model, preset=preset)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("preset", ["W8", "W4"])
def test_memory_does_not_grow_with_the_number_of_layers(
    preset: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On several processors as many weights are in work at once; whether they are at their peaks together is chance.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    _peak(_chain(tmp_path / "first.onnx", 2), preset)  # imports and caches of modules
    few = _peak(_chain(tmp_path / "few.onnx", 3), preset)
    many = _peak(_chain(tmp_path / "many.onnx", 12), preset)

    assert many - few < 2 * _WEIGHT
