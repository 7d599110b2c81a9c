"""How long a graph of a great many nodes takes to plan and to emit, by stage."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import onnx

from bench.synthetic import inputs, residual_chain
from lowbit.api import prepare
from lowbit.calibrate.collect import collect
from lowbit.config.presets import find_preset
from lowbit.emit.emit import emit_qdq
from lowbit.graph import io
from lowbit.planning import make_plan
from lowbit.scales.solve import resolve
from lowbit.scales.stored import nearest

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
    ready = timed("normalize", lambda: prepare(loaded, config))
    plan = timed("plan", lambda: make_plan(ready.adapted, config, ready.target))
    feeds = [{"x": row} for row in inputs(2, _CHANNELS, _SIZE)]
    stats = timed("calibrate", lambda: collect(ready.observed, plan, feeds))
    params = timed("resolve", lambda: resolve(ready.adapted, plan, stats, ready.target))
    weights = timed("round", lambda: nearest(ready.adapted, plan, params))
    quantized = timed("emit", lambda: emit_qdq(ready.adapted, plan, params, weights))
    timed("serialize", lambda: io.to_proto(quantized))
    return found


if __name__ == "__main__":
    size = int(sys.argv[2]) if len(sys.argv) > 2 else NODES
    print(json.dumps(stages(sys.argv[1] if len(sys.argv) > 1 else "XINT8", size), indent=2))
