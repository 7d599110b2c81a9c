"""States of a run after one of its stages, with nothing of the public functions around them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.graph import io
from lowbit.ops.traits import OPERATORS
from lowbit.pipeline import stages
from lowbit.pipeline.preparing import prepare
from lowbit.state import Calibrated, Loaded, Planned, Prepared, Quantized, Solved
from lowbit.targets.builtin import find_target

Feed = Mapping[str, np.ndarray]


def prepared(model: onnx.ModelProto | ir.Model, config: QuantConfig) -> Prepared:
    """Return a model in its target's operators; it is equalized only where no data is needed."""
    loaded = Loaded(
        loaded=io.load(model) if isinstance(model, onnx.ModelProto) else model,
        samples=None,
        config=config,
        target=find_target(config.target),
        operators=OPERATORS,
    )
    return prepare(stages.transform(stages.normalize(loaded)))


def planned(model: onnx.ModelProto | ir.Model, config: QuantConfig) -> Planned:
    """Return the state with a plan."""
    return stages.plan(prepared(model, config))


def calibrated(
    model: onnx.ModelProto | ir.Model, config: QuantConfig, feeds: Iterable[Feed], **options: Any
) -> Calibrated:
    """Return the state with statistics, those that bias correction reads among them."""
    settings = {"everything": False, "means": True, "progress": lambda _: None, **options}
    return stages.calibrate(planned(model, config), lambda: feeds, **settings)


def solved(model: onnx.ModelProto | ir.Model, config: QuantConfig, feeds: Iterable[Feed]) -> Solved:
    """Return the state with quantization parameters and the nearest integers."""
    return stages.solve(calibrated(model, config, feeds))


def everything_in_integers(folder: pathlib.Path) -> str:
    """Return the path of a target that computes all of an attention network in integers."""
    target = msgspec.structs.replace(find_target("onnxruntime"), float_parts=("masks",))
    path = folder / "target.json"
    path.write_bytes(msgspec.json.encode(target))
    return str(path)


def quantized(
    model: onnx.ModelProto | ir.Model, config: QuantConfig, feeds: Iterable[Feed]
) -> Quantized:
    """Return the state with the quantized graph, before any refinement."""
    return stages.emit(solved(model, config, feeds))


def random_feeds(
    model: onnx.ModelProto, count: int = 3, size: float = 1.0, seed: int = 1
) -> list[dict[str, np.ndarray]]:
    """Return normally distributed inputs of a model whose shapes are all known."""
    rng = np.random.default_rng(seed)

    def array(value: onnx.ValueInfoProto) -> np.ndarray:
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        return (rng.normal(size=dims) * size).astype(np.float32)

    return [{value.name: array(value) for value in model.graph.input} for _ in range(count)]


def outputs_of(
    run: Callable[[Sequence[str], Feed], list[np.ndarray]], name: str, feeds: Iterable[Feed]
) -> list[np.ndarray]:
    """Return one output of every sample."""
    return [run([name], feed)[0] for feed in feeds]
