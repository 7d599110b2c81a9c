"""How long a graph of a great many nodes takes to plan and to emit, by stage."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import onnx

from bench.synthetic import inputs, residual_chain
from lowbit.config.presets import find_preset
from lowbit.graph import io
from lowbit.ops.traits import OPERATORS
from lowbit.pipeline import stages as pipeline
from lowbit.pipeline.preparing import prepare
from lowbit.state import Loaded
from lowbit.targets.builtin import find_target

NODES = 20_000
_CHANNELS = _SIZE = 4


def stages(preset: str, nodes: int = NODES) -> dict[str, dict[str, float]]:
    """Return wall and processor seconds of each stage on a chain of Conv, Relu and Add."""
    found: dict[str, dict[str, float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        found[name] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        return result

    proto = onnx.load_from_string(residual_chain(nodes // 3, _CHANNELS, _SIZE))
    config = find_preset(preset)
    loaded = timed("load", lambda: io.load(proto))
    state: Any = Loaded(
        loaded=loaded,
        samples=None,
        config=config,
        target=find_target(config.target),
        operators=OPERATORS,
    )
    for work in (pipeline.normalize, pipeline.transform, prepare, pipeline.plan):
        state = timed(work.__name__, functools.partial(work, state))
    feeds = [{"x": row} for row in inputs(2, _CHANNELS, _SIZE)]
    calibrate = functools.partial(
        pipeline.calibrate,
        state,
        lambda: feeds,
        everything=False,
        means=False,
        progress=lambda _: None,
    )
    state = timed("calibrate", calibrate)
    for work in (pipeline.solve, pipeline.emit):
        state = timed(work.__name__, functools.partial(work, state))
    timed("serialize", lambda: io.to_proto(state.emitted.model))
    return found


if __name__ == "__main__":
    size = int(sys.argv[2]) if len(sys.argv) > 2 else NODES
    print(json.dumps(stages(sys.argv[1] if len(sys.argv) > 1 else "XINT8", size), indent=2))
